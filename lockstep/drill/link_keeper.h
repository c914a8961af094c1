// A process of its own that cuts off a node and joins it again when its standard input ends: however the drill ends,
// the links come back. Only `lockstep cut-link PID` itself being killed leaves them down.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>

#include "lockstep/base/file.h"
#include "lockstep/base/status.h"

namespace lockstep::drill {

class LinkKeeper {
 public:
  // Runs `binary cut-link PID` and waits until the links of that process's network namespace are down.
  // FailedPrecondition: it is the whole machine's.
  static absl::StatusOr<std::unique_ptr<LinkKeeper>> Start(pid_t pid, const std::string& binary);
  ~LinkKeeper();
  LinkKeeper(const LinkKeeper&) = delete;
  LinkKeeper& operator=(const LinkKeeper&) = delete;
  // Waits until the links are up. An error says what could not be brought back. Call once.
  absl::Status End();

 private:
  LinkKeeper(pid_t pid, Fd orders, Fd answers) : pid_(pid), orders_(std::move(orders)), answers_(std::move(answers)) {}
  absl::Status Answer();

  pid_t pid_;
  Fd orders_, answers_;
};

// The keeper's side. Returns the exit status.
int LinkKeeperMain(pid_t pid);

}  // namespace lockstep::drill
