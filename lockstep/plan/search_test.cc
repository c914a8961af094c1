#include "lockstep/plan/search.h"

#include <gmock/gmock.h>

#include <limits>

#include "lockstep/plan/fit.h"
#include "lockstep/plan/layout.h"
#include "lockstep/plan/schedule.h"
#include "lockstep/plan/test_workload.h"

namespace lockstep::plan {
namespace {

using testing::HasSubstr;
using testing::Not;

Workload Base() { return TestWorkload(); }

SearchResult SearchOne(const Workload& base, const SearchOptions& options) {
  const Cluster cluster{base, Rates{}};
  return Search({&cluster, 1}, options);
}

// Written apart from the search: every combination of these, whatever divides.
TEST(Search, FindsWhatTryingEverythingFinds) {
  const Rates rates;
  double best = 1e9;
  for (const int tp : {1, 2, 4, 8})
    for (const int pp : {1, 2, 4, 8, 16})
      for (const int cp : {1, 2, 4, 8, 16})
        for (const int microbatch : {1, 2, 4, 8, 16, 32, 64})
          for (const int chunks : {1, 2, 4, 8, 16})
            for (const int zero : {1, 3})
              for (const Recompute recompute : {Recompute::kNone, Recompute::kFull, Recompute::kAsNeeded}) {
                Workload w = Base();
                w.tp = tp, w.pp = pp, w.cp = cp, w.microbatch = microbatch, w.chunks = chunks, w.zero = zero;
                w.recompute = recompute, w.sequence_parallel = tp > 1;
                w.dp = 16 / (tp * pp * cp);
                if (!w.Validate().ok() || 64 % (w.dp * microbatch) != 0) continue;
                if (16 / pp % chunks != 0 || (pp == 1 && chunks > 1)) continue;
                if (chunks > 1 && w.Microbatches() % pp != 0) continue;
                if (zero == 3 && (pp > 1 || w.dp * cp == 1)) continue;
                if (PredictMemory(w).total() > w.machine.memory) continue;
                best = std::min(best, PredictStep(w, rates).total().value);
              }
  const SearchResult result = SearchOne(Base(), {.keep = 3, .space = {.uneven = false}});
  ASSERT_EQ(result.best.size(), 3u);
  EXPECT_DOUBLE_EQ(result.best[0].step.total().value, best);
  EXPECT_LE(result.best[0].step.total().value, result.best[1].step.total().value);
  for (const Candidate& one : result.best) {
    EXPECT_TRUE(one.workload.Validate().ok());
    EXPECT_LE(one.memory.total(), one.workload.machine.memory);
  }
  for (size_t i = 1; i < result.pareto.size(); ++i) {
    EXPECT_LT(result.pareto[i].memory.total(), result.pareto[i - 1].memory.total());
    EXPECT_GT(result.pareto[i].step.total().value, result.pareto[i - 1].step.total().value);
  }
  EXPECT_DOUBLE_EQ(result.pareto.front().step.total().value, best);
}

// With all stages alike, and every other way to give the first and the last up to eight layers fewer than the rest.
template <typename Visit>
void EachOfStages(Workload w, const Visit& visit) {
  if (w.layers % w.pp == 0) visit(w);
  if (w.pp == 1 || w.chunks > 1 || w.schedule == Schedule::kDualPipe) return;
  for (int first = 1; first < w.layers; ++first)
    for (int last = 1; first + last <= w.layers; ++last) {
      const int between = w.layers - first - last, most = std::max(first, last), stages = w.pp - 2;
      if (stages == 0 ? between > 0 : between % stages != 0 || between / stages < most) continue;
      const int middle = stages == 0 ? most : between / stages;
      if (middle - std::min(first, last) > 8 || (first == middle && last == middle)) continue;
      w.stage_layers.assign(size_t(w.pp), middle);
      w.stage_layers.front() = first, w.stage_layers.back() = last;
      visit(w);
    }
}

// Written apart from the search, too: with every number of layers that are computed again, none that is on it is
// beaten, and none that no other beats is left out.
TEST(Search, TheFrontIsThatOfAll) {
  Workload base = Base();
  base.accelerators = 8, base.global_batch = 16, base.layers = 12;
  std::vector<std::pair<double, double>> all;
  for (const int tp : {1, 2, 4, 8})
    for (const int pp : {1, 2, 4, 8})
      for (const int cp : {1, 2, 4, 8})
        for (const int microbatch : {1, 2, 4, 8, 16})
          for (const int chunks : {1, 2, 3, 4, 6, 12}) {
            Workload w = base;
            w.tp = tp, w.pp = pp, w.cp = cp, w.microbatch = microbatch, w.chunks = chunks, w.zero = 1;
            w.sequence_parallel = tp > 1, w.dp = 8 / (tp * pp * cp);
            if (!w.Validate().ok() || w.global_batch % (w.dp * microbatch) != 0 || w.layers / pp % chunks != 0)
              continue;
            if (!CanRun(VariantOf(w), pp, w.Microbatches())) continue;
            EachOfStages(w, [&](Workload one) {
              for (one.zero = 1; one.zero <= (pp == 1 && w.dp * cp > 1 ? 3 : 1); one.zero += 2)
                for (int again = 0; again <= w.layers; again += chunks) {
                  one.recompute = again > 0 ? Recompute::kFull : Recompute::kNone, one.recomputed_layers = again;
                  const MemoryUse use = PredictMemory(one);
                  if (use.Fits(one.machine)) all.emplace_back(PredictStep(one, Rates{}).total().value, use.total());
                }
            });
          }
  std::ranges::sort(all);
  std::vector<std::pair<double, double>> front, found;
  for (const auto& one : all)
    if (front.empty() || one.second < front.back().second) front.push_back(one);
  for (const Candidate& one : SearchOne(base, {}).pareto)
    found.emplace_back(one.step.total().value, one.memory.total());
  EXPECT_GT(front.size(), 10U);
  EXPECT_EQ(found, front);
}

// Seven ranks would have parts of the four heads of keys and values.
TEST(Search, SplitsHeadsOfKeysAndValuesToo) {
  Workload work = Base();
  work.heads = 28, work.kv_heads = 4, work.hidden = 28 * 128, work.accelerators = 56, work.global_batch = 8;
  work.sequence = 28'672;
  const SearchResult result = SearchOne(work, {.keep = 1000});
  EXPECT_FALSE(result.best.empty());
  for (const Candidate& one : result.best) EXPECT_NE(one.workload.tp, 7) << LayoutText(one.workload);
}

TEST(Search, SaysWhatNeedsLeastWhereNothingFits) {
  Workload work = Base();
  work.machine.memory = 5e9;
  const SearchResult result = SearchOne(work, {});
  EXPECT_TRUE(result.best.empty());
  ASSERT_EQ(result.nearest.size(), 1u);
  EXPECT_GT(result.nearest[0].memory.total(), 5e9);
}

// Pieces are tried where experts are spread, and the best is that of each number of pieces by itself: several where
// exchanges take long, one where each costs its latency.
TEST(Search, MixturesInPieces) {
  Workload work = Base();
  work.experts = 8, work.top_k = 2, work.expert_ffn = work.ffn;
  work.machine.scale_up /= 4;
  for (const double latency : {1e-6, .1}) {
    Rates rates;
    rates.latency = latency, rates.expert_hidden = 0;
    const Cluster cluster{work, rates};
    const auto best = [&](const std::vector<int>& pieces) {
      return Search({&cluster, 1}, {.keep = 1, .space = {.uneven = false, .moe_chunks = pieces}}).best.at(0);
    };
    double least = std::numeric_limits<double>::infinity();
    for (const int pieces : {1, 2, 4}) least = std::min(least, best({pieces}).step.total().value);
    const Candidate found = best({1, 2, 4});
    EXPECT_EQ(found.step.total().value, least);
    EXPECT_EQ(found.step.total().value, PredictStep(found.workload, rates).total().value);
    EXPECT_EQ(found.workload.moe_chunks > 1, latency < .01) << LayoutText(found.workload);
  }
}

// Of two nodes between which the network is slow: sharing in a domain wins where memory lets it, and no other way is
// lost.
TEST(Search, GroupsThatShare) {
  Workload work = Base();
  work.machine.nic /= 20;
  const SearchOptions alike{.keep = 1, .space = {.whole = true, .uneven = false}};
  SearchOptions groups = alike;
  groups.space.shards_in_domains = true;
  const SearchResult all = SearchOne(work, alike), with = SearchOne(work, groups);
  EXPECT_GT(with.tried, all.tried);
  EXPECT_LE(with.best[0].step.total().value, all.best[0].step.total().value);
  work.zero = 3, work.dp = 16;
  const double among_all = PredictStep(work, Rates{}).total().value;
  work.shard = 8;
  EXPECT_LT(PredictStep(work, Rates{}).total().value, among_all);
}

// Calls `visit` for each candidate of the whole space of a layout of ranks, written apart from the search.
template <typename Visit>
void EachOfWhole(Workload w, const Visit& visit) {
  const bool shards = w.dp * w.cp > 1;
  for (int flags = 0; flags < 64; ++flags) {
    w.sequence_parallel = (flags & 1) == 0, w.flash = (flags & 2) == 0, w.hides_tensor = (flags & 4) == 0;
    w.hides_data = (flags & 8) == 0, w.hides_transfers = (flags & 16) == 0;
    w.gathers_routed = (flags & 32) != 0;
    if (w.tp == 1 && (w.sequence_parallel || !w.hides_tensor)) continue;
    if (w.sequence_parallel && !w.CanSplitSequence()) continue;
    if (w.gathers_routed && (w.tp == 1 || w.ep == 1 || w.sequence_parallel)) continue;
    if (w.TokenRanks() % w.ep != 0) continue;
    for (w.zero = shards ? 0 : 1; w.zero <= (shards ? 3 : 1); ++w.zero)
      for (const Recompute recompute :
           {Recompute::kNone, Recompute::kSelective, Recompute::kAsNeeded, Recompute::kFull}) {
        w.recompute = recompute;
        for (const Offload offload :
             {Offload{}, Offload{.optimizer = true}, Offload{true, true}, Offload{true, false, true}}) {
          // Of experts there may be copies though there is one replica.
          const bool has_copies = shards || (w.experts > 0 && w.TokenRanks() > w.ep);
          if (offload.weights && (w.pp > 1 || (w.zero < 3 && has_copies))) continue;
          w.offload = offload;
          if (recompute != Recompute::kAsNeeded || RecomputedLayers(w) > 0) visit(w);
        }
      }
  }
}

// Of a mixture, experts over those ranks that have tokens of their own.
template <typename Visit>
void EachOfExperts(Workload w, const Visit& visit) {
  for (w.ep = 1; w.ep <= std::max(1, w.experts); ++w.ep)
    if (w.Validate().ok()) visit(w);
}

// The twenty best of the whole space are the twenty best of all candidates, each predicted by itself.
struct Sized {
  int experts, sequence;
};
class WholeSpace : public testing::TestWithParam<Sized> {};
TEST_P(WholeSpace, IsTriedToTheLastBit) {
  Workload base = TestWorkload();
  base.accelerators = 8, base.global_batch = 32, base.layers = 12;
  base.machine.host_link = 25e9, base.machine.host_memory = 250e9, base.machine.host_bandwidth = 50e9;
  base.experts = GetParam().experts, base.sequence = GetParam().sequence;
  if (base.experts > 0) base.top_k = 2, base.expert_ffn = 1024, base.layers = 4, base.global_batch = 16;
  std::vector<double> seconds;
  for (const int tp : {1, 2, 4, 8})
    for (const int pp : {1, 2, 4, 8})
      for (const int cp : {1, 2, 4, 8})
        for (const int microbatch : {1, 2, 4, 8, 16, 32})
          for (const int chunks : {1, 2, 3, 4, 6, 12})
            for (const Schedule schedule : {Schedule::k1F1B, Schedule::kZeroBubbleH1, Schedule::kDualPipe}) {
              Workload w = base;
              w.tp = tp, w.pp = pp, w.cp = cp, w.microbatch = microbatch, w.chunks = chunks, w.schedule = schedule;
              w.dp = 8 / (tp * pp * cp);
              if (!w.Validate().ok() || (cp > 1 && w.sequence % (2 * cp) != 0)) continue;
              if (w.global_batch % (w.dp * microbatch) != 0 || w.layers / pp % chunks != 0) continue;
              if (!CanRun(VariantOf(w), pp, w.Microbatches())) continue;
              EachOfExperts(w, [&](const Workload& spread) {
                EachOfStages(spread, [&](const Workload& staged) {
                  EachOfWhole(staged, [&](const Workload& one) {
                    if (PredictMemory(one).Fits(one.machine))
                      seconds.push_back(PredictStep(one, Rates{}).total().value);
                  });
                });
              });
            }
  std::ranges::sort(seconds);
  SearchOptions options{.keep = 20};
  options.space = {.schedules = {Schedule::k1F1B, Schedule::kZeroBubbleH1, Schedule::kDualPipe}, .whole = true};
  options.space.offloads = {{}, {.optimizer = true}, {true, true}, {true, false, true}};
  const SearchResult result = SearchOne(base, options);
  EXPECT_EQ(result.fitting, std::ssize(seconds));
  ASSERT_EQ(result.best.size(), 20U);
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(result.best[i].step.total().value, seconds[i]) << i;
}
INSTANTIATE_TEST_SUITE_P(Experts, WholeSpace,
                         testing::Values(Sized{0, 4096}, Sized{4, 4096}, Sized{4, 4098}));  // 4 does not divide it

// Of what fits nowhere each remedy is tried before it is named.
TEST(Fit, SaysWhatWouldFitCheapestFirst) {
  Workload work = TestWorkload();
  work.accelerators = 1;
  work.machine.usd_per_hour = 2;
  Machine large = work.machine;
  large.name = "large", large.memory = 1e12, large.usd_per_hour = 9;
  const Machines machines({{work.machine, {}}, {large, {}}});
  const SearchResult result = SearchOne(work, {});
  ASSERT_EQ(result.nearest.size(), 1u);
  const std::string text = WhatWouldFit(work, result.nearest[0], Rates{}, machines);
  EXPECT_THAT(text, HasSubstr("weights, gradients and optimizer are"));
  EXPECT_THAT(text, HasSubstr("2 x m (4 USD/h), 1 x large (9 USD/h)"));
  EXPECT_THAT(text, Not(HasSubstr("--offload"))) << "nothing is known of the host";
  work.accelerators = 2;
  EXPECT_GT(SearchOne(work, {}).fitting, 0);
}

TEST(Fit, TriesNoMoreOnceItIsToldToStop) {
  Workload work = TestWorkload();
  work.accelerators = 1;
  const Machines machines({{work.machine, {}}});
  EXPECT_FALSE(Remedies(work, Rates{}, machines).empty());
  EXPECT_TRUE(Remedies(work, Rates{}, machines, [] { return true; }).empty());
  const SearchResult result = SearchOne(work, {});
  EXPECT_THAT(WhatWouldFit(work, result.nearest[0], Rates{}, machines, [] { return true; }), HasSubstr("interrupted"));
}

// What costs nothing comes first: the host's memory, then another training.
TEST(Fit, NamesOffloadingAndFreezing) {
  Workload work = TestWorkload();
  work.accelerators = 1;
  work.machine.host_link = 25e9, work.machine.host_memory = 250e9, work.machine.host_bandwidth = 50e9;
  const SearchResult none = SearchOne(work, {});
  ASSERT_EQ(none.nearest.size(), 1u);
  const std::vector<Remedy> remedies = Remedies(work, Rates{}, Machines({{work.machine, {}}}));
  ASSERT_GE(remedies.size(), 3u);
  EXPECT_THAT(remedies[0].text, HasSubstr("--offload weights (")) << "gradients leave beside all passes";
  EXPECT_THAT(remedies[1].text, HasSubstr("--offload optimizer ("));
  for (const bool weights : {true, false}) {
    SearchOptions options{.keep = 1};
    options.space.offloads = {{.optimizer = true, .weights = weights}};
    EXPECT_GT(SearchOne(work, options).fitting, 0);
  }
  const auto freeze =
      std::ranges::find_if(remedies, [](const Remedy& one) { return one.text.starts_with("--freeze"); });
  ASSERT_NE(freeze, remedies.end());
  work.frozen = {std::stoi(freeze->text.substr(freeze->text.find("layers:") + 7)), true};
  EXPECT_GT(SearchOne(work, {}).fitting, 0);
  --work.frozen.layers;
  EXPECT_EQ(SearchOne(work, {}).fitting, 0) << "the fewest that do";
}

TEST(Search, ObjectivesAndClusters) {
  Workload small = TestWorkload(), large = small;
  small.machine.usd_per_hour = 1, large.machine.usd_per_hour = 1;
  small.machine.power = 500, large.machine.power = 100;
  large.accelerators = 64, large.machine.name = "n";
  const Cluster clusters[] = {{small, Rates{}}, {large, Rates{}}};
  const SearchResult fastest = Search(clusters, {.keep = 1});
  EXPECT_EQ(fastest.best[0].workload.accelerators, 64);
  const SearchResult cheapest = Search(clusters, {.keep = 1, .objective = Objective::kCost});
  EXPECT_EQ(cheapest.best[0].workload.accelerators, 16) << "more accelerators lose more to waiting";
  const SearchResult frugal = Search(clusters, {.keep = 1, .objective = Objective::kEnergy});
  EXPECT_EQ(frugal.best[0].workload.accelerators, 64) << "a fifth of the power";
  for (const Candidate& a : fastest.pareto)
    for (const Candidate& b : fastest.pareto)
      EXPECT_FALSE(a.step.total() < b.step.total() && a.memory.total() <= b.memory.total() && Dollars(a) <= Dollars(b));
  bool has_small = false, has_large = false;
  for (const Candidate& one : fastest.pareto) {
    has_small = has_small || one.workload.accelerators == 16;
    has_large = has_large || one.workload.accelerators == 64;
  }
  EXPECT_TRUE(has_small && has_large) << "one is faster, one cheaper";
}

TEST(Search, TheSameOnAnyNumberOfThreads) {
  SearchOptions options{.keep = 20};
  options.space.schedules = {Schedule::k1F1B, Schedule::kZeroBubbleH1, Schedule::kZeroBubble2p, Schedule::kDualPipe};
  const SearchResult one = SearchOne(TestWorkload(), options);
  options.threads = 4;
  const SearchResult four = SearchOne(TestWorkload(), options);
  ASSERT_EQ(one.best.size(), four.best.size());
  EXPECT_EQ(one.tried, four.tried);
  for (size_t i = 0; i < one.best.size(); ++i) {
    EXPECT_EQ(LayoutText(one.best[i].workload), LayoutText(four.best[i].workload));
    EXPECT_EQ(one.best[i].step.total(), four.best[i].step.total());
  }
  ASSERT_EQ(one.pareto.size(), four.pareto.size());
}

TEST(Search, EndsEarlyWithWhatItHas) {
  Workload work = TestWorkload();
  work.accelerators = 4096, work.global_batch = 1 << 16, work.layers = 96, work.heads = work.kv_heads = 96;
  bool asked = false;
  const SearchResult result = SearchOne(work, {.keep = 1, .stops = [&] { return asked = true; }});
  EXPECT_EQ(result.stopped, asked) << "where it was over sooner, nobody asked";
}

}  // namespace
}  // namespace lockstep::plan
