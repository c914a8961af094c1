#include "lockstep/serve/metrics.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/control/plan_watch.h"
#include "lockstep/control/report.h"
#include "lockstep/serve/webhook.h"

namespace lockstep::serve {
namespace {

Json SampleStatus() {
  return ParseJson(R"({
    "state": "running", "job": "de\"mo", "epoch": 2, "step": 117, "furthest_step": 118, "loss": 2.25, "start_method": "zygote",
    "ranks": [{"rank": 0, "pid": 11, "state": "running", "step": 118, "step_time_s": 0.125},
              {"rank": 1, "pid": 12, "state": "running", "step": 117, "step_time_s": 0.5}],
    "ettr": {"cumulative": 0.9375, "sliding_1h": 0.9, "wall_s": 64, "lost_s": {"startup": 3, "detect": 0.5, "recompute": 0.5}},
    "checkpoint": {"step": 116, "epoch": 2, "age_s": 0.25, "taken": 234, "skipped": 2, "torn": 0, "blocked_s": 0.0625,
      "peers": {"step": 115, "nodes_alone": 0, "kept_bytes": 4096, "sent_bytes": 64, "held_bytes": 128},
      "disk": {"step": 100, "age_s": 8, "flushes": 3, "failures": 1, "flush_s": 0.5,
        "upload": {"step": 90, "age_s": 20, "uploads": 2, "failures": 4}}},
    "plan": {"predicted_s": 0.25, "lo80": 0.125, "hi80": 0.375, "drift": 1.0},
    "records": {"kept": 468, "dropped": 1}, "output": {"log_dropped_bytes": 64, "console_dropped_bytes": 0}, "restarts": 1, "incidents": 2, "journal_errors": 0, "unreadable_messages": 0, "webhook": {"delivered": 1, "failed": 0, "dropped": 0}, "verdict": ""})");
}

Json SampleIncidents() {
  return ParseJson(R"([{"id": 1, "symptom": "crash", "closed": "2026-11-21T02:00:00.000Z"},
                         {"id": 2, "symptom": "stopped", "closed": null}])");
}

