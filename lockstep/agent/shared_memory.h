// Shared memory that the workers of an epoch may leave behind: noticed while they live, removed when all are dead.
#pragma once

#include <sys/types.h>

#include <functional>
#include <set>
#include <string>
#include <utility>

#include "lockstep/agent/workers.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/poller.h"

namespace lockstep::agent {

// A file is known by who has it mapped, so looking must be soon after it is made; but looking reads all maps of all
// workers, and a data loader may make hundreds of files a second: once a second at most.
class SharedMemory {
 public:
  SharedMemory(Poller& poller, const Clock& clock, const Workers& workers);
  // Of new files. `noticed` is called when there is one; where nothing can be watched, Collect always looks.
  void Watch(std::function<void()> noticed);
  // Before the epoch's first worker: what lies there now, a data set say, stays.
  void Begin();
  // A file is new since the last look at who has it.
  bool pending() const { return new_; }
  // Looks, if that is due.
  void Tick();
  // Looks, if any file was ever made: the workers are about to be killed.
  void Collect();
  // Removes those of the files seen, and of the files with a dead worker's pid in their name, that came since Begin and
  // that no live process maps; and System V segments that a worker made and nobody has attached.
  void Remove();

 private:
  void Hear();
  void Look();

  Poller& poller_;
  const Clock& clock_;
  const Workers& workers_;
  Fd watch_;
  bool made_ = true;  // ever, as far as we know: at first nobody watches
  bool new_ = false;
  Nanos looked_;
  std::set<std::string> paths_;
  std::set<std::pair<std::string, ino_t>> before_;  // names in /dev/shm: an old name on a new file is not there before
};

}  // namespace lockstep::agent
