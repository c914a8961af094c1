#include "lockstep/trace/lost_row_times.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "lockstep/base/median.h"
#include "lockstep/trace/common_moments.h"
#include "lockstep/trace/lost_rows.h"

namespace lockstep::trace {
namespace {

constexpr size_t kMostDonors = 5, kAround = 4;  // lanes; steps, or ranks, to either side
constexpr size_t kFarAway = 64;                 // steps, where none nearer tells
constexpr size_t kMostMembers = 5;              // of a group, that tell when it ended
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Member {
  uint32_t op, lane;
};

// What the donor and the lane both have.
struct CommonPass {
  float donor_start, own_start, own_end;  // s
};

}  // namespace

// The lost rows of one worker in one step.
class WorkerTimes {
 public:
  WorkerTimes(const LostRowTimes& all, int stage, size_t step, uint32_t lane)
      : all_(all),
        recorded_(all.recorded_),
        stage_(stage),
        span_(all.index_.OfStage(stage)),
        step_(step),
        lane_(lane) {}

  std::vector<LostRow> Of(const std::vector<uint32_t>& ops) {
    for (const uint32_t op : ops)
      if (const std::optional<float> end = GroupEnd(op)) group_ends_[op] = *end;
    std::vector<LostRow> placed;
    for (const uint32_t op : ops)
      if (const std::optional<LostRow> row = Placed(op)) placed.push_back(*row);
    return placed;
  }

 private:
  const JobOp& Op(uint32_t op) const { return recorded_.ops[op]; }
  int Rank() const { return recorded_.lanes[lane_].dp; }
  uint32_t LaneOf(size_t step, int dp) const { return all_.lane_of_[step][static_cast<size_t>(dp)]; }

  // Calls take(step) for those around, the nearest first.
  template <typename Take>
  void EachStepAround(const Take& take) const {
    for (size_t away = 1; away <= kAround; ++away) {
      if (step_ >= away) take(step_ - away);
      if (step_ + away < recorded_.steps()) take(step_ + away);
    }
  }

  std::vector<uint32_t> Donors(uint32_t op) const {
    std::vector<uint32_t> donors;
    const auto take = [&](uint32_t lane) {
      if (donors.size() < kMostDonors && lane != RecordedTimes::kNone && recorded_.Has(op, lane))
        donors.push_back(lane);
    };
    EachStepAround([&](size_t step) { take(LaneOf(step, Rank())); });
    for (uint32_t away = 1; away <= kAround; ++away) {
      if (lane_ >= recorded_.first_lane[step_] + away) take(lane_ - away);
      if (lane_ + away < recorded_.first_lane[step_ + 1]) take(lane_ + away);
    }
    return donors.empty() ? all_.first_donors_[op] : donors;
  }

  // The n-th send of a stage meets the n-th receive of the next: where there are as many.
  std::optional<uint32_t> PeerOf(uint32_t op) const {
    constexpr std::array kEnds = {std::pair{OpType::kForwardSend, OpType::kForwardRecv},  // of this stage, of the next
                                  std::pair{OpType::kBackwardRecv, OpType::kBackwardSend}};
    const int stages = all_.index_.stages();
    for (const auto& [here, there] : kEnds) {
      if (Op(op).type != here && Op(op).type != there) continue;
      const bool is_here = Op(op).type == here;
      const int peer_stage = (Op(op).stage + (is_here ? 1 : stages - 1)) % stages;
      const OpSpan peers = all_.index_.Of(is_here ? there : here, peer_stage);
      const OpSpan own = all_.index_.Of(Op(op).type, Op(op).stage);
      if (peers.size() == own.size()) return peers.first + (op - own.first);
    }
    return std::nullopt;
  }

  // Others of the group of a communication, recorded in this step.
  std::vector<Member> MembersOf(uint32_t op) const {
    std::vector<Member> members;
    const auto take = [&](uint32_t other, uint32_t lane) {
      if (members.size() < kMostMembers && recorded_.Has(other, lane)) members.push_back({other, lane});
    };
    const OpType type = Op(op).type;
    const bool clip = type == OpType::kOptimizerClipMainGrad;
    if (IsDataParallelComm(type) || clip)
      for (uint32_t lane = recorded_.first_lane[step_]; lane < recorded_.first_lane[step_ + 1]; ++lane) take(op, lane);
    if (const std::optional<uint32_t> peer = PeerOf(op)) take(*peer, lane_);
    if (!clip && type != OpType::kEmbeddingGradsAllReduce) return members;
    for (int stage = 0; stage < all_.index_.stages(); ++stage)
      if (const OpSpan others = all_.index_.Of(type, stage);
          stage != stage_ && others.size() > static_cast<uint32_t>(Op(op).sequence))
        take(others.first + static_cast<uint32_t>(Op(op).sequence), lane_);
    return members;
  }