TEST(Metrics, RenderASample) {
  EXPECT_EQ(RenderMetrics(SampleStatus(), SampleIncidents()),
            R"(# HELP lockstep_up 1 once the run has reported its status, else 0.
# TYPE lockstep_up gauge
lockstep_up 1
# HELP lockstep_run_info Always 1; the labels say which job this is and how its workers are started.
# TYPE lockstep_run_info gauge
lockstep_run_info{job="de\"mo",start_method="zygote"} 1
# HELP lockstep_run_state Always 1; the label is the state of the run.
# TYPE lockstep_run_state gauge
lockstep_run_state{state="running"} 1
# HELP lockstep_epoch Generation of the workers; grows by one with every restart.
# TYPE lockstep_epoch gauge
lockstep_epoch 2
# HELP lockstep_step Newest step that all ranks have finished; -1 before the first.
# TYPE lockstep_step gauge
lockstep_step 117
# HELP lockstep_furthest_step Furthest step that all ranks ever finished in this run; -1 before the first.
# TYPE lockstep_furthest_step gauge
lockstep_furthest_step 118
# HELP lockstep_rank_step Newest step that the rank has finished; -1 before the first.
# TYPE lockstep_rank_step gauge
lockstep_rank_step{rank="0"} 118
lockstep_rank_step{rank="1"} 117
# HELP lockstep_rank_step_time_seconds How long the rank's newest finished step took.
# TYPE lockstep_rank_step_time_seconds gauge
lockstep_rank_step_time_seconds{rank="0"} 0.125
lockstep_rank_step_time_seconds{rank="1"} 0.5
# HELP lockstep_step_time_seconds The largest lockstep_rank_step_time_seconds.
# TYPE lockstep_step_time_seconds gauge
lockstep_step_time_seconds 0.5
# HELP lockstep_plan_step_time_seconds Step time that the plan predicts, and the ends of its 80 % interval.
# TYPE lockstep_plan_step_time_seconds gauge
lockstep_plan_step_time_seconds{figure="predicted"} 0.25
lockstep_plan_step_time_seconds{figure="lo80"} 0.125
lockstep_plan_step_time_seconds{figure="hi80"} 0.375
# HELP lockstep_plan_drift_ratio How much longer steps take than planned: measured over predicted, less one.
# TYPE lockstep_plan_drift_ratio gauge
lockstep_plan_drift_ratio 1
# HELP lockstep_loss Loss of the newest step, as the script reported it.
# TYPE lockstep_loss gauge
lockstep_loss 2.25
# HELP lockstep_incidents_total Incidents of the run, by the symptom of their leading finding.
# TYPE lockstep_incidents_total counter
lockstep_incidents_total{symptom="communication_hang"} 0
lockstep_incidents_total{symptom="communication_slow"} 0
lockstep_incidents_total{symptom="corrupt_checkpoint"} 0
lockstep_incidents_total{symptom="crash"} 1
lockstep_incidents_total{symptom="data_slow"} 0
lockstep_incidents_total{symptom="deadlock"} 0
lockstep_incidents_total{symptom="desynchronised"} 0
lockstep_incidents_total{symptom="exit"} 0
lockstep_incidents_total{symptom="frozen"} 0
lockstep_incidents_total{symptom="job_slow"} 0
lockstep_incidents_total{symptom="machine_fault"} 0
lockstep_incidents_total{symptom="mismatched"} 0
lockstep_incidents_total{symptom="nan"} 0
lockstep_incidents_total{symptom="network_fault"} 0
lockstep_incidents_total{symptom="node_lost"} 0
lockstep_incidents_total{symptom="non_communication_hang"} 0
lockstep_incidents_total{symptom="non_communication_slow"} 0
lockstep_incidents_total{symptom="not_entered"} 0
lockstep_incidents_total{symptom="plan_drift"} 0
lockstep_incidents_total{symptom="spinning"} 0
lockstep_incidents_total{symptom="stalled"} 0
lockstep_incidents_total{symptom="stopped"} 1
lockstep_incidents_total{symptom="update"} 0
lockstep_incidents_total{symptom="watcher_lost"} 0
# HELP lockstep_incidents_open Incidents that are not closed yet.
# TYPE lockstep_incidents_open gauge
lockstep_incidents_open 1
# HELP lockstep_restarts_total Restarts of the workers.
# TYPE lockstep_restarts_total counter
lockstep_restarts_total 1
# HELP lockstep_ettr_ratio Effective training time ratio: productive share of wall time, of the whole run or of the last hour.
# TYPE lockstep_ettr_ratio gauge
lockstep_ettr_ratio{window="all"} 0.9375
lockstep_ettr_ratio{window="1h"} 0.9
# HELP lockstep_run_seconds Wall time since the run began.
# TYPE lockstep_run_seconds gauge
lockstep_run_seconds 64
# HELP lockstep_lost_seconds_total Wall time that was not productive, by what it went into.
# TYPE lockstep_lost_seconds_total counter
lockstep_lost_seconds_total{phase="startup"} 3
lockstep_lost_seconds_total{phase="detect"} 0.5
lockstep_lost_seconds_total{phase="recompute"} 0.5
# HELP lockstep_checkpoint_age_seconds Time since the end of the newest step that is committed by all ranks.
# TYPE lockstep_checkpoint_age_seconds gauge
lockstep_checkpoint_age_seconds 0.25
# HELP lockstep_checkpoint_step Newest step that is committed by all ranks: where a restart would begin.
# TYPE lockstep_checkpoint_step gauge
lockstep_checkpoint_step 116
# HELP lockstep_checkpoints_total Checkpoints that ranks took, left out, or lost to a late write.
# TYPE lockstep_checkpoints_total counter
lockstep_checkpoints_total{result="taken"} 234
lockstep_checkpoints_total{result="skipped"} 2
lockstep_checkpoints_total{result="torn"} 0
# HELP lockstep_checkpoint_blocked_seconds_total Time training waited for checkpoint copies, summed over ranks.
# TYPE lockstep_checkpoint_blocked_seconds_total counter
lockstep_checkpoint_blocked_seconds_total 0.0625
# HELP lockstep_checkpoint_kept_step Step of the newest checkpoint that exists on two nodes.
# TYPE lockstep_checkpoint_kept_step gauge
lockstep_checkpoint_kept_step 115
# HELP lockstep_checkpoint_nodes_alone Nodes whose checkpoints no other node keeps.
# TYPE lockstep_checkpoint_nodes_alone gauge
lockstep_checkpoint_nodes_alone 0
# HELP lockstep_checkpoint_kept_bytes_total Checkpoints that other nodes keep, before deduplication.
# TYPE lockstep_checkpoint_kept_bytes_total counter
lockstep_checkpoint_kept_bytes_total 4096
# HELP lockstep_checkpoint_sent_bytes_total What of them had to be sent.
# TYPE lockstep_checkpoint_sent_bytes_total counter
lockstep_checkpoint_sent_bytes_total 64
# HELP lockstep_checkpoint_held_bytes Memory in which nodes keep what others sent.
# TYPE lockstep_checkpoint_held_bytes gauge
lockstep_checkpoint_held_bytes 128
# HELP lockstep_checkpoint_flushes_total Checkpoints written to disk.
# TYPE lockstep_checkpoint_flushes_total counter
lockstep_checkpoint_flushes_total 3
# HELP lockstep_checkpoint_flush_failures_total Checkpoints that could not be written to disk, or not in time.
# TYPE lockstep_checkpoint_flush_failures_total counter
lockstep_checkpoint_flush_failures_total 1
# HELP lockstep_checkpoint_flushed_step Step of the newest checkpoint that this run wrote to disk or loaded.
# TYPE lockstep_checkpoint_flushed_step gauge
lockstep_checkpoint_flushed_step 100
# HELP lockstep_checkpoint_flushed_age_seconds Time since that checkpoint was written or loaded.
# TYPE lockstep_checkpoint_flushed_age_seconds gauge
lockstep_checkpoint_flushed_age_seconds 8
# HELP lockstep_checkpoint_flush_seconds How long the newest flush took.
# TYPE lockstep_checkpoint_flush_seconds gauge
lockstep_checkpoint_flush_seconds 0.5
# HELP lockstep_checkpoint_uploads_total Checkpoints copied to the store of --checkpoint-upload.
# TYPE lockstep_checkpoint_uploads_total counter
lockstep_checkpoint_uploads_total 2
# HELP lockstep_checkpoint_upload_failures_total Copies of checkpoints that failed or were given up.
# TYPE lockstep_checkpoint_upload_failures_total counter
lockstep_checkpoint_upload_failures_total 4
# HELP lockstep_checkpoint_uploaded_step Step of the newest checkpoint in the store.
# TYPE lockstep_checkpoint_uploaded_step gauge
lockstep_checkpoint_uploaded_step 90
# HELP lockstep_checkpoint_uploaded_age_seconds Time since it came there.
# TYPE lockstep_checkpoint_uploaded_age_seconds gauge
lockstep_checkpoint_uploaded_age_seconds 20
# HELP lockstep_records_total Step records of the ranks that were kept in the run's file, or lost.
# TYPE lockstep_records_total counter
lockstep_records_total{result="kept"} 468
lockstep_records_total{result="dropped"} 1
# HELP lockstep_output_dropped_bytes_total Output of the workers that did not reach their log, or the console.
# TYPE lockstep_output_dropped_bytes_total counter
lockstep_output_dropped_bytes_total{where="log"} 64
lockstep_output_dropped_bytes_total{where="console"} 0
# HELP lockstep_journal_errors_total Events that could not be written to the journal at once.
# TYPE lockstep_journal_errors_total counter
lockstep_journal_errors_total 0
# HELP lockstep_unreadable_messages_total What agents said and could not be read.
# TYPE lockstep_unreadable_messages_total counter
lockstep_unreadable_messages_total 0
# HELP lockstep_webhook_posts_total Incident messages to the webhook: delivered, failed after all tries, or dropped for a full queue.
# TYPE lockstep_webhook_posts_total counter
lockstep_webhook_posts_total{result="delivered"} 1
lockstep_webhook_posts_total{result="failed"} 0
lockstep_webhook_posts_total{result="dropped"} 0
)");
}

