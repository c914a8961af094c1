#include "lockstep/history/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "lockstep/control/report.h"
#include "lockstep/control/scenario.h"

namespace lockstep::history {
namespace {

using control::AgentGone;
using control::AgentLost;
using control::At;
using control::Checkpoint;
using control::Drilled;
using control::JobSpec;
using control::Killed;
using control::Scenario;
using control::StandbyCame;
using testing::ElementsAre;

// Wall time is 1000 s ahead of the journal's.
RunFacts Of(const Scenario& job, double last) {
  return RunOf("/runs/a", {.state = job.state, .first = At(1), .last = At(last), .last_wall = At(1000 + last)});
}

JobSpec TwoNodes() {
  JobSpec spec;
  spec.name = "gpt";
  spec.ranks = 4;
  spec.nodes = {{"a", 2, "a's"}, {"b", 2, "b's"}};
  spec.standbys = 2;
  return spec;
}

// Node b is lost at 20 and standby s sits in its place, which dies at 50: t is there from then on.
Scenario TwoLosses() {
  Scenario job(TwoNodes());
  for (const char* name : {"s", "t"}) job.Hear(2, StandbyCame{{name, 2, name}});
  job.ComeUp(3);
  job.See(5, 10);
  job.Hear(20, AgentGone{1, "silent"});
  job.Restart(21, Checkpoint(1, 5));
  job.ComeUp(23);
  job.See(8, 30);
  job.Hear(50, AgentGone{1, "silent"});
  job.Restart(51, Checkpoint(2, 8));
  job.ComeUp(53);
  job.See(20, 60);
  return job;
}

TEST(RunFacts, KnowsWhoHadWhichPlaceWhen) {
  const RunFacts run = Of(TwoLosses(), 60);
  std::vector<std::string> stays;
  for (const Stay& stay : run.stays)
    stays.push_back(fmt::format("{} {:.0f} {:.0f}", stay.node, ToSeconds(stay.from).value, ToSeconds(stay.to).value));
  EXPECT_THAT(stays, testing::UnorderedElementsAre("a 1001 1060", "b 1001 1020", "s 1020 1050", "t 1050 1060"));
  ASSERT_EQ(run.sizes.size(), 1u) << "a standby does not change it";
  EXPECT_EQ(run.sizes[0].nodes, 2);
}

TEST(RunFacts, NamesTheNodeThatWasThereThen) {
  Scenario job = TwoLosses();
  job.Hear(70, Killed(3, 3, SIGKILL, {}, 70));
  const RunFacts run = Of(job, 71);
  ASSERT_EQ(run.incidents.size(), 3u);
  EXPECT_THAT(run.incidents[0].nodes, ElementsAre("b"));
  EXPECT_THAT(run.incidents[1].nodes, ElementsAre("s"));
  EXPECT_THAT(run.incidents[2].nodes, ElementsAre("t")) << "rank 3 is in the second place";
  EXPECT_EQ(run.incidents[0].resolution, Resolution::kEvict);
  EXPECT_EQ(run.incidents[0].component, Component::kNode);
  EXPECT_EQ(run.incidents[0].nodes_lost, 1);
  EXPECT_EQ(run.incidents[2].resolution, Resolution::kOpen);
  EXPECT_EQ(run.incidents[2].component, Component::kRank);
}

// At the moment of an eviction, and with one standby less: before it, the job can't be saved.
TEST(RunFacts, ALossThatEndsTheJobIsAnIncident) {
  JobSpec spec = TwoNodes();
  spec.standbys = 0;
  Scenario job(spec);
  job.ComeUp(3);
  job.See(5, 10);
  job.Hear(20, AgentLost{1, "b", "no word for 5 s", At(15)});
  job.Hear(30, AgentGone{1, "silent"});
  job.Hear(31, control::EpochStopped{EpochId(1)});
  const RunFacts run = Of(job, 31);
  EXPECT_EQ(run.ending, Ending::kFailed);
  ASSERT_EQ(run.incidents.size(), 2u);
  EXPECT_EQ(run.incidents[0].component, Component::kWatcher);
  EXPECT_EQ(run.incidents[1].symptom, incident::Syndrome::kNodeLost);
  EXPECT_EQ(run.incidents[1].resolution, Resolution::kEnd);
  EXPECT_THAT(run.incidents[1].nodes, ElementsAre("b"));
  EXPECT_EQ(run.incidents[1].nodes_lost, 1);
}

TEST(RunFacts, ALossThatEndsAJobOfOneNodeNamesItsHost) {
  JobSpec spec;
  spec.ranks = 2;
  spec.nodes = {{"tower", 2, "tower's"}};
  Scenario job(spec);
  job.ComeUp(2);
  job.Hear(5, AgentGone{0, "its starter was killed"});
  job.Hear(5, control::EpochStopped{EpochId(1)});
  const RunFacts run =
      RunOf("r", {.state = job.state, .first = At(1), .last = At(6), .last_wall = At(6), .host = "tower"});
  ASSERT_EQ(run.incidents.size(), 1u);
  EXPECT_THAT(run.incidents[0].nodes, ElementsAre("tower"));
  EXPECT_EQ(run.incidents[0].nodes_lost, 1);
  EXPECT_EQ(run.incidents[0].resolution, Resolution::kEnd);
}

// A job of two to three nodes goes on without b, which nobody replaces.
TEST(RunFacts, AWorldThatBecomesSmallerIsCountedAsItWas) {
  JobSpec spec;
  spec.ranks = 6;
  spec.nodes = {{"a", 2, "a's"}, {"b", 2, "b's"}, {"c", 2, "c's"}};
  spec.least_nodes = 2;
  spec.most_nodes = 3;
  Scenario job(spec);
  job.ComeUp(3);
  job.See(5, 10);
  job.Hear(12, AgentLost{0, "a", "no word for 5 s", At(12)});
  job.Hear(14, control::AgentBack{0});
  job.Hear(20, Killed(1, 4, SIGKILL, {}, 20));
  job.Restart(21, Checkpoint(1, 5));
  job.ComeUp(23);
  job.See(6, 24);
  job.Hear(30, AgentLost{1, "b", "no word for 5 s", At(30)});
  job.Hear(40, AgentGone{1, "silent"});
  job.Restart(41, Checkpoint(2, 6));
  job.ComeUp(43);
  job.See(9, 50);
  job.Hear(60, Killed(3, 2, SIGKILL, {}, 60));
  job.Restart(61, Checkpoint(3, 9));
  job.ComeUp(63);
  job.Hear(70, AgentLost{1, "c", "no word for 5 s", At(70)});
  job.Hear(140, AgentGone{1, "silent"});
  job.Hear(141, control::EpochStopped{EpochId(4)});
  const RunFacts run = Of(job, 141);
  std::vector<std::string> named;
  int64_t lost = 0;
  for (const Incident& incident : run.incidents) {
    if (incident.component != Component::kWatcher) named.push_back(testing::PrintToString(incident.nodes));
    lost += incident.nodes_lost;
  }
  EXPECT_THAT(named, ElementsAre("{ \"c\" }", "{ \"b\" }", "{ \"c\" }", "{ \"c\" }")) << "rank 2 is of c by then";
  EXPECT_EQ(lost, 2);
  std::vector<std::string> stays;
  for (const Stay& stay : run.stays)
    stays.push_back(fmt::format("{} {:.0f} {:.0f}", stay.node, ToSeconds(stay.from).value, ToSeconds(stay.to).value));
  EXPECT_THAT(stays, testing::UnorderedElementsAre("a 1001 1141", "b 1001 1041", "c 1001 1141"));
  std::vector<std::string> sizes;
  for (const Size& size : run.sizes)
    sizes.push_back(fmt::format("{} of {} from {:.0f} to {:.0f}", size.ranks, size.nodes, ToSeconds(size.from).value,
                                ToSeconds(size.to).value));
  EXPECT_THAT(sizes, ElementsAre("6 of 3 from 1001 to 1041", "4 of 2 from 1041 to 1141"));
  EXPECT_EQ(run.MostNodes(), 3);
  EXPECT_EQ(run.MostRanks(), 6);
  const auto loss = std::ranges::find(run.incidents, incident::Syndrome::kNodeLost, &Incident::symptom);
  ASSERT_NE(loss, run.incidents.end());
  EXPECT_EQ(loss->resolution, Resolution::kShrink) << "no standby took its place";
}

// The figures are those of the one place that computes them.
TEST(RunFacts, TakesTimesFromTheLedger) {
  Scenario job = TwoLosses();
  job.Hear(62, Drilled{EpochId(3), "kill", 0});
  job.Hear(63, Killed(3, 0, SIGKILL, {}, 63));
  job.Restart(64, Checkpoint(3, 20));
  job.ComeUp(66);
  job.See(30, 80);
  const RunFacts run = Of(job, 80);
  EXPECT_DOUBLE_EQ(run.ledger.Cumulative(run.ledger_end()), job.state.ledger.Cumulative(At(80)));
  EXPECT_EQ(run.begin, At(1001));
  EXPECT_EQ(run.end, At(1080));
  for (size_t i = 0; i < run.incidents.size(); ++i) {
    const incident::Phases told = control::WithPhases(job.state, i, At(80)).phases;
    EXPECT_EQ(run.incidents[i].phases.restart.value, told.restart.value);
    EXPECT_EQ(run.incidents[i].phases.recompute.value, told.recompute.value);
  }
  EXPECT_FALSE(run.incidents[0].drill);
  EXPECT_TRUE(run.incidents[2].drill);
}

TEST(RunFacts, AJobOfOneNodeRanOnItsHost) {
  JobSpec spec;
  spec.ranks = 2;
  Scenario job(spec);
  job.ComeUp(2);
  job.See(3, 4);
  job.Hear(5, Killed(1, 1, SIGKILL, {}, 5));
  const RunFacts run =
      RunOf("r", {.state = job.state, .first = At(1), .last = At(6), .last_wall = At(6), .host = "tower"});
  EXPECT_THAT(run.incidents[0].nodes, ElementsAre("tower"));
  ASSERT_EQ(run.stays.size(), 1u);
  EXPECT_EQ(run.stays[0].node, "tower");
  EXPECT_EQ(run.MostNodes(), 1);
  EXPECT_EQ(run.MostRanks(), 2);
}

}  // namespace
}  // namespace lockstep::history
