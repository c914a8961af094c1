#include "lockstep/trace/lost_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "lockstep/base/median.h"

namespace lockstep::trace {
namespace {

constexpr size_t kMostDonors = 5, kAround = 4;  // lanes; steps, or ranks, to either side

class Finder {
 public:
  explicit Finder(const RecordedTimes& recorded)
      : recorded_(recorded), width_(recorded.lanes.size()), share_(width_), first_donors_(recorded.ops.size()) {
    for (uint32_t op = 0; op < recorded.ops.size(); ++op) ++count_[Place(op)];
    for (uint32_t op = 0; op < recorded.ops.size(); ++op)
      for (uint32_t lane = 0; lane < width_; ++lane) {
        if (!Has(op, lane)) continue;
        if (IsPass(recorded.ops[op].type)) share_[lane] = std::max(share_[lane], ShareUpTo(op));
        if (first_donors_[op].size() < kMostDonors) first_donors_[op].push_back(lane);
      }
  }

  std::vector<LostRow> Find() {
    std::vector<LostRow> lost;
    for (uint32_t first = 0; first < recorded_.ops.size(); first = stage_end_) {
      stage_first_ = stage_end_ = first;
      while (stage_end_ < recorded_.ops.size() && recorded_.ops[stage_end_].stage == recorded_.ops[first].stage)
        ++stage_end_;
      for (set_ = 0; set_ + 1 < recorded_.first_lane.size(); ++set_)
        for (uint32_t lane = recorded_.first_lane[set_]; lane < recorded_.first_lane[set_ + 1]; ++lane)
          OfWorker(lane, lost);
    }
    return lost;
  }

 private:
  using StageType = std::pair<int, OpType>;
  StageType Place(uint32_t op) const { return {recorded_.ops[op].stage, recorded_.ops[op].type}; }
  bool Has(uint32_t op, uint32_t lane) const { return !std::isnan(recorded_.starts[op * width_ + lane]); }
  float Start(uint32_t op, uint32_t lane) const { return recorded_.starts[op * width_ + lane]; }
  float End(uint32_t op, uint32_t lane) const { return recorded_.ends[op * width_ + lane]; }
  // How far the longest lanes are with that one of its kind.
  double ShareUpTo(uint32_t op) const { return (recorded_.ops[op].sequence + 1.0) / count_.at(Place(op)); }

  bool IsLost(uint32_t op, uint32_t lane) const {
    constexpr double kRounding = 1e-9;
    const OpType type = recorded_.ops[op].type;
    if (Has(op, lane) || type == OpType::kGc) return false;
    if (IsPass(type) || IsTransfer(type)) return ShareUpTo(op) <= share_[lane] + kRounding;
    for (uint32_t other = recorded_.first_lane[set_]; other < recorded_.first_lane[set_ + 1]; ++other)
      if (Has(op, other)) return true;
    return false;
  }

  void OfWorker(uint32_t lane, std::vector<LostRow>& lost) const {
    std::vector<uint32_t> ops;
    size_t there = 0;
    for (uint32_t op = stage_first_; op < stage_end_; ++op) {
      if (Has(op, lane)) ++there;
      if (IsLost(op, lane)) ops.push_back(op);
    }
    if (ops.size() > there) return;
    for (const uint32_t op : ops) lost.push_back(Placed(op, lane));
  }

  std::vector<uint32_t> Donors(uint32_t op, uint32_t lane) const {
    std::vector<uint32_t> donors;
    const auto take = [&](size_t one) {
      if (donors.size() < kMostDonors && Has(op, static_cast<uint32_t>(one)))
        donors.push_back(static_cast<uint32_t>(one));
    };
    const auto same_rank = [&](size_t set) {
      for (uint32_t one = recorded_.first_lane[set]; one < recorded_.first_lane[set + 1]; ++one)
        if (recorded_.lanes[one].dp == recorded_.lanes[lane].dp) take(one);
    };
    for (size_t away = 1; away <= kAround; ++away) {
      if (set_ >= away) same_rank(set_ - away);
      if (set_ + away + 1 < recorded_.first_lane.size()) same_rank(set_ + away);
    }
    for (size_t away = 1; away <= kAround; ++away) {
      if (lane >= recorded_.first_lane[set_] + away) take(lane - away);
      if (lane + away < recorded_.first_lane[set_ + 1]) take(lane + away);
    }
    return donors.empty() ? first_donors_[op] : donors;
  }

  // Where a moment of the donor would be in the lane, by the nearest begin or end that both have.
  float Moved(uint32_t op, float moment, uint32_t donor, uint32_t lane) const {
    float nearest = std::numeric_limits<float>::infinity(), moved = moment;
    const auto anchor = [&](float there, float here) {
      if (std::abs(moment - there) >= nearest) return;
      nearest = std::abs(moment - there);
      moved = here + (moment - there);
    };
    for (uint32_t other = stage_first_; other < stage_end_; ++other) {
      if (other == op || !Has(other, lane) || !Has(other, donor)) continue;
      anchor(Start(other, donor), Start(other, lane));
      anchor(End(other, donor), End(other, lane));
    }
    return moved;
  }

  // What the other passes of its kind take there, s; no pause shows in a row that nobody has.
  float UsualPass(uint32_t op, uint32_t lane) const {
    std::vector<float> durations;
    for (uint32_t other = stage_first_; other < stage_end_; ++other)
      if (Place(other) == Place(op) && other != op && Has(other, lane))
        durations.push_back(End(other, lane) - Start(other, lane));
    return durations.empty() ? std::numeric_limits<float>::infinity() : LowerMedian(std::move(durations));
  }

  // Passes of a stage run one after the other: what the donor did next before and behind bounds it.
  void Bound(uint32_t op, uint32_t donor, LostRow& row) const {
    float before = -std::numeric_limits<float>::infinity(), behind = -before;
    float after = before, until = behind;  // of the lane
    for (uint32_t other = stage_first_; other < stage_end_; ++other) {
      if (other == op || !IsPass(recorded_.ops[other].type) || !Has(other, row.lane) || !Has(other, donor)) continue;
      const float start = Start(other, donor);
      if (start < Start(op, donor) && start > before) before = start, after = End(other, row.lane);
      if (start > Start(op, donor) && start < behind) behind = start, until = Start(other, row.lane);
    }
    row.start = std::max(row.start, after);
    row.end = std::max(row.start, std::min({row.end, until, row.start + UsualPass(op, row.lane)}));
  }

  LostRow Placed(uint32_t op, uint32_t lane) const {
    std::vector<float> starts, ends;
    const std::vector<uint32_t> donors = Donors(op, lane);
    for (const uint32_t donor : donors) {
      starts.push_back(Moved(op, Start(op, donor), donor, lane));
      ends.push_back(Moved(op, End(op, donor), donor, lane));
    }
    LostRow row{op, lane, LowerMedian(starts), LowerMedian(ends)};
    row.end = std::max(row.start, row.end);
    if (IsPass(recorded_.ops[op].type)) Bound(op, donors.front(), row);
    return row;
  }

  const RecordedTimes& recorded_;
  const size_t width_;
  std::map<StageType, int> count_;                   // of ops
  std::vector<double> share_;                        // [lane]: how far it is with its passes
  std::vector<std::vector<uint32_t>> first_donors_;  // [op]: some lanes that have it
  uint32_t stage_first_ = 0, stage_end_ = 0;         // the ops of the stage that is looked at
  size_t set_ = 0;                                   // the step that is looked at
};

}  // namespace

std::vector<LostRow> FindLostRows(const RecordedTimes& recorded) { return Finder(recorded).Find(); }

}  // namespace lockstep::trace
