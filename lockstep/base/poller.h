// One thread, many descriptors: epoll with callbacks, and one periodic tick. The loop of the starter and of `lockstep
// run`. A callback may add and remove descriptors, its own too. Not thread-safe, except Stop(), which is
// async-signal-safe too.
//
//   Poller poller;
//   poller.Watch(fd, [&] { Read(fd); });
//   poller.Run(Seconds{0.1}, [&] { Tick(); });
#pragma once

#include <functional>
#include <map>

#include "lockstep/base/file.h"
#include "lockstep/base/units.h"

namespace lockstep {

class Poller {
 public:
  Poller();
  // Calls `ready` whenever fd is readable or hung up. The caller keeps ownership and calls Forget before closing it.
  void Watch(int fd, std::function<void()> ready);
  void Forget(int fd);
  // Of one that is watched: `ready` is called too while there is room to write. Off until asked for.
  void AwaitRoom(int fd, bool wanted);
  // Until Stop(): dispatches, and calls tick every `period`.
  void Run(Seconds period, const std::function<void()>& tick);
  void Stop();
  // From a callback: the next tick comes after one such period.
  void SetPeriod(Seconds period);

 private:
  struct Watched {
    std::function<void()> ready;
    bool awaits_room = false;
  };
  void Dispatch(int fd);

  Fd epoll_, wake_, timer_;
  Seconds period_;  // of timer_
  std::map<int, Watched> watched_;
  bool stopped_ = false;
};

}  // namespace lockstep
