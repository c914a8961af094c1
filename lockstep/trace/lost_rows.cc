#include "lockstep/trace/lost_rows.h"

#include <algorithm>
#include <array>
#include <optional>

#include "lockstep/base/parallel.h"
#include "lockstep/trace/lost_row_times.h"

namespace lockstep::trace {
namespace {

size_t DirectionOf(OpType type) {
  return type == OpType::kForwardCompute || type == OpType::kForwardSend || type == OpType::kForwardRecv ? 0 : 1;
}

double Share(uint32_t count, OpSpan of) { return static_cast<double>(count) / static_cast<double>(of.size()); }

class Finder {
 public:
  Finder(const RecordedTimes& recorded, size_t threads)
      : recorded_(recorded),
        index_(recorded.ops),
        somebody_(recorded.ops.size() * recorded.steps()),
        count_(index_.places() * recorded.lanes.size()),
        share_(recorded.lanes.size()),
        directions_(recorded.lanes.size()) {
    ParallelFor(index_.places(), threads, [&](size_t place, size_t /*worker*/) { Survey(place); });
    for (size_t place = 0; place < index_.places(); ++place) AddShares(place);
  }

  std::vector<LostRow> Find(size_t threads) const {
    const LostRowTimes times(recorded_, index_);
    std::vector<std::vector<LostRow>> found(static_cast<size_t>(index_.stages()) * recorded_.steps());
    ParallelFor(found.size(), threads, [&](size_t i, size_t /*worker*/) {
      const auto stage = static_cast<int>(i / recorded_.steps());
      const size_t step = i % recorded_.steps();
      for (uint32_t lane = recorded_.first_lane[step]; lane < recorded_.first_lane[step + 1]; ++lane)
        OfWorker(stage, step, lane, times, found[i]);
    });
    std::vector<LostRow> lost;
    for (const auto& some : found) lost.insert(lost.end(), some.begin(), some.end());
    return lost;
  }

 private:
  // Who has what of the ops of a type and stage.
  void Survey(size_t place) {
    const OpSpan span = index_.Of(place);
    for (uint32_t op = span.first; op < span.last; ++op)
      for (size_t step = 0; step < recorded_.steps(); ++step)
        for (uint32_t lane = recorded_.first_lane[step]; lane < recorded_.first_lane[step + 1]; ++lane) {
          if (!recorded_.Has(op, lane)) continue;
          somebody_[op * recorded_.steps() + step] = 1;
          count_[place * recorded_.lanes.size() + lane] = op + 1 - span.first;
        }
  }

  void AddShares(size_t place) {
    const OpSpan span = index_.Of(place);
    if (span.size() == 0 || !IsPass(recorded_.ops[span.first].type)) return;
    for (uint32_t lane = 0; lane < recorded_.lanes.size(); ++lane) {
      const uint32_t count = CountOf(place, lane);
      share_[lane] = std::max(share_[lane], Share(count, span));
      if (count > 0) directions_[lane][DirectionOf(recorded_.ops[span.first].type)] = true;
    }
  }

  uint32_t CountOf(size_t place, uint32_t lane) const { return count_[place * recorded_.lanes.size() + lane]; }

  bool IsLost(uint32_t op, size_t step, uint32_t lane) const {
    constexpr double kRounding = 1e-9;
    const OpType type = recorded_.ops[op].type;
    if (recorded_.Has(op, lane) || type == OpType::kGc) return false;
    const bool somebody = somebody_[op * recorded_.steps() + step] != 0;
    if (!IsPass(type) && !IsTransfer(type)) return somebody;
    const size_t place = OpIndex::Place(recorded_.ops[op]);
    const uint32_t number = op + 1 - index_.Of(place).first;
    if (number < CountOf(place, lane)) return true;
    // How far the longest lanes are with that one of its kind.
    if (Share(number, index_.Of(place)) > share_[lane] + kRounding) return false;
    const bool alone = recorded_.first_lane[step + 1] - recorded_.first_lane[step] == 1;
    return alone ? directions_[lane][DirectionOf(type)] : somebody;
  }

  void OfWorker(int stage, size_t step, uint32_t lane, const LostRowTimes& times, std::vector<LostRow>& lost) const {
    std::vector<uint32_t> ops;
    size_t there = 0, in_doubt = 0;
    for (uint32_t op = index_.OfStage(stage).first; op < index_.OfStage(stage).last; ++op) {
      if (recorded_.IsInDoubt(op, lane)) ++in_doubt;
      if (recorded_.Has(op, lane) || recorded_.IsInDoubt(op, lane)) ++there;
      if (IsLost(op, step, lane)) ops.push_back(op);
    }
    if (ops.size() >= there + in_doubt) std::erase_if(ops, [&](uint32_t op) { return !recorded_.IsInDoubt(op, lane); });
    if (ops.empty()) return;
    const std::vector<LostRow> placed = times.Of(stage, step, lane, ops);
    lost.insert(lost.end(), placed.begin(), placed.end());
  }

  const RecordedTimes& recorded_;
  const OpIndex index_;
  std::vector<uint8_t> somebody_;                // [op][step]: some rank has it
  std::vector<uint32_t> count_;                  // [stage and type][lane]: up to the last that it has
  std::vector<double> share_;                    // [lane]: how far it is with its passes
  std::vector<std::array<bool, 2>> directions_;  // [lane]: has passes forward, backward
};

}  // namespace

std::vector<LostRow> FindLostRows(const RecordedTimes& recorded, size_t threads) {
  return Finder(recorded, threads).Find(threads);
}

}  // namespace lockstep::trace
