// Planted faults in a data-parallel job are named from its profiler files, whatever their era.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "lockstep/explain/causes.h"
#include "lockstep/explain/report.h"
#include "lockstep/synth/ddp.h"
#include "lockstep/trace/kineto_job.h"
#include "lockstep/trace/test_trace.h"
#include "lockstep/trace/untold_transfers.h"

namespace lockstep::explain {
namespace {

using synth::Fault;
using synth::FaultKind;
using synth::KinetoEra;
using testing::ElementsAre;

std::vector<Cause> CausesOf(synth::DdpShape shape, const std::vector<Fault>& faults, uint64_t seed) {
  const std::string folder = trace::TempPath("causes");
  const absl::Status written = synth::WriteDdpTraces(folder, shape, faults, seed);
  EXPECT_TRUE(written.ok()) << Message(written);
  std::vector<std::string> paths;
  paths.reserve(static_cast<size_t>(shape.ranks));
  for (int rank = 0; rank < shape.ranks; ++rank) paths.push_back(fmt::format("{}/rank-{}.json.gz", folder, rank));
  const auto traced = trace::BuildKinetoJob(trace::ReadKinetoFiles(paths, std::nullopt).value(), {}).value();
  EXPECT_TRUE(traced.job.counters.empty()) << traced.job.counters[0].name;
  return FindCauses(traced.job, WhatIf(traced.job)).found;
}

std::vector<std::string> Names(const std::vector<Cause>& causes) {
  std::vector<std::string> names;
  names.reserve(causes.size());
  for (const Cause& cause : causes) names.emplace_back(CauseName(cause.kind));
  return names;
}

class PlantedInDdp : public testing::TestWithParam<std::tuple<KinetoEra, int>> {};

const synth::DdpShape kShape{.ranks = 4, .steps = 12, .clock_offset{0.02}};

TEST_P(PlantedInDdp, IsNamed) {
  const auto [era, seed_number] = GetParam();
  const auto seed = static_cast<uint64_t>(seed_number);
  synth::DdpShape shape = kShape;
  shape.era = era;
  EXPECT_THAT(Names(CausesOf(shape, {}, seed)), ElementsAre());
  const Fault faults[] = {
      {.kind = FaultKind::kWorker, .dp = 2, .factor = 1.3},
      {.kind = FaultKind::kTransientWorker, .dp = 1, .factor = 1.5, .first_step = 3, .last_step = 7},
      {.kind = FaultKind::kFabric, .dp = 0, .factor = 6, .first_step = 5, .last_step = 6},
      {.kind = FaultKind::kSequenceLength, .factor = 0.3},
      {.kind = FaultKind::kDataLoading, .dp = 3, .seconds{0.03}}};
  for (const Fault& fault : faults) {
    const std::vector<Cause> causes = CausesOf(shape, {fault}, seed);
    ASSERT_THAT(Names(causes), ElementsAre(synth::FaultKindName(fault.kind))) << "seed " << seed;
    if (fault.kind == FaultKind::kFabric || fault.kind == FaultKind::kSequenceLength) continue;
    ASSERT_EQ(causes[0].suspects.size(), 1U);
    EXPECT_EQ(causes[0].suspects[0].rank, fault.dp);
    if (fault.kind != FaultKind::kTransientWorker) continue;
    EXPECT_EQ(causes[0].suspects[0].first_step, fault.first_step);
    EXPECT_EQ(causes[0].suspects[0].last_step, fault.last_step);
  }
}
INSTANTIATE_TEST_SUITE_P(ErasAndSeeds, PlantedInDdp,
                         testing::Combine(testing::Values(KinetoEra::kMicros, KinetoEra::kDecimals, KinetoEra::kBase),
                                          testing::Range(1, 4)));

class LengthsAndASlowRank : public testing::TestWithParam<std::tuple<double, Fault>> {};

TEST_P(LengthsAndASlowRank, NameTheRank) {
  const auto& [spread, slow] = GetParam();
  const Fault lengths{.kind = FaultKind::kSequenceLength, .factor = spread};
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const std::vector<Cause> causes = CausesOf({.ranks = 8, .steps = 16}, {lengths, slow}, seed);
    const auto named = std::ranges::find(causes, synth::FaultKindName(slow.kind),
                                         [](const Cause& one) { return std::string(CauseName(one.kind)); });
    ASSERT_NE(named, causes.end()) << "seed " << seed << ": " << testing::PrintToString(Names(causes));
    ASSERT_EQ(named->suspects.size(), 1U);
    EXPECT_EQ(named->suspects[0].rank, slow.dp);
    if (slow.kind != FaultKind::kTransientWorker) continue;
    EXPECT_NEAR(static_cast<double>(*named->suspects[0].first_step), slow.first_step, 1);
    EXPECT_NEAR(static_cast<double>(*named->suspects[0].last_step), slow.last_step, 1);
  }
}
INSTANTIATE_TEST_SUITE_P(Spreads, LengthsAndASlowRank,
                         testing::Combine(testing::Values(0.03, 0.05, 0.1),
                                          testing::Values(Fault{.kind = FaultKind::kWorker, .dp = 5, .factor = 1.4},
                                                          Fault{.kind = FaultKind::kTransientWorker,
                                                                .dp = 5,
                                                                .factor = 1.6,
                                                                .first_step = 4,
                                                                .last_step = 8})));

// One and a half times as long, for five steps, where all vary by 15 %: hardly to be told from chance.
INSTANTIATE_TEST_SUITE_P(Wide, LengthsAndASlowRank,
                         testing::Combine(testing::Values(0.15),
                                          testing::Values(Fault{.kind = FaultKind::kTransientWorker,
                                                                .dp = 5,
                                                                .factor = 1.5,
                                                                .first_step = 4,
                                                                .last_step = 8})));

std::vector<trace::KinetoRank> RanksOf(const synth::DdpShape& shape, const std::vector<Fault>& faults) {
  const std::string folder = trace::TempPath("ranks");
  EXPECT_EQ(Message(synth::WriteDdpTraces(folder, shape, faults, 1)), "");
  std::vector<std::string> paths;
  for (int rank = 0; rank < shape.ranks; ++rank) paths.push_back(fmt::format("{}/rank-{}.json.gz", folder, rank));
  return trace::ReadKinetoFiles(paths, std::nullopt).value();
}

// "worker 5; untold 16"
std::string TextOf(std::vector<trace::KinetoRank> ranks) {
  const trace::KinetoJob traced = trace::BuildKinetoJob(std::move(ranks), {}).value();
  std::string text;
  for (const Cause& cause : FindCauses(traced.job, WhatIf(traced.job)).found)
    text += fmt::format("{} {}; ", CauseName(cause.kind), cause.suspects.at(0).rank.value_or(-1));
  for (const trace::Counter& counter : traced.job.counters)
    if (counter.name == trace::kUntoldTransfers) text += fmt::format("untold {}", counter.count);
  return text;
}

// Every second collective is an all-to-all, of which nothing is told: older profilers didn't, nor is it of what a CUDA
// graph replays.
std::vector<trace::KinetoRank> WithAllToAlls(std::vector<trace::KinetoRank> ranks) {
  for (trace::KinetoRank& one : ranks) {
    one.collectives.push_back({.name = trace::kExchange});
    bool second = false;
    for (trace::DeviceOp& op : one.ops)
      if (op.collective != trace::kNoIndex && std::exchange(second, !second))
        op.collective = static_cast<uint32_t>(one.collectives.size() - 1);
  }
  return ranks;
}

TEST(UntoldExchanges, ThatAllRanksLeaveTogetherAreOfNoStages) {
  const Fault slow{.kind = FaultKind::kWorker, .dp = 5, .factor = 1.4};
  const Fault late{.kind = FaultKind::kDataLoading, .dp = 3, .seconds{0.03}};
  for (const KinetoEra era : {KinetoEra::kMicros, KinetoEra::kBase}) {
    synth::DdpShape shape{.clock_offset{0.02}, .era = era};
    EXPECT_EQ(TextOf(WithAllToAlls(RanksOf(shape, {}))), "");
    EXPECT_EQ(TextOf(WithAllToAlls(RanksOf(shape, {slow}))), "worker 5; ");
    EXPECT_EQ(TextOf(WithAllToAlls(RanksOf(shape, {late}))), "data_loading 3; ");
    shape.ranks = 2;  // which may as well be two stages
    EXPECT_EQ(TextOf(WithAllToAlls(RanksOf(shape, {{.kind = FaultKind::kWorker, .dp = 1, .factor = 1.4}}))),
              "untold 40");
  }
}

// They may be stages of a pipeline; the others are not.
TEST(UntoldExchanges, OfTwoRanksLeaveTheOthersComparable) {
  const auto text_of = [](const Fault& fault) {
    std::vector<trace::KinetoRank> ranks = RanksOf({}, {fault});
    for (size_t rank = 0; rank < 2; ++rank) {
      trace::KinetoRank& one = ranks[rank];
      one.collectives.push_back({.name = trace::kExchange});
      one.streams.emplace_back("device 0 stream 99");
      for (const trace::ProfilerStep& step : one.steps)
        one.ops.push_back({step.begin_ns + 1'000'000, 50'000, step.begin_ns + 1'000'000,
                           static_cast<uint32_t>(one.streams.size() - 1),
                           static_cast<uint32_t>(one.collectives.size() - 1)});
    }
    return TextOf(std::move(ranks));
  };
  EXPECT_EQ(text_of({.kind = FaultKind::kWorker, .dp = 5, .factor = 1.4}), "worker 5; untold 20");
  EXPECT_EQ(text_of({.kind = FaultKind::kDataLoading, .dp = 3, .seconds{0.03}}), "data_loading 3; untold 20");
  EXPECT_EQ(text_of({.kind = FaultKind::kWorker, .dp = 1, .factor = 1.4}), "untold 20");
}

// Four ranks in two all-reduces a step. Between these rank 2 takes 19 ms more or some more still, in every N-th step.
// Before the first rank 0 pauses, now and then. Rank 3 ends each step `later` than the others, and begins the next so.
trace::KinetoRank TwiceReduced(int rank, int every, int64_t later) {
  constexpr int64_t kMs = 1'000'000;
  trace::KinetoRank one;
  one.rank = rank;
  one.world_size = 4;
  one.streams = {"device 0 stream 7", "device 0 stream 20"};
  one.groups = {{"0", "default_pg", {0, 1, 2, 3}}};
  one.collectives = {{"allreduce", 0, -1, 8, 8, -1, false}};
  const auto add = [&one](int64_t from, int64_t to, uint32_t stream) {
    one.ops.push_back({from, to - from, from, stream, stream == 1 ? 0 : trace::kNoIndex});
  };
  int64_t now = 0;
  for (int step = 0; step < 12; ++step) {
    const int64_t begin = now, more = step % every == 0 ? (19 + step % 3) * kMs : 0;
    const int64_t jitter = (step * 7 + rank * 3) % 5 * kMs / 50, pause = step % 6 == 1 ? 6 * kMs : 0;
    const int64_t late = step > 0 ? later : 0, own_late = rank == 3 ? late : 0;
    const int64_t first = own_late + 10 * kMs + jitter + (rank == 0 ? pause : 0);
    const int64_t reduced = late + 11 * kMs + kMs / 10 + pause;
    add(now + own_late, now + first, 0);
    add(now + first, now + reduced, 1);
    now += reduced;
    const int64_t own = kMs / 2 + (rank == 2 ? more : 0);
    add(now, now + own, 0);
    add(now + own, now + kMs / 2 + more + kMs, 1);
    now += kMs / 2 + more + kMs;
    const int64_t last = 5 * kMs + (rank == 3 ? later : 0);
    add(now, now + last, 0);
    one.steps.push_back({step, begin, now + last - begin});
    now += 5 * kMs;
  }
  std::stable_sort(one.ops.begin(), one.ops.end(), [](const auto& a, const auto& b) { return a.stream < b.stream; });
  return one;
}

std::vector<Cause> CausesOfTwiceReduced(int every, int64_t later = 0) {
  std::vector<trace::KinetoRank> ranks;
  ranks.reserve(4);
  for (int rank = 0; rank < 4; ++rank) ranks.push_back(TwiceReduced(rank, every, later));
  const auto traced = trace::BuildKinetoJob(std::move(ranks), {}).value();
  return FindCauses(traced.job, WhatIf(traced.job)).found;
}

TEST(OneSegment, ThatIsLongInMostStepsIsTheWorkersOwn) {
  const std::vector<Cause> causes = CausesOfTwiceReduced(1);
  ASSERT_THAT(Names(causes), ElementsAre("worker", "gc"));
  EXPECT_EQ(causes[0].suspects[0].rank, 2);
  EXPECT_NEAR(causes[0].gain_s, 0.020, 0.0005);
  EXPECT_EQ(causes[1].suspects[0].rank, 0);
  EXPECT_NEAR(causes[1].gain_s, 0.001, 0.0001);
}

TEST(OneSegment, ThatIsLongNowAndThenIsAPause) {
  const std::vector<Cause> causes = CausesOfTwiceReduced(4);
  ASSERT_THAT(Names(causes), ElementsAre("gc"));
  EXPECT_EQ(causes[0].suspects[0].rank, 2);
  EXPECT_NEAR(causes[0].gain_s, 0.006, 0.0005);
}

TEST(OneSegment, ThatEndsTheStepLateIsNoLoadingOfData) {
  const std::vector<Cause> causes = CausesOfTwiceReduced(100, 4'000'000);
  ASSERT_THAT(Names(causes), ElementsAre("worker", "gc"));
  EXPECT_EQ(causes[0].suspects[0].rank, 3);
  EXPECT_NEAR(causes[0].gain_s, 0.004, 0.0005);
}

// That compute in one stream and all-reduce over all of them in another, without ops.
std::vector<trace::KinetoRank> RanksThatReduce(int count) {
  std::vector<int> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  std::vector<trace::KinetoRank> ranks(all.size());
  for (const int rank : all) {
    trace::KinetoRank& one = ranks[static_cast<size_t>(rank)];
    one.rank = rank;
    one.world_size = count;
    one.streams = {"device 0 stream 7", "device 0 stream 20"};
    one.groups = {{"0", "default_pg", all}};
    one.collectives = {{"allreduce", 0, -1, 8, 8, -1, false}};
  }
  return ranks;
}

void OrderOps(std::vector<trace::KinetoRank>& ranks) {
  for (trace::KinetoRank& rank : ranks)
    std::ranges::stable_sort(rank.ops, {}, [](const trace::DeviceOp& op) { return std::pair(op.stream, op.begin_ns); });
}

// Where a host pauses, in two of the segments of a step.
enum class PausedAt { kNever, kWithin, kCut };

// Four ranks compute six segments of two kernels a step, each with an all-reduce behind it that runs beside the next.
// The host launches just ahead. In steps 4 and 7 that of rank 1 pauses for 6 ms in two segments: between their kernels,
// or before the first, right behind the launch of an all-reduce.
std::vector<trace::KinetoRank> Reduced(PausedAt paused) {
  constexpr int kRanks = 4, kSegments = 6;
  constexpr int64_t kUs = 1'000, kMs = 1'000'000;
  std::vector<trace::KinetoRank> ranks = RanksThatReduce(kRanks);
  std::vector<int64_t> now(kRanks, 0), begins(kRanks);
  const auto compute = [&](size_t rank, int64_t length, int64_t pause) {
    const int64_t begin = now[rank] + pause;
    ranks[rank].ops.push_back({begin, length, begin - 5 * kUs, 0, trace::kNoIndex});
    now[rank] = begin + length;
  };
  for (int step = 0; step < 12; ++step) {
    int64_t reduced = 0;
    begins = now;
    for (int segment = 0; segment < kSegments; ++segment) {
      int64_t last = 0;
      for (size_t rank = 0; rank < kRanks; ++rank) {
        const bool pauses = rank == 1 && (step == 4 || step == 7) && (segment == 2 || segment == 4);
        const int64_t pause = pauses ? 6 * kMs : 0,
                      jitter = (step * 7 + segment * 5 + int64_t(rank) * 3) % 5 * kMs / 50;
        compute(rank, 2 * kMs + jitter, paused == PausedAt::kCut ? pause : 0);
        compute(rank, 2 * kMs, paused == PausedAt::kWithin ? pause : 0);
        last = std::max({last, now[rank], reduced});
      }
      for (size_t rank = 0; rank < kRanks; ++rank) {
        const int64_t begin = std::max(now[rank], reduced);
        ranks[rank].ops.push_back({begin, last + kMs - begin, now[rank] - 6 * kUs, 1, 0});
      }
      reduced = last + kMs;
    }
    for (size_t rank = 0; rank < kRanks; ++rank) {
      now[rank] = reduced;
      compute(rank, kMs, 0);
      ranks[rank].steps.push_back({step, begins[rank] - 10 * kUs, now[rank] - begins[rank]});
    }
  }
  OrderOps(ranks);
  return ranks;
}

void CheckTwoPauses(PausedAt paused, double told) {
  const trace::TracedJob job = trace::BuildKinetoJob(Reduced(paused), {}).value().job;
  const trace::TracedJob healthy = trace::BuildKinetoJob(Reduced(PausedAt::kNever), {}).value().job;
  const WhatIf analysis(job);
  const std::vector<Cause> causes = FindCauses(job, analysis).found;
  ASSERT_THAT(Names(causes), ElementsAre("gc"));
  EXPECT_EQ(causes[0].suspects[0].rank, 1);
  const auto mean = [](const std::vector<float>& steps) {
    return std::reduce(steps.begin(), steps.end(), 0.0) / static_cast<double>(steps.size());
  };
  const double cost = mean(job.step_times) - mean(healthy.step_times);
  EXPECT_NEAR(causes[0].gain_s, told * cost, 0.05 * cost);
  EXPECT_LT(analysis.launch_slowdown(), 1.02);
}

TEST(TwoPausesOfAStep, AreNoSlowRank) { CheckTwoPauses(PausedAt::kWithin, 1); }

// It seems to begin when the all-reduce has ended, 1 ms later.
TEST(TwoPausesOfAStep, AreSeenBehindTheLaunchOfAnAllReduce) { CheckTwoPauses(PausedAt::kCut, 5.0 / 6); }

// Eight ranks compute most of a step at a stretch, and reduce its gradients at once; then the norm of these, and the
// optimizer. Of rank 2 the matrix multiplications take `slower` times as long in steps 4 to 8; in steps 5 and 9 its
// host pauses in their midst.
std::vector<trace::KinetoRank> ReducedOnce(double slower, int64_t pause) {
  constexpr int kRanks = 8;
  constexpr int64_t kUs = 1'000, kMs = 1'000'000;
  std::vector<trace::KinetoRank> ranks = RanksThatReduce(kRanks);
  std::vector<int64_t> now(kRanks, 0), begins(kRanks);
  const auto compute = [&](size_t rank, int64_t length, int64_t after = 0) {
    ranks[rank].ops.push_back({now[rank] + after, length, now[rank] + after - 5 * kUs, 0, trace::kNoIndex});
    now[rank] += after + length;
  };
  const auto reduce = [&] {
    const int64_t end = *std::ranges::max_element(now) + kMs;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      ranks[rank].ops.push_back({now[rank], end - now[rank], now[rank] - 6 * kUs, 1, 0});
      now[rank] = end;
    }
  };
  for (int step = 0; step < 12; ++step) {
    begins = now;
    for (size_t rank = 0; rank < kRanks; ++rank)
      for (int layer = 0; layer < 8; ++layer) {
        const bool is_slow = rank == 2 && step >= 4 && step <= 8;
        const bool pauses = rank == 2 && (step == 5 || step == 9) && layer == 4;
        const int64_t jitter = (step * 7 + layer * 5 + int64_t(rank) * 3) % 5 * kMs / 50;
        compute(rank, std::llround(4 * kMs * (is_slow ? slower : 1)) + jitter, pauses ? pause : 0);
        compute(rank, kMs / 5);
      }
    reduce();
    for (size_t rank = 0; rank < kRanks; ++rank) compute(rank, kMs / 2);
    reduce();
    for (size_t rank = 0; rank < kRanks; ++rank) {
      compute(rank, kMs);
      ranks[rank].steps.push_back({step, begins[rank] - 10 * kUs, now[rank] - begins[rank]});
    }
  }
  OrderOps(ranks);
  return ranks;
}

