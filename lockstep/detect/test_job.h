// A synchronous job on a virtual clock, for tests: ranks step together with lognormal noise until one of them does
// something else. Figures of a waiting, spinning and evaluating rank are those measured on torch 1.13 with gloo
// (docs/models/detect.md). Deterministic.
#pragma once

#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/detect/hang.h"

namespace lockstep::detect {

enum class Conduct {
  kSteps,  // takes part; waits for the others where they don't
  kStopped,
  kFrozen,
  kBlocked,  // on a lock that nobody releases
  kPythonLoop,
  kNativeLoop,
  kCrowdedLoop,       // a Python loop that gets a third of a core
  kOtherPlace,        // waits in another collective
  kSleeps,            // time.sleep
  kDownloads,         // blocked on a socket, without a byte for a while
  kEvaluates,         // torch operators: page faults, different lines
  kQuietlyEvaluates,  // one torch operator after the other, no faults, no switches
  kSaves,
  kTraced,
};

class TestJob {
 public:
  TestJob(int ranks, Seconds step, uint64_t seed = 1, const HangLimits& limits = {})
      : detector_(limits, ranks), ranks_(static_cast<size_t>(ranks)), step_(step), random_(seed) {
    ScheduleStep();
  }

  void Do(int rank, Conduct conduct) { At(rank).conduct = conduct; }
  void AllDo(Conduct conduct) {
    for (Rank& rank : ranks_) rank.conduct = conduct;
  }
  void Finish(int rank) { At(rank).finished = true; }
  // A restart: a new epoch, with step times kept.
  void Restart() {
    detector_.Reset();
    for (Rank& rank : ranks_) rank = {};
    step_number_ = -1;
    loop_begin_ = now_;
    ScheduleStep();
  }
  // Time passes for everybody, but nobody samples: the agent was stopped or the machine slept.
  void PassUnwatched(Seconds time) {
    now_ += ToNanos(time);
    next_step_ += ToNanos(time);
  }

  Nanos now() const { return now_; }
  const HangDetector& detector() const { return detector_; }
  int64_t steps() const { return step_number_; }

  // 0.1 s. Stacks are sampled once a second while they are wanted.
  Verdict Tick() {
    now_ += ToNanos({0.1});
    Advance();
    for (size_t r = 0; r < ranks_.size(); ++r) Sample(RankId(static_cast<int>(r)), ranks_[r]);
    if (verdict_.wants_stacks && now_ - stacks_at_ >= ToNanos({1})) SampleStacks();
    std::optional<CommWait> wait;
    if (waits_since) wait = CommWait{*waits_since, *waits_since, ToSeconds(now_ - *waits_since), usual_quiet};
    return verdict_ = detector_.At(now_, unseen, wait);
  }
  // Ticks until a verdict pleases or the time is up; then the last verdict.
  Verdict Until(Seconds limit, const std::function<bool(const Verdict&)>& pleases) {
    for (const Nanos end = now_ + ToNanos(limit); now_ < end;)
      if (pleases(Tick())) break;
    return verdict_;
  }
  Verdict Run(Seconds time) {
    return Until(time, [](const Verdict&) { return false; });
  }

  // Every sample that was added, for tests of order.
  std::vector<RankSample> samples;
  std::vector<StackSample> stacks;
  bool keep = false;
  bool starting = false;  // the ranks import and set up: no training loop yet
  // What a detector is told beside samples (hang.h, At). An unseen job is always starting.
  bool unseen = false;
  std::optional<Nanos> waits_since;
  std::optional<Seconds> usual_quiet;

 private:
  struct Rank {
    Conduct conduct = Conduct::kSteps;
    bool finished = false;
    double cpu = 0, io = 0, faults = 1000, switches = 100;
    Nanos step_end;
    int64_t steps = 0;
  };

  Rank& At(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  double Uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }

