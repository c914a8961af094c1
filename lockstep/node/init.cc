#include "lockstep/node/init.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::node {
namespace {

constexpr int kSignalBase = 128;  // the exit status of who died of signal n, as shells have it

sigset_t AllSignals() {
  sigset_t all;
  sigfillset(&all);
  return all;
}

void Reap(pid_t child) {
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    if (pid != child) continue;
    if (WIFEXITED(status)) _exit(WEXITSTATUS(status));
    if (WIFSIGNALED(status)) _exit(kSignalBase + WTERMSIG(status));
  }
}

[[noreturn]] void Serve(pid_t child) {
  const sigset_t all = AllSignals();
  while (true) {
    int signal = 0;
    if (sigwait(&all, &signal) != 0) continue;
    if (signal == SIGCHLD) {
      Reap(child);
    } else if (signal != SIGTTOU && signal != SIGTTIN) {
      kill(child, signal);
    }
  }
}

}  // namespace

void StandBehindInit() {
  if (getpid() != 1) return;
  const sigset_t all = AllSignals();
  sigset_t before;
  sigprocmask(SIG_BLOCK, &all, &before);
  const pid_t child = fork();
  if (child <= 0) {  // without the memory for a second process the job has at least the first
    sigprocmask(SIG_SETMASK, &before, nullptr);
    return;
  }
  // A terminal signals whole groups: in ours the child would hear everything twice.
  setpgid(child, child);
  if (isatty(STDIN_FILENO)) tcsetpgrp(STDIN_FILENO, child);
  Serve(child);
}

}  // namespace lockstep::node
