#include "lockstep/synth/telemetry.h"

#include <gmock/gmock.h>
#include <string.h>

#include <map>
#include <set>

#include "lockstep/trace/trails.h"

namespace lockstep::synth {
namespace {

using testing::HasSubstr;

std::vector<TelemetryFault> Faults(const std::vector<std::string>& texts) {
  std::vector<TelemetryFault> faults;
  faults.reserve(texts.size());
  for (const std::string& text : texts) faults.push_back(ParseTelemetryFault(text).value());
  return faults;
}

std::vector<trace::TrailSnapshot> Snapshots(const TelemetryShape& shape, const std::vector<std::string>& faults = {},
                                            double seconds = 10) {
  Telemetry job = Telemetry::Create(shape, Faults(faults), 1).value();
  job.Run(Seconds{seconds});
  return job.Take();
}

const TelemetryShape kShape{.layout = {.tp = 2, .dp = 4, .pp = 2}, .ports = 2, .ranks_per_host = 2};

// Each communicator and number: the members' ops.
using ByOp = std::map<std::pair<uint32_t, int64_t>, std::vector<const trace::CommOp*>>;
ByOp CollectivesOf(const trace::CommLog& log) {
  ByOp by_op;
  for (const trace::CommOp& op : log.ops)
    if (op.direction == trace::Direction::kCollective) by_op[{op.communicator, op.sequence}].push_back(&op);
  return by_op;
}

TEST(Telemetry, TheSameSeedGivesTheSameJob) {
  const auto one = Snapshots(kShape), other = Snapshots(kShape);
  ASSERT_EQ(one.size(), 16u);
  for (size_t i = 0; i < one.size(); ++i) {
    ASSERT_EQ(one[i].ended.size(), other[i].ended.size());
    ASSERT_GT(one[i].ended.size(), 20u);
    EXPECT_EQ(memcmp(one[i].ended.data(), other[i].ended.data(), one[i].ended.size() * LS_CELL_BYTES), 0);
  }
}

TEST(Telemetry, ACollectiveEndsWhenAllHaveCome) {
  const trace::CommLog log = trace::JoinTrails(Snapshots(kShape, {"slow_rank:rank=3"}));
  EXPECT_TRUE(log.counters.empty());
  const ByOp by_op = CollectivesOf(log);
  ASSERT_GT(by_op.size(), 50u);
  for (const auto& [op, parts] : by_op) {
    EXPECT_EQ(parts.size(), log.communicators[op.first].ranks.size());
    int64_t last = 0;
    for (const trace::CommOp* part : parts) last = std::max(last, part->created_ns);
    for (const trace::CommOp* part : parts) {
      EXPECT_GT(part->created_ns + part->duration_ns, last);
      EXPECT_LT(part->created_ns + part->duration_ns, last + 200'000'000);
    }
  }
}

// Keys and values of each microbatch, forward and backward; gradients are those of all that share a context too.
TEST(Telemetry, RanksShareContexts) {
  const TelemetryShape shape{.layout = {.tp = 2, .cp = 2, .dp = 3, .pp = 2}, .microbatches = 3};
  const trace::CommLog log = trace::JoinTrails(Snapshots(shape));
  std::map<std::string, std::set<std::vector<int>>> groups;
  for (const trace::Communicator& one : log.communicators) groups[one.description].insert(one.ranks);
  EXPECT_EQ(groups["context parallel"].size(), 12u);
  EXPECT_TRUE(groups["context parallel"].contains({9, 11}));
  EXPECT_EQ(groups["data parallel"].size(), 4u);
  EXPECT_TRUE(groups["data parallel"].contains({1, 3, 5, 7, 9, 11}));
  std::map<std::string, std::map<std::string, int>> functions;  // of rank 9, by group
  for (const trace::CommOp& op : log.ops)
    if (op.rank == 9 && op.direction == trace::Direction::kCollective)
      ++functions[log.communicators[op.communicator].description][log.functions[op.function]];
  const int steps = functions["world"]["all_reduce"];
  EXPECT_GT(steps, 2);
  EXPECT_EQ(functions["context parallel"],
            (std::map<std::string, int>{{"all_gather", 3 * steps}, {"reduce_scatter", 3 * steps}}));
}

// Each microbatch gathers what belongs to no layer and its layers forward, these again backward, and reduces all.
TEST(Telemetry, RanksShareParameters) {
  const TelemetryShape shape{.layout = {.dp = 4}, .microbatches = 2, .sharded_layers = 3};
  const trace::CommLog log = trace::JoinTrails(Snapshots(shape));
  std::map<std::string, std::map<std::string, int>> functions;  // of rank 1, by group
  for (const trace::CommOp& op : log.ops)
    if (op.rank == 1) ++functions[log.communicators[op.communicator].description][log.functions[op.function]];
  const int steps = functions["data parallel"]["all_reduce"];
  EXPECT_GT(steps, 2);
  EXPECT_EQ(
      functions,
      (std::map<std::string, std::map<std::string, int>>{
          {"data parallel", {{"all_gather", 14 * steps}, {"reduce_scatter", 8 * steps}, {"all_reduce", steps}}}}));
}

// All but waiting: what a rank that computes as long as all others, and waits in a pipeline, did by itself.
TEST(Telemetry, WaitingForAMessageIsNotBeingByOneself) {
  const trace::CommLog log = trace::JoinTrails(Snapshots({.layout = {.dp = 2, .pp = 4}, .jitter = 0}));
  std::map<int, int64_t> alone;
  for (const trace::CommOp& op : log.ops) alone[op.rank] += std::max<int64_t>(0, op.alone_ns);
  for (const auto& [rank, ns] : alone) EXPECT_NEAR(static_cast<double>(ns), static_cast<double>(alone[0]), 5e6) << rank;
}

TEST(Telemetry, MessagesAreToldOfBetweenHostsAlone) {
  const auto snapshots = Snapshots(kShape);
  const trace::CommLog log = trace::JoinTrails(snapshots);
  EXPECT_FALSE(log.transfers.empty());
  for (const trace::CommTransfer& transfer : log.transfers) {
    EXPECT_NE(transfer.rank / 2, transfer.peer / 2);
    EXPECT_EQ(transfer.wire_ns >= 0, transfer.direction == trace::Direction::kSend);
    EXPECT_LT(transfer.port, 2);
  }
}

TEST(Telemetry, ASlowPortDelaysItsOwnMessages) {
  const trace::CommLog log = trace::JoinTrails(Snapshots(kShape, {"slow_sender:rank=5,port=1,factor=8"}));
  double slow = 0, fine = 0;
  for (const trace::CommTransfer& transfer : log.transfers) {
    if (transfer.rank != 5 || transfer.wire_ns < 0) continue;
    (transfer.port == 1 ? slow : fine) += static_cast<double>(transfer.wire_ns);
  }
  EXPECT_NEAR(slow / fine, 8, 1);
}

TEST(Telemetry, SaysWhichFaultsOfTheNetworkNoMessageMet) {
  const auto unmet = [](const std::string& fault) {
    Telemetry job =
        Telemetry::Create({.layout = {.tp = 2, .dp = 4, .pp = 2}, .ranks_per_host = 4}, Faults({fault}), 1).value();
    job.Run(Seconds{10});
    return job.Unmet().size();
  };
  EXPECT_EQ(unmet("slow_link:rank=0,peer=8"), 0u) << "stages of one pipeline";
  EXPECT_EQ(unmet("slow_link:rank=2,peer=4"), 0u) << "neighbours in a ring";
  EXPECT_EQ(unmet("slow_link:rank=0,peer=10"), 1u) << "stages of two pipelines";
  EXPECT_EQ(unmet("slow_link:rank=0,peer=2"), 1u) << "of one host";
  EXPECT_EQ(unmet("slow_link:rank=0,peer=8,from=20"), 1u);
  EXPECT_EQ(unmet("slow_sender:rank=0"), 0u);
  EXPECT_EQ(unmet("slow_rank:rank=0,from=20"), 0u) << "none of the network";
}

TEST(Telemetry, AStoppedRankHoldsAllUp) {
  Telemetry job = Telemetry::Create(kShape, Faults({"stopped:rank=6,from=5"}), 1).value();
  job.Run(Seconds{30});
  EXPECT_TRUE(job.IsStuck());
  const auto snapshots = job.Take();
  for (const trace::TrailSnapshot& snapshot : snapshots)
    EXPECT_EQ(snapshot.under_way.size(), snapshot.origin.rank == 6 ? 0u : 1u) << snapshot.origin.rank;
}

// Also behind all that others need of it in that step: they go on into the next.
TEST(Telemetry, WhereverARankStopsAllOthersWait) {
  for (int from = 30; from < 50; ++from)
    for (const cluster::Layout& layout : {cluster::Layout{.pp = 2}, {.tp = 2, .pp = 4}})
      for (const trace::TrailSnapshot& trail :
           Snapshots({.layout = layout}, {"stopped:rank=1,from=" + std::to_string(from)}, 90))
        EXPECT_EQ(trail.under_way.size(), trail.origin.rank == 1 ? 0u : 1u) << from << " " << trail.origin.rank;
}

TEST(Telemetry, StoppedFromTheBeginningARankHasLaunchedNothing) {
  const auto snapshots = Snapshots(kShape, {"stopped:rank=6"});
  EXPECT_TRUE(snapshots[6].ended.empty());
  EXPECT_EQ(snapshots[6].communicators.size(), 4u);
}

TEST(Telemetry, AHealthyJobIsNeverStuck) {
  Telemetry job =
      Telemetry::Create(kShape,
                        Faults({"gc", "checkpoint:every=20,seconds=3", "evaluation:every=30", "lengths:factor=0.4",
                                "warm_up:factor=4", "pause:from=15", "rotating", "everybody:factor=2,from=30"}),
                        3)
          .value();
  job.Run(Seconds{60});
  EXPECT_FALSE(job.IsStuck());
  for (const trace::TrailSnapshot& snapshot : job.Take()) EXPECT_TRUE(snapshot.under_way.empty());
}

// By the number of the last collective of all ranks.
double StepsIn(const std::vector<std::string>& faults, double seconds) {
  const trace::CommLog log = trace::JoinTrails(Snapshots(kShape, faults, seconds));
  int64_t last = 0;
  for (const trace::CommOp& op : log.ops)
    if (log.communicators[op.communicator].ranks.size() == 16) last = std::max(last, op.sequence);
  return static_cast<double>(last);
}

// Pauses of 5 s every 10 s leave half of the time; those from 100 to 200 s of 400, seven eighths.
TEST(Telemetry, CheckpointsAndEvaluationsKeepToTheirTime) {
  const double undisturbed = StepsIn({}, 400);
  for (const std::string kind : {"checkpoint", "evaluation"}) {
    const double always = StepsIn({kind + ":every=10,seconds=5"}, 400);
    const double partly = StepsIn({kind + ":every=10,seconds=5,from=100,until=200"}, 400);
    EXPECT_LT(always, 0.7 * undisturbed) << kind;
    EXPECT_GT(partly, 0.8 * undisturbed) << kind;
    EXPECT_LT(partly, 0.95 * undisturbed) << kind;
    EXPECT_EQ(StepsIn({kind + ":every=10,seconds=5,from=500"}, 400), undisturbed) << kind;
  }
}

TEST(Telemetry, ClocksOfHostsMayDiffer) {
  TelemetryShape shape = kShape;
  shape.clock_offset = Seconds{1};
  const trace::CommLog log = trace::JoinTrails(Snapshots(shape));
  for (const auto& [op, parts] : CollectivesOf(log)) {
    int64_t first = INT64_MAX, last = 0;
    for (const trace::CommOp* part : parts) {
      first = std::min(first, part->created_ns + part->duration_ns);
      last = std::max(last, part->created_ns + part->duration_ns);
    }
    EXPECT_LT(last - first, 1'000'000) << "fitted by the ends of collectives";
  }
}

TEST(Telemetry, NamesWhatIsWrong) {
  const auto error = [](const TelemetryShape& shape, const std::vector<std::string>& faults) {
    return std::string(Message(Telemetry::Create(shape, Faults(faults), 1).status()));
  };
  EXPECT_THAT(error({.layout = {.dp = 1}}, {}), HasSubstr("at least 2 ranks"));
  EXPECT_THAT(error({.layout = {.dp = 2, .pp = 2, .vpp = 2}}, {}), HasSubstr("vpp 1, found 2"));
  EXPECT_THAT(error({.layout = {.dp = 2}, .forward = Seconds{-5}}, {}), HasSubstr("forward must be 0 to"));
  EXPECT_THAT(error({.layout = {.dp = 2}, .forward = Seconds{0}, .backward = Seconds{0}}, {}), HasSubstr("some time"));
  EXPECT_THAT(error({.layout = {.tp = 4}}, {"skipped"}), HasSubstr("cp or dp of at least 2"));
  EXPECT_EQ(error({.layout = {.tp = 2, .cp = 2}}, {"skipped"}), "");
  EXPECT_EQ(error(kShape, {"slow_rank:rank=16"}), "fault slow_rank: rank is 16, expected 0 to 15");
  EXPECT_THAT(error(kShape, {"slow_link:rank=1"}), HasSubstr("expected another rank"));
  EXPECT_THAT(error(kShape, {"slow_sender:port=2"}), HasSubstr("expected 0 to 1"));
  EXPECT_THAT(error(kShape, {"checkpoint"}), HasSubstr("needs every"));
  EXPECT_THAT(Message(ParseTelemetryFault("warm_up:from=3").status()), HasSubstr("expected factor"));
  EXPECT_THAT(Message(ParseTelemetryFault("slow").status()), HasSubstr("expected one of slow_rank"));
  EXPECT_THAT(Message(ParseTelemetryFault("gc:share=2").status()), HasSubstr("share can't be \"2\""));
}

}  // namespace
}  // namespace lockstep::synth
