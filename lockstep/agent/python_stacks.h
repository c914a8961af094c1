// Where every Python thread of a worker is, by asking faulthandler inside it: it answers without the GIL, from its
// signal handler. The worker has run faulthandler.register(SIGRTMIN + 7, file, all_threads=True, chain=False).
// Invariant: no signal is sent to a process that has no handler for it (the default action would kill it), nor to one
// that can't answer.
// The signal ends a pause() or a poll() of the worker early, with EINTR; Python, gloo and NCCL go on
// by themselves.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/units.h"

namespace lockstep::agent {

struct PythonThread {
  bool main = false;
  std::vector<std::string> frames;  // innermost first: "/home/me/train.py:41 in forward"
};

struct PythonStack {
  std::vector<PythonThread> threads;
  std::string unreadable;  // why there are none; empty = there are
};

// Of the main thread; empty: unknown.
const std::vector<std::string>& MainFrames(const PythonStack& stack);

// One faulthandler dump. The "current" thread is the main one, since the signal is sent to it; without one, the last
// block is: the interpreter lists the youngest thread first.
PythonStack ParsePythonStacks(std::string_view text);

struct PythonRequest {
  pid_t pid = 0;
  std::string path;  // the file to which the worker's faulthandler appends
};

// Asks all processes at once and waits at most `timeout` for all of them. One answer per request, in order.
std::vector<PythonStack> RequestPythonStacks(std::span<const PythonRequest> requests, Seconds timeout);

}  // namespace lockstep::agent
