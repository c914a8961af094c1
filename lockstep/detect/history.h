// What is remembered of one rank, and what follows from it at a moment: since when it is halted, since when it shows no
// sign of work, since when its stacks have said the same. Every answer depends on the set of samples with at <= now.
// Bounded: twice the `window` of process samples, and four times of stack samples, at ticks of 0.1 s and 1 s; what
// began earlier is dated to the oldest kept.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/detect/hang.h"
#include "lockstep/detect/series.h"

namespace lockstep::detect {

// An unbroken run of stack samples that say the same, up to now.
struct StackRun {
  Nanos since;
  int samples = 0;
};

// No sign of work since then; `worked` says that a sign of work ended it, not the end of what was measured.
struct Quiet {
  Nanos since;
  bool worked = false;
};

// Samples with what follows from them and those before them, so that a look does not go back over all of them: how many
// in a row, up to this one, hold something alike. Some of these may have been forgotten since.
struct SeenSample : RankSample {
  uint32_t halted = 0, free = 0;  // neither halted nor traced
};
struct SeenStack : StackSample {
  uint32_t still = 0;           // say the same
  uint32_t spot = 0, line = 0;  // are at one spot; of them the newest, at one line
};

class RankHistory {
 public:
  explicit RankHistory(Seconds window)
      : samples_(static_cast<size_t>(20 * window.value), ToNanos(window * 2)),
        stacks_(static_cast<size_t>(4 * window.value), ToNanos(window * 4)) {}
  void Add(const RankSample& sample);
  void Add(const StackSample& sample);
  void Clear();

  const RankSample* Last(Nanos now) const { return samples_.Last(now); }
  // The last stack sample, if it is young enough to speak of now.
  const StackSample* Stack(Nanos now) const;

  // When the training loop was first seen to run; none if it was not.
  std::optional<Nanos> LoopSince(Nanos now) const;
  // First sample of the unbroken stop or freeze; none if the rank is not halted.
  std::optional<Nanos> HaltedSince(Nanos now) const;
  // When it began, in all likelihood: between that sample and the one before it.
  std::optional<Nanos> HaltBegan(Nanos now) const;
  // First sample after the last one that was stopped, frozen or traced.
  Nanos FreeSince(Nanos now) const;
  // Since when the kernel has counted no work for this rank beyond what watching it costs: no i/o, no page faults, no
  // voluntary switches, and no processor time either if `idle`. Unmeasured time is not quiet.
  // Asked no further than to `floor`: `since` is any moment before it.
  Quiet QuietSince(Nanos now, bool idle, Nanos floor) const;
  // Share of one core over [from, now].
  double Load(Nanos from, Nanos now) const;
  // Since when the stacks have said the same as the last one.
  StackRun Still(Nanos now) const;
  // Since when the main thread has been at one spot: the same line, or going round two lines of one function.
  StackRun OneSpot(Nanos now) const;
  // Work within the last `span`, counted by the kernel or seen in stacks that differ.
  bool Works(Nanos now, Seconds span) const;

 private:
  StackRun Run(Nanos now, uint32_t SeenStack::* samples) const;

  Series<SeenSample> samples_;
  Series<SeenStack> stacks_;
  std::optional<Nanos> loop_since_;
};

// "train in train.py" of "train.py:41 in train".
std::string FunctionOf(const std::string& python_frame);

}  // namespace lockstep::detect
