#include "lockstep/trace/row_numbers.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "lockstep/base/median.h"
#include "lockstep/base/parallel.h"
#include "lockstep/trace/common_moments.h"

namespace lockstep::trace {
namespace {

using Numbers = std::vector<uint32_t>;

constexpr size_t kMostCells = 1 << 24;  // rows times those that are lacking, of one worker and type
constexpr size_t kAround = 4;           // steps to either side

// Of the distance by the numbers as they are, what others may leave: by starts, which vary; by ends, which are a
// group's, of clocks that may have been set since another step told of them.
constexpr double kLeftOfStarts = 0.5, kLeftOfEnds = 0.1;

// Of rows at the moments `own`, of ops that are expected at `expected` in their order: which op each is, so that the
// distances sum up to the least. Nothing where that is more than `left` of what it is by their numbers.
std::optional<Numbers> NumbersByTime(const std::vector<float>& own, const std::vector<float>& expected, double left) {
  const size_t most = expected.size() - own.size();  // that a number is off by
  const auto distance = [&](size_t row, size_t off) {
    return std::abs(double{own[row]} - double{expected[row + off]});
  };
  std::vector<double> least(most + 1, 0);           // [off]: of the rows so far
  std::vector<bool> kept(own.size() * (most + 1));  // [row][off]: the row before is best off by as much
  double as_numbered = 0;
  for (size_t row = 0; row < own.size(); ++row) {
    as_numbered += distance(row, 0);
    size_t best = 0;  // that the row before is off by
    std::vector<double> now(most + 1);
    for (size_t off = 0; off <= most; ++off) {
      if (least[off] < least[best]) best = off;
      kept[row * (most + 1) + off] = best == off;
      now[off] = least[best] + distance(row, off);
    }
    least = std::move(now);
  }
  auto off = static_cast<size_t>(std::ranges::min_element(least) - least.begin());
  if (least[off] > left * as_numbered) return std::nullopt;
  Numbers numbers(own.size());
  for (size_t row = own.size(); row-- > 0;) {
    numbers[row] = static_cast<uint32_t>(row + off);
    while (!kept[row * (most + 1) + off]) --off;
  }
  return numbers;
}

// Which microbatches each lane has passes of, on any stage.
class Microbatches {
 public:
  explicit Microbatches(const NumberedRows& numbered) : of_lane_(numbered.lanes.size()) {
    for (size_t cell = 0; cell < numbered.rows.size(); ++cell) {
      const StragglerRow* row = numbered.rows[cell];
      if (row == nullptr || !IsPass(row->type) || row->microbatch < 0) continue;
      std::vector<bool>& has = of_lane_[cell % of_lane_.size()];
      const auto microbatch = static_cast<size_t>(row->microbatch);
      if (has.size() <= microbatch) has.resize(microbatch + 1);
      has[microbatch] = true;
    }
  }
  bool Has(uint32_t lane, int16_t microbatch) const {
    return microbatch >= 0 && static_cast<size_t>(microbatch) < of_lane_[lane].size() &&
           of_lane_[lane][static_cast<size_t>(microbatch)];
  }

 private:
  std::vector<std::vector<bool>> of_lane_;
};

class Stage {
 public:
  Stage(NumberedRows& numbered, const OpIndex& index, const Microbatches& microbatches, int stage, Renumbered& done)
      : numbered_(numbered),
        index_(index),
        microbatches_(microbatches),
        stage_(stage),
        done_(done),
        other_passes_(numbered.lanes.size()) {}

  void Renumber() {
    for (const OpType type : {OpType::kForwardCompute, OpType::kBackwardCompute}) ByMicrobatch(index_.Of(type, stage_));
    for (int type = 0; type < kSchemaTypes; ++type)
      if (IsTransfer(OpType(type)) || IsDataParallelComm(OpType(type))) ByTime(OpType(type));
  }

 private:
  uint32_t lanes() const { return static_cast<uint32_t>(numbered_.lanes.size()); }
  StragglerRow*& Row(uint32_t op, uint32_t lane) { return numbered_.rows[op * size_t{lanes()} + lane]; }

  // Of a lane that has rows without a gap, but not of all ops: how many. Else 0.
  uint32_t Fewer(OpSpan span, uint32_t lane) {
    uint32_t count = 0;
    while (count < span.size() && Row(span.first + count, lane) != nullptr) ++count;
    for (uint32_t op = span.first + count; op < span.last; ++op)
      if (Row(op, lane) != nullptr) return 0;
    return count == span.size() ? 0 : count;
  }

  bool IsWhole(OpSpan span, uint32_t lane) {
    uint32_t op = span.first;
    while (op < span.last && Row(op, lane) != nullptr) ++op;
    return op == span.last;
  }

