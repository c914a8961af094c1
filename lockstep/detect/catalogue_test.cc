// Simulated jobs with every fault and every irregularity of synth/telemetry_fault.h: who is at fault is in what is
// named, and nobody else is named for certain.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "lockstep/detect/comm_hang.h"
#include "lockstep/detect/look_back.h"
#include "lockstep/detect/telemetry_job.h"
#include "lockstep/trace/trails.h"

namespace lockstep::detect {
namespace {

using incident::Finding;
using incident::Suspect;
using incident::Syndrome;
using testing::HasSubstr;
using testing::Not;

constexpr Seconds kLength{60};

struct Kind {
  bool trees = false;  // gradients are reduced over trees
  int cp = 1;
};

synth::TelemetryShape Shape(const Kind& kind) {
  return {.layout = {.tp = 2, .cp = kind.cp, .dp = 16 / kind.cp, .pp = 2},
          .ports = 2,
          .ranks_per_host = 4,
          .forward = Seconds{0.1},
          .backward = Seconds{0.2},
          .trees = kind.trees,
          .clock_offset = Seconds{0.5}};
}

struct Case {
  std::string name;
  std::vector<std::string> faults;
  Syndrome syndrome;
  std::set<std::string> truth;  // names of suspects, any of which is right
  size_t most = 1;              // of them in one finding
  Kind kind = {};
  std::set<std::string> also = {};  // of further findings, whatever they are
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

std::vector<trace::TrailSnapshot> Snapshots(const std::vector<std::string>& faults, uint64_t seed,
                                            const Kind& kind = {}) {
  std::vector<synth::TelemetryFault> parsed;
  parsed.reserve(faults.size());
  for (const std::string& text : faults) parsed.push_back(synth::ParseTelemetryFault(text).value());
  synth::Telemetry job = synth::Telemetry::Create(Shape(kind), parsed, seed).value();
  job.Run(kLength);
  return job.Take();
}

bool IsOther(const Finding& finding, const Case& one) {
  return finding.suspects.size() == 1 && one.also.contains(finding.suspects.front().name);
}

bool HasTruth(const Finding& finding, const Case& one) {
  const auto is_truth = [&](const Suspect& suspect) { return one.truth.contains(suspect.name); };
  return finding.syndrome == one.syndrome &&
         (std::any_of(finding.suspects.begin(), finding.suspects.end(), is_truth) ||
          std::any_of(finding.ambiguous_with.begin(), finding.ambiguous_with.end(), is_truth));
}

class Catalogue : public testing::TestWithParam<Case> {};

TEST_P(Catalogue, TheTruthIsAmongTheFirstNamed) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const std::vector<Finding> findings =
        DiagnoseCommunication(trace::JoinTrails(Snapshots(GetParam().faults, seed, GetParam().kind))).findings;
    ASSERT_FALSE(findings.empty()) << "seed " << seed;
    EXPECT_TRUE(HasTruth(findings.front(), GetParam())) << TextOf(findings);
    for (const Finding& finding : findings) {
      EXPECT_TRUE(!finding.certain || HasTruth(finding, GetParam()) || IsOther(finding, GetParam()))
          << TextOf(findings);
      EXPECT_LE(finding.suspects.size() + finding.ambiguous_with.size(), GetParam().most) << TextOf(findings);
    }
  }
}

// A fifth of the records lost, one rank's trail missing: perhaps nothing, but nobody wrong.
TEST_P(Catalogue, LossWeakensAndNeverTurns) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    std::vector<trace::TrailSnapshot> snapshots = Snapshots(GetParam().faults, seed, GetParam().kind);
    std::mt19937 chance(static_cast<uint32_t>(seed));
    for (trace::TrailSnapshot& snapshot : snapshots)
      std::erase_if(snapshot.ended, [&](const ls_record&) { return chance() % 5 == 0; });
    snapshots.erase(snapshots.begin() + 40);  // no culprit
    for (const Finding& finding : DiagnoseCommunication(trace::JoinTrails(std::move(snapshots))).findings) {
      EXPECT_TRUE(!finding.certain || HasTruth(finding, GetParam()) || IsOther(finding, GetParam()))
          << TextOf({finding});
    }
  }
}