std::vector<Cause> CausesOfReducedOnce(double slower, int64_t pause) {
  const trace::TracedJob job = trace::BuildKinetoJob(ReducedOnce(slower, pause), {}).value().job;
  return FindCauses(job, WhatIf(job)).found;
}

TEST(OneSegment, OfMostOfTheTimeThatIsLongWithoutAGapIsASlowDevice) {
  for (const double slower : {1.25, 1.6, 2.0}) {
    const std::vector<Cause> causes = CausesOfReducedOnce(slower, 0);
    ASSERT_THAT(Names(causes), ElementsAre("transient_worker")) << slower;
    EXPECT_EQ(causes[0].suspects[0].rank, 2);
    EXPECT_EQ(causes[0].suspects[0].first_step, 4);
    EXPECT_EQ(causes[0].suspects[0].last_step, 8);
    EXPECT_NEAR(causes[0].gain_s, 0.032 * (slower - 1) * 5 / 12, 0.001);
  }
}

TEST(OneSegment, OfMostOfTheTimeThatHasALongGapIsPaused) {
  const std::vector<Cause> causes = CausesOfReducedOnce(1, 12'000'000);
  ASSERT_THAT(Names(causes), ElementsAre("gc"));
  EXPECT_EQ(causes[0].suspects[0].rank, 2);
  EXPECT_NEAR(causes[0].gain_s, 0.002, 0.0002);
}

