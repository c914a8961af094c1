#include "lockstep/sampling/dependent.h"

#include <algorithm>

#include "lockstep/base/check.h"

namespace lockstep::sampling {

void DependentSampler::Begin(const EpochStart& start) {
  const auto job = static_cast<size_t>(start.job);
  needs_.Reserve(start.job + 1);
  if (left_.size() <= job) {
    left_.resize(job + 1);
    at_.resize(job + 1);
  }
  LS_CHECK(left_[job].empty(), "job {} has {} items left", job, left_[job].size());
  left_[job].assign(start.items.begin(), start.items.end());
  at_[job].resize(needs_.universe());
  for (uint32_t i = 0; i < left_[job].size(); ++i) {
    at_[job][left_[job][i]] = i;
    needs_.Set(job, left_[job][i], true);
  }
  groups_.clear();
  rng_ = Rng(Hash(rng_.Next(), start.epoch, start.had, job));
}

void DependentSampler::Leave(int job) {
  if (static_cast<size_t>(job) >= left_.size()) return;
  for (const Item item : left_[static_cast<size_t>(job)]) needs_.Set(static_cast<size_t>(job), item, false);
  left_[static_cast<size_t>(job)].clear();
  groups_.clear();
}

uint64_t DependentSampler::Left(int job) const {
  return static_cast<size_t>(job) < left_.size() ? left_[static_cast<size_t>(job)].size() : 0;
}

bool DependentSampler::Needs(int job, Item item) const {
  return static_cast<size_t>(job) < left_.size() && needs_.Needs(static_cast<size_t>(job), item);
}

bool DependentSampler::IsSorted(std::span<const int> order) const {
  return std::is_sorted(order.begin(), order.end(), [&](int a, int b) { return Left(a) < Left(b); });
}

Levels& DependentSampler::GroupOf(std::span<const int> takers) {
  const auto is_it = [&](const Levels& group) {
    return group.order().size() == takers.size() &&
           std::is_permutation(takers.begin(), takers.end(), group.order().begin());
  };
  const auto found = std::find_if(groups_.begin(), groups_.end(), is_it);
  if (found != groups_.end()) {
    groups_.splice(groups_.begin(), groups_, found);
    if (IsSorted(groups_.front().order())) return groups_.front();
  } else {
    groups_.emplace_front();
    if (groups_.size() > kGroups) groups_.pop_back();
  }
  std::vector<int> order(takers.begin(), takers.end());
  std::sort(order.begin(), order.end(), [&](int a, int b) { return std::pair(Left(a), a) < std::pair(Left(b), b); });
  groups_.front().Build(needs_, std::move(order));
  return groups_.front();
}

// Of what the job has left, on no level below `level`. Tried until it is one: the chance to be asked at all makes up
// for the tries, so that their expected number is at most 1.
Item DependentSampler::AnyAbove(int job, size_t level, const Levels& group) {
  const std::vector<Item>& left = left_[static_cast<size_t>(job)];
  for (;;) {
    const Item item = left[rng_.Below(left.size())];
    if (group.LevelOf(item) >= level) return item;
  }
}

void DependentSampler::DrawFrom(const Levels& group, std::vector<Item>& drawn) {
  const std::span<const int> order = group.order();
  size_t excluded = 0, excluded_levels = 0;
  for (size_t first = 0; first < order.size();) {
    const size_t common = group.Count(excluded_levels, first + 1);
    size_t last = common, end = first;
    for (; end < order.size(); ++end) {
      const size_t left = left_[static_cast<size_t>(order[end])].size() - excluded;
      if (rng_.Below(left) >= last) break;
      last = left;
    }
    if (end == first) {
      drawn[first] = AnyAbove(order[first], first + 1, group);
      ++end;
    } else {
      std::fill(drawn.begin() + static_cast<ptrdiff_t>(first), drawn.begin() + static_cast<ptrdiff_t>(end),
                group.Any(excluded_levels, first + 1, rng_));
    }
    excluded += common;
    excluded_levels = first + 1;
    first = end;
  }
}

void DependentSampler::Take(int job, Item item) {
  std::vector<Item>& left = left_[static_cast<size_t>(job)];
  std::vector<uint32_t>& at = at_[static_cast<size_t>(job)];
  left[at[item]] = left.back();
  at[left.back()] = at[item];
  left.pop_back();
  needs_.Set(static_cast<size_t>(job), item, false);
}

void DependentSampler::Draw(std::span<const int> takers, std::span<Item> picks) {
  Levels& group = GroupOf(takers);
  std::vector<Item> drawn(takers.size());
  DrawFrom(group, drawn);
  for (size_t i = 0; i < drawn.size(); ++i) Take(group.order()[i], drawn[i]);
  for (const Item item : drawn) {
    for (Levels& each : groups_) each.Update(needs_, item);
  }
  for (size_t i = 0; i < takers.size(); ++i) {
    const auto place = std::find(group.order().begin(), group.order().end(), takers[i]) - group.order().begin();
    picks[i] = drawn[static_cast<size_t>(place)];
  }
}

}  // namespace lockstep::sampling
