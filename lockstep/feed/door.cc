#include "lockstep/feed/door.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/json_at.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/log.h"

namespace lockstep::feed {
namespace {

constexpr int kAnswerMs = 5000;

FileIdentity IdentityOf(const struct stat& info) { return {info.st_dev, info.st_ino}; }
FileIdentity IdentityOf(int fd) {
  struct stat info{};
  return fstat(fd, &info) == 0 ? IdentityOf(info) : FileIdentity{};
}
FileIdentity IdentityOf(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 ? IdentityOf(info) : FileIdentity{};
}

// Of who looks at a socket's path and changes it. Its file goes with the last who wants it.
class PathLock {
 public:
  explicit PathLock(const std::string& socket) : path_(socket + ".lock") {
    do {
      file_ = Fd(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    } while (file_.valid() && Lock() && IdentityOf(file_.get()) != IdentityOf(path_));
  }
  ~PathLock() {
    if (file_.valid()) unlink(path_.c_str());
  }
  PathLock(const PathLock&) = delete;

  absl::Status status() const { return file_.valid() ? absl::OkStatus() : Errno(errno, "{}", path_); }

 private:
  bool Lock() {
    while (flock(file_.get(), LOCK_EX) != 0)
      if (errno != EINTR) file_.Close();
    return file_.valid();
  }

  const std::string path_;
  Fd file_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Door>> Door::Open(const std::string& path, Poller& poller) {
  const PathLock lock(path);
  LS_RETURN_IF_ERROR(lock.status());
  if (const absl::StatusOr<Fd> other = ConnectTo(path); other.ok())
    return FailedPrecondition("{}: in use by process {}; stop that, or choose another --socket", path,
                              PeerOf(other->get()));
  struct stat info{};
  if (stat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode))
    return FailedPrecondition("{}: there is a file of that name which is no socket; choose another --socket", path);
  LS_ASSIGN_OR_RETURN(Doorway doorway, Doorway::Open(path));
  return std::unique_ptr<Door>(new Door(path, std::move(doorway), poller));
}

Door::Door(std::string path, Doorway doorway, Poller& poller)
    : path_(std::move(path)), file_(IdentityOf(path_)), doorway_(std::move(doorway)), poller_(poller) {
  poller_.Watch(doorway_.fd(), [this] { Accept(); });
}

Door::~Door() {
  while (!guests_.empty()) SendAway(guests_.begin()->first);
  poller_.Forget(doorway_.fd());
  const PathLock lock(path_);
  if (IdentityOf(path_) == file_) unlink(path_.c_str());  // else it is another service's by now
}

void Door::Accept() {
  Fd socket = doorway_.Accept();
  if (!socket.valid()) return;
  const int fd = socket.get();
  Guest guest{std::move(socket), Fd(), PeerOf(fd)};
  if (guest.pid > 0) guest.process = Fd(static_cast<int>(syscall(SYS_pidfd_open, guest.pid, 0)));
  if (guest.process.valid()) poller_.Watch(guest.process.get(), [this, fd] { SendAway(fd); });
  guests_.emplace(fd, std::move(guest));
  poller_.Watch(fd, [this, fd] { Receive(fd); });
}

void Door::Receive(int guest) {
  if (!guests_.contains(guest)) return;
  std::optional<Packet> packet = ReceivePacket(guest);
  if (!packet) return;
  if (packet->closed) return SendAway(guest);
  listener_.said(guest, *std::move(packet));
}

void Door::SendAway(int guest) {
  const auto found = guests_.find(guest);
  if (found == guests_.end()) return;
  poller_.Forget(guest);
  if (found->second.process.valid()) poller_.Forget(found->second.process.get());
  listener_.left(guest);
  guests_.erase(found);
}

pid_t Door::ProcessOf(int guest) const {
  const auto found = guests_.find(guest);
  return found == guests_.end() ? 0 : found->second.pid;
}

bool Door::IsGone(int guest) const {
  const auto found = guests_.find(guest);
  if (found == guests_.end()) return true;
  pollfd ends[] = {{guest, POLLRDHUP, 0}, {found->second.process.get(), POLLIN, 0}};  // a negative one is passed over
  return poll(ends, std::size(ends), 0) > 0;
}

absl::StatusOr<Json> AskStatus(const std::string& path) {
  const absl::StatusOr<Fd> socket = ConnectTo(path);
  if (!socket.ok())
    return NotFound("{}: no data service answers; start one with `lockstep feed serve --data DIR`", path);
  LS_RETURN_IF_ERROR(SendPacket(socket->get(), R"({"op":"status"})"));
  const absl::StatusOr<Packet> packet = AwaitPacket(socket->get(), kAnswerMs);
  if (!packet.ok()) return Unavailable("{}: {}", path, Message(packet.status()));
  const absl::StatusOr<std::string> text = TextOf(*packet);
  if (!text.ok()) return Unavailable("{}: {}", path, Message(text.status()));
  Json report = ParseJson(*text);
  if (!report.is_object()) return Unavailable("{}: the service gave no answer", path);
  if (const std::string error = TextAt(report, "error"); !error.empty()) return Unavailable("{}: {}", path, error);
  return report;
}

}  // namespace lockstep::feed
