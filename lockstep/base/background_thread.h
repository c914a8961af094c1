// For threads beside the main one.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

namespace lockstep {

// Signals belong to the main thread: the calling one takes none from now on.
inline void TakeNoSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

// The same, and the calling thread stands behind training, which comes first.
inline void StepBack() {
  constexpr int kNice = 10;
  TakeNoSignals();
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
}

}  // namespace lockstep