TEST(Metrics, BeforeTheFirstStatusOnlyUpIsThere) {
  EXPECT_EQ(
      RenderMetrics(Json(), Json::array()),
      "# HELP lockstep_up 1 once the run has reported its status, else 0.\n# TYPE lockstep_up gauge\nlockstep_up 0\n");
}

TEST(Metrics, WhatIsUnknownIsLeftOut) {
  Json status = SampleStatus();
  status["loss"] = std::numeric_limits<double>::quiet_NaN();
  status["checkpoint"] = nullptr;
  status.erase("webhook");
  const std::string text = RenderMetrics(status, Json::array());
  for (const char* absent : {"lockstep_loss", "lockstep_checkpoint", "lockstep_webhook"})
    EXPECT_EQ(text.find(absent), std::string::npos) << absent;
  status["loss"] = std::numeric_limits<double>::infinity();
  EXPECT_NE(RenderMetrics(status, Json::array()).find("lockstep_loss +Inf\n"), std::string::npos);
}

TEST(Metrics, ALossThatIsNoNumberIsASample) {
  Json status = SampleStatus();
  status["loss"] = nullptr;
  status["loss_is_finite"] = false;
  EXPECT_NE(RenderMetrics(status, Json::array()).find("lockstep_loss NaN\n"), std::string::npos);
}