  std::vector<uint32_t> WholeLanes(OpSpan span) {
    std::vector<uint32_t> whole;
    for (uint32_t lane = 0; lane < lanes(); ++lane)
      if (IsWhole(span, lane)) whole.push_back(lane);
    return whole;
  }

  // numbers[i] of the row that is the i-th, ascending.
  void Give(OpSpan span, uint32_t lane, const Numbers& numbers) {
    for (size_t i = numbers.size(); i-- > 0 && numbers[i] != i;) {
      StragglerRow* row = std::exchange(Row(span.first + static_cast<uint32_t>(i), lane), nullptr);
      done_.rows.push_back({row, row->sequence});
      row->sequence = static_cast<uint16_t>(numbers[i]);
      Row(span.first + numbers[i], lane) = row;
    }
  }

  void ByMicrobatch(OpSpan span) {
    using Microbatch = std::pair<int8_t, int16_t>;
    const std::vector<uint32_t> whole = WholeLanes(span);
    if (span.size() == 0 || whole.empty()) return;
    std::map<Microbatch, uint32_t> number_of;
    for (uint32_t i = 0; i < span.size(); ++i) {
      const StragglerRow& row = *Row(span.first + i, whole.front());
      if (!number_of.try_emplace({row.chunk, row.microbatch}, i).second) return;
    }
    for (uint32_t lane = 0; lane < lanes(); ++lane) {
      Numbers numbers;
      const uint32_t count = Fewer(span, lane);
      for (uint32_t i = 0; i < count; ++i) {
        const StragglerRow& row = *Row(span.first + i, lane);
        const auto found = number_of.find({row.chunk, row.microbatch});
        if (found == number_of.end() || (i > 0 && found->second <= numbers.back())) break;
        numbers.push_back(found->second);
      }
      if (count == 0) continue;
      if (numbers.size() == count && HasAllBetween(span, whole.front(), lane, numbers))
        Give(span, lane, numbers);
      else
        other_passes_[lane] = true;
    }
  }

  // Of the microbatches that the worker would have lost between its rows its lane has some pass: else it has fewer.
  bool HasAllBetween(OpSpan span, uint32_t whole, uint32_t lane, const Numbers& numbers) {
    size_t next = 0;
    for (uint32_t number = numbers.front(); number < numbers.back(); ++number)
      if (number == numbers[next])
        ++next;
      else if (!microbatches_.Has(lane, Row(span.first + number, whole)->microbatch))
        return false;
    return true;
  }

  // The begins and ends of passes of both.
  CommonMoments CommonPasses(uint32_t donor, uint32_t lane) {
    CommonMoments common;
    for (const OpType type : {OpType::kForwardCompute, OpType::kBackwardCompute})
      for (uint32_t op = index_.Of(type, stage_).first; op < index_.Of(type, stage_).last; ++op) {
        const StragglerRow *there = Row(op, donor), *here = Row(op, lane);
        if (there == nullptr || here == nullptr) continue;
        common.Add(there->start, here->start);
        common.Add(there->start + there->duration, here->start + here->duration);
      }
    common.Sort();
    return common;
  }

  // The same rank's, else one of the same step, else any.
  uint32_t DonorOf(const std::vector<uint32_t>& whole, uint32_t lane) const {
    const auto like = [&](const auto& of) {
      return std::ranges::find_if(
          whole, [&](uint32_t other) { return numbered_.lanes[other].*of == numbered_.lanes[lane].*of; });
    };
    if (const auto same = like(&JobLane::dp); same != whole.end()) return *same;
    if (const auto same = like(&JobLane::step); same != whole.end()) return *same;
    return whole.front();
  }

  // When the ops would have begun in the lane, by its passes and those of a lane that has them all. Empty: not told.
  std::vector<float> ExpectedStarts(OpSpan span, const std::vector<uint32_t>& whole, uint32_t lane) {
    const uint32_t donor = DonorOf(whole, lane);
    const CommonMoments common = CommonPasses(donor, lane);
    if (common.empty()) return {};
    std::vector<float> expected;
    for (uint32_t op = span.first; op < span.last; ++op) expected.push_back(common.Moved(Row(op, donor)->start));
    return expected;
  }

  static float EndOf(const StragglerRow& row) { return row.start + row.duration; }

  size_t StepOf(uint32_t lane) const {
    return static_cast<size_t>(std::ranges::upper_bound(numbered_.first_lane, lane) - numbered_.first_lane.begin()) - 1;
  }
  std::optional<uint32_t> LaneOf(size_t step, int dp) const {
    if (step >= numbered_.first_lane.size() - 1) return std::nullopt;
    const auto first = numbered_.lanes.begin() + numbered_.first_lane[step];
    const auto last = numbered_.lanes.begin() + numbered_.first_lane[step + 1];
    const auto found = std::ranges::lower_bound(first, last, dp, {}, &JobLane::dp);
    if (found == last || found->dp != dp) return std::nullopt;
    return static_cast<uint32_t>(found - numbered_.lanes.begin());
  }

