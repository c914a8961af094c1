#include "lockstep/agent/asked_to_stop.h"

#include <signal.h>

#include <initializer_list>

namespace lockstep::agent {

bool IsAskedToStop() {
  sigset_t pending;
  sigpending(&pending);
  for (const int number : {SIGINT, SIGTERM}) {
    struct sigaction action{};
    sigaction(number, nullptr, &action);
    if (sigismember(&pending, number) == 1 && action.sa_handler != SIG_IGN) return true;
  }
  return false;
}

}  // namespace lockstep::agent
