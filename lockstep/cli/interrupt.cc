#include "lockstep/cli/interrupt.h"

#include <csignal>
#include <initializer_list>

namespace lockstep::cli {
namespace {

volatile std::sig_atomic_t interrupted = 0;

}  // namespace

void EndAtInterrupt() {
  struct sigaction action{};
  action.sa_handler = [](int) { interrupted = 1; };
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

bool Interrupted() { return interrupted != 0; }

}  // namespace lockstep::cli