  // How much later collectives end by the clock of one lane than by that of another of its step, as far as both have
  // all of a type.
  std::optional<float> Later(uint32_t lane, uint32_t other) {
    std::vector<float> later;
    for (int type = 0; type < kSchemaTypes; ++type) {
      const OpSpan span = index_.Of(OpType(type), stage_);
      if (!IsDataParallelComm(OpType(type)) || !IsWhole(span, lane) || !IsWhole(span, other)) continue;
      for (uint32_t op = span.first; op < span.last; ++op)
        later.push_back(EndOf(*Row(op, lane)) - EndOf(*Row(op, other)));
    }
    if (later.empty()) return std::nullopt;
    return LowerMedian(std::move(later));
  }

  // The same, else in the nearest of the steps around where it is told.
  std::optional<float> LaterAround(uint32_t lane, uint32_t other) {
    if (const std::optional<float> later = Later(lane, other)) return later;
    const size_t step = StepOf(lane);
    for (size_t away = 1; away <= kAround; ++away)
      for (const size_t around : {step - away, step + away}) {  // before the first: far behind the last
        const auto own = LaneOf(around, numbered_.lanes[lane].dp), its = LaneOf(around, numbered_.lanes[other].dp);
        if (!own || !its) continue;
        if (const std::optional<float> later = Later(*own, *its)) return later;
      }
    return std::nullopt;
  }

  bool IsAlone(uint32_t lane) const {
    const size_t step = StepOf(lane);
    return numbered_.first_lane[step + 1] - numbered_.first_lane[step] == 1;
  }

  // A group ends together: when the ops ended in a lane of the same step that has them all, by the own clock. Starts
  // tell nothing of collectives one behind the other: from the second on they are the slowest rank's. Empty: no other
  // lane has them all, or nothing tells of the clocks.
  std::vector<float> ExpectedEnds(OpSpan span, const std::vector<uint32_t>& whole, uint32_t lane) {
    const size_t step = StepOf(lane);
    const auto other = std::ranges::lower_bound(whole, numbered_.first_lane[step]);
    if (other == whole.end() || *other >= numbered_.first_lane[step + 1]) return {};
    const std::optional<float> later = LaterAround(lane, *other);
    if (!later) return {};
    std::vector<float> expected;
    for (uint32_t op = span.first; op < span.last; ++op) expected.push_back(EndOf(*Row(op, *other)) + *later);
    return expected;
  }

  void ByTime(OpType type) {
    const OpSpan span = index_.Of(type, stage_);
    const std::vector<uint32_t> whole = WholeLanes(span);
    if (span.size() == 0 || whole.empty()) return;
    for (uint32_t lane = 0; lane < lanes(); ++lane) {
      const uint32_t count = Fewer(span, lane);
      if (count == 0 || other_passes_[lane]) continue;
      const bool by_ends = IsDataParallelComm(type) && !IsAlone(lane);
      const std::vector<float> expected = by_ends ? ExpectedEnds(span, whole, lane) : ExpectedStarts(span, whole, lane);
      if (expected.empty()) continue;
      if (size_t{count} * (span.size() - count) > kMostCells) {
        done_.left += count;
        continue;
      }
      std::vector<float> own;
      for (uint32_t op = span.first; op < span.first + count; ++op)
        own.push_back(by_ends ? EndOf(*Row(op, lane)) : Row(op, lane)->start);
      if (const std::optional<Numbers> numbers = NumbersByTime(own, expected, by_ends ? kLeftOfEnds : kLeftOfStarts))
        Give(span, lane, *numbers);
    }
  }

  NumberedRows& numbered_;
  const OpIndex& index_;
  const Microbatches& microbatches_;
  const int stage_;
  Renumbered& done_;
  std::vector<bool> other_passes_;  // [lane]: not some of those that a whole lane has
};

}  // namespace

Renumbered Renumber(NumberedRows numbered, size_t threads) {
  const OpIndex index(numbered.ops);
  const Microbatches microbatches(numbered);
  std::vector<Renumbered> done(static_cast<size_t>(index.stages()));
  ParallelFor(done.size(), threads, [&](size_t stage, size_t /*worker*/) {
    Stage(numbered, index, microbatches, static_cast<int>(stage), done[stage]).Renumber();
  });
  Renumbered all;
  for (const Renumbered& some : done) {
    all.rows.insert(all.rows.end(), some.rows.begin(), some.rows.end());
    all.left += some.left;
  }
  return all;
}

}  // namespace lockstep::trace
