#include "lockstep/agent/syscalls.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>

#include <algorithm>
#include <charconv>
#include <string_view>

namespace lockstep::agent {
namespace {

// Where a call keeps its timeout: in which argument, and whether as a pointer (null = none) or a count of milliseconds
// (< 0 = none).
enum class Timeout { kNone, kPointer, kMilliseconds, kAlways, kFutex };
struct Call {
  int64_t number;
  const char* name;
  Timeout timeout;
  size_t argument;
  Wait untimed;
};

constexpr std::array kCalls = {
    Call{SYS_futex, "futex", Timeout::kFutex, 3, Wait::kForever},
    Call{SYS_pause, "pause", Timeout::kNone, 0, Wait::kExternal},
    Call{SYS_rt_sigsuspend, "rt_sigsuspend", Timeout::kNone, 0, Wait::kExternal},
    Call{SYS_rt_sigtimedwait, "rt_sigtimedwait", Timeout::kPointer, 2, Wait::kExternal},
    Call{SYS_nanosleep, "nanosleep", Timeout::kAlways, 0, Wait::kTimed},
    Call{SYS_clock_nanosleep, "clock_nanosleep", Timeout::kAlways, 0, Wait::kTimed},
    Call{SYS_poll, "poll", Timeout::kMilliseconds, 2, Wait::kExternal},
    Call{SYS_ppoll, "ppoll", Timeout::kPointer, 2, Wait::kExternal},
    Call{SYS_select, "select", Timeout::kPointer, 4, Wait::kExternal},
    Call{SYS_pselect6, "pselect6", Timeout::kPointer, 4, Wait::kExternal},
    Call{SYS_epoll_wait, "epoll_wait", Timeout::kMilliseconds, 3, Wait::kExternal},
    Call{SYS_epoll_pwait, "epoll_pwait", Timeout::kMilliseconds, 3, Wait::kExternal},
    Call{SYS_read, "read", Timeout::kNone, 0, Wait::kExternal},
    Call{SYS_write, "write", Timeout::kNone, 0, Wait::kExternal},
    Call{SYS_recvfrom, "recvfrom", Timeout::kNone, 0, Wait::kExternal},
    Call{SYS_recvmsg, "recvmsg", Timeout::kNone, 0, Wait::kExternal},
    Call{SYS_accept, "accept", Timeout::kNone, 0, Wait::kExternal},
    Call{SYS_accept4, "accept4", Timeout::kNone, 0, Wait::kExternal},
    Call{SYS_connect, "connect", Timeout::kNone, 0, Wait::kExternal},
    Call{SYS_wait4, "wait4", Timeout::kNone, 0, Wait::kExternal},
    Call{SYS_waitid, "waitid", Timeout::kNone, 0, Wait::kExternal},
    Call{SYS_flock, "flock", Timeout::kNone, 0, Wait::kExternal},
    Call{SYS_fsync, "fsync", Timeout::kNone, 0, Wait::kExternal},
    Call{SYS_fdatasync, "fdatasync", Timeout::kNone, 0, Wait::kExternal},
    // A wait that was interrupted (by a tracer, too) and went on; which one it was is lost.
    Call{SYS_restart_syscall, "restart_syscall", Timeout::kNone, 0, Wait::kUnknown},
};

const Call* Find(int64_t number) {
  const auto call =
      std::find_if(kCalls.begin(), kCalls.end(), [&](const Call& known) { return known.number == number; });
  return call == kCalls.end() ? nullptr : &*call;
}

// A futex that is not private lives in shared memory, where another process may wake it.
Wait FutexWait(const SyscallState& state) {
  const uint64_t operation = state.args[1];
  if (state.args[3] != 0) return Wait::kTimed;
  return (operation & FUTEX_PRIVATE_FLAG) != 0 ? Wait::kForever : Wait::kExternal;
}

}  // namespace

SyscallState ParseSyscall(const std::string& text) {
  SyscallState state;
  state.readable = !text.empty();
  const char *at = text.data(), *end = at + text.size();
  const auto [rest, error] = std::from_chars(at, end, state.number);
  if (error != std::errc()) state.number = -1;
  at = rest;
  for (uint64_t& arg : state.args) {
    while (at != end && (*at == ' ' || *at == 'x' || (*at == '0' && at + 1 != end && at[1] == 'x'))) ++at;
    at = std::from_chars(at, end, arg, 16).ptr;
  }
  return state;
}

std::string SyscallName(int64_t number) {
  const Call* call = Find(number);
  return call != nullptr ? call->name : fmt::format("syscall {}", number);
}

Wait WaitOf(const SyscallState& state) {
  if (!state.readable) return Wait::kUnknown;
  if (state.number < 0) return Wait::kRunning;
  const Call* call = Find(state.number);
  if (call == nullptr) return Wait::kUnknown;
  const uint64_t timeout = state.args[call->argument];
  switch (call->timeout) {
    case Timeout::kNone:
      return call->untimed;
    case Timeout::kAlways:
      return Wait::kTimed;
    case Timeout::kPointer:
      return timeout != 0 ? Wait::kTimed : call->untimed;
    case Timeout::kMilliseconds:
      return static_cast<int32_t>(timeout) >= 0 ? Wait::kTimed : call->untimed;
    case Timeout::kFutex:
      return FutexWait(state);
  }
  return Wait::kUnknown;
}

}  // namespace lockstep::agent