  // How much later the op usually ends than that member of its group: clocks differ, and sends may be buffered.
  float UsuallyLater(uint32_t op, const Member& member) {
    std::vector<float> later;
    EachStepAround([&](size_t step) {
      const uint32_t own = LaneOf(step, Rank()), other = LaneOf(step, recorded_.lanes[member.lane].dp);
      if (own == RecordedTimes::kNone || other == RecordedTimes::kNone) return;
      if (recorded_.Has(op, own) && recorded_.Has(member.op, other))
        later.push_back(recorded_.End(op, own) - recorded_.End(member.op, other));
    });
    return later.empty() && member.op == op ? ByClock(member.lane) : LowerMedian(std::move(later));
  }

  // How much later collectives end here than on another rank, in the nearest step that tells.
  float ByClock(uint32_t lane) {
    const auto [found, is_new] = by_clock_.try_emplace(lane, 0.0F);
    if (!is_new) return found->second;
    std::vector<float> later;
    for (size_t away = 0; away <= kFarAway && later.empty(); ++away) {
      if (step_ >= away) AddLater(step_ - away, recorded_.lanes[lane].dp, later);
      if (away > 0 && step_ + away < recorded_.steps()) AddLater(step_ + away, recorded_.lanes[lane].dp, later);
    }
    return found->second = LowerMedian(std::move(later));
  }

  void AddLater(size_t step, int dp, std::vector<float>& later) const {
    const uint32_t own = LaneOf(step, Rank()), other = LaneOf(step, dp);
    if (own == RecordedTimes::kNone || other == RecordedTimes::kNone) return;
    for (uint32_t op = span_.first; op < span_.last; ++op)
      if (IsDataParallelComm(Op(op).type) && recorded_.Has(op, own) && recorded_.Has(op, other))
        later.push_back(recorded_.End(op, own) - recorded_.End(op, other));
  }

  std::optional<float> GroupEnd(uint32_t op) {
    std::vector<float> ends;
    for (const Member& member : MembersOf(op))
      ends.push_back(recorded_.End(member.op, member.lane) + UsuallyLater(op, member));
    if (ends.empty()) return std::nullopt;
    return LowerMedian(std::move(ends));
  }

  const CommonMoments& CommonWith(uint32_t donor) {
    const auto [found, is_new] = common_.try_emplace(donor);
    CommonMoments& common = found->second;
    if (!is_new) return common;
    for (uint32_t op = span_.first; op < span_.last; ++op) {
      if (!recorded_.Has(op, donor)) continue;
      const auto group_end = group_ends_.find(op);
      if (recorded_.Has(op, lane_)) {
        common.Add(recorded_.Start(op, donor), recorded_.Start(op, lane_));
        common.Add(recorded_.End(op, donor), recorded_.End(op, lane_));
      } else if (group_end != group_ends_.end()) {
        common.Add(recorded_.End(op, donor), group_end->second);
      }
    }
    common.Sort();
    return common;
  }

  // By the donor's starts.
  const std::vector<CommonPass>& PassesWith(uint32_t donor) {
    const auto [found, is_new] = passes_.try_emplace(donor);
    if (!is_new) return found->second;
    for (uint32_t op = span_.first; op < span_.last; ++op)
      if (IsPass(Op(op).type) && recorded_.Has(op, lane_) && recorded_.Has(op, donor))
        found->second.push_back({recorded_.Start(op, donor), recorded_.Start(op, lane_), recorded_.End(op, lane_)});
    std::ranges::sort(found->second, {}, &CommonPass::donor_start);
    return found->second;
  }

  // What the other passes of its kind take there, s; no pause shows in a row that nobody has.
  float UsualPass(uint32_t op) {
    const auto [found, is_new] = usual_.try_emplace(Op(op).type, kInfinity);
    if (!is_new) return found->second;
    std::vector<float> durations;
    const OpSpan alike = all_.index_.Of(Op(op).type, stage_);
    for (uint32_t other = alike.first; other < alike.last; ++other)
      if (recorded_.Has(other, lane_)) durations.push_back(recorded_.End(other, lane_) - recorded_.Start(other, lane_));
    if (!durations.empty()) found->second = LowerMedian(std::move(durations));
    return found->second;
  }