// As agents send it, and with far less still: perhaps nothing, but nobody wrong.
TEST_P(Catalogue, ThinningWeakensAndNeverTurns) {
  for (const size_t most : {200, 60}) {
    std::vector<trace::TrailSnapshot> snapshots = Snapshots(GetParam().faults, 1, GetParam().kind);
    for (trace::TrailSnapshot& snapshot : snapshots) trace::Thin(snapshot, 0, most);
    for (const Finding& finding : DiagnoseCommunication(trace::JoinTrails(std::move(snapshots))).findings) {
      EXPECT_TRUE(!finding.certain || HasTruth(finding, GetParam()) || IsOther(finding, GetParam()))
          << TextOf({finding});
    }
  }
}

// As agents send it, of a job whose steps take 5 or 16 s.
TEST(Thinned, ReachesBackForLongSteps) {
  for (const int microbatches : {8, 32}) {
    const synth::TelemetryShape shape{.layout = {.dp = 8, .pp = 4}, .microbatches = microbatches};
    synth::Telemetry job =
        synth::Telemetry::Create(shape, {synth::ParseTelemetryFault("slow_rank:rank=3,factor=1.5").value()}, 1).value();
    job.Run(Seconds{600});
    std::vector<trace::TrailSnapshot> snapshots = job.Take();
    ThinForALook(snapshots, 150);
    for (const trace::TrailSnapshot& snapshot : snapshots) EXPECT_LE(snapshot.ended.size(), 500u);
    const std::vector<Finding> findings = DiagnoseCommunication(trace::JoinTrails(std::move(snapshots))).findings;
    ASSERT_EQ(findings.size(), 1u) << TextOf(findings);
    EXPECT_EQ(findings[0].suspects.front().name, "3");
  }
}

// In a job with short ones a look has the newest minute, as ever.
TEST(Thinned, HasTheNewestMinuteOfShortSteps) {
  std::vector<trace::TrailSnapshot> snapshots = Snapshots({}, 1);
  const std::string host = snapshots.front().host();  // others have other clocks
  std::erase_if(snapshots, [&](const trace::TrailSnapshot& one) { return one.host() != host; });
  for (trace::TrailSnapshot& snapshot : snapshots) snapshot.taken_ns += ToNanos(Seconds{30}).value;
  ThinForALook(snapshots, 1'000'000);
  for (const trace::TrailSnapshot& snapshot : snapshots) {
    EXPECT_FALSE(snapshot.ended.empty());
    EXPECT_TRUE(std::ranges::none_of(snapshot.ended, [&](const ls_record& record) {
      return record.kind == LS_RECORD_OP && record.body.op.number != 0 &&
             record.time_ns < snapshot.taken_ns - ToNanos(kLength).value;
    }));
  }
}

// A hundred buckets of gradients after each step of a second: all that differs between ranks lies before the first.
std::vector<trace::TrailSnapshot> BucketsOf(int ranks, int steps, double factor_of_3, uint32_t seed) {
  constexpr int kBuckets = 100;
  const int64_t bucket_ns = ToNanos(Seconds{0.001}).value;
  std::mt19937 chance(seed);
  std::normal_distribution<double> jitter(1, 0.02);
  std::vector<trace::TrailSnapshot> trails(static_cast<size_t>(ranks));
  for (uint32_t rank = 0; rank < trails.size(); ++rank) {
    trails[rank].origin.rank = rank;
    trails[rank].origin.world = static_cast<uint32_t>(ranks);
    std::ranges::copy(std::string_view("gloo"), trails[rank].origin.source);
    trails[rank].alive = true;
    ls_communicator own{};
    own.id = 7;
    own.rank = rank;
    own.size = static_cast<uint32_t>(ranks);
    own.created_ns = 1;
    trails[rank].communicators.push_back(own);
  }
  int64_t left_ns = bucket_ns;
  for (uint32_t number = 1; number <= static_cast<uint32_t>(steps * kBuckets); ++number) {
    std::vector<int64_t> alone;
    for (int rank = 0; rank < ranks; ++rank) {
      const double long_s = number % kBuckets == 1 ? (rank == 3 ? factor_of_3 : 1.0) : 0.0005;
      const bool pauses = chance() % 20000 == 0;  // a collection of garbage, say
      alone.push_back(ToNanos(Seconds{long_s * jitter(chance) + (pauses ? 0.7 : 0)}).value);
    }
    const int64_t end_ns = left_ns + std::ranges::max(alone) + bucket_ns;
    for (size_t rank = 0; rank < trails.size(); ++rank) {
      ls_record record{};
      record.kind = LS_RECORD_OP;
      record.time_ns = end_ns;
      record.body.op.number = number;
      record.body.op.tag = LS_NO_TAG;
      record.body.op.function = LS_ALL_REDUCE;
      record.body.op.state = LS_OP_COMPLETED;
      record.body.op.peer = record.body.op.waits_for = LS_NO_PEER;
      ls_op_set_alone(&record, alone[rank]);
      ls_op_set_duration(&record, end_ns - left_ns - alone[rank]);
      trails[rank].ended.push_back(record);
    }
    left_ns = end_ns;
  }
  for (trace::TrailSnapshot& trail : trails) trail.taken_ns = left_ns;
  return trails;
}

