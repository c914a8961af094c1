#include "lockstep/agent/agent_port.h"

#include <fcntl.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace lockstep::agent {
namespace {

constexpr size_t kMaxQueuedEvents = 10000;

}  // namespace

AgentPort::AgentPort(Poller& poller, const Clock& clock, Calls calls)
    : poller_(poller), clock_(clock), calls_(std::move(calls)), seen_(clock.Now()) {}

absl::Status AgentPort::Listen(const std::string& path) {
  LS_ASSIGN_OR_RETURN(doorway_, Doorway::Open(path));
  poller_.Watch(doorway_.fd(), [this] { Accept(); });
  return absl::OkStatus();
}

void AgentPort::Accept() {
  Fd fd = doorway_.Accept();
  if (!fd.valid()) return;
  if (fd_.valid()) poller_.Forget(fd_.get());
  fd_ = std::move(fd);
  queue_.clear();
  poller_.Watch(fd_.get(), [this] { Hear(); });
  calls_.connected();
}

void AgentPort::Hear() {
  std::optional<Packet> packet = ReceivePacket(fd_.get());
  if (!packet) return;
  if (packet->closed) {
    poller_.Forget(fd_.get());
    fd_.Close();
    seen_ = clock_.Now();
    calls_.left();
    return calls_.waiting();
  }
  const auto request = nlohmann::json::parse(packet->text, nullptr, false);
  if (request.is_object()) calls_.asked(request, packet->fds);
}

Nanos AgentPort::Missed() const { return connected() ? Nanos{} : clock_.Now() - seen_; }

void AgentPort::Tell(const nlohmann::json& event, std::vector<int> fds) {
  if (!fd_.valid()) return;
  const std::string text = event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (queue_.empty() && SendPacket(fd_.get(), text, fds).ok()) return;
  if (queue_.size() < kMaxQueuedEvents) {
    Waiting& waiting = queue_.emplace_back(Waiting{text, {}});
    for (const int given : fds)
      if (Fd own(fcntl(given, F_DUPFD_CLOEXEC, 0)); own.valid()) waiting.fds.push_back(std::move(own));
  }
  calls_.waiting();
}

void AgentPort::Flush() {
  while (!queue_.empty() && fd_.valid()) {
    std::vector<int> fds;
    for (const Fd& one : queue_.front().fds) fds.push_back(one.get());
    const absl::Status sent = SendPacket(fd_.get(), queue_.front().text, fds);
    if (!sent.ok() && !absl::IsInvalidArgument(sent)) return;  // what is too large would stop the rest for good
    queue_.pop_front();
  }
}

void AgentPort::TellOutput(int rank, int stream, std::string_view data) {
  if (!fd_.valid()) {
    if (unheard_since_.value == 0) unheard_since_ = clock_.WallNow();
    return;
  }
  std::string packet = "O" + std::to_string(stream);
  packet.append(reinterpret_cast<const char*>(&rank), sizeof(rank));
  packet.append(data);
  if (!SendPacket(fd_.get(), packet).ok()) dropped_output_ += data.size();
}

}  // namespace lockstep::agent
