#include "lockstep/base/doorway.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/base/packets.h"

namespace lockstep {
namespace {

Fd Spare() { return Fd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

absl::StatusOr<Doorway> Doorway::Open(const std::string& path) {
  LS_ASSIGN_OR_RETURN(Fd socket, ListenAt(path));
  return Doorway(path, std::move(socket));
}

Doorway::Doorway(std::string path, Fd socket) : path_(std::move(path)), socket_(std::move(socket)), spare_(Spare()) {}

Fd Doorway::Accept() {
  Fd guest(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (guest.valid()) {
    is_full_ = false;
  } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
    TurnAway(errno);
  }
  return guest;
}

void Doorway::TurnAway(int error) {
  if (!std::exchange(is_full_, true))
    Log(LogLevel::kError, "{}: nobody can come in: {}; raise `ulimit -n`", path_, strerror(error));
  spare_.Close();
  const bool turned_away = Fd(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC)).valid();
  spare_ = Spare();
  if (!turned_away) usleep(10'000);  // somebody else was faster
}

}  // namespace lockstep
