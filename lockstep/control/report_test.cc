#include "lockstep/control/report.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/control/scenario.h"

namespace lockstep::control {
namespace {

Scenario AfterACrash() {
  JobSpec spec;
  spec.name = "gpt";
  spec.ranks = 2;
  Scenario job(spec);
  job.ComeUp(2);
  job.See(10, 12);
  job.Hear(13, Killed(1, 1, SIGKILL, {}, 12.75));
  job.Restart(14, Checkpoint(1, 10));
  job.ComeUp(15);
  job.See(11, 16);
  return job;
}

TEST(StatusReport, HasTheFieldsOfItsInterface) {
  Observed observed;
  observed.loss = 2.5;
  observed.ranks = {{RankId(0), 4711, "running", 11, Seconds{0.25}}};
  observed.committed = Checkpoint(2, 11);
  observed.log_dropped = Bytes{64};
  observed.records = 9;
  observed.records_dropped = 3;
  observed.records_unwritten = 5;
  const Json report = StatusReport(AfterACrash().state, observed, At(17));
  EXPECT_EQ(report["state"], "running");
  EXPECT_EQ(report["job"], "gpt");
  EXPECT_EQ(report["epoch"], 2);
  EXPECT_EQ(report["step"], 11);
  EXPECT_EQ(report["furthest_step"], 11);
  EXPECT_EQ(report["loss"], 2.5);
  EXPECT_EQ(report["ranks"],
            ParseJson(R"([{"rank": 0, "pid": 4711, "state": "running", "step": 11, "step_time_s": 0.25}])"));
  EXPECT_EQ(report["checkpoint"]["step"], 11);
  EXPECT_EQ(report["output"], ParseJson(R"({"log_dropped_bytes": 64, "console_dropped_bytes": 0})"));
  EXPECT_EQ(report["records"], ParseJson(R"({"kept": 9, "dropped": 8})"));
  EXPECT_EQ(report["restarts"], 1);
  EXPECT_EQ(report["incidents"], 1);
}

TEST(StatusReport, TheFurthestStepStaysWhereARestartBeganBeforeIt) {
  EXPECT_EQ(StatusReport(State{}, Observed{}, At(1))["furthest_step"], -1);
  Scenario job = AfterACrash();
  job.Hear(17, Killed(2, 1, SIGKILL));
  job.Restart(18, std::nullopt);
  job.ComeUp(19);
  const Json report = StatusReport(job.state, Observed{}, At(20));
  EXPECT_EQ(report["step"], -1);
  EXPECT_EQ(report["furthest_step"], 11);
}

TEST(StatusReport, SaysWhoStandsByAndWhoIsOut) {
  EXPECT_FALSE(StatusReport(AfterACrash().state, Observed{}, At(17)).contains("standbys"));
  JobSpec spec;
  spec.ranks = 2;
  spec.nodes = {{"a", 1, "a's"}, {"b", 1, "b's"}};
  spec.standbys = 2;
  Scenario job(spec);
  for (const char* name : {"s", "t"}) job.Hear(2, StandbyCame{{name, 1, name}});
  job.Hear(3, AgentGone{1, "its agent is silent"});
  Observed observed;
  const Json report = StatusReport(job.state, observed, At(4));
  EXPECT_EQ(report["standbys"], ParseJson(R"(["t"])"));
  EXPECT_EQ(report["cold_standbys"],
            ParseJson(R"([{"name": "t", "why": "its Python is not warm yet, as far as it has said"}])"));
  observed.standbys = {{"t", "exec"}, {"s", ""}};
  EXPECT_EQ(StatusReport(job.state, observed, At(4))["cold_standbys"],
            ParseJson(R"([{"name": "t", "why": "its workers start by exec"}])"));
  observed.start_method = "exec";
  EXPECT_EQ(StatusReport(job.state, observed, At(4))["cold_standbys"], Json::array()) << "as those of the job";
  observed.start_method = "zygote";
  EXPECT_EQ(StatusReport(job.state, observed, At(4))["cold_standbys"].size(), 1u);
  observed.standbys["t"] = "zygote";
  EXPECT_EQ(StatusReport(job.state, observed, At(4))["cold_standbys"], Json::array());
  EXPECT_EQ(report["evicted"], ParseJson(R"([{"name": "b", "standby": "s", "why": "its agent is silent"}])"));
}

TEST(StatusReport, TheStepIsThatOfTheSlowestRankNow) {
  Observed observed;
  observed.ranks = {{RankId(0), 4711, "running", 14, Seconds{0.25}}};
  EXPECT_EQ(StatusReport(AfterACrash().state, observed, At(17))["step"], 11) << "one of two is not known";
  observed.ranks.push_back({RankId(1), 4712, "running", 13, Seconds{0.25}});
  EXPECT_EQ(StatusReport(AfterACrash().state, observed, At(17))["step"], 13);
  observed.ranks.back().state = kUnknown;
  EXPECT_EQ(StatusReport(AfterACrash().state, observed, At(17))["step"], 14) << "nobody sees the slower one's step now";
  observed.ranks.back() = {RankId(1), 4712, "running", -1, Seconds{0.25}};
  EXPECT_EQ(StatusReport(AfterACrash().state, observed, At(17))["step"], 11) << "no step of its own since the restart";
}

// Startup 1-2, productive 2-12, lost in flight 12-12.75, detect to 13, restart to 15, productive to 17: 12 of 16 s.
TEST(StatusReport, EttrIsTheProductiveShareAndTheRestIsLostByPhase) {
  const Json ettr = StatusReport(AfterACrash().state, Observed{}, At(17))["ettr"];
  EXPECT_DOUBLE_EQ(ettr["cumulative"].get<double>(), 12.0 / 16);
  EXPECT_DOUBLE_EQ(ettr["sliding_1h"].get<double>(), 12.0 / 16);
  EXPECT_DOUBLE_EQ(ettr["wall_s"].get<double>(), 16);
  EXPECT_EQ(ettr["lost_s"],
            ParseJson(R"({"startup": 1.0, "detect": 0.25, "decide": 0.0, "restart": 2.0, "recompute": 0.75,
                                            "paused": 0.0, "shutdown": 0.0})"));
}

TEST(StatusReport, WhatIsUnknownIsNull) {
  Observed observed;
  observed.loss = std::nan("");
  const Json report = StatusReport(State{}, observed, At(1));
  EXPECT_TRUE(report["loss"].is_null());
  EXPECT_TRUE(report["loss_is_finite"].is_null());
  EXPECT_TRUE(report["checkpoint"]["step"].is_null());
  EXPECT_EQ(report["ettr"]["cumulative"], 1.0);
}

TEST(StatusReport, ALossThatIsNoNumberIsNotOneThatNobodyTold) {
  Observed told, bad;
  told.loss = 2.5;
  bad.loss = std::numeric_limits<double>::infinity();
  const Json report = StatusReport(State{}, Together({told, bad, Observed{}}), At(1));
  EXPECT_TRUE(report["loss"].is_null());
  EXPECT_EQ(report["loss_is_finite"], false);
  EXPECT_EQ(StatusReport(State{}, told, At(1))["loss_is_finite"], true);
}

TEST(StatusReport, OfSeveralNodesTheCheckpointIsThatOfTheOneThatLags) {
  Observed first, second;
  first.committed = CheckpointId{EpochId(1), 95};
  first.checkpoint_age = Seconds{0.5};
  second.committed = CheckpointId{EpochId(1), 87};
  second.checkpoint_age = Seconds{4};
  const Json both = StatusReport(State{}, Together({first, second, first}), At(1))["checkpoint"];
  EXPECT_EQ(both["step"], 87);
  EXPECT_EQ(both["age_s"], 4.0);
  const Json all = StatusReport(State{}, Together({first, second, Observed{}}), At(1))["checkpoint"];
  for (const char* field : {"epoch", "step", "age_s"}) EXPECT_TRUE(all[field].is_null()) << "one node has none";
  second.checkpoint_age.reset();
  EXPECT_TRUE(StatusReport(State{}, second, At(1))["checkpoint"]["age_s"].is_null());
  EXPECT_EQ(StatusReport(State{}, second, At(1))["checkpoint"]["step"], 87);
}

TEST(StatusReport, WhatANodeOutOfReachSaidLastGrowsOlder) {
  Observed seen;
  seen.committed = CheckpointId{EpochId(1), 30};
  seen.checkpoint_age = Seconds{0.25};
  seen.disk.emplace().age = Seconds{2};
  seen.disk->upload.emplace().age = Seconds{3};
  const Observed away = OutOfReach(seen, At(50));
  EXPECT_EQ(away.checkpoint_age->value, 50.25);
  EXPECT_EQ(away.disk->age.value, 52);
  EXPECT_EQ(away.disk->upload->age.value, 53);
  EXPECT_FALSE(OutOfReach(Observed{}, At(50)).checkpoint_age) << "nobody saw it end";
}

TEST(StatusReport, APausedJobSaysSo) {
  Scenario job = AfterACrash();
  job.Hear(18, JobPaused{});
  EXPECT_EQ(StatusReport(job.state, Observed{}, At(19))["state"], "paused");
}

TEST(IncidentsReport, TakesItsPhasesFromTheLedger) {
  const Json report = IncidentsReport(AfterACrash().state, At(17));
  ASSERT_EQ(report.size(), 1u);
  EXPECT_EQ(report[0]["symptom"], "crash");
  EXPECT_EQ(report[0]["phases"],
            ParseJson(R"({"detect_s": 0.25, "decide_s": 0.0, "restart_s": 2.0, "recompute_s": 0.75})"));
  EXPECT_EQ(report[0]["actions"][0]["text"], "restart of all 2 ranks in epoch 2 from step 10");
}

// A real SIGKILL of rank 1, after `drills`, the last of which may be withdrawn when the job is back.
Json ACrashAfter(const std::vector<Drilled>& drills, bool withdrawn = false) {
  JobSpec spec;
  spec.ranks = 2;
  Scenario job(spec);
  job.ComeUp(1);
  job.See(3, 2);
  for (const Drilled& drill : drills) job.Hear(2.5, drill);
  job.Hear(3, Killed(1, 1, SIGKILL));
  job.Restart(3.1, Checkpoint(1, 3));
  if (withdrawn) {
    Drilled back = drills.back();
    back.withdrawn = true;
    job.Hear(5, back);
  }
  return IncidentsReport(job.state, At(10)).at(0)["drill"];
}

TEST(IncidentsReport, ADrillExplainsWhatItCanBringAbout) {
  for (const char* other : {"cut-link", "hang-python", "hang-native", "nan", "stop", "freeze", "slow"})
    EXPECT_TRUE(ACrashAfter({{EpochId(1), other, 1}}).is_null()) << other;
  EXPECT_EQ(ACrashAfter({{EpochId(1), "nan", 1}, {EpochId(1), "kill", 1}}), "kill of rank 1");
}

TEST(IncidentsReport, ADrillThatDidNotStrikeExplainsNothing) {
  EXPECT_TRUE(ACrashAfter({{EpochId(1), "exit", 1}}, true).is_null());
  EXPECT_EQ(ACrashAfter({{EpochId(1), "exit", 1}, {EpochId(1), "exit", 1}}, true), "exit of rank 1")
      << "of two one did";
}

// A crash of rank 1 in each of two epochs, and a drill of `rank` in epoch `epoch`.
Json TwoCrashesAndADrill(uint64_t epoch, int rank) {
  JobSpec spec;
  spec.ranks = 2;
  Scenario job(spec);
  for (uint64_t acting = 1; acting <= 2; ++acting) {
    const double begin = 10.0 * static_cast<double>(acting);
    job.ComeUp(begin);
    job.See(static_cast<int64_t>(acting), begin + 1);
    if (acting == epoch) job.Hear(begin + 2, Drilled{EpochId(epoch), "kill", rank});
    job.Hear(begin + 3, Killed(acting, 1, SIGKILL, {}, begin + 3));
    job.Restart(begin + 4, Checkpoint(acting, static_cast<int64_t>(acting)));
  }
  job.ComeUp(30);
  job.See(9, 31);
  return IncidentsReport(job.state, At(40));
}

TEST(IncidentsReport, TellsADrillFromARealFault) {
  const Json first = TwoCrashesAndADrill(1, 1), second = TwoCrashesAndADrill(2, 1);
  EXPECT_EQ(first[0]["drill"], "kill of rank 1");
  EXPECT_TRUE(first[0]["headline"].get<std::string>().ends_with(" [drill]"));
  EXPECT_TRUE(first[1]["drill"].is_null());
  EXPECT_TRUE(second[0]["drill"].is_null());
  EXPECT_EQ(second[1]["drill"], "kill of rank 1");
}

TEST(IncidentsReport, ADrillOfAnotherRankAccountsForNothing) {
  for (const Json& incident : TwoCrashesAndADrill(1, 0)) EXPECT_TRUE(incident["drill"].is_null());
}

TEST(IncidentsReport, ADrillOfTheCoordinatorAccountsForTheNextLossOfItOnly) {
  Scenario job(JobSpec{});
  job.ComeUp(2);
  job.Hear(3, Drilled{EpochId(1), kKillCoordinator, -1});
  job.Hear(5, WatcherGone{At(3)});
  job.Hear(9, WatcherGone{At(8)});
  const Json report = IncidentsReport(job.state, At(10));
  ASSERT_EQ(report.size(), 2u);
  EXPECT_EQ(report[0]["drill"], kKillCoordinator);
  EXPECT_TRUE(report[1]["drill"].is_null());
}

TEST(IncidentsReport, ADrillOfALinkAccountsForTheLossOfItsNodesAgentOnly) {
  JobSpec spec;
  spec.ranks = 4;
  spec.nodes = {{.name = "a", .ranks = 2}, {.name = "b", .ranks = 2}};
  Scenario job(spec);
  job.ComeUp(2);
  job.Hear(3, Drilled{EpochId(1), kCutLink, 3});
  job.Hear(4, WatcherGone{At(4)});
  job.Hear(5, AgentLost{0, "a", "nothing heard", At(5)});
  job.Hear(6, AgentLost{1, "b", "nothing heard", At(6)});
  const Json report = IncidentsReport(job.state, At(10));
  ASSERT_EQ(report.size(), 3u);
  EXPECT_TRUE(report[0]["drill"].is_null());
  EXPECT_TRUE(report[1]["drill"].is_null());
  EXPECT_EQ(report[2]["drill"], "cut-link of rank 3");
}

// The agent of node b is away for good, and with it the job ends; a crash comes between.
TEST(IncidentsReport, ADrillOfALinkAccountsForTheLossOfItsNodeToo) {
  JobSpec spec;
  spec.ranks = 4;
  spec.nodes = {{.name = "a", .ranks = 2}, {.name = "b", .ranks = 2}};
  Scenario job(spec);
  job.ComeUp(2);
  job.Hear(3, Drilled{EpochId(1), kCutLink, 3});
  job.Hear(6, AgentLost{1, "b", "nothing heard", At(6)});
  job.Hear(7, Killed(1, 0, SIGKILL, {}, 7));
  job.Restart(8, {});
  job.Hear(71, AgentGone{1, "nothing heard for 65 s"});
  const Json report = IncidentsReport(job.state, At(72));
  ASSERT_EQ(report.size(), 3u);
  EXPECT_EQ(report[0]["drill"], "cut-link of rank 3");
  EXPECT_TRUE(report[1]["drill"].is_null());
  EXPECT_EQ(report[2]["drill"], "cut-link of rank 3");
  EXPECT_EQ(report[2]["symptom"], "node_lost");
}

TEST(IncidentsReport, ADrillOfTheStarterAccountsForTheLossOfItsNodeOnly) {
  const std::vector<std::pair<EventBody, Json>> cases = {
      {Killed(1, 2, SIGKILL, {}, 4), Json()},
      {AgentGone{0, "its starter was killed"}, Json()},
      {AgentGone{1, "its starter was killed"}, "kill-starter of rank 2"}};
  for (const auto& [event, drill] : cases) {
    JobSpec spec;
    spec.ranks = 4;
    spec.nodes = {{.name = "a", .ranks = 2}, {.name = "b", .ranks = 2}};
    Scenario job(spec);
    job.ComeUp(2);
    job.Hear(3, Drilled{EpochId(1), kKillStarter, 2});
    job.Hear(4, event);
    const Json report = IncidentsReport(job.state, At(5));
    ASSERT_EQ(report.size(), 1u);
    EXPECT_EQ(report[0]["drill"], drill);
  }
}

}  // namespace
}  // namespace lockstep::control
