#include "lockstep/sampling/simulate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/sampling/cache_model.h"
#include "lockstep/sampling/packed.h"
#include "lockstep/sampling/random.h"

namespace lockstep::sampling {
namespace {

constexpr uint64_t kMostItems = uint64_t{1} << 27;
constexpr uint64_t kRehearsed = 100'000,
                   kMostRehearsals = 4;  // items taken in rehearsals of a policy; how many of them

struct Job {
  std::vector<Item> items;
  int64_t start = 0;
  double rate = 1, due = 0;  // due: items it may take, of which it hasn't
};

struct Jobs {
  ItemSet universe;
  std::vector<Job> jobs;
};

absl::Status Check(std::span<const ItemSet> sets, const SimulateOptions& options) {
  uint64_t items = 0;
  for (const ItemSet& set : sets) {
    if (set.size() > kMostItems - items)
      return InvalidArgument("these jobs read more than {} items in total, the most that can be simulated", kMostItems);
    items += set.size();
  }
  for (const auto& [name, values] : {std::pair("--start", &options.start), std::pair("--rates", &options.rates)}) {
    if (!values->empty() && values->size() != sets.size())
      return InvalidArgument("{}: expected one number for each of {} jobs, found {}", name, sets.size(),
                             values->size());
  }
  for (const double start : options.start) {
    if (!(start >= 0 && start <= 1000)) return InvalidArgument("--start {}: expected epochs, 0 to 1000", start);
  }
  for (const double rate : options.rates) {
    if (!(rate >= 0.001 && rate <= 1000))
      return InvalidArgument("--rates {}: expected items a step, 0.001 to 1000", rate);
  }
  return absl::OkStatus();
}

Jobs Prepare(std::span<const ItemSet> sets, const SimulateOptions& options) {
  Jobs all{.universe = ItemSet::Union(sets), .jobs = std::vector<Job>(sets.size())};
  uint64_t largest = 0;
  for (const ItemSet& set : sets) largest = std::max(largest, set.size());
  for (size_t i = 0; i < sets.size(); ++i) {
    Job& job = all.jobs[i];
    job.items.reserve(sets[i].size());
    for (const ItemRange& range : sets[i].ranges()) {
      const uint64_t first = *all.universe.IndexOf(range.first);  // a range never leaves a range of the union
      for (uint64_t k = 0; k <= range.last - range.first; ++k) job.items.push_back(static_cast<Item>(first + k));
    }
    if (!options.start.empty())
      job.start = static_cast<int64_t>(options.start[i] * static_cast<double>(largest) + 1e-9);
    if (!options.rates.empty()) job.rate = options.rates[i];
  }
  return all;
}

class Run {
 public:
  Run(const Jobs& all, Policy policy, uint64_t seed, const SimulateOptions& options)
      : jobs_(all.jobs),
        universe_(all.universe),
        sampler_(MakeSampler(policy, {.universe = all.universe.size(), .seed = seed})),
        again_(options.again),
        stop_(options.stop),
        by_next_use_(sampler_->KnowsOrder() && !options.fewest_jobs),
        cache_(options.cache_items, [this](Item item) { return by_next_use_ ? NextUse(item) : -Outstanding(item); }) {
    feed_.policy = policy;
    feed_.by_next_use = by_next_use_;
    feed_.union_items = all.universe.size();
    feed_.jobs.resize(jobs_.size());
  }

  SimulatedFeed Go() {
    for (size_t i = 0; i < jobs_.size(); ++i) waiting_.push_back(static_cast<int>(i));
    std::stable_sort(waiting_.begin(), waiting_.end(), [&](int a, int b) { return JobOf(a).start < JobOf(b).start; });
    while (!stop_.stop_requested() && !IsOver()) {
      if (running_.empty()) now_ = std::max(now_, JobOf(waiting_.front()).start);
      BeginThoseDue();
      Step();
      ++now_;
    }
    feed_.loads = cache_.prepared();
    return std::move(feed_);
  }

 private:
  Job& JobOf(int job) { return jobs_[static_cast<size_t>(job)]; }
  const Job& JobOf(int job) const { return jobs_[static_cast<size_t>(job)]; }
  SimulatedJob& Seen(int job) { return feed_.jobs[static_cast<size_t>(job)]; }

  int64_t NextUse(Item item) const {
    int64_t next = kUnneeded;
    for (const int job : running_) {
      const auto ahead = sampler_->Ahead(job, item);
      if (ahead) next = std::min(next, now_ + static_cast<int64_t>(static_cast<double>(*ahead) / JobOf(job).rate));
    }
    return next;
  }
  int64_t Outstanding(Item item) const {
    return std::count_if(running_.begin(), running_.end(), [&](int job) { return sampler_->Needs(job, item); });
  }

  bool IsOver() const {
    if (epochs_.size() < jobs_.size()) return false;
    return !again_ ? running_.empty()
                   : std::all_of(epochs_.begin(), epochs_.end(), [](const auto& entry) { return entry.second > 1; });
  }

  void Begin(int job) {
    sampler_->Begin(
        {.job = job, .items = JobOf(job).items, .rate = JobOf(job).rate, .now = now_, .epoch = epochs_[job]++});
  }

  void BeginThoseDue() {
    bool changed = false;
    for (const int job : running_) {
      if (sampler_->Left(job) > 0) continue;
      Begin(job);
      changed = true;
    }
    for (const int job : waiting_) {
      if (JobOf(job).start <= now_) sampler_->Announce(job, JobOf(job).items, JobOf(job).rate);
    }
    while (!waiting_.empty() && JobOf(waiting_.front()).start <= now_) {
      const int job = waiting_.front();
      waiting_.erase(waiting_.begin());
      Begin(job);
      Seen(job).first_step = now_;
      Seen(job).items = JobOf(job).items.size();
      running_.push_back(job);
      changed = true;
    }
    std::sort(running_.begin(), running_.end());
    if (changed) cache_.Reassess();
  }

