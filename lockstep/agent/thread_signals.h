// For threads beside the poller's.
#pragma once

#include <signal.h>

namespace lockstep::agent {

// Signals belong to the poller's thread: the calling one takes none from now on.
inline void TakeNoSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

}  // namespace lockstep::agent