  void ScheduleStep() {
    const double noise = std::lognormal_distribution<double>(0, 0.25)(random_);
    next_step_ = now_ + ToNanos(step_ * noise);
  }
  void Advance() {
    if (starting) ScheduleStep();
    if (!Together()) return;
    if (held_) ScheduleStep();
    held_ = false;
    for (; next_step_ <= now_; ++step_number_) {
      for (Rank& rank : ranks_) rank.step_end = next_step_, ++rank.steps;
      next_step_ += ToNanos(step_ * std::lognormal_distribution<double>(0, 0.25)(random_));
    }
  }
  bool Together() {
    for (const Rank& rank : ranks_)
      if (rank.conduct != Conduct::kSteps && !rank.finished) return !(held_ = true);
    return true;
  }

  // What 0.1 s of each conduct adds to the counters.
  void Work(Rank& rank) {
    switch (rank.conduct) {
      case Conduct::kSteps:
        return held_ ? Spend(rank, 0.0005, 0, 0, 0.1) : Spend(rank, 0.08, 300, Uniform(0, 300), Uniform(1, 9));
      case Conduct::kCrowdedLoop:
        return Spend(rank, 0.03, 0, 0, 0);
      case Conduct::kPythonLoop:
      case Conduct::kNativeLoop:
      case Conduct::kQuietlyEvaluates:
        return Spend(rank, 0.099, 0, 0, 0);
      case Conduct::kEvaluates:
        return Spend(rank, 0.095, 200, Uniform(0, 2000), Uniform(0, 3));
      case Conduct::kSaves:
        return Spend(rank, 0.02, 4e6, Uniform(0, 50), Uniform(0, 20));
      case Conduct::kStopped:
      case Conduct::kFrozen:
      case Conduct::kTraced:
        return;
      default:
        return Spend(rank, 0.0005, 0, 0, 0);
    }
  }
  static void Spend(Rank& rank, double cpu, double io, double faults, double switches) {
    rank.cpu += cpu;
    rank.io += io;
    rank.faults += faults;
    rank.switches += switches;
  }

  static ProcState State(Conduct conduct) {
    if (conduct == Conduct::kStopped) return ProcState::kStopped;
    return conduct == Conduct::kCrowdedLoop || conduct == Conduct::kQuietlyEvaluates ? ProcState::kRunning
                                                                                     : ProcState::kSleeping;
  }
  void Sample(RankId id, Rank& rank) {
    Work(rank);
    RankSample sample;
    sample.rank = id;
    sample.at = now_;
    sample.state = State(rank.conduct);
    if (rank.conduct == Conduct::kSaves && Uniform(0, 1) < 0.3) sample.state = ProcState::kDisk;
    sample.frozen = rank.conduct == Conduct::kFrozen;
    sample.traced = rank.conduct == Conduct::kTraced;
    if (verdict_.wants_stacks) {
      sample.cpu = ToNanos({rank.cpu});
      sample.io_bytes = static_cast<uint64_t>(rank.io);
      sample.faults = static_cast<uint64_t>(rank.faults);
      sample.switches = static_cast<uint64_t>(rank.switches);
    }
    sample.step = step_number_;
    sample.step_end = rank.step_end;
    sample.steps = rank.steps;
    if (rank.steps > 0) sample.stepping = rank.step_end - loop_begin_;
    sample.finished = rank.finished;
    sample.in_loop = !rank.finished && !starting;
    detector_.Add(sample);
    if (keep) samples.push_back(sample);
  }

