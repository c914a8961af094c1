#include "lockstep/trace/kineto_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace lockstep::trace {
namespace {

using testing::HasSubstr;

constexpr int64_t kMs = 1'000'000;
constexpr int kRanks = 4;  // two pipelines of two stages: 0 and 2, 1 and 3

// Ranks 0 and 1 compute, send to the next stage, and wait for what comes back; ranks 2 and 3 wait, compute, send back.
// The second pipeline computes three times as long. Within each stage the ranks may pass something around, beside that.
KinetoRank Rank(int rank, int steps, int64_t clock_ns, bool ring = false) {
  const bool first = rank < 2;
  KinetoRank one;
  one.rank = rank;
  one.world_size = kRanks;
  one.streams = {"device 0 stream 7", "device 0 stream 20", "device 0 stream 21"};
  one.groups = {{"7", "PIPELINE", rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3}}};
  const int peer = first ? rank + 2 : rank - 2;
  one.collectives = {{"send", 0, -1, 8, 8, peer, true}, {"recv", 0, -1, 8, 8, peer, false}};
  if (ring) {
    const int neighbour = rank ^ 1;
    one.streams.emplace_back("device 0 stream 22");
    one.groups.push_back({first ? "1" : "2", "CONTEXT", {rank & ~1, rank | 1}});
    one.collectives.push_back({"send", 1, -1, 4, 4, neighbour, true});
    one.collectives.push_back({"recv", 1, -1, 4, 4, neighbour, false});
  }
  const int64_t forward = (rank % 2 == 0 ? 10 : 30) * kMs, transfer = kMs / 2, behind = 20 * kMs;
  for (int step = 0; step < steps; ++step) {
    const int64_t begin = clock_ns + int64_t{step} * 200 * kMs;
    one.steps.push_back({step, begin, 150 * kMs});
    const auto add = [&](int64_t from, int64_t to, uint32_t stream, uint32_t collective) {
      one.ops.push_back({begin + from, to - from, begin + 1, stream, collective});
    };
    const int64_t sent = forward + transfer, answered = sent + behind + transfer;
    if (first) {
      add(0, forward, 0, kNoIndex);
      add(forward, sent, 1, 0);
      add(sent, answered, 2, 1);
      add(answered, answered + forward, 0, kNoIndex);
    } else {
      add(1000, sent, 2, 1);
      add(sent, sent + behind, 0, kNoIndex);
      add(sent + behind, answered, 1, 0);
      add(answered, answered + kMs, 0, kNoIndex);
    }
    const int64_t passed = (first ? 0 : 30 * kMs + transfer) + transfer;  // when the later pipeline has come
    const uint32_t earlier = rank % 2 == 0 ? 2 : 3;
    if (ring) add(first ? 0 : sent, passed, 3, earlier), add(passed, passed + transfer, 3, 5 - earlier);
  }
  std::stable_sort(one.ops.begin(), one.ops.end(), [](const DeviceOp& a, const DeviceOp& b) {
    return std::tuple(a.stream, a.begin_ns) < std::tuple(b.stream, b.begin_ns);
  });
  return one;
}

// Two stages without a barrier at the end of a step: the second is done 9 ms before the first, and waits for its next
// input from then on.
KinetoRank StageWithoutBarrier(int stage) {
  constexpr int64_t kStep = 41 * kMs, kTransfer = kMs / 2, kForward = 10 * kMs, kAnswered = kForward + 21 * kMs;
  KinetoRank one;
  one.rank = stage;
  one.world_size = 2;
  one.streams = {"device 0 stream 7", "device 0 stream 20", "device 0 stream 21"};
  one.groups = {{"7", "PIPELINE", {0, 1}}};
  one.collectives = {{"send", 0, -1, 8, 8, 1 - stage, true}, {"recv", 0, -1, 8, 8, 1 - stage, false}};
  for (int step = 0; step < 5; ++step) {
    const int64_t begin = step * kStep, early = stage == 1 && step > 0 ? kAnswered + kMs - kStep : 0;
    one.steps.push_back({step, begin + early, kStep - early});
    int64_t launch = begin + early;
    const auto add = [&](int64_t from, int64_t to, uint32_t stream, uint32_t collective) {
      one.ops.push_back({begin + from, to - from, launch++, stream, collective});
    };
    if (stage == 0) {
      add(0, kForward, 0, kNoIndex);
      add(kForward, kForward + kTransfer, 1, 0);
      add(kForward + kTransfer, kAnswered, 2, 1);
      add(kAnswered, kStep, 0, kNoIndex);
    } else {
      add(early, kForward + kTransfer, 2, 1);
      add(kForward + kTransfer, kAnswered - kTransfer, 0, kNoIndex);
      add(kAnswered - kTransfer, kAnswered, 1, 0);
      add(kAnswered, kAnswered + kMs, 0, kNoIndex);
    }
  }
  std::stable_sort(one.ops.begin(), one.ops.end(), [](const DeviceOp& a, const DeviceOp& b) {
    return std::tuple(a.stream, a.begin_ns) < std::tuple(b.stream, b.begin_ns);
  });
  return one;
}