  void Step() {
    for (const int job : running_) JobOf(job).due += JobOf(job).rate;
    while (Round()) {
    }
    cache_.EndStep();
    const size_t before = running_.size();
    if (!again_) std::erase_if(running_, [&](int job) { return sampler_->Left(job) == 0; });
    if (running_.size() != before) cache_.Reassess();
  }

  // One item for each job that may take one more in this step.
  bool Round() {
    takers_.clear();
    for (const int job : running_) {
      if (JobOf(job).due > 1 - 1e-9 && sampler_->Left(job) > 0) takers_.push_back(job);
    }
    if (takers_.empty()) return false;
    picks_.resize(takers_.size());
    sampler_->Draw(takers_, picks_);
    for (size_t i = 0; i < takers_.size(); ++i) {
      JobOf(takers_[i]).due -= 1;
      SimulatedJob& seen = Seen(takers_[i]);
      seen.last_step = now_;
      if (cache_.Take(picks_[i])) ++seen.prepared;
      seen.order.push_back(universe_.At(picks_[i]));
      ++feed_.taken;
    }
    return true;
  }

  std::vector<Job> jobs_;
  const ItemSet& universe_;
  std::unique_ptr<Sampler> sampler_;
  const bool again_;
  const std::stop_token stop_;
  bool by_next_use_;
  std::map<int, uint64_t> epochs_;  // of each job, that it has begun
  CacheModel cache_;
  SimulatedFeed feed_;
  int64_t now_ = 0;
  std::vector<int> waiting_, running_, takers_;
  std::vector<Item> picks_;
};

}  // namespace

uint64_t Rehearsal::Of(Policy policy) const {
  for (const auto& [each, prepared] : loads) {
    if (each == policy) return prepared;
  }
  return UINT64_MAX;
}

Policy Rehearsal::Best() const {
  constexpr double kLuck = 1.05;  // units drift apart less: by how much common orders must seem better to be it
  const auto packed = Of(Policy::kPacked), common = Of(Policy::kCommon);
  const bool no_common = packed != UINT64_MAX && static_cast<double>(packed) <= kLuck * static_cast<double>(common);
  Policy best = no_common ? Policy::kPacked : Policy::kCommon;
  for (const auto& [policy, prepared] : loads) {
    if (policy == Policy::kCommon && no_common) continue;
    if (prepared < Of(best)) best = policy;
  }
  return best;
}

namespace {

// Whether any two items that no job reads both of can be one unit.
bool Packs(const Jobs& all) {
  std::vector<const std::vector<Item>*> sets;
  for (const Job& job : all.jobs) sets.push_back(&job.items);
  return Pack(all.universe.size(), sets).count < all.universe.size();
}

}  // namespace

absl::StatusOr<Rehearsal> Rehearse(std::span<const ItemSet> sets, const SimulateOptions& real,
                                   std::span<const Policy> policies) {
  LS_RETURN_IF_ERROR(Check(sets, real));
  const Jobs all = Prepare(sets, real);
  SimulateOptions options = real;
  options.cache_items -= options.cache_items / 4;
  uint64_t taken = 1;
  for (const Job& job : all.jobs) taken += job.items.size();
  const uint64_t runs = std::clamp<uint64_t>(kRehearsed / taken, 1, kMostRehearsals);
  Rehearsal rehearsal;
  for (const Policy policy : policies) {
    if (policy == Policy::kPacked && !Packs(all)) continue;
    uint64_t loads = 0;
    for (uint64_t run = 0; run < runs; ++run) {
      const uint64_t other_chances = KeyOf(Purpose::kRehearsal, options.seed, run);
      loads += Run(all, policy, other_chances, options).Go().loads;
    }
    rehearsal.loads.emplace_back(policy, (loads + runs / 2) / runs);
  }
  return rehearsal;
}

absl::StatusOr<SimulatedFeed> Simulate(std::span<const ItemSet> sets, const SimulateOptions& options) {
  LS_RETURN_IF_ERROR(Check(sets, options));
  Rehearsal rehearsal;
  if (!options.policy) {
    constexpr Policy kCandidates[] = {Policy::kCommon, Policy::kPacked, Policy::kAligned, Policy::kDependent};
    LS_ASSIGN_OR_RETURN(rehearsal, Rehearse(sets, options, kCandidates));
  }
  const Jobs all = Prepare(sets, options);
  SimulatedFeed feed = Run(all, options.policy ? *options.policy : rehearsal.Best(), options.seed, options).Go();
  feed.predicted = std::move(rehearsal.loads);
  return feed;
}

Json ToJson(const SimulatedFeed& feed, bool with_orders) {
  Json report{{"loads", feed.loads},
              {"union", feed.union_items},
              {"ratio", static_cast<double>(feed.loads) / static_cast<double>(feed.union_items)},
              {"taken", feed.taken},
              {"policy", NameOf(feed.policy)},
              {"evict", feed.by_next_use ? "next-use" : "fewest-jobs"}};
  for (const auto& [policy, loads] : feed.predicted) report["predicted_loads"][std::string(NameOf(policy))] = loads;
  for (const SimulatedJob& job : feed.jobs) {
    report["jobs"].push_back(Json{{"job", report["jobs"].size()},
                                  {"items", job.items},
                                  {"first_step", job.first_step},
                                  {"last_step", job.last_step},
                                  {"prepared", job.prepared}});
    if (with_orders) report["orders"].push_back(job.order);
  }
  return report;
}

}  // namespace lockstep::sampling
