#include "lockstep/trace/row_numbers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "lockstep/base/median.h"
#include "lockstep/base/parallel.h"
#include "lockstep/trace/common_moments.h"
#include "lockstep/trace/fit_numbers.h"
#include "lockstep/trace/worker_clocks.h"

namespace lockstep::trace {
namespace {

constexpr size_t kAround = 4;      // steps to either side
constexpr size_t kMostOthers = 7;  // lanes of the step that tell when a group ended
constexpr float kAgree = 0.005F;   // s: clocks agree so well where nothing tells

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

void Append(const Renumbered& some, Renumbered& all) {
  all.rows.insert(all.rows.end(), some.rows.begin(), some.rows.end());
  all.doubtful.insert(all.doubtful.end(), some.doubtful.begin(), some.doubtful.end());
}

class Stage {
 public:
  Stage(NumberedRows& numbered, const OpIndex& index, const Microbatches& microbatches, int stage, Renumbered& done)
      : numbered_(numbered),
        index_(index),
        microbatches_(microbatches),
        stage_(stage),
        done_(done),
        other_passes_(numbered.lanes.size()) {
    for (int type = 0; type < kSchemaTypes; ++type)
      for (uint32_t lane = 0; lane < lanes(); ++lane)
        whole_[static_cast<size_t>(type)].push_back(HasAll(index_.Of(OpType(type), stage_), lane));
  }

