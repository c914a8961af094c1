// Work on a disk, which may hang: in a detached thread, for a hung disk can hold a thread for ever. Such a thread keeps
// nothing alive but what its work has captured, and delays no exit.
//
//   Flight flight([files, ...](const checkpoint::GoOn& go_on) { return store.WritePart(...); });
//   if (flight.finished()) ... flight.status()
//   flight.GiveUp();                                    // go_on() answers no from now on
#pragma once

#include <functional>
#include <memory>

#include "lockstep/base/status.h"
#include "lockstep/checkpoint/disk.h"

namespace lockstep::agent {

class Flight {
 public:
  using Work = std::function<absl::Status(const checkpoint::GoOn& go_on)>;

  explicit Flight(Work work);
  Flight(Flight&&) = default;
  Flight& operator=(Flight&&) = default;
  ~Flight() { GiveUp(); }

  void GiveUp();
  bool finished() const;
  // Valid once finished.
  const absl::Status& status() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // with the thread, which may outlive us
};

}  // namespace lockstep::agent
