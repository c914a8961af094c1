#include "lockstep/plan/search.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <limits>
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

// A candidate, as far as a search looks at it.
struct Hit {
  double value = 0, seconds = 0, bytes = 0;
  size_t layer = 0;     // index into Found::layers
  UnevenStages stages;  // no layers: all are alike
  Variant variant;
};

// Of what does not fit: of the memory, the device's or the host's, how many times as much it needs.
double LackOf(const MemoryUse& use, const Machine& machine) {
  return std::max(use.total() / machine.memory, use.host > 0 ? use.host / machine.host_memory : 0);
}
double LackOf(const Candidate& one) { return LackOf(one.memory, one.workload.machine); }

// What was found of one split.
struct Found {
  std::vector<Workload> layers;  // those that some hit is of
  std::vector<Hit> best, front;  // front: by memory, each faster than those before it
  std::vector<Candidate> nearest;
  int64_t tried = 0, fitting = 0;
};

Candidate CandidateOf(const Workload& layer, const UnevenStages& stages, const Variant& v, const Rates& rates) {
  Workload w = layer;
  if (stages.middle > 0) w.stage_layers = ListOf(stages, w.pp);
  w.recomputed_layers = v.recompute == Recompute::kFull ? v.recomputed_layers : 0;
  w.offload = v.offload;
  w.schedule = v.schedule, w.chunks = v.chunks, w.zero = v.zero, w.recompute = v.recompute;
  w.hides_data = v.hides_data, w.hides_transfers = v.hides_transfers;
  return Predict(w, rates);
}

// All candidates of one split. The first of equals stays before the others.
class SplitSearch {
 public:
  SplitSearch(const Workload& split, const Rates& rates, const SearchOptions& options)
      : split_(split),
        rates_(rates),
        options_(options),
        per_second_(ValuePerSecond(split, options.objective)),
        uneven_(UnevenStagesOf(split, options.space)) {}

  Found Result() {
    if (split_.layers % split_.pp != 0 && uneven_.empty()) return {};
    EachLayer(split_, options_.space, [&](const Workload& layer) { TryLayer(layer); });
    return std::move(found_);
  }

 private:
  void TryLayer(const Workload& layer) {
    StepTerms step = TermsOf(layer, rates_);
    MemoryTerms memory = MemoryTermsOf(layer);
    found_.layers.push_back(layer);
    const size_t hits = hits_;
    stages_ = {};
    for (Variant& variant : VariantsOf(layer, options_.space, false)) TryVariant(step, memory, variant);
    TryUneven(layer, step, memory);
    if (hits_ == hits) found_.layers.pop_back();
  }

  void TryUneven(const Workload& layer, StepTerms& step, MemoryTerms& memory) {
    if (uneven_.empty()) return;
    const std::vector<Variant> variants = VariantsOf(layer, options_.space, true);
    Workload listed = layer;
    for (const UnevenStages& stages : uneven_) {
      stages_ = stages;
      listed.stage_layers = ListOf(stages, layer.pp);
      TakeStages(listed, step);
      TakeStages(listed, memory);
      for (Variant variant : variants) TryVariant(step, memory, variant);
    }
  }

  // Of those that need the same memory.
  void TryVariant(const StepTerms& step, const MemoryTerms& memory, Variant& v) {
    if (v.recompute == Recompute::kNone) fewest_ = {};
    const MemoryUse use = UseOf(memory, v);
    const double bytes = use.total();
    if (v.recompute == Recompute::kAsNeeded && v.recomputed_layers == 0) return;  // is none
    const int ways = options_.space.whole ? kWaysToHide : 1;
    found_.tried += ways;
    if (bytes > memory.capacity || use.host > memory.host_capacity) return KeepNearest(use, v);
    found_.fitting += ways;
    const auto seconds = SecondsOfWays(step, v, ways);
    for (int way = 0; way < ways; ++way) {
      TakeWay(way, v);
      KeepBest(seconds[size_t(way)], bytes, v);
      KeepFront(seconds[size_t(way)], bytes, v);
    }
    if (v.recompute == Recompute::kNone || v.recompute == Recompute::kAsNeeded)
      fewest_ = {v.recomputed_layers, seconds[0]};
    if (v.recompute == Recompute::kFull && fewest_.seconds > 0 && !options_.space.whole) {
      const int most = stages_.middle > 0 ? stages_.middle : split_.layers / split_.pp;
      TryBetween(step, memory, v, fewest_, {.layers = most, .bytes = bytes});
    }
  }

  // So many layers of each stage are computed again.
  struct Again {
    int layers = 0;
    double seconds = 0, bytes = 0;
  };
  // For the front alone: between these each layer more takes longer and needs less, so where even the shorter time with
  // the smaller memory is beaten, all are. Not of a whole space, which would take a twentieth longer.
  void TryBetween(const StepTerms& step, const MemoryTerms& memory, Variant& v, const Again& few, const Again& many) {
    const int steps = (many.layers - few.layers) / v.chunks;
    if (steps < 2 || IsBeaten(few.seconds, many.bytes)) return;
    v.recomputed_layers = few.layers + steps / 2 * v.chunks;
    const MemoryUse use = UseOf(memory, v);
    const Again middle{v.recomputed_layers, SecondsOfWays(step, v, 1)[0], use.total()};
    if (middle.bytes <= memory.capacity && use.host <= memory.host_capacity) KeepFront(middle.seconds, middle.bytes, v);
    TryBetween(step, memory, v, few, middle);
    TryBetween(step, memory, v, middle, many);
  }