  void Renumber(size_t threads) {
    for (const OpType type : {OpType::kForwardCompute, OpType::kBackwardCompute}) ByMicrobatch(type);
    for (int type = 0; type < kSchemaTypes; ++type)
      if (IsTransfer(OpType(type)) || IsDataParallelComm(OpType(type))) ByTime(OpType(type), threads);
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

  bool HasAll(OpSpan span, uint32_t lane) {
    uint32_t op = span.first;
    while (op < span.last && Row(op, lane) != nullptr) ++op;
    return op == span.last;
  }

  // Lanes that have all of a type. Those never change.
  bool IsWhole(OpType type, uint32_t lane) const { return whole_[static_cast<size_t>(type)][lane]; }
  std::vector<uint32_t> WholeLanes(OpType type) const {
    std::vector<uint32_t> whole;
    for (uint32_t lane = 0; lane < lanes(); ++lane)
      if (IsWhole(type, lane)) whole.push_back(lane);
    return whole;
  }

  // numbers[i] of the row that is the i-th, ascending.
  void Give(OpSpan span, uint32_t lane, const Numbers& numbers, Renumbered& done) {
    for (size_t i = numbers.size(); i-- > 0 && numbers[i] != i;) {
      StragglerRow* row = std::exchange(Row(span.first + static_cast<uint32_t>(i), lane), nullptr);
      done.rows.push_back({row, row->sequence});
      row->sequence = static_cast<uint16_t>(numbers[i]);
      Row(span.first + numbers[i], lane) = row;
    }
  }

  void ByMicrobatch(OpType type) {
    using Microbatch = std::pair<int8_t, int16_t>;
    const OpSpan span = index_.Of(type, stage_);
    const std::vector<uint32_t> whole = WholeLanes(type);
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
        Give(span, lane, numbers, done_);
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

  // Lanes of the same ranks in another step, of those that it has.
  std::vector<uint32_t> LanesOf(size_t step, const std::vector<uint32_t>& lanes) const {
    std::vector<uint32_t> there;
    for (const uint32_t lane : lanes)
      if (const std::optional<uint32_t> found = LaneOf(step, numbered_.lanes[lane].dp)) there.push_back(*found);
    return there;
  }

  // In the middle of some lanes of a step that have the op.
  template <typename Moment>
  std::optional<float> InTheMiddle(uint32_t op, const std::vector<uint32_t>& lanes, const Moment& moment) {
    std::vector<float> moments;
    for (const uint32_t lane : lanes)
      if (const StragglerRow* row = Row(op, lane)) moments.push_back(moment(*row));
    if (moments.empty()) return std::nullopt;
    return LowerMedian(std::move(moments));
  }

  // How much later collectives end by the clock of a lane than by those of others of its step, as far as it and some
  // of them have all of a type.
  std::optional<float> LaterByEnds(uint32_t lane, const std::vector<uint32_t>& others) {
    std::vector<float> later;
    for (int type = 0; type < kSchemaTypes; ++type) {
      const OpSpan span = index_.Of(OpType(type), stage_);
      if (!IsDataParallelComm(OpType(type)) || !IsWhole(OpType(type), lane)) continue;
      std::vector<uint32_t> whole;
      std::ranges::copy_if(others, std::back_inserter(whole),
                           [&](uint32_t other) { return IsWhole(OpType(type), other); });
      for (uint32_t op = span.first; op < span.last; ++op)
        if (const std::optional<float> end = InTheMiddle(op, whole, EndOf))
          later.push_back(EndOf(*Row(op, lane)) - *end);
    }
    if (later.empty()) return std::nullopt;
    return LowerMedian(std::move(later));
  }

  // What begins when gradients are reduced, behind all of them.
  std::optional<uint32_t> OptimizerOf(uint32_t lane) {
    for (const OpType type : {OpType::kOptimizerClipMainGrad, OpType::kOptimizer})
      if (const OpSpan span = index_.Of(type, stage_); span.size() > 0 && Row(span.first, lane) != nullptr)
        return span.first;
    return std::nullopt;
  }

  // How much later it begins by the clock of a lane than in others: that clock, and the rank's own delay.
  std::optional<float> LaterByOptimizer(uint32_t lane, const std::vector<uint32_t>& others) {
    const std::optional<uint32_t> optimizer = OptimizerOf(lane);
    if (!optimizer) return std::nullopt;
    const auto start = InTheMiddle(*optimizer, others, [](const StragglerRow& row) { return row.start; });
    if (!start) return std::nullopt;
    return Row(*optimizer, lane)->start - *start;
  }

  // How long after the group's last end before it the others' optimizers begin.
  float DelayOfOptimizer(OpSpan reduced, uint32_t lane, const std::vector<uint32_t>& others) {
    const std::optional<uint32_t> optimizer = OptimizerOf(lane);
    std::vector<float> delays;
    for (const uint32_t other : others) {
      const StragglerRow* own = optimizer ? Row(*optimizer, other) : nullptr;
      float delay = std::numeric_limits<float>::infinity();
      for (uint32_t op = reduced.first; op < reduced.last && own != nullptr; ++op)
        if (const float since = own->start - EndOf(*Row(op, other)); since >= -kOffClock)
          delay = std::min(delay, std::max(since, 0.0F));
      if (std::isfinite(delay)) delays.push_back(delay);
    }
    return LowerMedian(std::move(delays));
  }

  // The best word of the step's clocks: other collectives; what these tell in the nearest steps on both sides, moved by
  // no more than the optimizer moved from there to here. The optimizer alone tells between what: its rank may have
  // begun it late, so as far ahead as it seems to be the clock need not be; but it begins behind the last end, so the
  // clock is no less behind than it would be without the delay that the others have. Else clocks are taken to agree.
  Later Told(OpSpan span, uint32_t lane, const std::vector<uint32_t>& others) {
    if (const std::optional<float> later = LaterByEnds(lane, others)) return {*later, *later};
    const std::optional<float> optimizer = LaterByOptimizer(lane, others);
    const std::optional<Later> before = LaterAround(lane, others, -1, optimizer),
                               behind = LaterAround(lane, others, 1, optimizer);
    if (before && behind) return Both(*before, *behind);
    if (before || behind) return before ? *before : *behind;
    if (!optimizer) return {0, 0, kAgree};
    const float at_most = std::min(0.0F, *optimizer + DelayOfOptimizer(span, lane, others));
    return {std::min(0.0F, *optimizer), std::max(*optimizer, at_most), kAgree};
  }

  // What two tell: where they don't contradict each other, what both allow; else all between.
  static Later Both(const Later& one, const Later& other) {
    const float least = std::max(one.least, other.least), most = std::min(one.most, other.most);
    if (least <= most) return {least, most};
    return {std::min(one.least, other.least), std::max(one.most, other.most)};
  }

  std::optional<Later> LaterAround(uint32_t lane, const std::vector<uint32_t>& others, int side,
                                   std::optional<float> optimizer) {
    for (size_t away = 1; away <= kAround; ++away) {
      const size_t step =
          side < 0 ? StepOf(lane) - away : StepOf(lane) + away;  // before the first: far behind the last
      const std::optional<uint32_t> own = LaneOf(step, numbered_.lanes[lane].dp);
      if (!own) continue;
      const std::vector<uint32_t> there = LanesOf(step, others);
      const std::optional<float> later = LaterByEnds(*own, there);
      const std::optional<float> with_delay = optimizer ? LaterByOptimizer(*own, there) : std::nullopt;
      if (!later || (optimizer && !with_delay)) continue;
      const float moved = optimizer ? *later + (*optimizer - *with_delay) : *later;
      return Later{std::min(*later, moved), std::max(*later, moved)};
    }
    return std::nullopt;
  }

  bool IsAlone(uint32_t lane) const {
    const size_t step = StepOf(lane);
    return numbered_.first_lane[step + 1] - numbered_.first_lane[step] == 1;
  }

  // A row of the type in the step is numbered above those of the lane.
  bool SomebodyHasMore(OpSpan span, uint32_t lane, uint32_t count) {
    const size_t step = StepOf(lane);
    for (uint32_t op = span.first + count; op < span.last; ++op)
      for (uint32_t other = numbered_.first_lane[step]; other < numbered_.first_lane[step + 1]; ++other)
        if (Row(op, other) != nullptr) return true;
    return false;
  }

  void Leave(OpSpan span, uint32_t lane, uint32_t row, Later clock, Renumbered& done) {
    done.doubtful.push_back({Row(span.first + row, lane), span.first + row, lane, clock});
  }
  void LeaveAll(OpSpan span, uint32_t lane, uint32_t count, Renumbered& done) {
    constexpr float kAny = std::numeric_limits<float>::infinity();
    for (uint32_t row = 0; row < count; ++row) Leave(span, lane, row, {-kAny, kAny}, done);
  }

  static bool IsTooMany(OpSpan span, uint32_t count) { return size_t{count} * (span.size() - count) > kMostCells; }

  // A group ends together. Starts tell nothing of collectives one behind the other: from the second on they are the
  // slowest rank's.
  void ByEnds(OpSpan span, const std::vector<uint32_t>& whole, uint32_t lane, uint32_t count, Renumbered& done) {
    const size_t step = StepOf(lane);
    std::vector<uint32_t> others;
    for (auto at = std::ranges::lower_bound(whole, numbered_.first_lane[step]);
         at != whole.end() && *at < numbered_.first_lane[step + 1] && others.size() < kMostOthers; ++at)
      others.push_back(*at);
    if (others.empty() ? SomebodyHasMore(span, lane, count) : IsTooMany(span, count))
      return LeaveAll(span, lane, count, done);
    if (others.empty()) return;
    std::vector<float> own, group;
    for (uint32_t op = span.first; op < span.first + count; ++op) own.push_back(EndOf(*Row(op, lane)));
    for (uint32_t op = span.first; op < span.last; ++op) group.push_back(*InTheMiddle(op, others, EndOf));
    const NumberedByEnds numbered = NumbersByEnds(own, group, Told(span, lane, others));
    for (const uint32_t row : numbered.doubtful) Leave(span, lane, row, numbered.clock, done);
    Give(span, lane, numbered.numbers, done);
  }

  void ByStarts(OpSpan span, const std::vector<uint32_t>& whole, uint32_t lane, uint32_t count, Renumbered& done) {
    const std::vector<float> expected = ExpectedStarts(span, whole, lane);
    if (expected.empty()) return;
    if (IsTooMany(span, count)) return LeaveAll(span, lane, count, done);
    std::vector<float> own;
    for (uint32_t op = span.first; op < span.first + count; ++op) own.push_back(Row(op, lane)->start);
    if (const std::optional<Numbers> numbers = NumbersByStarts(own, expected)) Give(span, lane, *numbers, done);
  }

  // Each lane by itself: it reads of others what they have whole, and of none that is changed meanwhile.
  void ByTime(OpType type, size_t threads) {
    const OpSpan span = index_.Of(type, stage_);
    const std::vector<uint32_t> whole = WholeLanes(type);
    if (whole.size() == lanes()) return;
    std::vector<Renumbered> done(lanes());
    ParallelFor(lanes(), threads, [&](size_t i, size_t /*worker*/) {
      const auto lane = static_cast<uint32_t>(i);
      const uint32_t count = Fewer(span, lane);
      if (count == 0 || other_passes_[lane]) return;
      if (IsDataParallelComm(type) && !IsAlone(lane))
        ByEnds(span, whole, lane, count, done[lane]);
      else if (!whole.empty())
        ByStarts(span, whole, lane, count, done[lane]);
    });
    for (const Renumbered& some : done) Append(some, done_);
  }

  NumberedRows& numbered_;
  const OpIndex& index_;
  const Microbatches& microbatches_;
  const int stage_;
  Renumbered& done_;
  std::array<std::vector<bool>, kSchemaTypes> whole_;  // [type][lane]
  std::vector<bool> other_passes_;                     // [lane]: not some of those that a whole lane has
};

}  // namespace

Renumbered Renumber(NumberedRows& numbered, size_t threads) {
  const OpIndex index(numbered.ops);
  const Microbatches microbatches(numbered);
  std::vector<Renumbered> done(static_cast<size_t>(index.stages()));
  const size_t of_stage = (threads + done.size() - 1) / std::max<size_t>(done.size(), 1);
  ParallelFor(done.size(), threads, [&](size_t stage, size_t /*worker*/) {
    Stage(numbered, index, microbatches, static_cast<int>(stage), done[stage]).Renumber(of_stage);
  });
  Renumbered all;
  for (const Renumbered& some : done) Append(some, all);
  return all;
}

}  // namespace lockstep::trace