  void SampleStacks() {
    stacks_at_ = now_;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Spend(ranks_[r], 0.002, 320, 0.4, 1.2);  // what looking costs the worker
      StackSample stack = Stack(ranks_[r]);
      stack.rank = RankId(static_cast<int>(r));
      stack.at = now_;
      detector_.Add(stack);
      if (keep) stacks.push_back(stack);
    }
  }
  // Fields in the order of the struct, rank and time left out.
  static StackSample Make(InCollective place, bool forever, std::string python, uint64_t signature, std::string native,
                          CodeKind code) {
    return {RankId(), Nanos(), place, forever, std::move(python), signature, std::move(native), code};
  }
  StackSample Stack(const Rank& rank) {
    using enum InCollective;
    const std::string line = std::to_string(static_cast<int>(Uniform(10, 40)));
    const auto random = static_cast<uint64_t>(Uniform(100, 1e6));
    switch (rank.conduct) {
      case Conduct::kBlocked:
        return Make(kNo, true, "train.py:8 in hold", 21, "PyThread_acquire_lock_timed (python3.11)",
                    CodeKind::kInterpreter);
      case Conduct::kCrowdedLoop:
      case Conduct::kPythonLoop:
        return Make(kNo, false, Uniform(0, 1) < 0.5 ? "train.py:10 in wait" : "train.py:11 in wait", random,
                    "PyNumber_Add (python3.11)", CodeKind::kInterpreter);
      case Conduct::kNativeLoop:
        return Make(kNo, false, "train.py:16 in hold", random, "loop_for_ever (loop.so)", CodeKind::kOther);
      case Conduct::kOtherPlace:
        return Make(kYes, true, "torch/distributed/distributed_c10d.py:3152 in barrier", 12,
                    "c10d::Work::wait (libtorch_cpu.so)", CodeKind::kMathLibrary);
      case Conduct::kSleeps:
        return Make(kNo, false, "train.py:5 in nap", 22, "python3.11+0x1d64b3", CodeKind::kInterpreter);
      case Conduct::kDownloads:
        return Make(kNo, false, "ssl.py:1311 in read", 23, "SSL_read (libssl.so.3)", CodeKind::kOther);
      case Conduct::kEvaluates:
        return Make(kNo, false, "evaluate.py:" + line + " in evaluate", random, "PyObject_Free (python3.11)",
                    CodeKind::kInterpreter);
      case Conduct::kQuietlyEvaluates:
        return Make(kNo, false, "torch/nn/modules/linear.py:114 in forward", random, "sgemm_kernel (libopenblas.so)",
                    CodeKind::kMathLibrary);
      case Conduct::kSaves:
        return Make(kNo, false, "torch/serialization.py:499 in _save", random, "write (libc.so.6)", CodeKind::kUnknown);
      case Conduct::kStopped:
      case Conduct::kFrozen:
      case Conduct::kTraced:
        return Make(kUnknown, false, "", 0, "", CodeKind::kUnknown);
      case Conduct::kSteps:
        break;
    }
    if (!held_)
      return Make(kNo, false, "train.py:" + line + " in train", random, "at::native::add (libtorch_cpu.so)",
                  CodeKind::kMathLibrary);
    return Make(kYes, true, "torch/autograd/__init__.py:197 in backward", 11,
                "c10d::Reducer::finalize_backward (libtorch_cpu.so)", CodeKind::kMathLibrary);
  }

  HangDetector detector_;
  std::vector<Rank> ranks_;
  Seconds step_;
  std::mt19937_64 random_;
  Nanos now_{1'000'000'000'000};
  Nanos loop_begin_ = now_;
  Nanos next_step_, stacks_at_;
  int64_t step_number_ = -1;
  bool held_ = false;
  Verdict verdict_;
};

// The names of the suspects of the first certain finding, "2" or "1,3"; "" if none is certain.
inline std::string CertainSuspects(const Verdict& verdict) {
  std::string names;
  if (verdict.findings.empty() || !verdict.findings.front().certain) return names;
  for (const incident::Suspect& suspect : verdict.findings.front().suspects)
    names += (names.empty() ? "" : ",") + suspect.name;
  return names;
}
inline bool IsCertain(const Verdict& verdict) { return !verdict.findings.empty() && verdict.findings.front().certain; }

}  // namespace lockstep::detect
