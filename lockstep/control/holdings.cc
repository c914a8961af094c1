#include "lockstep/control/holdings.h"

#include <algorithm>

namespace lockstep::control {
namespace {

using Points = std::vector<CheckpointId>;

bool IsAmong(const CheckpointId& point, Points::const_iterator begin, Points::const_iterator end) {
  return std::find(begin, end, point) != end;
}

}  // namespace

void Holdings::Begin(EpochId epoch) {
  nodes_.assign(nodes_.size(), Holding{});
  mentions_.clear();
  passed_ = {{-1, nodes_.size()}};
  commit_ = Commit{epoch, {}, -1};
}

void Holdings::Count(const Holding& holding, bool more) {
  const auto count = [&](size_t& counted) { more ? ++counted : --counted; };
  const auto mention = [&](const CheckpointId& point, bool held) {
    const auto known = mentions_.try_emplace(point).first;
    if (held) count(known->second.held);
    count(known->second.mentioned);
    if (holding.passed >= point.step) count(known->second.passed);
    if (known->second.mentioned == 0) mentions_.erase(known);
  };
  const Points &points = holding.points, &coming = holding.coming;  // each of which counts once
  for (auto point = points.begin(); point != points.end(); ++point)
    if (!IsAmong(*point, points.begin(), point)) mention(*point, true);
  for (auto point = coming.begin(); point != coming.end(); ++point)
    if (!IsAmong(*point, points.begin(), points.end()) && !IsAmong(*point, coming.begin(), point))
      mention(*point, false);
  const auto passed = passed_.try_emplace(holding.passed, 0).first;
  count(passed->second);
  if (passed->second == 0) passed_.erase(passed);
}

bool Holdings::Set(size_t node, const Holding& holding) {
  Count(nodes_[node], false);
  Count(holding, true);
  nodes_[node] = holding;
  return std::any_of(holding.points.begin(), holding.points.end(), [&](const CheckpointId& point) {
    return point > commit_.point && mentions_.at(point).held == nodes_.size();
  });
}

// Some rank of some node has passed the step and does not have it: it never will.
bool Holdings::IsDead(const CheckpointId& point, const Mentions& mentions) const {
  size_t passed = 0;
  for (auto nodes = passed_.lower_bound(point.step); nodes != passed_.end(); ++nodes) passed += nodes->second;
  return passed > mentions.passed;
}

std::optional<CheckpointId> Holdings::Pending() const {
  for (const auto& [point, mentions] : mentions_)
    if (point.epoch == commit_.epoch && point > commit_.point && !IsDead(point, mentions)) return point;
  return std::nullopt;
}

std::vector<int> Holdings::Without(const CheckpointId& point) const {
  std::vector<int> without;
  for (size_t node = 0; node < nodes_.size(); ++node) {
    const Points& points = nodes_[node].points;
    if (!IsAmong(point, points.begin(), points.end())) without.push_back(static_cast<int>(node));
  }
  return without;
}

// Up to the furthest step that any node has passed, what nobody says to have is dead: that node does not have it. What
// somebody has may live; below the first that does, nothing else can.
int64_t Holdings::DeadStep() const {
  const int64_t furthest = std::max<int64_t>(-1, passed_.rbegin()->first);
  const std::optional<CheckpointId> pending = Pending();
  return std::max(commit_.dead_step, pending ? std::min(furthest, pending->step - 1) : furthest);
}

std::optional<Commit> Holdings::News() {
  const Commit before = commit_;
  for (const auto& [point, mentions] : mentions_)
    if (mentions.held == nodes_.size() && point.epoch == commit_.epoch) commit_.point = std::max(commit_.point, point);
  commit_.dead_step = DeadStep();
  return commit_ == before ? std::nullopt : std::optional(commit_);
}

}  // namespace lockstep::control
