#include "lockstep/history/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/control/scenario.h"
#include "lockstep/cost/chance.h"

namespace lockstep::history {
namespace {

using control::At;
using control::Checkpoint;
using control::Drilled;
using control::JobSpec;
using control::Killed;
using control::Scenario;
using incident::Syndrome;

// One node, 2 ranks, from wall time 1 on: startup to 2, rank 1 killed at 12.75 and noticed at 13, training again at 15;
// step 10 ended at 12. So 0.75 s of work are lost, 0.25 s until it was noticed, 2 s to restart.
Scenario ACrash(bool drilled = false) {
  JobSpec spec;
  spec.name = "gpt";
  spec.ranks = 2;
  Scenario job(spec);
  job.ComeUp(2);
  job.See(10, 12);
  if (drilled) job.Hear(12.5, Drilled{EpochId(1), "kill", 1});
  job.Hear(13, Killed(1, 1, SIGKILL, {}, 12.75));
  job.Restart(14, Checkpoint(1, 10));
  job.ComeUp(15);
  job.See(11, 16);
  return job;
}

RunFacts Of(const Scenario& job, double last, const std::string& path = "/runs/a") {
  return RunOf(path, {.state = job.state, .first = At(1), .last = At(last), .last_wall = At(last), .host = "tower"});
}

Json Report(std::vector<RunFacts> runs, ReportOptions options = {}) {
  return ClusterReport({std::move(runs), {{"/odd", "is no journal"}}, 3}, options);
}

const Json& Row(const Json& table, const char* key, const char* value) {
  for (const Json& row : table)
    if (row[key] == value) return row;
  static const Json kNone;
  ADD_FAILURE() << "no " << value << " in " << OneLine(table);
  return kNone;
}

// Formula: ETTR = productive / wall = (10 + 2) / 16 of the run to 17 s; with one to 27 s, (12 + 22) / (16 + 26).
TEST(ClusterReport, EttrOfAllRunsIsThatOfTheirSums) {
  const Json report = Report({Of(ACrash(), 17), Of(ACrash(), 27, "/runs/b")});
  EXPECT_NEAR(report["ettr"]["cumulative"].get<double>(), 34.0 / 42, 1e-12);
  EXPECT_NEAR(report["ettr"]["by_ranks"].get<double>(), 34.0 / 42, 1e-12);
  EXPECT_NEAR(report["ettr"]["rank_hours"].get<double>(), 2 * 42 / 3600.0, 1e-12);
  const Json& run = Row(report["costliest_runs"], "run", "/runs/b");
  EXPECT_NEAR(run["ettr"].get<double>(), 22.0 / 26, 1e-12);
  EXPECT_EQ(run["state"], "unfinished");
  EXPECT_EQ(report["window"]["to"], "1970-01-01T00:00:27.000Z");
}

// The newest hour ends with the newest event: a run that ended before it has no part in it.
TEST(ClusterReport, SlidingIsOfTheNewestHour) {
  Scenario later = ACrash();
  RunFacts late = RunOf("/runs/late", {.state = later.state, .first = At(1), .last = At(17), .last_wall = At(90'000)});
  const Json report = Report({Of(ACrash(), 1000), late});
  EXPECT_NEAR(report["ettr"]["sliding_1h"].get<double>(), 12.0 / 16, 1e-12);
}

TEST(ClusterReport, CountsWhatWasRead) {
  const Json report = Report({Of(ACrash(), 17)});
  EXPECT_EQ(report["runs"],
            ParseJson(R"({"read": 1, "completed": 0, "failed": 0, "stopped": 0, "unfinished": 1, "without_journal": 3,
                                            "unread": 1})"));
  EXPECT_EQ(report["unread"], ParseJson(R"([{"path": "/odd", "why": "is no journal"}])"));
}

TEST(ClusterReport, TellsHowRunsEnded) {
  Scenario completed = ACrash(), failed = ACrash(), stopped = ACrash();
  for (const int rank : {0, 1}) completed.Hear(17, control::Exit(2, rank, {}));
  completed.Hear(18, control::EpochStopped{EpochId(2)});
  failed.Hear(17, control::Raised(2, 0, "ValueError", {}, 17));
  failed.Restart(18, Checkpoint(1, 10));
  failed.ComeUp(19);
  failed.Hear(20, control::Raised(3, 0, "ValueError", {}, 20));
  failed.Hear(20.5, control::StopAsked{SIGINT});
  failed.Hear(21, control::EpochStopped{EpochId(3)});
  stopped.Hear(17, control::StopAsked{SIGINT});
  stopped.Hear(18, control::EpochStopped{EpochId(2)});
  const auto of = [](const Scenario& job, const char* path, bool stop_asked) {
    return RunOf(path,
                 {.state = job.state, .first = At(1), .last = At(21), .last_wall = At(21), .stop_asked = stop_asked});
  };
  const Json report = Report({of(completed, "/c", false), of(failed, "/f", true), of(stopped, "/s", true)});
  EXPECT_EQ(report["runs"], ParseJson(R"({"read": 3, "completed": 1, "failed": 1, "stopped": 1, "unfinished": 0,
                                            "without_journal": 3, "unread": 1})"));
  const Json& runs = report["costliest_runs"];
  EXPECT_EQ(Row(runs, "run", "/c")["state"], "completed");
  EXPECT_EQ(Row(runs, "run", "/f")["state"], "failed");
  EXPECT_THAT(Row(runs, "run", "/f")["verdict"].get<std::string>(), testing::HasSubstr("ValueError"));
  EXPECT_EQ(Row(runs, "run", "/s")["verdict"], "stopped by SIGINT");
}

TEST(ClusterReport, TablesOfACrash) {
  const Json report = Report({Of(ACrash(), 17), Of(ACrash(), 17, "/runs/b")});
  EXPECT_EQ(report["incidents"], ParseJson(R"([{"class": "explicit", "symptom": "crash", "count": 2, "share": 1.0}])"));
  EXPECT_EQ(report["resolution"],
            ParseJson(R"([{"symptom": "crash", "resolved_by": "restart", "count": 2, "resolution_mean_s": 2.0,
                             "resolution_max_s": 2.0, "lost_mean_s": 3.0, "lost_max_s": 3.0}])"));
  EXPECT_NEAR(Row(report["time"], "phase", "restart")["share"].get<double>(), 4.0 / 32, 1e-12);
  double shares = 0;
  for (const Json& row : report["time"]) shares += row["share"].get<double>();
  EXPECT_NEAR(shares, 1, 1e-12);
}

TEST(ClusterReport, RehearsalsStandApart) {
  const Json report = Report({Of(ACrash(true), 17)});
  EXPECT_EQ(report["drills"], ParseJson(R"({"incidents": 1, "lost_s": 3.0})"));
  EXPECT_TRUE(report["incidents"].empty());
  EXPECT_TRUE(report["resolution"].empty());
  EXPECT_NEAR(report["ettr"]["cumulative"].get<double>(), 12.0 / 13, 1e-12);
  EXPECT_NEAR(report["ettr"]["wall_h"].get<double>(), 13 / 3600.0, 1e-12);
  EXPECT_EQ(report["lemons"]["namings"], 0);
  EXPECT_EQ(Row(report["failures"], "component", "rank")["failures"], 0);
}

// Formula: MTTF = hours / n, 95 % limits hours / (chi-square(0.975; 2n + 2) / 2) and hours / (chi-square(0.025; 2n) /
// 2). Of 2 failures: chi-squares 14.449 and 0.4844.
TEST(ClusterReport, TimeBetweenFailuresWithItsLimits) {
  const Json report = Report({Of(ACrash(), 17), Of(ACrash(), 17, "/runs/b")});
  const Json& any = Row(report["failures"], "component", "any");
  const double hours = 32 / 3600.0;
  EXPECT_EQ(any["failures"], 2);
  EXPECT_NEAR(any["mttf_h"].get<double>(), hours / 2, 1e-12);
  EXPECT_NEAR(any["mttf_low_h"].get<double>(), 2 * hours / 14.4494, 1e-7);
  EXPECT_NEAR(any["mttf_high_h"].get<double>(), 2 * hours / 0.48442, 1e-5);
  EXPECT_NEAR(Row(report["failures"], "component", "rank")["hours"].get<double>(), 2 * hours, 1e-12);
  const Json& node = Row(report["failures"], "component", "node");
  EXPECT_TRUE(node["mttf_h"].is_null());
  EXPECT_TRUE(node["mttf_high_h"].is_null());
  EXPECT_NEAR(node["mttf_low_h"].get<double>(), hours / -std::log(0.025), 1e-9) << "none seen: P(0) = 2.5 %";
}

// Three nodes of 2 ranks until 31, one from then on. Productive are 3 to 20 less the 10 s since step 5 and 33 to 61; b
// and c are lost at 20, in one incident.
//   node-hours: 3 * 30 + 1 * 30 = 120 s; rank-hours: 6 * 30 + 2 * 30 = 240 s
//   by ranks: productive 6 * 7 + 2 * 28 = 98 s of 240; lost 142 rank-seconds
TEST(ClusterReport, AJobThatChangedItsSize) {
  JobSpec spec;
  spec.ranks = 6;
  spec.nodes = {{"a", 2, "a's"}, {"b", 2, "b's"}, {"c", 2, "c's"}};
  spec.least_nodes = 1;
  spec.most_nodes = 3;
  Scenario job(spec);
  job.ComeUp(3);
  job.See(5, 10);
  job.Hear(20, control::AgentGone{1, "silent"});
  job.Hear(20, control::AgentGone{2, "silent"});
  job.Restart(31, Checkpoint(1, 5));
  job.ComeUp(33);
  job.See(6, 61);
  const Json report = Report({Of(job, 61)});
  const Json& node = Row(report["failures"], "component", "node");
  EXPECT_EQ(node["failures"], 2);
  EXPECT_NEAR(node["hours"].get<double>(), 120 / 3600.0, 1e-12);
  EXPECT_NEAR(node["mttf_h"].get<double>(), 60 / 3600.0, 1e-12);
  EXPECT_NEAR(Row(report["failures"], "component", "rank")["hours"].get<double>(), 240 / 3600.0, 1e-12);
  EXPECT_EQ(Row(report["failures"], "component", "any")["failures"], 1) << "the job was stopped once";
  EXPECT_NEAR(report["standbys"]["node_days"].get<double>(), 120 / 86400.0, 1e-12);
  EXPECT_EQ(report["standbys"]["nodes_lost"], 2);
  EXPECT_EQ(report["standbys"]["machines"], 3);
  EXPECT_EQ(report["lemons"]["namings"], 2) << "b, which leads, and c, which joined it";
  EXPECT_TRUE(report["standbys"]["times"]["evict_s"].is_null()) << "no standby took a place";
  EXPECT_EQ(report["resolution"][0]["resolved_by"], "shrink");
  EXPECT_NEAR(report["ettr"]["rank_hours"].get<double>(), 240 / 3600.0, 1e-12);
  EXPECT_NEAR(report["ettr"]["by_ranks"].get<double>(), 98.0 / 240, 1e-12);
  const Json& run = report["costliest_runs"][0];
  EXPECT_EQ(run["ranks"], 6);
  EXPECT_NEAR(run["lost_rank_hours"].get<double>(), 142 / 3600.0, 1e-12);
}

Incident Named(const char* node, double opened, Syndrome symptom = Syndrome::kCrash) {
  Incident incident;
  incident.symptom = symptom;
  incident.component = Component::kRank;
  incident.resolution = Resolution::kRestart;
  incident.certain = true;
  incident.opened = At(opened);
  incident.nodes = {node};
  return incident;
}

// A run of `nodes` nodes over `days` days of productive time, to which incidents are added.
RunFacts Quiet(const std::vector<std::string>& nodes, double days) {
  RunFacts run;
  run.begin = At(0);
  run.end = At(days * 86400);
  run.sizes = {{run.begin, run.end, static_cast<int>(nodes.size()), static_cast<int64_t>(nodes.size())}};
  run.ledger.Enter(control::Phase::kProductive, At(0), 0);
  for (const std::string& node : nodes) run.stays.push_back({node, run.begin, run.end});
  return run;
}

TEST(ClusterReport, LemonsAreOfTheWindow) {
  const std::vector<std::string> nodes = {"n0", "n1", "n2", "n3"};
  RunFacts run = Quiet(nodes, 40);
  for (int i = 0; i < 9; ++i) run.incidents.push_back(Named("n2", 86400.0 * (20 + i)));
  run.incidents.push_back(Named("n1", 86400.0 * 30));
  const Json lemons = Report({run})["lemons"];
  EXPECT_EQ(lemons["namings"], 10);
  ASSERT_EQ(lemons["lemons"].size(), 1u);
  EXPECT_EQ(lemons["lemons"][0]["node"], "n2");
  EXPECT_NEAR(lemons["lemons"][0]["hours"].get<double>(), 28 * 24, 1e-9);
  EXPECT_EQ(Report({run}, {.days = 14})["lemons"]["namings"], 4) << "days 26, 27, 28 and 30 of 40";
  for (Incident& incident : run.incidents) {
    incident.symptom = Syndrome::kExit;
    incident.resolution = Resolution::kEnd;
  }
  const Json ended = Report({run});
  EXPECT_EQ(ended["lemons"]["namings"], 0) << "an error that ended the job is in the program";
  EXPECT_EQ(Row(ended["failures"], "component", "rank")["failures"], 0);
  EXPECT_EQ(Row(ended["failures"], "component", "software")["failures"], 10);
}

// 12 losses in 1000 node-days: 1 - exp(-0.012) a day; limits 6.2006 and 20.9616 over 1000.
TEST(ClusterReport, StandbysFromTheRateThatWasSeen) {
  std::vector<std::string> nodes;
  for (int i = 0; i < 100; ++i) nodes.push_back(fmt::format("n{}", i));
  RunFacts run = Quiet(nodes, 10);
  for (int i = 0; i < 12; ++i) {
    run.incidents.push_back(Named("n5", 3600.0 * 7 * i, Syndrome::kNodeLost));
    run.incidents.back().nodes_lost = 1;
    run.incidents.back().resolution = Resolution::kEvict;
    run.incidents.back().phases.restart = {20};
  }
  ReportOptions options;
  options.sizing.machines = 1024;
  options.sizing.replace = Seconds{86400};
  options.sizing.reschedule = Seconds{100};
  const Json sized = Report({run}, options)["standbys"];
  EXPECT_EQ(sized["nodes_lost"], 12);
  EXPECT_NEAR(sized["node_days"].get<double>(), 1000, 1e-9);
  EXPECT_NEAR(sized["daily_rate"].get<double>(), 1 - std::exp(-0.012), 1e-12);
  EXPECT_NEAR(sized["daily_rate_low"].get<double>(), 1 - std::exp(-0.0062006), 1e-6);
  EXPECT_NEAR(sized["daily_rate_high"].get<double>(), 1 - std::exp(-0.0209616), 1e-6);
  EXPECT_EQ(sized["enough"]["per_day"], cost::BinomialQuantile(1024, 1 - std::exp(-0.012), 0.99));
  EXPECT_EQ(sized["enough"]["while_replaced"], cost::PoissonQuantile(1024 * 0.012, 0.99) + 1);
  EXPECT_EQ(sized["seen"], ParseJson(R"({"days": 11, "most_in_a_day": 4, "quantile": 4})"));
  EXPECT_EQ(sized["times"]["evict_s"], 20.0);
  const int64_t pool = sized["enough"]["per_day"];
  EXPECT_NEAR(Row(sized["scheduling"], "strategy", "standby")["was_s"].get<double>(),
              0.99 * 20 + 0.01 * (pool >= 32 ? 20 : 100), 1e-9);
  const Json none = Report({Quiet(nodes, 10)}, options)["standbys"];
  EXPECT_TRUE(none["scheduling"].is_null());
  EXPECT_THAT(none["scheduling_lacks"], "no machine was replaced by a standby, so it is not known how long that takes");
}

TEST(ClusterReport, HangsAreImplicitAndStopsManual) {
  RunFacts run = Quiet({"a", "b"}, 1);
  run.incidents = {Named("a", 10, Syndrome::kSpinning), Named("a", 20, Syndrome::kJobSlow), Named("b", 30)};
  run.stop_asked = true;
  const Json report = Report({run});
  EXPECT_EQ(Row(report["incidents"], "symptom", "spinning")["class"], "implicit");
  EXPECT_EQ(Row(report["incidents"], "symptom", "job_slow")["class"], "implicit");
  EXPECT_EQ(Row(report["incidents"], "symptom", "crash")["class"], "explicit");
  EXPECT_EQ(Row(report["incidents"], "symptom", "stop_asked")["class"], "manual");
  EXPECT_EQ(Row(report["failures"], "component", "rank")["failures"], 2) << "slowness is no failure";
}

TEST(ClusterReport, BrokenHardwareIsExplicitAndUpdatesManual) {
  RunFacts run = Quiet({"a", "b"}, 1);
  run.incidents = {Named("a", 10, Syndrome::kMachineFault), Named("a", 20, Syndrome::kNetworkFault),
                   Named("a", 30, Syndrome::kUpdate)};
  const Json report = Report({run});
  EXPECT_EQ(Row(report["incidents"], "symptom", "machine_fault")["class"], "explicit")
      << "its driver or kernel says so";
  EXPECT_EQ(Row(report["incidents"], "symptom", "network_fault")["class"], "explicit");
  EXPECT_EQ(Row(report["incidents"], "symptom", "update")["class"], "manual");
}

TEST(ClusterReport, ListsTheCostliestRunsOrAll) {
  std::vector<RunFacts> runs;
  for (int i = 0; i < 20; ++i) runs.push_back(Of(ACrash(), 17 + i, fmt::format("/runs/{:02}", i)));
  EXPECT_EQ(Report(runs)["costliest_runs"].size(), 12u);
  EXPECT_EQ(Report(runs, {.all_runs = true})["all_runs"].size(), 20u);
}

}  // namespace
}  // namespace lockstep::history
