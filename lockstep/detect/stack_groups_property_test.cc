// Faults planted into jobs of random layouts, whose ranks then wait as the schedule of a pipeline makes them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "lockstep/base/json_text.h"
#include "lockstep/detect/stack_groups.h"
#include "lockstep/detect/stack_report.h"
#include "lockstep/detect/stack_test_job.h"

namespace lockstep::detect {
namespace {

using cluster::Coordinates;
using cluster::Dimension;
using testing::ElementsAre;
using trace::ProcessStack;

enum class Fault {
  kOutside,         // never comes to its collective
  kTensorParallel,  // a collective of its tensor group does not end
  kReceive,         // what it receives was sent, and does not come
};

struct Job {
  cluster::Layout layout;
  int culprit;
  Fault fault;
  std::vector<At> at;  // by rank
  WaitGraph waits;     // as logs would tell it
};

// The culprit stands in a pass of its pipeline: earlier stages wait for gradients, later ones for activations, other
// pipelines are done and sum gradients, its tensor group waits for it.
At PlaceOf(const Job& job, int rank) {
  const Coordinates own = job.layout.CoordinatesOf(RankId(rank));
  const Coordinates culprit = job.layout.CoordinatesOf(RankId(job.culprit));
  if (rank == job.culprit && job.fault == Fault::kOutside) return At::kLoadsData;
  if (rank == job.culprit && job.fault == Fault::kReceive) return At::kRecvForward;
  if (own.dp != culprit.dp) return At::kGradSync;
  if (own.pp == culprit.pp) return At::kTensorParallel;
  return own.pp < culprit.pp ? At::kRecvBackward : At::kRecvForward;
}

void AddWaits(Job& job, Dimension dimension, At at, const char* what) {
  for (const std::vector<RankId>& group : job.layout.Groups(dimension)) {
    WaitFor wait{{}, {}, what, false};
    for (const RankId rank : group)
      (job.at[static_cast<size_t>(rank.value())] == at ? wait.in : wait.behind).push_back(rank.value());
    if (!wait.in.empty()) job.waits.waits.push_back(wait);
  }
}

void AddTransfers(Job& job) {
  for (int rank = 0; rank < job.layout.WorldSize(); ++rank) {
    const At at = job.at[static_cast<size_t>(rank)];
    if (at != At::kRecvForward && at != At::kRecvBackward) continue;
    Coordinates peer = job.layout.CoordinatesOf(RankId(rank));
    peer.pp += at == At::kRecvForward ? -1 : 1;
    // It was sent: nobody is waited for.
    std::vector<int> behind;
    if (rank != job.culprit) behind.push_back(job.layout.Rank(peer).value());
    job.waits.waits.push_back({{rank}, behind, "a receive", false});
  }
}

Job MakeJob(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](std::initializer_list<int> of) { return *(of.begin() + random() % of.size()); };
  Job job;
  do {
    job.layout = {.tp = pick({1, 2, 4}), .dp = pick({1, 2, 3, 6}), .pp = pick({1, 2, 4})};
    if (random() % 2 == 0) job.layout.order = "tp-pp-dp";
    job.culprit = static_cast<int>(random() % static_cast<uint64_t>(job.layout.WorldSize()));
    job.fault = static_cast<Fault>(random() % 3);
  } while (job.layout.WorldSize() < 2 || (job.fault == Fault::kTensorParallel && job.layout.tp == 1) ||
           (job.fault == Fault::kReceive && job.layout.CoordinatesOf(RankId(job.culprit)).pp == 0));
  for (int rank = 0; rank < job.layout.WorldSize(); ++rank) job.at.push_back(PlaceOf(job, rank));
  AddWaits(job, Dimension::kTp, At::kTensorParallel, "all_gather");
  AddWaits(job, Dimension::kDp, At::kGradSync, "all_reduce");
  AddTransfers(job);
  return job;
}

std::vector<ProcessStack> StacksOf(const Job& job, FrameWriter write) {
  std::vector<ProcessStack> stacks;
  for (size_t rank = 0; rank < job.at.size(); ++rank)
    stacks.push_back(StackOf(static_cast<int>(rank), job.at[rank], write, fmt::format("node{}", rank / 4)));
  return stacks;
}

StackVerdict Judge(const std::vector<ProcessStack>& stacks, const StackContext& context) {
  absl::StatusOr<StackVerdict> verdict = AggregateStacks(stacks, context);
  EXPECT_TRUE(verdict.ok()) << verdict.status();
  return *std::move(verdict);
}

bool Holds(const std::vector<incident::Suspect>& suspects, int rank) {
  return std::find(suspects.begin(), suspects.end(), incident::SuspectRank(RankId(rank))) != suspects.end();
}

bool HoldsTruth(const StackVerdict& verdict, const Job& job) {
  return Holds(verdict.finding->suspects, job.culprit) || Holds(verdict.finding->ambiguous_with, job.culprit);
}

std::string Text(const StackVerdict& verdict) {
  return (verdict.finding ? OneLine(incident::ToJson(*verdict.finding)) : "") + OneLine(StackReport(verdict));
}

constexpr uint64_t kJobs = 300;

TEST(StackGroupsProperty, TheCulpritIsAmongThoseNamed) {
  for (uint64_t seed = 0; seed < kJobs; ++seed) {
    const Job job = MakeJob(seed);
    const std::vector<ProcessStack> stacks = StacksOf(job, FrameWriter(seed));
    const StackVerdict alone = Judge(stacks, {}), by_layout = Judge(stacks, {.layout = job.layout}),
                       by_logs = Judge(stacks, {.layout = job.layout, .waits = job.waits});
    for (const StackVerdict* verdict : {&by_layout, &by_logs}) {
      ASSERT_TRUE(verdict->finding.has_value()) << seed;
      const bool together = verdict->basis == StackBasis::kTogether;
      EXPECT_TRUE(together || HoldsTruth(*verdict, job)) << seed << " " << Text(*verdict);
      EXPECT_FALSE(verdict->finding->certain) << "no log said that it hangs";
    }
    // A receive that hangs looks like those that wait for it, and most may do so: that asks for more than stacks.
    if (job.fault != Fault::kReceive && alone.basis != StackBasis::kTogether) {
      EXPECT_TRUE(HoldsTruth(alone, job)) << seed << " " << Text(alone);
    }
    if (job.fault == Fault::kOutside) {
      const incident::Suspect culprit = incident::SuspectRank(RankId(job.culprit));
      for (const StackVerdict* verdict : {&alone, &by_layout, &by_logs})
        EXPECT_THAT(verdict->finding->suspects, ElementsAre(culprit)) << seed;
      EXPECT_DOUBLE_EQ(by_logs.confidence, 1) << seed;
    }
  }
}

// What is named never costs more machines than the rule of the paper would.
TEST(StackGroupsProperty, NoMoreMachinesGoThanByTheGroupRule) {
  size_t evicted = 0, by_group = 0;
  for (uint64_t seed = 0; seed < kJobs; ++seed) {
    const Job job = MakeJob(seed);
    const StackVerdict verdict = Judge(StacksOf(job, FrameWriter(seed)), {.layout = job.layout, .waits = job.waits});
    if (!verdict.group_rule || job.fault != Fault::kOutside) continue;
    EXPECT_EQ(verdict.machines.size(), 1U) << seed;
    evicted += verdict.machines.size();
    by_group += verdict.group_rule->machines;
  }
  EXPECT_LT(evicted, by_group);
}

TEST(StackGroupsProperty, TheOrderOfProcessesChangesNothing) {
  for (uint64_t seed = 0; seed < kJobs; ++seed) {
    const Job job = MakeJob(seed);
    std::vector<ProcessStack> stacks = StacksOf(job, FrameWriter(seed));
    const StackContext context{.layout = job.layout};
    const std::string before = Text(Judge(stacks, context));
    std::shuffle(stacks.begin(), stacks.end(), std::mt19937_64(seed));
    EXPECT_EQ(Text(Judge(stacks, context)), before) << seed;
  }
}

TEST(StackGroupsProperty, LinesArgumentsAndAddressesChangeNothing) {
  for (uint64_t seed = 0; seed < kJobs; ++seed) {
    const Job job = MakeJob(seed);
    const StackContext context{.layout = job.layout};
    StackVerdict plain = Judge(StacksOf(job, FrameWriter()), context);
    StackVerdict noisy = Judge(StacksOf(job, FrameWriter(seed)), context);
    for (StackVerdict* verdict : {&plain, &noisy})  // which show stacks as they were read
      for (StackCluster& cluster : verdict->stacks.clusters) cluster.example_frames.clear();
    EXPECT_EQ(Text(noisy), Text(plain)) << seed;
  }
}

// Some ranks can't be read, the culprit perhaps among them.
TEST(StackGroupsProperty, MissingStacksDoNotHideTheCulprit) {
  for (uint64_t seed = 0; seed < kJobs; ++seed) {
    const Job job = MakeJob(seed);
    if (job.fault != Fault::kOutside) continue;
    std::mt19937_64 random(seed);
    std::vector<ProcessStack> stacks = StacksOf(job, FrameWriter(seed));
    for (ProcessStack& stack : stacks)
      if (random() % 5 == 0) stack.python = stack.native = {};
    const StackVerdict verdict = Judge(stacks, {.layout = job.layout});
    if (!verdict.finding) continue;  // nobody is left who waits
    EXPECT_TRUE(HoldsTruth(verdict, job)) << seed << " " << Text(verdict);
  }
}

}  // namespace
}  // namespace lockstep::detect