// The host is so much ahead of the device, by its steps, and has the inputs of each step copied on a stream of their
// own as soon as it comes to it.
void LetHostRunAhead(trace::KinetoRank& rank, int64_t lead_ns) {
  for (trace::DeviceOp& op : rank.ops) op.launch_ns -= lead_ns;
  rank.streams.emplace_back("device 0 stream 27");
  for (trace::ProfilerStep& step : rank.steps) {
    step.begin_ns -= lead_ns;
    rank.ops.push_back({step.begin_ns + 5'000, 300'000, step.begin_ns, 2, trace::kNoIndex});
  }
}

TEST(HostThatRunsAhead, ChangesNothing) {
  constexpr int kRanks = 4;
  const auto explained = [](double lead_steps) {
    std::vector<trace::KinetoRank> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.push_back(TwiceReduced(rank, 1, 0));
      const auto& steps = ranks.back().steps;
      LetHostRunAhead(ranks.back(), std::llround(lead_steps * double(steps[1].begin_ns - steps[0].begin_ns)));
    }
    return trace::BuildKinetoJob(std::move(ranks), {}).value().job;
  };
  const trace::TracedJob usual = explained(0);
  const double slowdown = WhatIf(usual).slowdown();
  ASSERT_GT(slowdown, 1.3);
  const trace::KinetoRank rank = TwiceReduced(0, 1, 0);
  const auto span = static_cast<double>(rank.steps.back().begin_ns + rank.steps.back().duration_ns);
  for (const double lead_steps : {0.0, 0.3, 0.6, 0.9, 1.5}) {
    const trace::TracedJob job = explained(lead_steps);
    EXPECT_NEAR(std::reduce(job.step_times.begin(), job.step_times.end(), 0.0), span / 1e9, 1e-5) << lead_steps;
    EXPECT_NEAR(WhatIf(job).slowdown(), slowdown, 1e-4) << lead_steps;
    const std::vector<Cause> causes = FindCauses(job, WhatIf(job)).found;
    EXPECT_THAT(Names(causes), ElementsAre("worker", "gc")) << lead_steps;
  }
}

}  // namespace
}  // namespace lockstep::explain