TEST(Thinned, HasThoseThatFollowMostOfTheWork) {
  for (const uint32_t seed : {1u, 2u, 3u})
    for (const int steps : {60, 240}) {
      for (const double factor : {1.0, 1.3}) {
        std::vector<trace::TrailSnapshot> trails = BucketsOf(16, steps, factor, seed);
        ThinForALook(trails, 150);
        for (const trace::TrailSnapshot& trail : trails) EXPECT_LE(trail.ended.size(), 200u);
        const std::vector<Finding> findings = DiagnoseCommunication(trace::JoinTrails(std::move(trails))).findings;
        ASSERT_EQ(findings.size(), factor > 1 ? 1u : 0u) << steps << " " << factor << TextOf(findings);
        if (factor == 1) continue;
        EXPECT_EQ(findings[0].suspects.front().name, "3");
        EXPECT_NEAR(findings[0].price.share, 0.3 / 1.46, 0.04) << TextOf(findings);
      }
    }
}

TEST(Thinned, CountsForWhatItWasPickedFrom) {
  const auto findings_of = [](const char* fault, size_t most) {
    std::vector<trace::TrailSnapshot> snapshots = Snapshots(absl::StrSplit(fault, ' '), 1);
    for (trace::TrailSnapshot& snapshot : snapshots) trace::Thin(snapshot, 0, most);
    return DiagnoseCommunication(trace::JoinTrails(std::move(snapshots))).findings;
  };
  // Of fewer, too few messages are left of a way to say anything.
  for (const auto& [fault, least] :
       {std::pair{"slow_rank:rank=13,factor=1.2", 100u}, {"slow_sender:rank=11,port=1,factor=30", 200u}}) {
    const double whole = findings_of(fault, 1'000'000).at(0).price.share;
    for (size_t most = 800; most >= least; most /= 2) {
      const std::vector<Finding> findings = findings_of(fault, most);
      ASSERT_EQ(findings.size(), 1u) << fault << most << TextOf(findings);
      EXPECT_NEAR(findings[0].price.share, whole, 0.25 * whole) << fault << most;
    }
  }
  for (const size_t most : {1600, 800, 400}) {
    const std::vector<Finding> findings =
        findings_of("slow_rank:rank=12,factor=1.3 slow_rank:rank=13,factor=1.3", most);
    ASSERT_EQ(findings.size(), 1u) << most << TextOf(findings);
    EXPECT_EQ(findings[0].suspects.size(), 2u) << most << TextOf(findings);
  }
  for (const size_t most : {400, 200, 100, 50}) {
    const std::vector<Finding> findings = findings_of("rotating:factor=1.3", most);
    EXPECT_TRUE(findings.empty()) << most << TextOf(findings);
  }
}

// Of the 60 s, the share that the job would not have needed: by what it gets done without the fault.
TEST(Price, IsWhatTheJobWouldGain) {
  const double healthy = StepsPerSecond(Snapshots({}, 1));
  for (const char* fault : {"slow_rank:rank=13,factor=1.3", "slow_rank:rank=50,factor=2",
                            "slow_link:rank=10,peer=12,factor=20", "slow_sender:rank=11,port=1,factor=30"}) {
    std::vector<trace::TrailSnapshot> snapshots = Snapshots({fault}, 1);
    const double lost = 1 - StepsPerSecond(snapshots) / healthy;
    const std::vector<Finding> findings = DiagnoseCommunication(trace::JoinTrails(std::move(snapshots))).findings;
    ASSERT_EQ(findings.size(), 1u) << fault << TextOf(findings);
    EXPECT_NEAR(findings[0].price.share, lost, 0.2 * lost) << fault;
    EXPECT_EQ(findings[0].price.ranks, 64);
  }
}

