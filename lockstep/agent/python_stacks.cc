#include "lockstep/agent/python_stacks.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <thread>

#include "lockstep/agent/proc.h"
#include "lockstep/base/file.h"
#include "lockstep/base/split.h"
#include "lockstep/base/steady.h"

namespace lockstep::agent {
namespace {

using Steady = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPoll{2};

int Signal() { return SIGRTMIN + 7; }

// The signal sets of a main thread, as /proc shows them.
struct SignalState {
  bool pending = false, blocked = false, caught = false;
};

bool HasSignal(std::string_view status, std::string_view key) {
  const size_t at = status.find(key);
  if (at == std::string_view::npos) return false;
  const size_t digits = status.find_first_of("0123456789abcdef", at + key.size());
  uint64_t mask = 0;
  std::from_chars(status.data() + digits, status.data() + status.size(), mask, 16);
  return (mask >> (Signal() - 1)) & 1;
}

SignalState ReadSignals(pid_t pid) {
  const absl::StatusOr<std::string> status = ReadFile(fmt::format("/proc/{0}/task/{0}/status", pid));
  if (!status.ok()) return {};
  return {HasSignal(*status, "SigPnd:"), HasSignal(*status, "SigBlk:"), HasSignal(*status, "SigCgt:")};
}

off_t SizeOf(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 ? info.st_size : 0;
}

// Why the process can't answer now; empty if it can.
std::string Obstacle(pid_t pid) {
  detect::RankSample sample;
  SampleCheap(pid, sample);
  if (sample.state == detect::ProcState::kGone || sample.state == detect::ProcState::kZombie)
    return "the process is gone";
  if (sample.frozen) return "the process is frozen, so it can't answer";
  if (sample.state == detect::ProcState::kStopped) return "the process is stopped, so it can't answer";
  const SignalState signals = ReadSignals(pid);
  if (!signals.caught) return "no faulthandler is registered in the process";
  if (signals.blocked && !signals.pending) return "the main thread blocks the signal";
  return {};
}

struct Pending {
  size_t index;
  pid_t pid;
  std::string path;
  off_t begin;
};

// The handler blocks its own signal while it runs: grown, and neither pending nor blocked, means that the dump is
// whole.
bool Answered(const Pending& pending) {
  if (SizeOf(pending.path) <= pending.begin) return false;
  const SignalState signals = ReadSignals(pending.pid);
  return !signals.pending && !signals.blocked;
}

PythonStack TakeAnswer(const Pending& pending) {
  const absl::StatusOr<std::string> text = ReadFile(pending.path);
  if (!text.ok() || text->size() <= static_cast<size_t>(pending.begin)) return {{}, "the stack file can't be read"};
  return ParsePythonStacks(std::string_view(*text).substr(static_cast<size_t>(pending.begin)));
}

// A signal that an earlier request left pending will answer this one too.
void Ask(pid_t pid) {
  if (!ReadSignals(pid).pending) syscall(SYS_tgkill, pid, pid, Signal());
}

// '  File "/home/me/train.py", line 41 in forward' -> "/home/me/train.py:41 in forward"; empty if it is no such line.
std::string ParseFrame(std::string_view line) {
  constexpr std::string_view kFile = "  File \"", kLine = "\", line ";
  if (!line.starts_with(kFile)) return {};
  line.remove_prefix(kFile.size());
  const size_t end = line.rfind(kLine);
  if (end == std::string_view::npos) return {};
  return fmt::format("{}:{}", line.substr(0, end), line.substr(end + kLine.size()));
}

}  // namespace

const std::vector<std::string>& MainFrames(const PythonStack& stack) {
  static const std::vector<std::string> none;
  for (const PythonThread& thread : stack.threads)
    if (thread.main) return thread.frames;
  return none;
}

PythonStack ParsePythonStacks(std::string_view text) {
  PythonStack stack;
  bool has_current = false;
  while (!text.empty()) {
    const std::string_view line = TakeLine(text);
    const bool current = line.starts_with("Current thread 0x");
    has_current |= current;
    if (current || line.starts_with("Thread 0x")) stack.threads.push_back({current, {}});
    const std::string frame = ParseFrame(line);
    if (!frame.empty() && !stack.threads.empty()) stack.threads.back().frames.push_back(frame);
  }
  if (stack.threads.empty()) stack.unreadable = "the answer holds no thread";
  if (!stack.threads.empty() && !has_current) stack.threads.back().main = true;
  return stack;
}

std::vector<PythonStack> RequestPythonStacks(std::span<const PythonRequest> requests, Seconds timeout) {
  std::vector<PythonStack> answers(requests.size());
  std::vector<Pending> waiting;
  for (size_t i = 0; i < requests.size(); ++i) {
    answers[i].unreadable = Obstacle(requests[i].pid);
    if (!answers[i].unreadable.empty()) continue;
    waiting.push_back({i, requests[i].pid, requests[i].path, SizeOf(requests[i].path)});
    Ask(requests[i].pid);
  }
  const Steady::time_point deadline = Steady::now() + SteadyDuration(timeout);
  while (!waiting.empty() && Steady::now() < deadline) {
    std::this_thread::sleep_for(kPoll);
    std::erase_if(waiting, [&](const Pending& pending) {
      const bool answered = Answered(pending);
      if (answered) answers[pending.index] = TakeAnswer(pending);
      return answered;
    });
  }
  for (const Pending& pending : waiting)
    answers[pending.index].unreadable = fmt::format("no answer within {:.1f} s", timeout.value);
  return answers;
}

}  // namespace lockstep::agent
