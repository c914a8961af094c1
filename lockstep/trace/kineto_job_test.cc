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
// The second pipeline computes three times as long.
KinetoRank Rank(int rank, int steps, int64_t clock_ns) {
  const bool first = rank < 2;
  KinetoRank one;
  one.rank = rank;
  one.world_size = kRanks;
  one.streams = {"device 0 stream 7", "device 0 stream 20", "device 0 stream 21"};
  one.groups = {{"7", "PIPELINE", rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3}}};
  const int peer = first ? rank + 2 : rank - 2;
  one.collectives = {{"send", 0, -1, 8, 8, peer, true}, {"recv", 0, -1, 8, 8, peer, false}};
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
  }
  std::stable_sort(one.ops.begin(), one.ops.end(), [](const DeviceOp& a, const DeviceOp& b) {
    return std::tuple(a.stream, a.begin_ns) < std::tuple(b.stream, b.begin_ns);
  });
  return one;
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
  ASSERT_EQ(traced->job.counters.size(), 1U);
  EXPECT_EQ(traced->job.counters[0].name, "contradictory_waits");
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
