#include "lockstep/agent/joining.h"

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/agent/wire.h"

namespace lockstep::agent {

absl::Status Joining::Listen(const std::string& run_dir) {
  LS_ASSIGN_OR_RETURN(doorway_, Doorway::Open(run_dir + "/" + LS_JOIN_SOCKET));
  poller_.Watch(doorway_.fd(), [this] { Accept(); });
  return absl::OkStatus();
}

void Joining::Accept() {
  Fd fd = doorway_.Accept();
  if (!fd.valid()) return;
  const int number = fd.get();
  workers_[number] = std::move(fd);
  poller_.Watch(number, [this, number] { Hear(number); });
}

void Joining::Hear(int fd) {
  const std::optional<Packet> packet = ReceivePacket(fd);
  if (!packet) return;
  ls_join_message request{};
  if (packet->closed || packet->text.size() != sizeof(request)) {
    poller_.Forget(fd);
    workers_.erase(fd);
    return;
  }
  std::memcpy(&request, packet->text.data(), sizeof(request));
  std::vector<int> fds;
  const pid_t peer = PeerOf(fd);
  const bool is_worker = listener_.is_worker(peer, request.rank);
  const ls_join_message reply = buffers_.Answer(request, fds, peer, is_worker);
  (void)SendPacket(fd, {reinterpret_cast<const char*>(&reply), sizeof(reply)}, fds);
  if (reply.kind == LS_JOIN_REFUSED) return listener_.refused(request, reply.text);
  listener_.answered(request);
}

}  // namespace lockstep::agent
