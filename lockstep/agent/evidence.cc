#include "lockstep/agent/evidence.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "lockstep/agent/classify.h"
#include "lockstep/agent/helpers.h"
#include "lockstep/base/child.h"

namespace lockstep::agent {
namespace {

constexpr Seconds kNativeTimeout{1.5};
constexpr Seconds kPythonTimeout{0.5};
constexpr Seconds kHelpersNativeTimeout{0.5};
constexpr Seconds kHelperPythonTimeout{0.1};  // of one of each rank
constexpr size_t kMostHelpers = 4;            // of each rank

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

void TakeNative(absl::StatusOr<StackDump> dump, OneRankStacks& stacks) {
  if (dump.ok()) {
    stacks.native = *std::move(dump);
  } else {
    stacks.native.unreadable = Message(dump.status());
  }
}

// One of each worker at a time. `stacks` are those of the helpers, in their order.
void ReadPythonOf(const RunSpec& spec, uint64_t epoch, const std::vector<Worker>& workers,
                  const std::vector<Helper>& helpers, std::span<OneRankStacks> stacks) {
  std::vector<size_t> turns(workers.size());  // helpers of a worker so far
  std::vector<std::vector<size_t>> rounds(kMostHelpers);
  for (size_t i = 0; i < helpers.size(); ++i) rounds[turns[helpers[i].worker]++].push_back(i);
  for (const std::vector<size_t>& round : rounds) {
    std::vector<PythonRequest> requests;
    for (const size_t i : round)
      requests.push_back({helpers[i].pid, StacksPath(spec, epoch, workers[helpers[i].worker].rank)});
    std::vector<PythonStack> answers = RequestPythonStacks(requests, kHelperPythonTimeout);
    for (size_t i = 0; i < round.size(); ++i) stacks[round[i]].python = std::move(answers[i]);
  }
}

}  // namespace

RankStacks CollectStacks(const RunSpec& spec, uint64_t epoch, const std::vector<Worker>& workers) {
  RankStacks stacks;
  std::vector<pid_t> pids;
  std::vector<PythonRequest> requests;
  for (const Worker& worker : workers) {
    if (worker.exited) continue;
    stacks.push_back({GlobalRank(spec, worker.rank), trace::ProcessRole::kTrainer, worker.pid, {}, {}});
    pids.push_back(worker.pid);
    requests.push_back({worker.pid, StacksPath(spec, epoch, worker.rank)});
  }
  // Native first: a signal for the Python stacks would show up in them.
  auto native = CollectNative(pids, OwnBinary().value_or(""), kNativeTimeout);
  std::vector<PythonStack> python = RequestPythonStacks(requests, kPythonTimeout);
  for (size_t i = 0; i < stacks.size(); ++i) {
    TakeNative(std::move(native[i]), stacks[i]);
    stacks[i].python = std::move(python[i]);
  }
  return stacks;
}

void AddHelpers(const RunSpec& spec, uint64_t epoch, const std::vector<Worker>& workers, RankStacks& stacks) {
  std::vector<Worker> running = workers;
  std::erase_if(running, [](const Worker& worker) { return worker.exited; });
  std::vector<pid_t> parents, pids;
  for (const Worker& worker : running) parents.push_back(worker.pid);
  size_t beyond = 0;
  const std::vector<Helper> helpers = FindHelpers(parents, kMostHelpers, beyond);
  if (helpers.empty()) return;
  for (const Helper& helper : helpers) pids.push_back(helper.pid);
  auto native = CollectNative(pids, OwnBinary().value_or(""), kHelpersNativeTimeout);
  RankStacks added(helpers.size());
  ReadPythonOf(spec, epoch, running, helpers, added);
  for (size_t i = 0; i < helpers.size(); ++i) {
    added[i].rank = GlobalRank(spec, running[helpers[i].worker].rank);
    added[i].pid = helpers[i].pid;
    TakeNative(std::move(native[i]), added[i]);
    added[i].role = RoleOf(helpers[i].name, helpers[i].command, MainFrames(added[i].python));
  }
  if (beyond > 0)
    added.back().native.unreadable += fmt::format("{}{} more such processes of this node were not read",
                                                  added.back().native.unreadable.empty() ? "" : "; ", beyond);
  std::move(added.begin(), added.end(), std::back_inserter(stacks));
}

std::string StacksText(const RankStacks& stacks, const std::string& node) {
  std::string text = node.empty() ? "" : fmt::format("node {}\n", node);
  for (const OneRankStacks& one : stacks) {
    const bool trainer = one.role == trace::ProcessRole::kTrainer;
    text +=
        fmt::format("rank {}{}{} (pid {})\n Python\n{} native\n{}\n", one.rank.value(), trainer ? "" : ", ",
                    trainer ? "" : trace::RoleName(one.role), one.pid, PythonText(one.python), NativeText(one.native));
  }
  return text;
}

std::vector<detect::StackSample> Samples(const RankStacks& stacks, Nanos at) {
  std::vector<detect::StackSample> samples;
  for (const OneRankStacks& one : stacks) {
    if (one.role != trace::ProcessRole::kTrainer) continue;
    detect::StackSample sample = Classify(one.native, one.python);
    sample.rank = one.rank;
    sample.at = at;
    samples.push_back(std::move(sample));
  }
  return samples;
}

}  // namespace lockstep::agent