  bool IsBeaten(double seconds, double bytes) const {
    const auto at = std::ranges::upper_bound(found_.front, bytes, {}, &Hit::bytes);
    return at != found_.front.begin() && std::prev(at)->seconds <= seconds;
  }

  Hit HitOf(double seconds, double bytes, const Variant& v) {
    ++hits_;
    return {seconds * per_second_, seconds, bytes, found_.layers.size() - 1, stages_, v};
  }

  void KeepBest(double seconds, double bytes, const Variant& v) {
    std::vector<Hit>& best = found_.best;
    const double value = seconds * per_second_;
    if (best.size() == options_.keep && value >= best.back().value) return;
    if (best.size() == options_.keep) best.pop_back();
    best.insert(std::ranges::upper_bound(best, value, {}, &Hit::value), HitOf(seconds, bytes, v));
  }

  void KeepFront(double seconds, double bytes, const Variant& v) {
    std::vector<Hit>& front = found_.front;
    auto at = std::ranges::upper_bound(front, bytes, {}, &Hit::bytes);
    if (at != front.begin() && std::prev(at)->seconds <= seconds) return;
    if (at != front.begin() && std::prev(at)->bytes == bytes) --at;
    const auto slower = std::find_if(at, front.end(), [&](const Hit& one) { return one.seconds < seconds; });
    at = front.erase(at, slower);
    front.insert(at, HitOf(seconds, bytes, v));
  }

  void KeepNearest(const MemoryUse& use, const Variant& v) {
    const double lack = LackOf(use, split_.machine);
    if (!found_.nearest.empty() && lack >= LackOf(found_.nearest[0].memory, split_.machine)) return;
    found_.nearest = {CandidateOf(found_.layers.back(), stages_, v, rates_)};
  }

  const Workload& split_;
  const Rates& rates_;
  const SearchOptions& options_;
  const double per_second_;
  const std::vector<UnevenStages> uneven_;
  UnevenStages stages_;  // of what is tried
  Again fewest_;         // of those that differ in recomputation alone, the fastest that fits; 0 s: none yet
  Found found_;
  size_t hits_ = 0;
};

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
    for (size_t i = 0; i < found_.size(); ++i) {
      const Rates& rates = clusters_[splits_[i].cluster].rates;
      const Found& found = found_[i];
      result.tried += found.tried;
      result.fitting += found.fitting;
      for (const Hit& hit : found.best)
        result.best.push_back(CandidateOf(found.layers[hit.layer], hit.stages, hit.variant, rates));
      for (const Candidate& one : found.nearest)
        if (result.nearest.empty() || LackOf(one) < LackOf(result.nearest[0])) result.nearest = {one};
      KeepBest(result.best);
    }
    if (result.fitting > 0) result.nearest.clear();
    std::vector<Candidate> front;
    for (size_t cluster = 0; cluster < clusters_.size(); ++cluster) AddFront(cluster, front);
    result.pareto = FrontOfAll(std::move(front));
    return result;
  }

 private:
  // Of one cluster, where money is time: most of what splits have is beaten by others', and need not be predicted.
  void AddFront(size_t cluster, std::vector<Candidate>& front) const {
    std::vector<std::pair<const Hit*, const Found*>> all;
    for (size_t i = 0; i < found_.size(); ++i)
      if (splits_[i].cluster == cluster)
        for (const Hit& hit : found_[i].front) all.emplace_back(&hit, &found_[i]);
    std::ranges::stable_sort(all, {}, [](const auto& one) { return std::pair(one.first->seconds, one.first->bytes); });
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [hit, found] : all) {
      if (hit->bytes >= least) continue;
      least = hit->bytes;
      front.push_back(CandidateOf(found->layers[hit->layer], hit->stages, hit->variant, clusters_[cluster].rates));
    }
  }

  void KeepBest(std::vector<Candidate>& best) const {
    std::ranges::stable_sort(best, {}, [&](const Candidate& one) { return ValueOf(one, options_.objective); });
    if (best.size() > options_.keep) best.erase(best.begin() + std::ptrdiff_t(options_.keep), best.end());
  }

  // Returns whether it was told to end early.
  bool TryAll() {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < std::max(1U, options_.threads); ++i) threads.emplace_back([this] { Work(); });
    std::unique_lock lock(mutex_);
    while (!done_changed_.wait_for(lock, kTick, [&] { return ended_ == threads.size(); })) {
      if (options_.stops && options_.stops()) stops_ = true;
      if (options_.progress) options_.progress(std::min(1., double(next_) / double(splits_.size())));
    }
    return stops_;
  }

  void Work() {
    while (!stops_) {
      const size_t at = next_++;
      if (at >= splits_.size()) break;
      found_[at] = SplitSearch(splits_[at].workload, clusters_[splits_[at].cluster].rates, options_).Result();
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

double ValuePerSecond(const Workload& w, Objective objective) {
  if (objective == Objective::kCost) return w.accelerators * w.machine.usd_per_hour / 3600;
  return objective == Objective::kEnergy ? w.accelerators * w.machine.power : 1;
}
double ValueOf(const Candidate& one, Objective objective) {
  return one.step.total().value * ValuePerSecond(one.workload, objective);
}
double Dollars(const Candidate& one) { return ValueOf(one, Objective::kCost); }
double Joules(const Candidate& one) { return ValueOf(one, Objective::kEnergy); }

SearchResult Search(std::span<const Cluster> clusters, const SearchOptions& options) {
  return Searcher(clusters, options).Result();
}

}  // namespace lockstep::plan