// What agents send tells the same as all that is known, and both what the job would gain: of a rank of tensor-parallel
// groups; of one in each stage of a pipeline, the early ones of which have slack at the end of a step; of a slow host.
TEST(Price, OfSlowRanksIsTheSameLive) {
  struct Job {
    synth::TelemetryShape shape;
    std::string faults, name;
  };
  std::vector<Job> jobs;
  for (const int microbatches : {4, 16})
    for (const int tp : {2, 8})
      jobs.push_back({{.layout = {.tp = tp, .dp = 8},
                       .microbatches = microbatches,
                       .forward = Seconds{0.1},
                       .backward = Seconds{0.2}},
                      SlowRanks(9, 10, 1.5),
                      "9"});
  for (const int microbatches : {4, 16})
    for (const int stage : {0, 1, 2, 3})
      jobs.push_back({{.layout = {.tp = 2, .dp = 8, .pp = 4}, .microbatches = microbatches},
                      SlowRanks(16 * stage + 3, 16 * stage + 4, 1.5),
                      std::to_string(16 * stage + 3)});
  // More ranks in the group of a host than in that of the gradients.
  for (const int stage : {0, 1})
    jobs.push_back({{.layout = {.tp = 8, .dp = 4, .pp = 2}},
                    SlowRanks(32 * stage + 9, 32 * stage + 10, 1.3),
                    std::to_string(32 * stage + 9)});
  for (const auto& [shape, faults, name] : jobs) {
    std::vector<trace::TrailSnapshot> snapshots = Take(shape, faults, 200);
    const double lost = 1 - StepsPerSecond(snapshots) / StepsPerSecond(Take(shape, {}, 200));
    const std::string of = fmt::format("tp {} pp {}, {} microbatches, rank {}", shape.layout.tp, shape.layout.pp,
                                       shape.microbatches, name);
    for (const bool live : {false, true}) {
      if (live) ThinForALook(snapshots, 150);
      const std::vector<Finding> findings = DiagnoseCommunication(trace::JoinTrails(std::vector(snapshots))).findings;
      ASSERT_EQ(findings.size(), 1u) << of << TextOf(findings);
      EXPECT_EQ(NamesOf(findings[0]), std::vector{name});
      EXPECT_NEAR(findings[0].price.share, lost, 0.15 * lost) << of << (live ? " live" : "");
      EXPECT_FALSE(findings[0].price.at_least) << of;
    }
  }
}

// Of groups of eight whose gradients alone cross hosts: two messages of each way in a step.
struct LinkJob {
  double factor = 1, seconds = 120, forward_s = 0.15;
  const char* fault = "slow_link:rank=16,peer=24";

  std::vector<trace::TrailSnapshot> Take() const {
    const synth::TelemetryShape shape{
        .layout = {.tp = 8, .dp = 8}, .forward = Seconds{forward_s}, .backward = Seconds{2 * forward_s}};
    const auto parsed = synth::ParseTelemetryFault(fmt::format("{},factor={}", fault, factor)).value();
    synth::Telemetry job = synth::Telemetry::Create(shape, {parsed}, 1).value();
    job.Run(Seconds{seconds});
    return job.Take();
  }
};

TEST(SlowLinks, AreNamedHoweverLongAStepTakes) {
  for (const LinkJob& job :
       {LinkJob{.factor = 20}, LinkJob{.factor = 25}, LinkJob{.factor = 60}, LinkJob{.factor = 300, .seconds = 600},
        LinkJob{.factor = 10, .forward_s = 0.3}, LinkJob{.factor = 40, .seconds = 300, .forward_s = 1},
        LinkJob{.factor = 40, .fault = "slow_block:rank=16,peer=23"}}) {
    std::vector<trace::TrailSnapshot> snapshots = job.Take();
    LinkJob healthy = job;
    healthy.factor = 1;
    const double lost = 1 - StepsPerSecond(snapshots) / StepsPerSecond(healthy.Take());
    const CommDiagnosis diagnosis = DiagnoseCommunication(trace::JoinTrails(std::move(snapshots)));
    ASSERT_EQ(diagnosis.findings.size(), 1u) << job.factor << diagnosis.too_short;
    EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kCommunicationSlow);
    EXPECT_NEAR(diagnosis.findings[0].price.share, lost, 0.2 * lost) << job.factor;
    EXPECT_FALSE(diagnosis.findings[0].price.at_least);
  }
}

