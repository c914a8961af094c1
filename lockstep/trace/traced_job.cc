#include "lockstep/trace/traced_job.h"

#include <algorithm>
#include <limits>

namespace lockstep::trace {
namespace {

// A transfer or a delay that comes out more negative than this is an error of the clocks, not of rounding.
constexpr float kBelowZero = -0.01F;

// What is measured, parted. Arithmetic in float, as the published analysis does it: its results are met to the last
// digit.
class Parts {
 public:
  explicit Parts(TracedJob& job) : job_(job), width_(job.lanes.size()), row_(width_), scratch_(width_) {}

  void Compute() {
    job_.transfers = job_.durations;
    job_.delays.assign(job_.starts.size(), 0.0F);
    for (const graph::Unit& unit : job_.graph.units)
      if (unit.synchronised) Transfer(unit);
    for (uint32_t op = 0; op < job_.graph.ops(); ++op) Delay(op);
    Count(job_.counters, "negative_transfers", negative_transfers_);
    Count(job_.counters, "negative_delays", negative_delays_);
  }

 private:
  // From the last member's start to the own end.
  void Transfer(const graph::Unit& unit) {
    std::fill(row_.begin(), row_.end(), -std::numeric_limits<float>::infinity());
    for (uint32_t op = unit.first; op < unit.first + unit.count; ++op)
      for (size_t lane = 0; lane < width_; ++lane)
        if (!job_.graph.IsAbsent(op * width_ + lane))
          row_[lane] = std::max(row_[lane], job_.starts[op * width_ + lane]);
    graph::SpreadLargest<float>(job_.graph, unit.scope, 0, job_.graph.first_lane, row_, scratch_.data());
    for (uint32_t op = unit.first; op < unit.first + unit.count; ++op)
      for (size_t lane = 0; lane < width_; ++lane) {
        const size_t cell = op * width_ + lane;
        if (job_.graph.IsAbsent(cell)) continue;
        const float transfer = (job_.starts[cell] + job_.durations[cell]) - row_[lane];
        job_.transfers[cell] = Mended(transfer, negative_transfers_);
      }
  }

  // From the end of the last dependency, or the begin of the step, to the start. An absent dependency keeps nobody
  // waiting.
  void Delay(uint32_t op) {
    std::fill(row_.begin(), row_.end(), 0.0F);
    bool first = true;
    for (const uint32_t before : job_.graph.DependenciesOf(op)) {
      for (size_t lane = 0; lane < width_; ++lane) {
        const size_t cell = before * width_ + lane;
        const float end = job_.starts[cell] + job_.durations[cell];
        row_[lane] = first ? end : std::max(row_[lane], end);
      }
      first = false;
    }
    for (size_t lane = 0; lane < width_; ++lane) {
      const size_t cell = op * width_ + lane;
      if (!job_.graph.IsAbsent(cell)) job_.delays[cell] = Mended(job_.starts[cell] - row_[lane], negative_delays_);
    }
  }

  static float Mended(float value, uint64_t& counter) {
    if (value > kBelowZero) return value;
    ++counter;
    return 0;
  }

  TracedJob& job_;
  const size_t width_;
  std::vector<float> row_, scratch_;
  uint64_t negative_transfers_ = 0, negative_delays_ = 0;
};

}  // namespace

void MeasureParts(TracedJob& job) { Parts(job).Compute(); }

}  // namespace lockstep::trace
