#include "lockstep/top/channel.h"

#include <nlohmann/json.hpp>

#include "lockstep/agent/wire.h"
#include "lockstep/base/json_text.h"

namespace lockstep::top {

Channel::Channel(Poller& poller, std::string socket, std::function<void(Json)> answered)
    : poller_(poller), path_(std::move(socket)), answered_(std::move(answered)) {}

absl::Status Channel::Ask(const Json& question) {
  if (waiting_) return absl::OkStatus();
  if (!socket_.valid()) {
    LS_ASSIGN_OR_RETURN(socket_, agent::ConnectTo(path_));
    poller_.Watch(socket_.get(), [this] { Hear(); });
  }
  const absl::Status sent = agent::SendPacket(socket_.get(), OneLine(question));
  if (!sent.ok()) Close();
  waiting_ = sent.ok();
  return sent;
}

void Channel::Hear() {
  const std::optional<agent::Packet> packet = agent::ReceivePacket(socket_.get());
  if (!packet) return;
  if (packet->closed) return Close();
  waiting_ = false;
  Json answer = ParseJson(TextOf(*packet).value_or(""));
  if (!answer.is_discarded()) answered_(std::move(answer));
}

void Channel::Close() {
  if (socket_.valid()) poller_.Forget(socket_.get());
  socket_.Close();
  waiting_ = false;
}

}  // namespace lockstep::top