// As agents send it, of groups that each communicate once in a step of up to a minute.
TEST(SlowLinks, AreNamedLiveHoweverLongAStepTakes) {
  for (const LinkJob& job :
       {LinkJob{.factor = 40, .seconds = 300, .forward_s = 1}, LinkJob{.factor = 100, .seconds = 900, .forward_s = 3},
        LinkJob{.factor = 200, .seconds = 1500, .forward_s = 4}}) {
    std::vector<trace::TrailSnapshot> snapshots = job.Take();
    LinkJob healthy = job;
    healthy.factor = 1;
    const double lost = 1 - StepsPerSecond(snapshots) / StepsPerSecond(healthy.Take());
    ThinForALook(snapshots, 150);
    const std::vector<Finding> findings = DiagnoseCommunication(trace::JoinTrails(std::move(snapshots))).findings;
    ASSERT_EQ(findings.size(), 1u) << job.forward_s;
    EXPECT_EQ(findings[0].syndrome, Syndrome::kCommunicationSlow);
    EXPECT_NEAR(findings[0].price.share, lost, 0.2 * lost) << job.forward_s;
  }
}

// As agents send it, long after the job began: a way that pipelines alone use.
TEST(SlowLinks, OfSendsAreNamedLive) {
  for (const double forward_s : {0.15, 2.0}) {
    const synth::TelemetryShape shape{
        .layout = {.dp = 8, .pp = 4}, .forward = Seconds{forward_s}, .backward = Seconds{2 * forward_s}};
    synth::Telemetry job =
        synth::Telemetry::Create(
            shape,
            {synth::ParseTelemetryFault(fmt::format("slow_link:rank=3,peer=11,factor={}", 200 * forward_s)).value()}, 1)
            .value();
    job.Run(Seconds{600});
    std::vector<trace::TrailSnapshot> snapshots = job.Take();
    ThinForALook(snapshots, 150);
    const std::vector<Finding> findings = DiagnoseCommunication(trace::JoinTrails(std::move(snapshots))).findings;
    ASSERT_EQ(findings.size(), 1u) << forward_s << TextOf(findings);
    EXPECT_EQ(findings[0].suspects.front().name, "3<->11") << TextOf(findings);
  }
}

TEST(SlowLinks, WhereTooFewMessagesAreThereItIsNotKnown) {
  for (const LinkJob& job : {LinkJob{.factor = 20, .seconds = 10}, LinkJob{.factor = 20, .seconds = 20},
                             LinkJob{.factor = 1000, .seconds = 200}}) {
    const CommDiagnosis diagnosis = DiagnoseCommunication(trace::JoinTrails(job.Take()));
    EXPECT_TRUE(diagnosis.findings.empty()) << TextOf(diagnosis.findings);
    EXPECT_NE(diagnosis.too_short, "") << job.factor;
  }
  LinkJob healthy{.factor = 1, .seconds = 20};
  EXPECT_THAT(DiagnoseCommunication(trace::JoinTrails(healthy.Take())).too_short, Not(HasSubstr("between ranks")));
  healthy.seconds = 60;
  EXPECT_EQ(DiagnoseCommunication(trace::JoinTrails(healthy.Take())).too_short, "");
}

// Lengths differ from step to step: each group is late now and then.
TEST(Healthy, NoGroupIsNamedByChance) {
  for (const int dp : {2, 8})
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      synth::Telemetry job = synth::Telemetry::Create({.layout = {.tp = 8, .dp = dp}},
                                                      {synth::ParseTelemetryFault("lengths:factor=0.3").value()}, seed)
                                 .value();
      job.Run(Seconds{120});
      const std::vector<Finding> findings = DiagnoseCommunication(trace::JoinTrails(job.Take())).findings;
      EXPECT_TRUE(findings.empty()) << seed << TextOf(findings);
    }
}

