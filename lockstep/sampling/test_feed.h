// Jobs on a sampler, with what happens to real ones: they join at any time, wait for items that decode slowly, pause,
// die in the middle of an epoch and go on with what they hadn't got.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "lockstep/sampling/random.h"
#include "lockstep/sampling/sampler.h"

namespace lockstep::sampling {

struct TestJob {
  std::vector<Item> items{};  // ascending
  int64_t join = 0;
  int epochs = 1;
  int64_t crash = -1;  // a step; it is back three steps later
  int64_t leave = -1;  // a step; for good
  double stalls = 0;   // chance to pause at a step
};

struct TestFeed {
  std::vector<TestJob> jobs{};
  std::vector<bool> slow{};  // items that take four steps
  uint64_t seed = 0;
};

class TestRun {
 public:
  TestRun(Sampler& sampler, const TestFeed& feed) : sampler_(sampler), feed_(feed), rng_(Hash(feed.seed, 1)) {
    states_.resize(feed.jobs.size());
  }

  // orders()[job][epoch]: what was delivered.
  std::vector<std::vector<std::vector<Item>>> Go() {
    orders_.resize(feed_.jobs.size());
    for (size_t job = 0; job < feed_.jobs.size(); ++job)
      sampler_.Announce(static_cast<int>(job), feed_.jobs[job].items, 1);
    for (now_ = 0; Running(); ++now_) {
      takers_.clear();
      for (size_t job = 0; job < feed_.jobs.size(); ++job) Tick(job);
      if (takers_.empty()) continue;
      picks_.resize(takers_.size());
      sampler_.Draw(takers_, picks_);
      for (size_t i = 0; i < takers_.size(); ++i) Deliver(static_cast<size_t>(takers_[i]), picks_[i]);
    }
    return std::move(orders_);
  }

 private:
  struct State {
    bool over = false, in_epoch = false;
    int64_t ready = 0;  // the next step in which it takes
  };

  bool Running() const {
    return std::any_of(states_.begin(), states_.end(), [](const State& state) { return !state.over; });
  }

  void Begin(size_t job, std::span<const Item> items) {
    sampler_.Begin({.job = static_cast<int>(job),
                    .items = items,
                    .now = now_,
                    .epoch = orders_[job].size() - 1,
                    .had = orders_[job].back().size()});
    states_[job].in_epoch = true;
  }

  void Tick(size_t job) {
    const TestJob& spec = feed_.jobs[job];
    State& state = states_[job];
    if (state.over || now_ < spec.join) return;
    if (now_ == spec.leave) {
      sampler_.Leave(static_cast<int>(job));
      state.over = true;
      return;
    }
    if (now_ == spec.crash && state.in_epoch) {
      sampler_.Leave(static_cast<int>(job));
      state.in_epoch = false;
      state.ready = now_ + 3;
    }
    if (now_ < state.ready || (spec.stalls > 0 && rng_.Uniform() < spec.stalls)) return;
    if (!state.in_epoch) BeginEpoch(job);
    takers_.push_back(static_cast<int>(job));
  }

  // A new one, or the rest of one that a crash ended.
  void BeginEpoch(size_t job) {
    const TestJob& spec = feed_.jobs[job];
    if (orders_[job].empty() || orders_[job].back().size() == spec.items.size()) {
      orders_[job].emplace_back();
      Begin(job, spec.items);
      return;
    }
    std::vector<Item> rest;
    for (const Item item : spec.items) {
      const auto& had = orders_[job].back();
      if (std::find(had.begin(), had.end(), item) == had.end()) rest.push_back(item);
    }
    Begin(job, rest);
  }

  void Deliver(size_t job, Item item) {
    State& state = states_[job];
    EXPECT_FALSE(sampler_.Needs(static_cast<int>(job), item));
    orders_[job].back().push_back(item);
    state.ready = now_ + (!feed_.slow.empty() && feed_.slow[item] ? 4 : 1);
    if (sampler_.Left(static_cast<int>(job)) > 0) return;
    state.in_epoch = false;
    state.over = static_cast<int>(orders_[job].size()) == feed_.jobs[job].epochs;
  }

  Sampler& sampler_;
  const TestFeed& feed_;
  Rng rng_;
  int64_t now_ = 0;
  std::vector<State> states_;
  std::vector<std::vector<std::vector<Item>>> orders_;
  std::vector<int> takers_;
  std::vector<Item> picks_;
};

inline void ExpectExactlyOnce(const std::vector<Item>& items, std::vector<Item> order) {
  std::sort(order.begin(), order.end());
  EXPECT_EQ(order, items);
}

}  // namespace lockstep::sampling
