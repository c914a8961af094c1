#include "lockstep/trace/kineto_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace lockstep::trace {
namespace {

using testing::IsEmpty;

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

}  // namespace
}  // namespace lockstep::trace
