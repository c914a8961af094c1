#include "lockstep/trace/row_numbers.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "lockstep/base/parallel.h"
#include "lockstep/trace/common_moments.h"

namespace lockstep::trace {
namespace {

using Numbers = std::vector<uint32_t>;

// Of rows that began at `starts`, of ops that are expected at `expected` in their order: which op each is, so that the
// distances sum up to the least. Nothing where that is more than half of what it is by their numbers.
std::optional<Numbers> NumbersByTime(const std::vector<float>& starts, const std::vector<float>& expected) {
  const size_t most = expected.size() - starts.size();  // that a number is off by
  const auto distance = [&](size_t row, size_t off) {
    return std::abs(double{starts[row]} - double{expected[row + off]});
  };
  std::vector<double> least(most + 1, 0);                                       // [off]: of the rows so far
  std::vector<std::vector<uint32_t>> before(starts.size(), Numbers(most + 1));  // [row][off]: of the row before
  double as_numbered = 0;
  for (size_t row = 0; row < starts.size(); ++row) {
    as_numbered += distance(row, 0);
    uint32_t best = 0;
    std::vector<double> now(most + 1);
    for (size_t off = 0; off <= most; ++off) {
      if (least[off] < least[best]) best = static_cast<uint32_t>(off);
      before[row][off] = best;
      now[off] = least[best] + distance(row, off);
    }
    least = std::move(now);
  }
  auto off = static_cast<uint32_t>(std::ranges::min_element(least) - least.begin());
  if (2 * least[off] > as_numbered) return std::nullopt;
  Numbers numbers(starts.size());
  for (size_t row = starts.size(); row-- > 0; off = before[row][off]) numbers[row] = static_cast<uint32_t>(row) + off;
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
  Stage(NumberedRows& numbered, const OpIndex& index, const Microbatches& microbatches, int stage,
        std::vector<RenumberedRow>& changed)
      : numbered_(numbered),
        index_(index),
        microbatches_(microbatches),
        stage_(stage),
        changed_(changed),
        other_passes_(numbered.lanes.size()) {}

  void Renumber() {
    for (const OpType type : {OpType::kForwardCompute, OpType::kBackwardCompute}) ByMicrobatch(index_.Of(type, stage_));
    for (int type = 0; type < kSchemaTypes; ++type)
      if (IsTransfer(OpType(type)) || IsDataParallelComm(OpType(type))) ByTime(index_.Of(OpType(type), stage_));
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

  std::vector<uint32_t> WholeLanes(OpSpan span) {
    std::vector<uint32_t> whole;
    for (uint32_t lane = 0; lane < lanes(); ++lane) {
      uint32_t op = span.first;
      while (op < span.last && Row(op, lane) != nullptr) ++op;
      if (op == span.last) whole.push_back(lane);
    }
    return whole;
  }

  // numbers[i] of the row that is the i-th, ascending.
  void Give(OpSpan span, uint32_t lane, const Numbers& numbers) {
    for (size_t i = numbers.size(); i-- > 0 && numbers[i] != i;) {
      StragglerRow* row = std::exchange(Row(span.first + static_cast<uint32_t>(i), lane), nullptr);
      changed_.push_back({row, row->sequence});
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

  void ByTime(OpSpan span) {
    const std::vector<uint32_t> whole = WholeLanes(span);
    if (span.size() == 0 || whole.empty()) return;
    for (uint32_t lane = 0; lane < lanes(); ++lane) {
      const uint32_t count = Fewer(span, lane);
      if (count == 0 || other_passes_[lane]) continue;
      const uint32_t donor = DonorOf(whole, lane);
      const CommonMoments common = CommonPasses(donor, lane);
      if (common.empty()) continue;
      std::vector<float> starts, expected;
      for (uint32_t i = 0; i < count; ++i) starts.push_back(Row(span.first + i, lane)->start);
      for (uint32_t op = span.first; op < span.last; ++op) expected.push_back(common.Moved(Row(op, donor)->start));
      if (const std::optional<Numbers> numbers = NumbersByTime(starts, expected)) Give(span, lane, *numbers);
    }
  }

  NumberedRows& numbered_;
  const OpIndex& index_;
  const Microbatches& microbatches_;
  const int stage_;
  std::vector<RenumberedRow>& changed_;
  std::vector<bool> other_passes_;  // [lane]: not some of those that a whole lane has
};

}  // namespace

std::vector<RenumberedRow> Renumber(NumberedRows numbered, size_t threads) {
  const OpIndex index(numbered.ops);
  const Microbatches microbatches(numbered);
  std::vector<std::vector<RenumberedRow>> changed(static_cast<size_t>(index.stages()));
  ParallelFor(changed.size(), threads, [&](size_t stage, size_t /*worker*/) {
    Stage(numbered, index, microbatches, static_cast<int>(stage), changed[stage]).Renumber();
  });
  std::vector<RenumberedRow> all;
  for (const auto& some : changed) all.insert(all.end(), some.begin(), some.end());
  return all;
}

}  // namespace lockstep::trace
