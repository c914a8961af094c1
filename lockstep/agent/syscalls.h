// What a thread waits for, from the system call in which it sleeps (x86-64 numbers, arguments as in
// /proc/PID/task/TID/syscall).
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "lockstep/agent/stacks.h"

namespace lockstep::agent {

struct SyscallState {
  bool readable = false;
  int64_t number = -1;  // -1 = running, or blocked outside a system call
  std::array<uint64_t, 6> args{};
};

// "running", "202 0x25614970 0x189 ...", or "-1 ..." when it is blocked outside a call.
SyscallState ParseSyscall(const std::string& text);
// "futex"; "syscall 999" for those that no rule asks for.
std::string SyscallName(int64_t number);
Wait WaitOf(const SyscallState& state);

}  // namespace lockstep::agent
