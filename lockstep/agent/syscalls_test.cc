#include "lockstep/agent/syscalls.h"

#include <gtest/gtest.h>

namespace lockstep::agent {
namespace {

struct Case {
  const char* line;  // as in /proc/PID/task/TID/syscall
  const char* name;
  Wait wait;
};

// The first six were recorded from ranks of torch 1.13.
constexpr Case kCases[] = {
    {"202 0x25614970 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd299099f0 0x7ff78fa93f16", "futex", Wait::kForever},
    {"202 0x7ff758001e7c 0x89 0x0 0x7ff769304840 0x0 0xffffffff 0x7ff769304700 0x7ff78fa93f16", "futex", Wait::kTimed},
    {"7 0x7ff7640012c0 0xa 0xffffffff 0x847458f3d0c84460 0x0 0x7ff764002160 0x7ff76b308ce0 0x7ff78fb0a26f", "poll",
     Wait::kExternal},
    {"232 0x13 0x7ff76a306b80 0x40 0xa 0x0 0x0 0x7ff76a306b00 0x7ff78fb16f36", "epoll_wait", Wait::kTimed},
    {"230 0x1 0x1 0x7ffdc917f330 0x0 0x0 0x0 0x7ffdc917f2f0 0x7f4f4b7d2545", "clock_nanosleep", Wait::kTimed},
    {"0 0xc 0x7f013f9249b0 0x1 0x333c35b8 0x0 0x0 0x7ffd63dd7470 0x7f01641302ec", "read", Wait::kExternal},
    {"202 0x1000 0x0 0x0 0x0 0x0 0x0 0x0 0x0", "futex", Wait::kExternal},  // shared with other processes
    {"34 0x0 0x0 0x0 0x0 0x0 0x0 0x0 0x0", "pause", Wait::kForever},
    {"219 0x0 0x0 0x0 0x0 0x0 0x0 0x0 0x0", "restart_syscall", Wait::kUnknown},
    {"999 0x0 0x0 0x0 0x0 0x0 0x0 0x0 0x0", "syscall 999", Wait::kUnknown},
    {"23 0x5 0x7ffd00000000 0x0 0x0 0x0 0x0 0x0 0x0", "select", Wait::kExternal},
    {"23 0x5 0x7ffd00000000 0x0 0x0 0x7ffd00000010 0x0 0x0 0x0", "select", Wait::kTimed},
};

TEST(Syscalls, SayWhatEndsAWait) {
  for (const Case& c : kCases) {
    const SyscallState state = ParseSyscall(c.line);
    EXPECT_EQ(SyscallName(state.number), c.name) << c.line;
    EXPECT_EQ(WaitOf(state), c.wait) << c.line;
  }
}

TEST(Syscalls, OddLines) {
  EXPECT_EQ(WaitOf(ParseSyscall("running")), Wait::kRunning);
  EXPECT_EQ(WaitOf(ParseSyscall("-1 0x7ffd 0x7ff7")), Wait::kRunning);
  EXPECT_EQ(WaitOf(ParseSyscall("")), Wait::kUnknown);
  EXPECT_EQ(ParseSyscall("202").args[1], 0u);
}

}  // namespace
}  // namespace lockstep::agent
