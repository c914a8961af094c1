#include "lockstep/agent/restartable_ranks.h"

#include <nlohmann/json.hpp>

#include "lockstep/agent/wire.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/report.h"

namespace lockstep::agent {

absl::Status RestartableRanks::Listen(const std::string& run_dir) {
  LS_ASSIGN_OR_RETURN(doorway_, Doorway::Open(run_dir + "/standby.sock"));
  poller_.Watch(doorway_.fd(), [this] { Accept(); });
  return absl::OkStatus();
}

void RestartableRanks::Accept() {
  Fd socket = doorway_.Accept();
  const pid_t pid = socket.valid() ? PeerOf(socket.get()) : 0;
  if (pid == 0) return;
  Forget(pid);  // it came anew
  const int fd = socket.get();
  members_[pid] = {std::move(socket), State::kTrains};
  poller_.Watch(fd, [this, pid] { Hear(pid); });
}

void RestartableRanks::Hear(pid_t pid) {
  Member& member = members_.at(pid);
  const std::optional<Packet> packet = ReceivePacket(member.socket.get());
  if (!packet) return;
  if (packet->closed) {
    Forget(pid);
  } else if (member.state == State::kAsked) {  // it says one thing only
    member.state = State::kWaits;
  }
  changed_();
}

void RestartableRanks::Forget(pid_t pid) {
  const auto member = members_.find(pid);
  if (member == members_.end()) return;
  poller_.Forget(member->second.socket.get());
  members_.erase(member);
}

bool RestartableRanks::Recall(pid_t pid) {
  const auto member = members_.find(pid);
  if (member == members_.end()) return false;
  if (member->second.state != State::kTrains) return true;
  if (!SendPacket(member->second.socket.get(), R"({"op":"leave"})").ok()) return false;
  member->second.state = State::kAsked;
  return true;
}

bool RestartableRanks::Waits(pid_t pid) const {
  const auto member = members_.find(pid);
  return member != members_.end() && member->second.state == State::kWaits;
}

absl::Status RestartableRanks::Enter(pid_t pid, const Environment& environment, const Stdio& stdio) {
  if (!Waits(pid)) return Unavailable("process {} does not wait", pid);
  Member& member = members_.at(pid);
  const Json request = {{"op", "enter"}, {"env", environment}};
  const int fds[] = {stdio.out.get(), stdio.err.get()};
  LS_RETURN_IF_ERROR(SendPacket(member.socket.get(), OneLine(request), fds));
  member.state = State::kTrains;
  return absl::OkStatus();
}

}  // namespace lockstep::agent
