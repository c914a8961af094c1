// The live side, for a service: jobs of one data set and seed, each at its own pace. Says in which lap, and where in
// it, a job's epoch begins (laps.h), and by which policy: common orders, or paced ones where these are predicted to
// have fewer items prepared. A job's stream (stream.h) is a function of what this says and of the job's own set, so it
// goes on exactly from a few numbers, in any world, without this group and whatever became of the others. That is why
// the other policies of sampler.h are not here: what is left of their orders takes a bit an item to say. Invariants:
// what this says follows from times, sizes and what was asked for, never from which items anybody got. Times are
// nanoseconds. Thread-compatible; Choose is pure, so that its rehearsals can run without a lock.
//
//   Group group({.items = 1'281'167, .seed = 7, .cache_items = 1200});
//   group.Join(key, set);
//   if (group.IsStale()) group.Decide(Choose(group.Ask()));
//   stream.Begin(group.Begin(key, now), epoch);
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "lockstep/sampling/item_set.h"
#include "lockstep/sampling/laps.h"
#include "lockstep/sampling/sampler.h"

namespace lockstep::sampling {

struct GroupOptions {
  uint64_t items = 0;  // of the data set
  uint64_t seed = 0;
  uint64_t cache_items = 0;        // that the cache has room for
  std::optional<Policy> policy{};  // common or paced; none: by predicted loads
};

// What a choice depends on.
struct GroupQuestion {
  uint64_t version = 0;  // of the group's jobs and their paces
  uint64_t seed = 0, cache_items = 0;
  std::vector<std::shared_ptr<const ItemSet>> sets{};
  std::vector<double> item_ns{};  // of each job; 0: unknown
  std::vector<int64_t> begun{};   // when the epoch of each began
};

struct GroupChoice {
  uint64_t version = 0;
  Policy policy = Policy::kCommon;
  // Preparations until each job had an epoch, by policy; empty: nothing was rehearsed.
  std::vector<std::pair<Policy, uint64_t>> loads{};
};

// Paced orders, where they are predicted to save more than kWorth of what common orders prepare.
inline constexpr double kWorth = 0.02;
// `stop`: once it is asked for, what is said is of no use.
GroupChoice Choose(const GroupQuestion& question, const std::stop_token& stop = {});

class Group {
 public:
  explicit Group(const GroupOptions& options);

  // A job that is to begin, or to go on with GoOn. `job` is a key of the caller's. Requires that it is not in.
  void Join(uint64_t job, std::shared_ptr<const ItemSet> items);
  void GoOn(uint64_t job, uint64_t lap, int64_t now);
  Lap Begin(uint64_t job, int64_t now);  // its next epoch
  // A first idea of its time for an item, in its first epoch; later ones are timed by Begin.
  void Pace(uint64_t job, double item_ns);
  double PaceOf(uint64_t job) const { return members_.at(job).item_ns; }
  void Leave(uint64_t job);
  bool Has(uint64_t job) const { return members_.contains(job); }

  bool IsStale() const { return !options_.policy && choice_.version != version_; }
  GroupQuestion Ask() const;
  void Decide(GroupChoice choice);
  const GroupChoice& choice() const { return choice_; }
  const GroupOptions& options() const { return options_; }
  std::vector<uint64_t> jobs() const;

 private:
  struct Member {
    std::shared_ptr<const ItemSet> items;
    double item_ns = 0;
    int64_t begun = 0;
    bool in_epoch = false, whole_epoch = false;  // whole: begun here, so that it can be timed
  };
  double StepsOf(const Member& member) const;
  void SetPace(uint64_t job, Member& member, double item_ns);

  GroupOptions options_;
  Laps laps_;
  std::map<uint64_t, Member> members_;
  uint64_t version_ = 0;
  GroupChoice choice_;
};

}  // namespace lockstep::sampling