TEST(Metrics, DocumentsOfAnotherShapeDoNoHarm) {
  for (const char* text :
       {"3", "[]", "{}", R"({"ranks": 3, "ettr": [1], "checkpoint": "x", "loss": "y"})", R"({"ranks": [1, {}]})"}) {
    EXPECT_NE(RenderMetrics(ParseJson(text), ParseJson(R"([1, {}])")).find("lockstep_up"), std::string::npos) << text;
  }
}

// docs/metrics.md is what operators build on: every metric stands there, and nothing else does.
TEST(Metrics, AreAllDocumented) {
  const std::string doc = *ReadFile(LOCKSTEP_METRICS_DOC);
  const std::string text = RenderMetrics(SampleStatus(), SampleIncidents());
  size_t metrics = 0, rows = 0;
  for (size_t at = text.find("# TYPE "); at != std::string::npos; at = text.find("# TYPE ", at + 1), ++metrics) {
    const size_t name = at + 7, end = text.find(' ', name);
    const std::string type = text.substr(end + 1, text.find('\n', end) - end - 1);
    const std::string row = "| `" + text.substr(name, end - name) + "` | " + type + " |";
    EXPECT_NE(doc.find(row), std::string::npos) << row;
  }
  for (size_t at = doc.find("| `lockstep_"); at != std::string::npos; at = doc.find("| `lockstep_", at + 1)) ++rows;
  EXPECT_EQ(metrics, rows);
}

// The names of the metrics in a page, in its order.
std::vector<std::string> NamesIn(const std::string& text) {
  std::vector<std::string> names;
  for (size_t at = text.find("# TYPE "); at != std::string::npos; at = text.find("# TYPE ", at + 1)) {
    names.push_back(text.substr(at + 7, text.find(' ', at + 7) - at - 7));
  }
  return names;
}

// The sample above is made by hand; this one comes from where the real ones do, with what `lockstep run` adds to it.
TEST(Metrics, TheRealStatusHasAllOfThem) {
  control::State state;
  state.spec.name = "demo";
  control::Observed observed;
  observed.ranks.emplace_back();
  observed.ranks.back().step_time = {.25};
  observed.loss = 1.5;
  observed.committed = control::CheckpointId{EpochId(1), 3};
  observed.checkpoint_age = Seconds{0.25};
  observed.disk.emplace();
  observed.peers.emplace();
  observed.peers->newest = observed.committed;
  observed.disk->flushed = observed.committed;
  observed.disk->flushes = 1;
  observed.disk->upload.emplace();
  observed.disk->upload->newest = observed.committed;
  Json status = control::StatusReport(state, observed, Nanos{5});
  status["journal_errors"] = 0;
  status["unreadable_messages"] = 0;
  status["webhook"] = ToJson(WebhookCounts{});
  const control::PlannedStep plan{"plan.json", "", 0, {.25}, {.125}, {.375}, {}};
  status["plan"] = control::PlanWatch(plan).Report({.5}, 0);
  const std::string text = RenderMetrics(status, control::IncidentsReport(state, Nanos{5}));
  EXPECT_EQ(NamesIn(text), NamesIn(RenderMetrics(SampleStatus(), SampleIncidents())));
  for (const char* result : {"taken", "skipped", "torn"}) {
    EXPECT_NE(text.find(fmt::format("lockstep_checkpoints_total{{result=\"{}\"}}", result)), std::string::npos)
        << result;
  }
}

std::string Promtool() {
  const char* given = getenv("PROMTOOL");
  if (given != nullptr && access(given, X_OK) == 0) return given;
  return system("command -v promtool >/dev/null") == 0 ? "promtool" : "";
}

TEST(Metrics, PassPromtool) {
  if (Promtool().empty()) GTEST_SKIP() << "promtool is neither $PROMTOOL nor on PATH";
  const TestFolder folder;
  const std::string path = folder.Write("metrics", RenderMetrics(SampleStatus(), SampleIncidents()));
  EXPECT_EQ(system((Promtool() + " check metrics < " + path).c_str()), 0);
}

TEST(Metrics, AlertRulesPassPromtool) {
  if (Promtool().empty()) GTEST_SKIP() << "promtool is neither $PROMTOOL nor on PATH";
  const std::string alerts = LOCKSTEP_ALERTS;
  EXPECT_EQ(system((Promtool() + " check rules " + alerts + "/lockstep.rules.yml").c_str()), 0);
  EXPECT_EQ(system((Promtool() + " test rules " + alerts + "/lockstep.rules.test.yml").c_str()), 0);
}

}  // namespace
}  // namespace lockstep::serve
