// The live side, for a service: jobs of one host that read sets of one data set, each at its own pace. Says which item
// a job gets next, who else still needs it, and what to keep of a job so that it goes on exactly there.
//
//   auto group = *Group::Create({.dataset = ItemSet::Below(1'281'167), .seed = 7, .cache_items = 4096});
//   LS_RETURN_IF_ERROR(group->Join(0, {}, now));              // epoch 0 begins; or Resume(0, {}, state, now)
//   group->Draw(takers, deliveries);                          // one item for each; prepare, deliver in this order
//   write(group->Save(0, delivery.after));                    // once it was delivered: the job goes on behind it
//   if (group->Left(0) == 0) group->BeginEpoch(0, now);
//
// Ranks: of the next items of a job, the k-th of a batch is for rank k mod world (Share in stream.h). No state knows of
// a world, so a job goes on with any number of ranks. `now` is a clock in steps (one item of a job at rate 1) and must
// depend on time only; sampler.h says why. Modes: deterministic (a job's stream is a function of seed, data set and its
// set; others change nothing of it), or by policy, none for the one that is predicted to prepare the fewest items,
// chosen anew when an epoch begins. A state is less than 1 KB in deterministic mode and for common orders, where going
// on is exact to the item. Of dsa and aligned it is a bit for each item of the set; the rest of the epoch then comes in
// another order, uniform as well. Invariants: each item once an epoch, whatever joins, leaves or resumes.
// Thread-compatible.
#pragma once

#include <map>
#include <memory>

#include "lockstep/sampling/sampler.h"
#include "lockstep/sampling/stream.h"

namespace lockstep::sampling {

struct GroupOptions {
  ItemSet dataset{};
  std::optional<Policy> policy{};
  bool deterministic = false;
  uint64_t seed = 0;
  uint64_t cache_items = 0;  // for the prediction
};

struct GroupJob {
  std::optional<ItemSet> items{};  // none: the whole data set
  double rate = 1;                 // items a step, as far as known
};

struct Delivery {
  int job = 0;
  uint64_t id = 0;
  StreamPlace after{};   // epoch, and how many of its items were given out, this one included
  int still_needed = 0;  // jobs that have yet to take it in their epoch
};

class Group {
 public:
  static absl::StatusOr<std::unique_ptr<Group>> Create(GroupOptions options);
  ~Group();

  // `job` is a number of the caller's: with one seed, the same numbers get the same orders.
  // kAlreadyExists: it is in already. kInvalidArgument: items that the data set doesn't have.
  absl::Status Join(int job, GroupJob spec, int64_t now);
  // A job that saved its state, in this process or another. Also what Stream::Load refuses.
  absl::Status Resume(int job, GroupJob spec, std::string_view state, int64_t now);
  void Leave(int job);
  void BeginEpoch(int job, int64_t now);  // requires Left(job) == 0

  // One item for each. Requires that takers are different, in the group, and have something left.
  void Draw(std::span<const int> takers, std::vector<Delivery>& deliveries);

  uint64_t Left(int job) const;   // of this epoch
  uint64_t Epoch(int job) const;  // from 0
  Policy PolicyOf(int job) const;
  // `after`: of a delivery of this epoch or the one before.
  std::string Save(int job, const StreamPlace& after) const;
  StreamPlace Place(int job) const;  // behind all that was drawn

  // For a cache: how many jobs still need the item, and in how many steps the first will (nullopt: none, or unknown).
  int StillNeeded(uint64_t id) const;
  std::optional<double> StepsUntilNeeded(uint64_t id) const;

 private:
  struct Member;
  explicit Group(GroupOptions options);
  absl::StatusOr<Member> MakeMember(int job, GroupJob spec) const;
  Policy Choose(int job, const Member& member, int64_t now) const;
  Sampler& SamplerOf(Policy policy);
  uint64_t LastLap() const;
  void BeginBehind(uint64_t lap);
  void Begin(int job, Member& member, int64_t now);
  void FindItems(Member& member) const;
  void Announce(int job, Member& member);
  void BeginOrder(int job, Member& member, std::span<const Item> items, int64_t now);
  Delivery DrawStream(int job);
  void DrawSampler(Policy policy, std::span<const int> takers, std::vector<Delivery>& deliveries);
  absl::Status ResumeRest(int job, Member& member, std::string_view state, int64_t now);
  std::optional<uint64_t> Ahead(int job, const Member& member, uint64_t id) const;
  bool Needs(int job, const Member& member, uint64_t id) const;

  GroupOptions options_;
  Laps laps_;
  std::map<int, Member> members_;
  std::map<Policy, std::unique_ptr<Sampler>> samplers_;
};

}  // namespace lockstep::sampling
