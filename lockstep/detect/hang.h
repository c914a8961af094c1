// Who holds the job back? Samples of all ranks in, findings out.
// Invariant: pure; the verdict at T is a function of the set of samples with at <= T, whatever their order of arrival.
// Rules: time alone names (certain = false); force needs evidence (certain = true): stopped or frozen while others
// wait, outside the collective in which others wait and unable to reach it, spinning without progress, waiting in
// another collective, or all ranks stuck beyond `hang_limit`.
// Not faults: a debugger (traced), all ranks stopped together, a slow first step, work that shows progress by any
// measure. docs/models/detect.md has the decision table.
// Bounded: about 160 KB a rank at ticks of 0.1 s, 20 KB at ticks of 1 s. One thread at a time. Cost: below 1 us per
// rank and tick while the job steps (24 virtual hours of 4 ranks take 2 s in hang_property_test, 2-core VM).
//
//   HangDetector detector(HangLimits{}, world_size);
//   detector.Add(sample); ...
//   Verdict verdict = detector.At(now);     // verdict.wants_stacks: take StackSamples of all ranks and Add them
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/ids.h"
#include "lockstep/base/units.h"
#include "lockstep/incident/incident.h"

namespace lockstep::detect {

struct HangLimits {
  // All ranks stuck this long: certain, whoever is to blame.
  Seconds hang_limit{600};
  // Outside the collective, every thread blocked without a timeout, stack unchanged this long: certain.
  Seconds blocked_limit{10};
  // Outside the collective, same Python lines, no kernel activity, and so much processor time spent on it: certain. An
  // evaluation in two lines looks the same, and on a crowded machine it takes long.
  Seconds spin_limit{60};
  // Before the job has step times of its own, nothing is named earlier than this.
  Seconds first_step_limit{60};
  // Named after max(3 steps, least_stall).
  Seconds least_stall{2};
};

enum class ProcState { kRunning, kSleeping, kDisk, kStopped, kZombie, kGone };

// One rank at one moment. Counters are sums since the process began, over all its threads and live descendants. The
// dearer ones (cpu to switches) may be left at 0 while the job steps: `faults` == 0 says that they were not read.
struct RankSample {
  RankId rank;
  Nanos at;
  ProcState state = ProcState::kRunning;
  bool traced = false;  // TracerPid != 0
  bool frozen = false;  // by a cgroup freezer, v1 or v2
  Nanos cpu;
  uint64_t io_bytes = 0;  // rchar + wchar
  uint64_t faults = 0;    // minor + major page faults
  uint64_t switches = 0;  // voluntary context switches of the main threads: gloo's poll thread alone makes 100 a second
  int64_t step = -1;      // last finished step
  Nanos step_end;         // when; 0 = no step yet
  int64_t steps = 0;      // finished since the training loop began
  Nanos stepping;         // how long they took together
  bool in_loop = false;   // the training loop has begun (and the rank has not finished)
  bool finished = false;  // exited with 0, or said that it is done
  bool joined = false;    // it uses the client: it will tell steps
  auto operator<=>(const RankSample&) const = default;
};

enum class InCollective { kUnknown, kYes, kNo };

// Whose code the main thread runs natively. A mathematics library computes: it is never taken for a loop without an
// end.
enum class CodeKind { kUnknown, kInterpreter, kMathLibrary, kOther };

// What the stacks of one rank said, where they could be read.
struct StackSample {
  RankId rank;
  Nanos at;
  InCollective in_collective = InCollective::kUnknown;
  bool waits_forever = false;  // every thread is in a system call that nothing but another thread or process ends
  std::string python;          // innermost Python frame of the main thread, "file:line in function"; empty = unreadable
  uint64_t signature = 0;      // hash of all Python frames of the main thread and of its native stack; 0 = unreadable
  std::string native;          // innermost native function of the main thread, "function (module)"; empty = unreadable
  CodeKind code = CodeKind::kUnknown;
  auto operator<=>(const StackSample&) const = default;
};

struct Verdict {
  std::vector<incident::Finding> findings;  // most certain first
  bool wants_stacks = false;                // a stall is on and more stack samples would decide it
};

// Somebody waits in communication, as far as collectors tell (control/comm_motion.h).
struct CommWait {
  Nanos since;  // no look has seen anything move since
  // At the newest look, and until then, nothing had been launched and nothing had ended for so long. In a job that goes
  // on that is at most `usual_quiet`; null: not known.
  Nanos quiet_since;
  Seconds quiet;
  std::optional<Seconds> usual_quiet;
};

class HangDetector {
 public:
  HangDetector(const HangLimits& limits, int world_size);
  ~HangDetector();
  // Forgets all samples: a new epoch begins. Step times learnt so far are kept.
  void Reset();
  // The same for one rank, which nobody watches for now.
  void Forget(RankId rank);
  void Add(const RankSample& sample);
  void Add(const StackSample& sample);
  // `unseen`: the job counts as training though it tells no steps. `wait`: asked of a job that tells none; null: nobody
  // waits, or nobody knows.
  Verdict At(Nanos now, bool unseen = false, const std::optional<CommWait>& wait = {}) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::detect
