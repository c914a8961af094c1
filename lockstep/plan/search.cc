#include "lockstep/plan/search.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "lockstep/plan/pareto.h"
#include "lockstep/plan/search_space.h"

namespace lockstep::plan {
namespace {

constexpr std::chrono::milliseconds kTick{100};

struct Split {
  size_t cluster;
  Workload workload;
};

// What was found of one split, or of several.
struct Found {
  std::vector<Candidate> best, front, nearest;
  int64_t tried = 0, fitting = 0;
};

void KeepBest(std::vector<Candidate>& best, const SearchOptions& options) {
  std::ranges::stable_sort(best, {}, [&](const Candidate& one) { return ValueOf(one, options.objective); });
  if (best.size() > options.keep) best.erase(best.begin() + std::ptrdiff_t(options.keep), best.end());
}

void KeepNearest(std::vector<Candidate>& nearest, const Candidate& one) {
  if (nearest.empty() || one.memory.total() < nearest[0].memory.total()) nearest = {one};
}

Found Try(const Split& split, const Rates& rates, const SearchOptions& options) {
  Found found;
  EachSchedule(split.workload, options.schedules, [&](const Workload& w) {
    ++found.tried;
    Candidate one{w, {}, PredictMemory(w)};
    if (one.memory.total() > w.machine.memory) {
      KeepNearest(found.nearest, one);
      return;
    }
    if (w.recompute == Recompute::kAsNeeded && RecomputedShare(w) == 0) return;  // the same as none
    ++found.fitting;
    one.step = PredictStep(w, rates);
    found.best.push_back(std::move(one));
  });
  found.front = FrontOfOne(found.best);
  KeepBest(found.best, options);
  return found;
}

// Splits are tried by several threads, and what was found is put together in the order of splits.
class Searcher {
 public:
  Searcher(std::span<const Cluster> clusters, const SearchOptions& options) : clusters_(clusters), options_(options) {
    for (size_t i = 0; i < clusters.size(); ++i)
      EachSplit(clusters[i].base, [&](const Workload& w) { splits_.push_back({i, w}); });
    found_.resize(splits_.size());
  }

  SearchResult Result() {
    const bool stopped = TryAll();
    SearchResult result;
    result.stopped = stopped;
    std::vector<Candidate> front;
    for (Found& found : found_) {
      result.tried += found.tried;
      result.fitting += found.fitting;
      std::ranges::move(found.best, std::back_inserter(result.best));
      std::ranges::move(found.front, std::back_inserter(front));
      for (const Candidate& one : found.nearest) KeepNearest(result.nearest, one);
    }
    KeepBest(result.best, options_);
    if (result.fitting > 0) result.nearest.clear();
    result.pareto = FrontOfAll(std::move(front));
    return result;
  }

 private:
  // Returns whether it was told to end early.
  bool TryAll() {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < std::max(1U, options_.threads); ++i) threads.emplace_back([this] { Work(); });
    std::unique_lock lock(mutex_);
    while (!done_changed_.wait_for(lock, kTick, [&] { return ended_ == threads.size(); })) {
      if (options_.stops && options_.stops()) stops_ = true;
      if (options_.progress) options_.progress(double(next_) / double(splits_.size()));
    }
    return stops_;
  }

  void Work() {
    while (!stops_) {
      const size_t at = next_++;
      if (at >= splits_.size()) break;
      found_[at] = Try(splits_[at], clusters_[splits_[at].cluster].rates, options_);
    }
    const std::lock_guard lock(mutex_);
    ++ended_;
    done_changed_.notify_one();
  }

  const std::span<const Cluster> clusters_;
  const SearchOptions& options_;
  std::vector<Split> splits_;
  std::vector<Found> found_;  // of each split; one thread writes each
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> stops_ = false;
  std::mutex mutex_;
  std::condition_variable done_changed_;
  size_t ended_ = 0;  // threads; under the mutex
};

}  // namespace

Candidate Predict(const Workload& workload, const Rates& rates) {
  return {workload, PredictStep(workload, rates), PredictMemory(workload)};
}

double Dollars(const Candidate& one) {
  const Workload& w = one.workload;
  return w.accelerators * w.machine.usd_per_hour / 3600 * one.step.total().value;
}
double Joules(const Candidate& one) {
  const Workload& w = one.workload;
  return w.accelerators * w.machine.power * one.step.total().value;
}
double ValueOf(const Candidate& one, Objective objective) {
  if (objective == Objective::kCost) return Dollars(one);
  return objective == Objective::kEnergy ? Joules(one) : one.step.total().value;
}

SearchResult Search(std::span<const Cluster> clusters, const SearchOptions& options) {
  return Searcher(clusters, options).Result();
}

}  // namespace lockstep::plan
