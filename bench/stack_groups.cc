// How long the stacks of all agents of a large job take to be read and decided upon, on one core. The stacks are those
// that agents keep of an incident (stacks.txt), with frames as torch and Megatron have them, line numbers, arguments,
// paths and addresses at random: one rank loads data and does not come, its pipeline waits for it, the others wait for
// their gradients. Simulated. Seconds are CPU time.
//
//   stack_groups AGENTS RANKS ROUNDS    prints {"processes", "frames", "mb", "rank", "parse_s": [...], "decide_s":
//   [...],
//                                       "decide_by_logs_s": [...], "right": N of 2 ROUNDS}
#include <fmt/ranges.h>

#include <cstdlib>
#include <ctime>
#include <iterator>
#include <string>
#include <vector>

#include "lockstep/detect/stack_groups.h"
#include "lockstep/detect/stack_test_job.h"
#include "lockstep/trace/stacks_text.h"

namespace lockstep::detect {
namespace {

using trace::ProcessRole;
using trace::ProcessStack;

constexpr int kStages = 10;
constexpr int kInterpreterFrames = 18, kBackgroundThreads = 4;

struct Job {
  cluster::Layout layout;
  int culprit;
  std::vector<std::string> texts;  // by agent
  WaitGraph waits;
  size_t frames = 0;
};

At PlaceOf(const Job& job, int rank) {
  if (rank == job.culprit) return At::kLoadsData;
  const cluster::Coordinates own = job.layout.CoordinatesOf(RankId(rank));
  const cluster::Coordinates culprit = job.layout.CoordinatesOf(RankId(job.culprit));
  if (own.dp != culprit.dp) return At::kGradSync;
  if (own.pp == culprit.pp) return At::kTensorParallel;
  return own.pp < culprit.pp ? At::kRecvBackward : At::kRecvForward;
}

ProcessStack Trainer(int rank, At at, FrameWriter& write) {
  ProcessStack stack = StackOf(rank, at, write);
  for (int i = 0; i < kInterpreterFrames; ++i)
    stack.native.push_back(i % 3 == 0 ? write.Native("PyObject_Vectorcall", "python3.11")
                                      : fmt::format("python3.11+{:#x}", 0x147000 + i));
  for (int i = 0; i < kBackgroundThreads; ++i)
    stack.others.push_back({"libc.so.6+0x85f16", "pthread_cond_wait (libc.so.6)",
                            write.Native("c10d::ProcessGroupGloo::runLoop", "libtorch_cpu.so.1.13.0"),
                            "libstdc++.so.6.0.30+0xd44a2", "libc.so.6+0x891f4", "libc.so.6+0x1098eb"});
  return stack;
}

ProcessStack Helper(int rank, ProcessRole role, FrameWriter& write) {
  ProcessStack stack;
  stack.rank = rank;
  stack.role = role;
  stack.python = {write.Python("torch/utils/data/_utils/worker.py", "_worker_loop"), write.Own("main")};
  stack.native = {"__poll (libc.so.6)", write.Native("_PyEval_EvalFrameDefault", "python3.11")};
  return stack;
}

std::string SectionOf(const ProcessStack& stack, Job& job) {
  const bool trainer = stack.role == ProcessRole::kTrainer;
  std::string text = fmt::format("rank {}{}{} (pid {})\n Python\n  main thread\n", stack.rank, trainer ? "" : ", ",
                                 trainer ? "" : trace::RoleName(stack.role), 1000 + stack.rank);
  for (const std::string& frame : stack.python) text += "    " + frame + "\n";
  text += " native\n  thread 1 python3 state S in futex\n";
  for (const std::string& frame : stack.native) text += "    " + frame + "\n";
  job.frames += stack.python.size() + stack.native.size();
  for (const std::vector<std::string>& thread : stack.others) {
    text += "  thread 2 python3 state S in futex\n";
    for (const std::string& frame : thread) text += "    " + frame + "\n";
    job.frames += thread.size();
  }
  return text + "\n";
}

// As logs would tell it: the culprit has not come to what its pipeline waits in, which has not come to the others' sum.
void AddWaits(Job& job) {
  std::vector<int> pipeline, others;
  for (int rank = 0; rank < job.layout.WorldSize(); ++rank) {
    if (rank == job.culprit) continue;
    (PlaceOf(job, rank) == At::kGradSync ? others : pipeline).push_back(rank);
  }
  for (const int rank : pipeline) job.waits.waits.push_back({{rank}, {job.culprit}, "a receive", false});
  job.waits.waits.push_back({others, pipeline, "all_reduce", false});
}

Job MakeJob(int agents, int ranks) {
  Job job{{.tp = ranks, .dp = agents / kStages, .pp = kStages}, 0, {}, {}};
  job.culprit = job.layout.WorldSize() * 2 / 3;
  FrameWriter write(1);
  for (int agent = 0; agent < agents; ++agent) {
    std::string text = fmt::format("node node{}\n", agent);
    for (int rank = agent * ranks; rank < (agent + 1) * ranks; ++rank) {
      text += SectionOf(Trainer(rank, PlaceOf(job, rank), write), job);
      for (const ProcessRole role :
           {ProcessRole::kDataWorker, ProcessRole::kDataWorker, ProcessRole::kCheckpointWriter})
        text += SectionOf(Helper(rank, role, write), job);
    }
    job.texts.push_back(std::move(text));
  }
  AddWaits(job);
  return job;
}

// Of this thread: the same as by a clock, where nothing else runs.
double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename Work>
double SecondsOf(const Work& work) {
  const double begin = CpuSeconds();
  work();
  return CpuSeconds() - begin;
}

std::vector<ProcessStack> Parse(const Job& job) {
  std::vector<ProcessStack> all;
  for (const std::string& text : job.texts) {
    auto stacks = trace::ParseStacks(text, "stacks.txt").value();
    std::move(stacks.begin(), stacks.end(), std::back_inserter(all));
  }
  return all;
}

bool IsRight(const StackVerdict& verdict, const Job& job) {
  return verdict.finding && verdict.finding->suspects.size() == 1 &&
         verdict.finding->suspects.front() == incident::SuspectRank(RankId(job.culprit));
}

int Run(int agents, int ranks, int rounds) {
  const Job job = MakeJob(agents, ranks);
  size_t bytes = 0, right = 0, processes = 0;
  for (const std::string& text : job.texts) bytes += text.size();
  std::vector<double> parse, decide, by_logs;
  const auto judge = [&](const std::vector<ProcessStack>& stacks, const StackContext& context) {
    right += IsRight(AggregateStacks(stacks, context).value(), job) ? 1 : 0;
  };
  for (int round = 0; round < rounds; ++round) {
    std::vector<ProcessStack> stacks;
    parse.push_back(SecondsOf([&] { stacks = Parse(job); }));
    decide.push_back(SecondsOf([&] { judge(stacks, {.layout = job.layout}); }));
    const StackContext logs{.layout = job.layout, .waits = job.waits};
    by_logs.push_back(SecondsOf([&] { judge(stacks, logs); }));
    processes = stacks.size();
  }
  fmt::print(
      "{{\"processes\": {}, \"frames\": {}, \"mb\": {:.1f}, \"rank\": {}, \"parse_s\": [{:.4f}], \"decide_s\": "
      "[{:.4f}], "
      "\"decide_by_logs_s\": [{:.4f}], \"right\": {}}}\n",
      processes, job.frames, static_cast<double>(bytes) / 1e6, job.culprit, fmt::join(parse, ", "),
      fmt::join(decide, ", "), fmt::join(by_logs, ", "), right);
  return 0;
}

}  // namespace
}  // namespace lockstep::detect

int main(int argc, char** argv) {
  const int agents = argc == 4 ? std::atoi(argv[1]) : 0, ranks = argc == 4 ? std::atoi(argv[2]) : 0;
  if (agents < 20 || agents % 10 != 0 || ranks < 1) {
    fmt::print(stderr, "usage: stack_groups AGENTS RANKS ROUNDS, with AGENTS a multiple of 10 (stages), 20 or more\n");
    return 2;
  }
  return lockstep::detect::Run(agents, ranks, std::atoi(argv[3]));
}