// Nor where the records that are lost are others of each group.
TEST(Healthy, GroupsDifferByWhatIsLostOfThem) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    synth::Telemetry job = synth::Telemetry::Create({.layout = {.tp = 8, .dp = 8}},
                                                    {synth::ParseTelemetryFault("lengths:factor=0.1").value()}, seed)
                               .value();
    job.Run(kLength);
    std::vector<trace::TrailSnapshot> snapshots = job.Take();
    std::mt19937 chance(static_cast<uint32_t>(seed));
    for (size_t rank = 0; rank < snapshots.size(); ++rank)  // of one group far more than of the others
      std::erase_if(snapshots[rank].ended, [&](const ls_record&) { return chance() % (rank / 8 == 2 ? 5 : 50) == 0; });
    const std::vector<Finding> findings = DiagnoseCommunication(trace::JoinTrails(std::move(snapshots))).findings;
    EXPECT_TRUE(findings.empty()) << seed << TextOf(findings);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Catalogue,
    testing::Values(
        Case{"slow_rank", {"slow_rank:rank=13,factor=1.2"}, Syndrome::kNonCommunicationSlow, {"13"}},
        Case{"slow_rank_from_30_s", {"slow_rank:rank=50,factor=1.3,from=30"}, Syndrome::kNonCommunicationSlow, {"50"}},
        Case{"two_slow_ranks",
             {"slow_rank:rank=13,factor=1.3", "slow_rank:rank=37,factor=1.4"},
             Syndrome::kNonCommunicationSlow,
             {"13", "37"}},
        // Nobody of a tensor-parallel pair waits for the other.
        Case{"slow_tensor_group",
             {"slow_rank:rank=12,factor=1.3", "slow_rank:rank=13,factor=1.3"},
             Syndrome::kNonCommunicationSlow,
             {"12", "13"},
             2},
        Case{"slow_host",
             {"slow_rank:rank=12,factor=1.3", "slow_rank:rank=13,factor=1.3", "slow_rank:rank=14,factor=1.3",
              "slow_rank:rank=15,factor=1.3"},
             Syndrome::kNonCommunicationSlow,
             {"node3", "12", "14"},
             2},
        // Who waits for one in a tensor-parallel pair comes late to those that share a context.
        Case{"slow_rank_that_shares_a_context",
             {"slow_rank:rank=13,factor=1.3"},
             Syndrome::kNonCommunicationSlow,
             {"13"},
             1,
             {.cp = 2}},
        Case{"two_slow_ranks_that_share_contexts",
             {"slow_rank:rank=13,factor=1.3", "slow_rank:rank=37,factor=1.4"},
             Syndrome::kNonCommunicationSlow,
             {"13", "37"},
             1,
             {.cp = 2}},
        Case{"slow_tensor_group_that_shares_a_context",
             {"slow_rank:rank=12,factor=1.3", "slow_rank:rank=13,factor=1.3"},
             Syndrome::kNonCommunicationSlow,
             {"12", "13"},
             2,
             {.cp = 2}},
        Case{"slow_context_group",
             {"slow_rank:rank=13,factor=1.3", "slow_rank:rank=15,factor=1.3"},
             Syndrome::kNonCommunicationSlow,
             {"13", "15"},
             2,
             {.cp = 2}},
        Case{"slow_host_of_contexts",
             {"slow_rank:rank=12,factor=1.3", "slow_rank:rank=13,factor=1.3", "slow_rank:rank=14,factor=1.3",
              "slow_rank:rank=15,factor=1.3"},
             Syndrome::kNonCommunicationSlow,
             {"node3"},
             1,
             {.cp = 2}},
        Case{"slow_link_between_contexts",
             {"slow_link:rank=10,peer=12,factor=20"},
             Syndrome::kCommunicationSlow,
             {"10<->12"},
             3,
             {.cp = 2}},
        Case{"slow_rank_among_irregularities",
             {"slow_rank:rank=13,factor=1.5", "gc", "lengths:factor=0.1", "checkpoint:every=25,seconds=2"},
             Syndrome::kNonCommunicationSlow,
             {"13"}},
        Case{"slow_sender", {"slow_sender:rank=11,factor=20"}, Syndrome::kCommunicationSlow, {"11"}, 3},
        Case{"slow_receiver", {"slow_receiver:rank=9,factor=20"}, Syndrome::kCommunicationSlow, {"9"}, 3},
        Case{"slow_port",
             {"slow_sender:rank=11,port=1,factor=20", "slow_receiver:rank=11,port=1,factor=20"},
             Syndrome::kCommunicationSlow,
             {"11:1"},
             3},
        Case{"slow_link", {"slow_link:rank=10,peer=12,factor=20"}, Syndrome::kCommunicationSlow, {"10<->12"}, 3},
        // A way that pipelines alone use.
        Case{"slow_link_of_sends",
             {"slow_link:rank=10,peer=42,factor=20"},
             Syndrome::kCommunicationSlow,
             {"10<->42"},
             3},
        // Two nodes behind one leaf. In a ring, two slow links would look the same.
        Case{"slow_block", {"slow_block:rank=20,peer=27,factor=20"}, Syndrome::kCommunicationSlow, {"node5+node6"}, 3},
        // In a ring, and so over one port, what leads out of a leaf looks as that of its last node does: in trees not.
        Case{"slow_block_out",
             {"slow_block_out:rank=0,peer=7,factor=20"},
             Syndrome::kCommunicationSlow,
             {"node0+node1"},
             1,
             {.trees = true}},
        Case{"slow_block_in",
             {"slow_block_in:rank=0,peer=7,factor=20"},
             Syndrome::kCommunicationSlow,
             {"node0+node1"},
             1,
             {.trees = true}},
        Case{"slow_node", {"slow_block:rank=20,peer=23,factor=20"}, Syndrome::kCommunicationSlow, {"node5"}, 3},
        Case{"slow_rank_and_link",
             {"slow_rank:rank=20,factor=1.3", "slow_link:rank=10,peer=12,factor=20"},
             Syndrome::kNonCommunicationSlow,
             {"20"},
             3,
             {},
             {"10<->12"}},
        Case{"stopped", {"stopped:rank=17,from=20"}, Syndrome::kNonCommunicationHang, {"17"}},
        Case{"stopped_before_the_first_collective", {"stopped:rank=17"}, Syndrome::kNonCommunicationHang, {"17"}},
        Case{"lost_message", {"lost_message:rank=12,from=20"}, Syndrome::kCommunicationHang, {"12"}, 3},
        Case{"mismatch", {"mismatch:rank=12,from=20"}, Syndrome::kMismatched, {"12"}},
        Case{"skipped",
             {"skipped:rank=12,from=20"},
             Syndrome::kDeadlock,
             {"collectives in different order on different ranks"}},
        Case{"deadlock",
             {"deadlock:rank=12,from=20"},
             Syndrome::kDeadlock,
             {"collectives in different order on different ranks"}}),
    [](const auto& one) { return one.param.name; });

