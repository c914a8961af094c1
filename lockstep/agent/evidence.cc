#include "lockstep/agent/evidence.h"

#include <filesystem>

#include "lockstep/agent/classify.h"

namespace lockstep::agent {
namespace {

constexpr Seconds kNativeTimeout{1.5};
constexpr Seconds kPythonTimeout{0.5};

std::string NativeText(const StackDump& dump) {
  std::string text;
  for (const ThreadStack& thread : dump.threads) {
    text += fmt::format("  thread {} {} state {}{}{}\n", thread.tid, thread.comm, thread.state,
                        thread.syscall_name.empty() ? "" : " in " + thread.syscall_name,
                        thread.wchan.empty() ? "" : " (" + thread.wchan + ")");
    for (const std::string& frame : thread.frames) text += "    " + frame + "\n";
  }
  if (!dump.unreadable.empty()) text += "  not readable: " + dump.unreadable + "\n";
  return text;
}

std::string PythonText(const PythonStack& python) {
  std::string text;
  for (const PythonThread& thread : python.threads) {
    text += thread.main ? "  main thread\n" : "  thread\n";
    for (const std::string& frame : thread.frames) text += "    " + frame + "\n";
  }
  if (!python.unreadable.empty()) text += "  not readable: " + python.unreadable + "\n";
  return text;
}

}  // namespace

RankStacks CollectStacks(const RunSpec& spec, uint64_t epoch, const std::vector<Worker>& workers) {
  RankStacks stacks;
  std::vector<pid_t> pids;
  std::vector<PythonRequest> requests;
  for (const Worker& worker : workers) {
    if (worker.exited) continue;
    stacks.push_back({GlobalRank(spec, worker.rank), worker.pid, {}, {}});
    pids.push_back(worker.pid);
    requests.push_back({worker.pid, StacksPath(spec, epoch, worker.rank)});
  }
  // Native first: a signal for the Python stacks would show up in them.
  auto native = CollectNative(pids, std::filesystem::read_symlink("/proc/self/exe").string(), kNativeTimeout);
  std::vector<PythonStack> python = RequestPythonStacks(requests, kPythonTimeout);
  for (size_t i = 0; i < stacks.size(); ++i) {
    if (native[i].ok()) {
      stacks[i].native = *std::move(native[i]);
    } else {
      stacks[i].native.unreadable = Message(native[i].status());
    }
    stacks[i].python = std::move(python[i]);
  }
  return stacks;
}

std::string StacksText(const RankStacks& stacks) {
  std::string text;
  for (const OneRankStacks& one : stacks) {
    text += fmt::format("rank {} (pid {})\n Python\n{} native\n{}\n", one.rank.value(), one.pid, PythonText(one.python),
                        NativeText(one.native));
  }
  return text;
}

std::vector<detect::StackSample> Samples(const RankStacks& stacks, Nanos at) {
  std::vector<detect::StackSample> samples;
  for (const OneRankStacks& one : stacks) {
    detect::StackSample sample = Classify(one.native, one.python);
    sample.rank = one.rank;
    sample.at = at;
    samples.push_back(std::move(sample));
  }
  return samples;
}

}  // namespace lockstep::agent
