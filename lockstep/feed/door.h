// The socket of a data service: who comes, what each says, and when one is gone: by the end of its socket, or of its
// process (a child that it left behind may hold the socket open). All of it in the poller's thread.
//
//   LS_ASSIGN_OR_RETURN(std::unique_ptr<Door> door, Door::Open(path, poller));
//   door->Listen({.said = [](int guest, Packet packet) { ... }, .left = [](int guest) { ... }});
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/base/doorway.h"
#include "lockstep/base/packets.h"
#include "lockstep/base/poller.h"
#include "lockstep/base/report.h"

namespace lockstep::feed {

using FileIdentity = std::pair<dev_t, ino_t>;

class Door {
 public:
  struct Listener {
    // A guest is known by its socket, which is open until `left` has returned.
    std::function<void(int guest, Packet packet)> said;
    std::function<void(int guest)> left;
  };

  // Refuses a socket at which somebody answers; one that a service which was killed has left is replaced. Of several
  // that open it at once, one does.
  static absl::StatusOr<std::unique_ptr<Door>> Open(const std::string& path, Poller& poller);
  // Sends everybody away.
  ~Door();

  void Listen(Listener listener) { listener_ = std::move(listener); }
  pid_t ProcessOf(int guest) const;
  // Also where nobody has been told of it yet.
  bool IsGone(int guest) const;
  void SendAway(int guest);

 private:
  struct Guest {
    Fd socket, process;  // a pidfd, where there is one
    pid_t pid = 0;
  };

  Door(std::string path, Doorway doorway, Poller& poller);
  void Accept();
  void Receive(int guest);

  const std::string path_;
  const FileIdentity file_;  // of the socket that it has made there
  Doorway doorway_;
  Poller& poller_;
  Listener listener_;
  std::map<int, Guest> guests_;
};

// The document of `lockstep feed status`, as the service at this socket gives it.
absl::StatusOr<Json> AskStatus(const std::string& path);

}  // namespace lockstep::feed