// Nobody's fault, and yet an answer.
TEST(Trend, EverybodyEquallySlowIsSaidAndNobodyNamed) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const std::vector<Finding> findings =
        DiagnoseCommunication(trace::JoinTrails(Snapshots({"everybody:factor=1.5,from=30"}, seed))).findings;
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_EQ(findings[0].syndrome, Syndrome::kJobSlow);
    EXPECT_TRUE(findings[0].suspects.empty());
    EXPECT_FALSE(findings[0].certain);
    const double since_s = ToSeconds(findings[0].since - synth::kTelemetryBegin).value;
    EXPECT_NEAR(since_s, 30, 4) << TextOf(findings);
    EXPECT_NEAR(findings[0].price.share, 1 - 1 / 1.45, 0.03);  // communication is as fast as before
  }
}

class Healthy : public testing::TestWithParam<std::pair<std::string, std::vector<std::string>>> {};

TEST_P(Healthy, NobodyIsNamed) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const std::vector<Finding> findings =
        DiagnoseCommunication(trace::JoinTrails(Snapshots(GetParam().second, seed))).findings;
    EXPECT_TRUE(findings.empty()) << TextOf(findings);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Healthy,
    testing::Values(std::pair{"nothing", std::vector<std::string>{}},
                    std::pair{"garbage_collection", std::vector<std::string>{"gc:share=0.05,seconds=0.5"}},
                    std::pair{"checkpoints", std::vector<std::string>{"checkpoint:every=15,seconds=3"}},
                    std::pair{"evaluations", std::vector<std::string>{"evaluation:every=20,seconds=4"}},
                    std::pair{"lengths", std::vector<std::string>{"lengths:factor=0.4"}},
                    std::pair{"warm_up", std::vector<std::string>{"warm_up:factor=5"}},
                    std::pair{"pause", std::vector<std::string>{"pause:from=30,seconds=20"}},
                    std::pair{"rotating", std::vector<std::string>{"rotating:factor=2"}},
                    std::pair{"all_of_it", std::vector<std::string>{"gc", "checkpoint:every=15,seconds=2",
                                                                    "evaluation:every=40,seconds=4",
                                                                    "lengths:factor=0.3", "rotating"}}),
    [](const auto& one) { return one.param.first; });

}  // namespace
}  // namespace lockstep::detect
