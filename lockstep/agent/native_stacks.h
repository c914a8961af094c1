// Walks the native stacks of all threads of a process: PTRACE_SEIZE, PTRACE_INTERRUPT, elfutils, PTRACE_DETACH.
// Only for a process of its own that exits afterwards (`lockstep stacks PID`): the kernel then lets go of threads that
// would not stop in time, such as those of a frozen process.
// Invariant: stopped processes stay stopped, and a signal that arrives meanwhile is passed on.
// Bounded: at most 0.2 s until all threads stand. Cost: a torch worker of 5 threads stands still for 0.8 ms (2-core
// VM).
#pragma once

#include <sys/types.h>

#include "lockstep/agent/stacks.h"

namespace lockstep::agent {

StackDump ReadNative(pid_t pid);

}  // namespace lockstep::agent