  // Passes of a stage run one after the other: what the donor did next before and behind bounds it.
  void Bound(uint32_t donor, LostRow& row) {
    const std::vector<CommonPass>& passes = PassesWith(donor);
    const auto behind = std::ranges::upper_bound(passes, recorded_.Start(row.op, donor), {}, &CommonPass::donor_start);
    if (behind != passes.begin()) row.start = std::max(row.start, (behind - 1)->own_end);
    const float until = behind == passes.end() ? kInfinity : behind->own_start;
    row.end = std::max(row.start, std::min({row.end, until, row.start + UsualPass(row.op)}));
  }

  // Within what was recorded of the step; false: it was not.
  bool Keep(LostRow& row, bool sure) const {
    constexpr float kOutside = 0.05F;  // of its time
    const float begin = all_.begins_[step_], end = all_.ends_[step_], slack = kOutside * (row.end - row.start);
    if (!sure && (row.start < begin - slack || row.end > end + slack)) return false;
    row.end = std::clamp(row.end, begin, end);
    row.start = std::clamp(row.start, begin, row.end);
    return true;
  }

  std::optional<LostRow> Placed(uint32_t op) {
    std::vector<float> starts, ends;
    const std::vector<uint32_t> donors = Donors(op);
    if (donors.empty()) return std::nullopt;
    for (const uint32_t donor : donors) {
      const CommonMoments& common = CommonWith(donor);
      starts.push_back(common.Moved(recorded_.Start(op, donor)));
      ends.push_back(common.Moved(recorded_.End(op, donor)));
    }
    const auto group_end = group_ends_.find(op);
    const bool met = group_end != group_ends_.end();
    LostRow row{op, lane_, LowerMedian(std::move(starts)), met ? group_end->second : LowerMedian(std::move(ends))};
    // Nobody waited for it behind the end.
    met ? row.start = std::min(row.start, row.end) : row.end = std::max(row.start, row.end);
    if (IsPass(Op(op).type)) Bound(donors.front(), row);
    const bool sure = met || (!IsPass(Op(op).type) && !IsTransfer(Op(op).type));
    return Keep(row, sure) ? std::optional(row) : std::nullopt;
  }

  const LostRowTimes& all_;
  const RecordedTimes& recorded_;
  const int stage_;
  const OpSpan span_;
  const size_t step_;
  const uint32_t lane_;
  std::map<uint32_t, float> by_clock_;                  // of each other lane, s
  std::map<uint32_t, float> group_ends_;                // of lost communications, s
  std::map<uint32_t, CommonMoments> common_;            // of each donor
  std::map<uint32_t, std::vector<CommonPass>> passes_;  // of each donor
  std::map<OpType, float> usual_;                       // s
};

LostRowTimes::LostRowTimes(const RecordedTimes& recorded, const OpIndex& index)
    : recorded_(recorded),
      index_(index),
      lane_of_(recorded.steps()),
      begins_(recorded.steps(), kInfinity),
      ends_(recorded.steps(), -kInfinity),
      first_donors_(recorded.ops.size()) {
  int ranks = 0;
  for (const JobLane& lane : recorded.lanes) ranks = std::max(ranks, lane.dp + 1);
  for (size_t step = 0; step < recorded.steps(); ++step) {
    lane_of_[step].assign(static_cast<size_t>(ranks), RecordedTimes::kNone);
    for (uint32_t lane = recorded.first_lane[step]; lane < recorded.first_lane[step + 1]; ++lane)
      lane_of_[step][static_cast<size_t>(recorded.lanes[lane].dp)] = lane;
  }
  for (uint32_t op = 0; op < recorded.ops.size(); ++op)
    for (size_t step = 0; step < recorded.steps(); ++step)
      for (uint32_t lane = recorded.first_lane[step]; lane < recorded.first_lane[step + 1]; ++lane) {
        if (!recorded.Has(op, lane)) continue;
        begins_[step] = std::min(begins_[step], recorded.Start(op, lane));
        ends_[step] = std::max(ends_[step], recorded.End(op, lane));
        if (first_donors_[op].size() < kMostDonors) first_donors_[op].push_back(lane);
      }
}

std::vector<LostRow> LostRowTimes::Of(int stage, size_t step, uint32_t lane, const std::vector<uint32_t>& ops) const {
  return WorkerTimes(*this, stage, step, lane).Of(ops);
}

}  // namespace lockstep::trace
