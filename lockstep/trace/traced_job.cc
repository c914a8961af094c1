#include "lockstep/trace/traced_job.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/large_pages.h"
#include "lockstep/base/parallel.h"

namespace lockstep::trace {
namespace {

// A transfer or a delay that comes out more negative than this is an error of the clocks, not of rounding.
constexpr float kBelowZero = -0.01F;

// What is measured, parted. Arithmetic in float, as the published analysis does it: its results are met to the last
// digit.
class Parts {
 public:
  explicit Parts(TracedJob& job)
      : job_(job), width_(job.lanes.size()), some_untold_(!job.put_back.empty()), row_(width_), scratch_(width_) {
    if (some_untold_) recorded_.resize(width_);
  }

  void Compute(const graph::Unit& unit) {
    if (unit.synchronised) Transfer(unit);
    for (uint32_t op = unit.first; op < unit.first + unit.count; ++op) Delay(op);
  }
  uint64_t negative_transfers() const { return negative_transfers_; }
  uint64_t negative_delays() const { return negative_delays_; }

 private:
  // [lane]: when the last member began; -infinity: none did, of those to count.
  template <typename Counts>
  void LastStarts(const graph::Unit& unit, const Counts& counts, std::vector<float>& row) {
    std::fill(row.begin(), row.end(), -std::numeric_limits<float>::infinity());
    for (uint32_t op = unit.first; op < unit.first + unit.count; ++op)
      for (size_t lane = 0; lane < width_; ++lane)
        if (counts(op * width_ + lane)) row[lane] = std::max(row[lane], job_.starts[op * width_ + lane]);
    graph::SpreadLargest<float>(job_.graph, unit.scope, 0, job_.graph.first_lane, row, scratch_.data());
  }

  // From the last member's start to the own end.
  void Transfer(const graph::Unit& unit) {
    LastStarts(unit, [this](size_t cell) { return !job_.graph.IsAbsent(cell); }, row_);
    if (some_untold_) LastStarts(unit, [this](size_t cell) { return IsRecorded(job_, cell); }, recorded_);
    for (uint32_t op = unit.first; op < unit.first + unit.count; ++op)
      for (size_t lane = 0; lane < width_; ++lane) {
        const size_t cell = op * width_ + lane;
        if (job_.graph.IsAbsent(cell)) continue;
        const float end = job_.starts[cell] + job_.durations[cell];
        job_.transfers[cell] = Mended(end - row_[lane], IsTold(cell, lane, end), negative_transfers_);
      }
  }

  // From the end of the last dependency, or of the step before on the rank, to the start. An absent dependency keeps
  // nobody waiting.
  void Delay(uint32_t op) {
    if (job_.busy_until.empty())
      std::fill(row_.begin(), row_.end(), 0.0F);
    else
      std::copy_n(job_.busy_until.begin() + static_cast<std::ptrdiff_t>(width_) * job_.ops[op].stage, width_,
                  row_.begin());
    if (some_untold_) recorded_ = row_;
    bool first = true;
    for (const uint32_t before : job_.graph.DependenciesOf(op)) {
      for (size_t lane = 0; lane < width_; ++lane) {
        const size_t cell = before * width_ + lane;
        const float end = job_.starts[cell] + job_.durations[cell];
        row_[lane] = first ? end : std::max(row_[lane], end);
        if (some_untold_ && !IsPutBack(job_, cell)) recorded_[lane] = std::max(recorded_[lane], end);
      }
      first = false;
    }
    for (size_t lane = 0; lane < width_; ++lane) {
      const size_t cell = op * width_ + lane;
      if (job_.graph.IsAbsent(cell)) continue;
      const float start = job_.starts[cell];
      job_.delays[cell] = Mended(start - row_[lane], IsTold(cell, lane, start), negative_delays_);
    }
  }

  // Whether a moment of the cell is below zero by what was recorded alone: a row that was put back is no word of
  // clocks.
  bool IsTold(size_t cell, size_t lane, float moment) const {
    return !some_untold_ || (!IsPutBack(job_, cell) && moment - recorded_[lane] <= kBelowZero);
  }

  // IsMended knows it by its sign.
  static float Mended(float value, bool told, uint64_t& counter) {
    if (value > kBelowZero) return value;
    if (!told) return 0.0F;
    ++counter;
    return -0.0F;
  }

  TracedJob& job_;
  const size_t width_;
  const bool some_untold_;
  std::vector<float> row_, recorded_, scratch_;  // recorded_: as row_, without what is not told
  uint64_t negative_transfers_ = 0, negative_delays_ = 0;
};

}  // namespace

void MeasureParts(TracedJob& job, size_t threads) {
  ParallelFor(2, threads, [&](size_t i, size_t /*worker*/) {
    i == 0 ? CopyOnLargePages(job.durations, job.transfers) : FillOnLargePages(job.delays, job.starts.size(), 0.0F);
  });
  std::vector<Parts> parts(threads, Parts(job));
  ParallelFor(job.graph.units.size(), threads,
              [&](size_t unit, size_t worker) { parts[worker].Compute(job.graph.units[unit]); });
  uint64_t transfers = 0, delays = 0;
  for (const Parts& part : parts) transfers += part.negative_transfers(), delays += part.negative_delays();
  Count(job.counters, kNegativeTransfers, transfers);
  Count(job.counters, kNegativeDelays, delays);
}

}  // namespace lockstep::trace
