#include "lockstep/trace/untold_clocks.h"

#include <algorithm>
#include <map>
#include <optional>

#include "lockstep/base/median.h"

namespace lockstep::trace {
namespace {

class Clocks {
 public:
  Clocks(const NumberedRows& numbered, const std::vector<uint8_t>& in_doubt)
      : numbered_(numbered), in_doubt_(in_doubt), index_(numbered.ops) {}

  UntoldClocks Begin(const std::vector<DoubtfulRow>& doubtful) {
    std::map<Worker, std::map<uint32_t, Later>> clocks;  // by lane
    for (const DoubtfulRow& one : doubtful) {
      const Worker worker{numbered_.lanes[one.lane].dp, numbered_.ops[one.op].stage};
      Later& clock = clocks[worker].try_emplace(one.lane, one.clock).first->second;
      clock.least = std::min(clock.least, one.clock.least);
      clock.most = std::max(clock.most, one.clock.most);
    }
    UntoldClocks untold;
    for (const auto& [worker, in_lanes] : clocks) {
      const OpSpan span = index_.OfStage(worker.second);
      if (std::ranges::any_of(LanesOf(worker.first), [&](uint32_t lane) { return IsTold(span, lane); })) continue;
      untold.workers.push_back(worker);
      for (const auto& [lane, clock] : in_lanes) Move(span, lane, clock, untold);
    }
    return untold;
  }

 private:
  using Worker = std::pair<int, int>;  // dp, stage

  size_t lanes() const { return numbered_.lanes.size(); }
  StragglerRow* Row(uint32_t op, uint32_t lane) const { return numbered_.rows[op * lanes() + lane]; }
  bool IsSure(uint32_t op, uint32_t lane) const {
    return Row(op, lane) != nullptr && in_doubt_[op * lanes() + lane] == 0;
  }

  std::vector<uint32_t> LanesOf(int dp) const {
    std::vector<uint32_t> of_rank;
    for (uint32_t lane = 0; lane < lanes(); ++lane)
      if (numbered_.lanes[lane].dp == dp) of_rank.push_back(lane);
    return of_rank;
  }

  // Calls take(lane) for the other ranks of the lane's step.
  template <typename Take>
  void EachOther(uint32_t lane, const Take& take) const {
    const auto next = std::ranges::upper_bound(numbered_.first_lane, lane);
    for (uint32_t other = *(next - 1); other < *next; ++other)
      if (other != lane) take(other);
  }

  // A row of a communication is there, and one of another member.
  bool IsTold(OpSpan span, uint32_t lane) const {
    bool told = false;
    for (uint32_t op = span.first; op < span.last && !told; ++op) {
      if (!IsSure(op, lane)) continue;
      told = IsTransfer(numbered_.ops[op].type);
      if (IsDataParallelComm(numbered_.ops[op].type))
        EachOther(lane, [&](uint32_t other) { told = told || IsSure(op, other); });
    }
    return told;
  }

  // By the first row that others have, too.
  void Move(OpSpan span, uint32_t lane, Later clock, UntoldClocks& untold) const {
    std::optional<float> begin;
    float later = 0;
    for (uint32_t op = span.first; op < span.last; ++op) {
      if (!IsSure(op, lane) || (begin && Row(op, lane)->start >= *begin)) continue;
      std::vector<float> starts;
      EachOther(lane, [&](uint32_t other) {
        if (IsSure(op, other)) starts.push_back(Row(op, other)->start);
      });
      if (starts.empty()) continue;
      begin = Row(op, lane)->start;
      later = *begin - LowerMedian(std::move(starts));
    }
    later = std::clamp(later, clock.least, clock.most);
    for (uint32_t op = span.first; op < span.last; ++op)
      if (StragglerRow* row = Row(op, lane)) {
        untold.as.emplace_back(row, row->start);
        row->start -= later;
      }
  }

  const NumberedRows& numbered_;
  const std::vector<uint8_t>& in_doubt_;
  const OpIndex index_;
};

}  // namespace

UntoldClocks BeginWithOthers(const NumberedRows& numbered, const std::vector<DoubtfulRow>& doubtful,
                             const std::vector<uint8_t>& in_doubt) {
  return Clocks(numbered, in_doubt).Begin(doubtful);
}

}  // namespace lockstep::trace
