#include "lockstep/trace/untold_clocks.h"

#include <algorithm>
#include <optional>
#include <set>

#include "lockstep/base/median.h"

namespace lockstep::trace {
namespace {

class Clocks {
 public:
  Clocks(const NumberedRows& numbered, const std::vector<uint8_t>& in_doubt)
      : numbered_(numbered), in_doubt_(in_doubt), index_(numbered.ops) {}

  UntoldClocks Begin() {
    UntoldClocks untold;
    for (const Worker& worker : Doubtful()) {
      const OpSpan span = index_.OfStage(worker.second);
      if (std::ranges::any_of(LanesOf(worker.first), [&](uint32_t lane) { return IsTold(span, lane); })) continue;
      untold.workers.push_back(worker);
      for (const uint32_t lane : LanesOf(worker.first)) Move(span, lane, untold);
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

  // Workers with rows in doubt.
  std::set<Worker> Doubtful() const {
    std::set<Worker> workers;
    for (uint32_t op = 0; op < numbered_.ops.size(); ++op)
      for (uint32_t lane = 0; lane < lanes(); ++lane)
        if (in_doubt_[op * lanes() + lane] != 0) workers.emplace(numbered_.lanes[lane].dp, numbered_.ops[op].stage);
    return workers;
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

  // The first that others have, too.
  void Move(OpSpan span, uint32_t lane, UntoldClocks& untold) const {
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

UntoldClocks BeginWithOthers(const NumberedRows& numbered, const std::vector<uint8_t>& in_doubt) {
  return Clocks(numbered, in_doubt).Begin();
}

}  // namespace lockstep::trace