TEST(KinetoJob, TheStepBeforeIsNoDelay) {
  const auto traced = BuildKinetoJob({StageWithoutBarrier(0), StageWithoutBarrier(1)}, {});
  ASSERT_TRUE(traced.ok()) << traced.status();
  const TracedJob& job = traced->job;
  ASSERT_EQ(job.pp, 2);
  for (const Counter& counter : job.counters) ADD_FAILURE() << counter.name << " " << counter.count;
  for (const float delay : job.delays) EXPECT_NEAR(delay, 0, 1e-5);
  for (const float time : job.step_times) EXPECT_NEAR(time, 0.041, 1e-5);
}

uint64_t CounterOf(const KinetoJob& traced, std::string_view name) {
  for (const Counter& counter : traced.job.counters)
    if (counter.name == name) return counter.count;
  return 0;
}

TEST(KinetoJob, ASendAndItsReceiveAreOneTransfer) {
  std::vector<KinetoRank> ranks;
  ranks.reserve(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) ranks.push_back(Rank(rank, 4, int64_t{rank} * 70'000));
  const auto traced = BuildKinetoJob(std::move(ranks), {});
  ASSERT_TRUE(traced.ok()) << traced.status();
  const TracedJob& job = traced->job;
  for (const Counter& counter : job.counters) EXPECT_NE(counter.name, "unmatched_collectives") << counter.count;
  for (uint32_t op = 0; op < job.ops.size(); ++op) {
    const std::string& kind = job.kinds[static_cast<size_t>(job.ops[op].kind)];
    if (kind == "compute") continue;
    for (size_t lane = 0; lane < job.lanes.size(); ++lane) {
      const size_t cell = job.graph.Cell(op, lane);
      if (job.graph.IsAbsent(cell)) continue;
      EXPECT_NEAR(job.transfers[cell], 0.0005, 2e-5)
          << kind << " of lane " << lane << ": a wait for the peer is no transfer";
    }
  }
  for (const ClockOffset& clock : traced->clocks) EXPECT_LT(clock.error_ns, 2e4);
}

TEST(KinetoJob, WhoseOtherEndIsNotThereStaysSingle) {
  std::vector<KinetoRank> ranks;
  for (const int rank : {0, 1, 3}) ranks.push_back(Rank(rank, 4, 0));
  const auto traced = BuildKinetoJob(std::move(ranks), {});
  ASSERT_TRUE(traced.ok()) << traced.status();
  EXPECT_EQ(traced->absent_ranks, std::vector<int>{2});
  const auto asks_for_2 = [](const std::vector<int>& peers) { return peers == std::vector<int>{2}; };
  EXPECT_TRUE(std::any_of(traced->absent_peers.begin(), traced->absent_peers.end(), asks_for_2));
}

TEST(KinetoJob, ARingWithinAStageIsNoStageOfItsOwn) {
  std::vector<KinetoRank> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.push_back(Rank(rank, 4, 0, true));
  const auto traced = BuildKinetoJob(std::move(ranks), {});
  ASSERT_TRUE(traced.ok()) << traced.status();
  EXPECT_EQ(traced->job.pp, 2);
  EXPECT_EQ(traced->job.ranks, (std::vector<std::vector<int32_t>>{{0, 2}, {1, 3}}));
  EXPECT_EQ(CounterOf(*traced, "unmatched_collectives"), 0U);
  // Who sends first is held against nobody who receives first.
  EXPECT_EQ(CounterOf(*traced, kRanksWithoutPeers), 4U);
}

// Ranks that compute 10 ms and communicate, three times a step; each in a group of so many, from that one on. In a ring
// they send to the next and receive from the one before; else all exchange what was routed to whom.
std::vector<KinetoRank> Groups(int world, int size, bool ring) {
  constexpr int kSteps = 6, kTimes = 3;
  std::vector<KinetoRank> ranks;
  for (int rank = 0; rank < world; ++rank) {
    KinetoRank& one = ranks.emplace_back();
    one.rank = rank;
    one.world_size = world;
    one.streams = {"device 0 stream 7", "device 0 stream 20", "device 0 stream 21"};
    const int first = rank / size * size;
    one.groups = {{fmt::format("{}", first), "GROUP", {}}};
    for (int other = first; other < first + size; ++other) one.groups[0].ranks.push_back(other);
    const int next = first + (rank - first + 1) % size, before = first + (rank - first + size - 1) % size;
    if (ring) one.collectives = {{"send", 0, -1, 8, 8, next, true}, {"recv", 0, -1, 8, 8, before, false}};
    int64_t now = 0;
    for (int step = 0; step < kSteps; ++step) {
      one.steps.push_back({step, now, 35 * kMs});
      for (int i = 0; i < kTimes; ++i, now += 11 * kMs) {
        const int64_t tokens = 1000 + (rank * 7 + step * 13 + i * 5) % 100;
        const auto collective = static_cast<uint32_t>(ring ? 0 : one.collectives.size());
        if (!ring) one.collectives.push_back({"all_to_allv", 0, -1, tokens, tokens});
        one.ops.push_back({now, 10 * kMs, now, 0, kNoIndex});
        one.ops.push_back({now + 10 * kMs, kMs, now, 1, collective});
        if (ring) one.ops.push_back({now + 10 * kMs, kMs, now, 2, 1});
      }
      now += 2 * kMs;
    }
    std::stable_sort(one.ops.begin(), one.ops.end(), [](const DeviceOp& a, const DeviceOp& b) {
      return std::tuple(a.stream, a.begin_ns) < std::tuple(b.stream, b.begin_ns);
    });
  }
  return ranks;
}

TEST(KinetoJob, SizesMayDifferByRankAndStep) {
  const auto traced = BuildKinetoJob(Groups(8, 4, false), {});
  ASSERT_TRUE(traced.ok()) << traced.status();
  for (const Counter& counter : traced->job.counters) ADD_FAILURE() << counter.name << " " << counter.count;
  EXPECT_EQ(traced->job.steps.size(), 6U);
}

TEST(KinetoJob, RanksOfARingAreHeldAgainstEachOther) {
  const auto roles_of = [](int size) {
    const auto traced = BuildKinetoJob(Groups(size, size, true), {});
    EXPECT_TRUE(traced.ok()) << traced.status();
    EXPECT_EQ(CounterOf(*traced, "unmatched_collectives"), 0U) << size;
    EXPECT_EQ(traced->job.pp, 1) << "a ring of " << size << " is no pipeline";
    return std::ranges::count_if(traced->job.ops, BeginsStep);
  };
  for (const int size : {2, 4, 6}) EXPECT_EQ(roles_of(size), 2) << size << ": neighbours wait for each other";
  for (const int size : {5, 7}) EXPECT_EQ(roles_of(size), 4) << size;
}

TEST(KinetoJob, GroupsThatAreEachCalledOtherwiseMakeNoRoles) {
  std::vector<KinetoRank> ranks = Groups(8, 4, false);
  for (KinetoRank& rank : ranks) rank.groups[0].description = fmt::format("of rank {}", rank.rank);
  const auto traced = BuildKinetoJob(std::move(ranks), {});
  ASSERT_TRUE(traced.ok()) << traced.status();
  EXPECT_EQ(CounterOf(*traced, kRanksWithoutPeers), 0U);
  EXPECT_EQ(std::ranges::count_if(traced->job.ops, BeginsStep), 1);
}

// torch numbers a group call once, whatever is in it.
TEST(KinetoJob, CommunicationsMayShareANumber) {
  std::vector<KinetoRank> ranks = Groups(4, 4, false);
  for (KinetoRank& rank : ranks)
    for (Collective& one : rank.collectives) one.sequence = 7;
  const auto traced = BuildKinetoJob(std::move(ranks), {});
  ASSERT_TRUE(traced.ok()) << traced.status();
  for (const Counter& counter : traced->job.counters) ADD_FAILURE() << counter.name << " " << counter.count;
}

TEST(KinetoJob, CountsWhomNobodyIsComparedWith) {
  EXPECT_EQ(CounterOf(*BuildKinetoJob(Groups(2, 2, true), {}), kRanksWithoutPeers), 2U);
  std::vector<KinetoRank> alone = Groups(2, 2, true);
  alone.pop_back();
  EXPECT_EQ(CounterOf(*BuildKinetoJob(std::move(alone), {}), kRanksWithoutPeers), 0U) << "was given alone";
  std::vector<KinetoRank> pipeline;
  for (const int rank : {0, 2}) pipeline.push_back(Rank(rank, 4, 0));
  EXPECT_EQ(CounterOf(*BuildKinetoJob(std::move(pipeline), {}), kRanksWithoutPeers), 0U) << "stages are compared";
}

TEST(KinetoJob, IsOfOneJobAsFarAsItsFilesTell) {
  const auto build = [](const std::vector<int>& world_sizes) {
    std::vector<KinetoRank> ranks;
    for (size_t i = 0; i < world_sizes.size(); ++i) {
      ranks.push_back(Rank(static_cast<int>(i), 4, 0));
      ranks.back().path = fmt::format("rank-{}.json", i);
      ranks.back().world_size = world_sizes[i];
      ranks.back().backend = world_sizes[i] < 0 ? "" : "nccl";
    }
    return BuildKinetoJob(std::move(ranks), {});
  };
  for (const auto& world_sizes : {std::vector<int>{-1, 8, 8}, {8, -1, 8}, {8, 8, -1}}) {
    const auto traced = build(world_sizes);
    ASSERT_TRUE(traced.ok()) << traced.status();
    EXPECT_EQ(traced->world_size, 8);
  }
  EXPECT_EQ(build({-1, -1, -1})->world_size, 3);
  EXPECT_THAT(build({-1, 8, 4}).status().message(),
              HasSubstr("rank-1.json and rank-2.json are of different jobs: 8 ranks"));
  EXPECT_THAT(build({2, -1, -1}).status().message(), HasSubstr("rank 2 of a job of 2"));
}

// Two communications on two streams, one right behind the other: in even steps the one, in odd steps the other. Each
// rank launches a different one first, so each seems to have its second wait for its first.
KinetoRank CrossedRank(int rank) {
  KinetoRank one;
  one.rank = rank;
  one.world_size = 2;
  one.streams = {"device 0 stream 7", "device 0 stream 20", "device 0 stream 21"};
  one.groups = {{"0", "default_pg", {0, 1}}};
  one.collectives = {{"allreduce", 0, 1}, {"allgather", 0, 2}};
  for (int step = 0; step < 8; ++step) {
    const int64_t begin = int64_t{step} * 100 * kMs;
    one.steps.push_back({step, begin, 50 * kMs});
    one.ops.push_back({begin, kMs, begin, 0, kNoIndex});
    for (uint32_t i = 0; i < 2; ++i) {
      const bool is_first = (step % 2 == 0) == (i == 0), launched_first = (rank == 0) == (i == 0);
      const int64_t from = begin + (is_first ? 5 * kMs : 10 * kMs + 10'000), to = begin + (is_first ? 10 : 15) * kMs;
      one.ops.push_back({from, to - from, begin + (launched_first ? 2000 : 3000), i + 1, i});
    }
  }
  std::stable_sort(one.ops.begin(), one.ops.end(), [](const DeviceOp& a, const DeviceOp& b) {
    return std::tuple(a.stream, a.begin_ns) < std::tuple(b.stream, b.begin_ns);
  });
  return one;
}

TEST(KinetoJob, LeavesOutWaitsThatWouldMakeACircle) {
  const auto traced = BuildKinetoJob({CrossedRank(0), CrossedRank(1)}, {});
  ASSERT_TRUE(traced.ok()) << traced.status();
  ASSERT_EQ(traced->job.counters.size(), 2U);
  EXPECT_EQ(CounterOf(*traced, "contradictory_waits"), 1U);
  EXPECT_EQ(CounterOf(*traced, kRanksWithoutPeers), 2U) << "each has an order of its own";
}

// A rank without a device. It works, hands over a communication in the middle of its backward and one at its end, waits
// for each, and has small ops behind; some of those look like one or like two, as times in microseconds make them.
// Every other communication is told to have ended `late` behind its end: a thread of the host waits for its turn.
struct HostJob {
  int64_t more_work = 0, more_ops = 0;  // of rank 1, at the begin of each step
  int64_t clock = 0, late = 0;          // rank 1's is so far behind
};

KinetoRank HostRank(int rank, const HostJob& job) {
  constexpr int64_t kUs = 1000;
  KinetoRank one;
  one.rank = rank;
  one.world_size = 2;
  one.streams = {"thread 1", kHostStream};
  one.collectives = {{"all_reduce"}};
  int64_t now = rank == 1 ? 0 : job.clock;
  for (int step = 0; step < 8; ++step) {
    const int64_t begin = now;
    const auto work = [&](int64_t duration, int ops) {
      for (int i = 0; i < ops; ++i, now += duration / ops) one.ops.push_back({now, duration / ops, now, 0, kNoIndex});
    };
    const auto small = [&](int ops) { work(ops * kUs, ops + (step * 7 + ops + rank) % 3); };
    if (rank == 1) work(job.more_work, static_cast<int>(job.more_ops));
    small(4);
    work(6 * kMs, 6);
    const int64_t first = now;
    work(4 * kMs, 4);
    const int64_t second = now;
    now += 30 * kUs;
    const int64_t come = begin + job.more_work + 10 * kMs;  // the later one
    const int64_t ends[] = {std::max(come + kMs, now), std::max(come + 3 * kMs, now)};
    const int64_t launches[] = {first, second};
    for (int i = 0; i < 2; ++i) {
      now = ends[i];
      const int64_t end = now + (step + rank) % 2 * job.late;
      one.ops.push_back({launches[i] + 50 * kUs, end - launches[i] - 50 * kUs, launches[i], 1, 0});
      small(9);
    }
    work(kMs, 1);
    one.steps.push_back({step, begin, now - begin});
  }
  std::stable_sort(one.ops.begin(), one.ops.end(), [](const DeviceOp& a, const DeviceOp& b) {
    return std::tuple(a.stream, a.begin_ns) < std::tuple(b.stream, b.begin_ns);
  });
  return one;
}

// [rank]: the longest that it computed between two cuts, and all that it computed in a step, in ms.
std::vector<std::pair<double, double>> ComputedBy(const HostJob& shape) {
  const auto traced = BuildKinetoJob({HostRank(0, shape), HostRank(1, shape)}, {});
  EXPECT_TRUE(traced.ok()) << traced.status();
  const TracedJob& job = traced->job;
  for (const Counter& counter : job.counters) ADD_FAILURE() << counter.name << " " << counter.count;
  std::vector<std::pair<double, double>> computed(2);
  for (uint32_t op = 0; op < job.ops.size(); ++op)
    for (size_t lane = 0; lane < job.lanes.size() && job.kinds[static_cast<size_t>(job.ops[op].kind)] == "compute";
         ++lane) {
      const size_t cell = job.graph.Cell(op, lane);
      if (job.graph.IsAbsent(cell)) continue;
      auto& [longest, sum] = computed[lane % 2];
      longest = std::max(longest, 1e3 * job.durations[cell]);
      sum += 1e3 * job.durations[cell] / static_cast<double>(job.steps.size());
    }
  return computed;
}

TEST(KinetoJob, AHostsWaitIsNoCompute) {
  for (const int64_t late : {int64_t{0}, kMs / 4, kMs}) {
    for (const auto& [longest, sum] : ComputedBy({.late = late})) {
      EXPECT_LT(longest, 6.5) << late;
      EXPECT_NEAR(sum, 11, 0.2) << late;
    }
    const auto computed = ComputedBy({.more_work = 100 * kMs, .more_ops = 720, .late = late});
    EXPECT_NEAR(computed[0].second, 11, 0.2) << "waits for rank 1, late by " << late;
    EXPECT_NEAR(computed[1].second, 111, 0.2) << late;
  }
}

TEST(KinetoJob, AnOffsetIsKeptWithoutWhichMembersWouldComeTooLate) {
  constexpr int64_t kClock = -5 * kMs;  // rank 1 would come when rank 0 has gone on
  const HostJob job{.more_work = 100 * kMs, .more_ops = 720, .clock = kClock, .late = 3 * kMs};
  const auto traced = BuildKinetoJob({HostRank(0, job), HostRank(1, job)}, {});
  ASSERT_TRUE(traced.ok()) << traced.status();
  for (const Counter& counter : traced->job.counters) ADD_FAILURE() << counter.name << " " << counter.count;
  EXPECT_NEAR(traced->clocks[1].offset_ns - traced->clocks[0].offset_ns, static_cast<double>(kClock), 3e6);
}

}  // namespace
}  // namespace lockstep::trace
