#include "lockstep/node/signals.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>

namespace lockstep::node {
namespace {

bool IsIgnored(int signal) {
  struct sigaction action{};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

bool HasTerminal() { return Fd(open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC)).valid(); }

sigset_t Handled(const std::vector<int>& ends) {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGHUP, SIGTSTP, SIGPIPE}) sigaddset(&mask, signal);
  for (const int signal : ends) sigaddset(&mask, signal);
  return mask;
}

}  // namespace

void BlockSignals(const std::vector<int>& ends) {
  const sigset_t mask = Handled(ends);
  sigprocmask(SIG_BLOCK, &mask, nullptr);
}

Signals::Signals(Poller& poller, const std::vector<int>& ends, std::function<void(int)> asked,
                 std::function<void()> suspend)
    : poller_(poller),
      ends_(ends),
      asked_(std::move(asked)),
      suspend_(std::move(suspend)),
      had_terminal_(HasTerminal()) {
  const sigset_t mask = Handled(ends);
  fd_ = Fd(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  poller_.Watch(fd_.get(), [this] { Hear(); });
}

Signals::~Signals() { poller_.Forget(fd_.get()); }

void Signals::Hear() {
  signalfd_siginfo info{};
  while (read(fd_.get(), &info, sizeof(info)) == sizeof(info)) {
    const auto signal = static_cast<int>(info.ssi_signo);
    const bool asked = std::find(ends_.begin(), ends_.end(), signal) != ends_.end();
    const bool of_terminal = signal == SIGHUP && (IsIgnored(SIGHUP) || (had_terminal_ && !HasTerminal()));
    if (asked && !of_terminal) {
      asked_(signal);
    } else if (signal == SIGTSTP) {
      suspend_();
    }
  }
}

}  // namespace lockstep::node
