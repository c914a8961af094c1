// What the cache keeps of items that nobody wants any more in this epoch: pixels of so many, files of so many, for the
// epochs to come. Solved as the linear programme of sampling/cache_split.h from what the threads measure: a thread that
// reads waits, so a read, a decode and a cut all cost its time. Augmented items are not kept: no crop is wanted twice,
// for each job and epoch has its own. How many jobs share a read and a decode is measured too. Thread-compatible.
//
//   if (const auto quotas = splitter.Solve(costs, {.threads = 2, .items = 1024, .budget = 64 << 20})) ...
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/sampling/cache_split.h"

namespace lockstep::feed {

// Of a kind of work, since the service began.
struct Work {
  uint64_t count = 0;
  int64_t ns = 0;
  uint64_t bytes = 0;  // of files; of pixels

  void Add(int64_t took, uint64_t size) {
    ++count;
    ns += took;
    bytes += size;
  }
};

struct Costs {
  Work reads, decodes, parts, cuts;  // parts: decodes of what one crop needs, with the cut
};

struct Quotas {
  uint64_t decoded = 0, encoded = 0;  // bytes
};

class Splitter {
 public:
  struct Machine {
    uint64_t threads = 1;
    uint64_t items = 0;  // that some job reads
    uint64_t budget = 0;
    uint64_t jobs = 1;
  };
  // Null: too little is known, or another split would be less than kGain faster than the one that is in force.
  std::optional<Quotas> Solve(const Costs& costs, const Machine& machine);
  // In force. Its rate is what threads could deliver; 0: nothing has been solved yet.
  const sampling::CacheSplit& split() const { return split_; }

 private:
  static constexpr double kGain = 0.05;
  // The latest that is known of a kind of work: the mean of at least kFew of it.
  struct Mean {
    Work until{};
    double seconds = 0, bytes = 0;
    void Take(const Work& now);
  };

  void TakeShared(const Costs& now, uint64_t jobs);

  Mean reads_, decodes_, parts_, cuts_;
  Costs counted_;  // until when shared_ is
  double shared_ = 1;
  Machine machine_;
  sampling::CacheSplit split_;
};

}  // namespace lockstep::feed
