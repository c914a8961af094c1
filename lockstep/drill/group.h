// A control group made for one drill, v1 or v2, beside or below the group in which the process was. The destructor
// lifts the limit, moves whoever is in it back, and removes it. For root only. Invariant: no group outlives the drill
// that made it, except one that was killed; the next drill removes such a one.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>

#include "lockstep/base/status.h"

namespace lockstep::drill {

enum class Controller { kFreezer, kCpu };

class Group {
 public:
  // FailedPrecondition: this machine has no such controller, or it is not ours to use.
  static absl::StatusOr<std::unique_ptr<Group>> Make(Controller controller, pid_t pid);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  absl::Status Freeze();
  // `share` percent of one processor for all that is in the group.
  absl::Status Limit(int share);

 private:
  Group(std::string path, std::string home, bool unified)
      : path_(std::move(path)), home_(std::move(home)), unified_(unified) {}
  static void RemoveStale(const std::string& parent, bool unified);
  absl::Status Write(const std::string& file, const std::string& text);
  absl::Status Take(pid_t pid);
  void Lift();
  void Empty();

  std::string path_, home_;
  bool unified_;
  pid_t pid_ = 0;
  bool frozen_ = false;
};

}  // namespace lockstep::drill
