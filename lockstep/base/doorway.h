// A unix socket at which others knock. At the limit of open files whoever comes is turned away at once: left at the
// door he would knock for ever, and keep the thread there.
//
//   LS_ASSIGN_OR_RETURN(doorway_, Doorway::Open(path));
//   poller.Watch(doorway_.fd(), [&] { if (Fd guest = doorway_.Accept(); guest.valid()) ... });
#pragma once

#include <string>

#include "lockstep/base/file.h"
#include "lockstep/base/status.h"

namespace lockstep {

class Doorway {
 public:
  // Listens at path, as ListenAt.
  static absl::StatusOr<Doorway> Open(const std::string& path);
  Doorway() = default;
  int fd() const { return socket_.get(); }
  // Whoever knocks, non-blocking. None: nobody did, or he was turned away, of which a first one is told in the log.
  Fd Accept();

 private:
  Doorway(std::string path, Fd socket);
  void TurnAway(int error);

  std::string path_;
  Fd socket_;
  Fd spare_;  // given up for as long as it takes to turn somebody away
  bool is_full_ = false;
};

}  // namespace lockstep
