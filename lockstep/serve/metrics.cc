#include "lockstep/serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/base/json_at.h"
#include "lockstep/base/json_text.h"
#include "lockstep/incident/incident.h"

namespace lockstep::serve {
namespace {

using incident::Syndrome;

std::string NumberText(double value) {
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

// A value worth a sample, as text: integers exactly, doubles in the fewest digits that read back the same. NaN is how
// documents say "unknown".
std::optional<std::string> SampleText(const Json& value) {
  if (value.is_number_integer()) return OneLine(value);
  if (!value.is_number_float() || std::isnan(value.get<double>())) return std::nullopt;
  return NumberText(value.get<double>());
}

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? std::string_view("\\n") : std::string_view(&c, 1);
  }
  return escaped;
}

std::string Label(std::string_view name, std::string_view value) {
  return fmt::format("{}=\"{}\"", name, Escaped(value));
}

// One metric: its two comment lines come with the first sample, so a metric without samples leaves no trace.
class Metric {
 public:
  Metric(std::string& text, std::string_view name, std::string_view type, std::string_view help)
      : text_(text), name_(name), type_(type), help_(help) {}

  void Add(const Json& value, std::string_view labels = "") {
    if (const std::optional<std::string> sample = SampleText(value)) AddSample(*sample, labels);
  }
  void AddSample(std::string_view sample, std::string_view labels = "") {
    if (!begun_) text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name_, help_, name_, type_);
    begun_ = true;
    text_ +=
        labels.empty() ? fmt::format("{} {}\n", name_, sample) : fmt::format("{}{{{}}} {}\n", name_, labels, sample);
  }

 private:
  std::string& text_;
  std::string_view name_, type_, help_;
  bool begun_ = false;
};

class Page {
 public:
  Metric Gauge(std::string_view name, std::string_view help) { return {text_, name, "gauge", help}; }
  Metric Counter(std::string_view name, std::string_view help) { return {text_, name, "counter", help}; }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

void AddJob(Page& page, const Json& status) {
  page.Gauge("lockstep_up", "1 once the run has reported its status, else 0.").Add(status.is_object() ? 1 : 0);
  if (!status.is_object()) return;
  const std::string labels =
      Label("job", TextAt(status, "job")) + "," + Label("start_method", TextAt(status, "start_method"));
  page.Gauge("lockstep_run_info", "Always 1; the labels say which job this is and how its workers are started.")
      .Add(1, labels);
  page.Gauge("lockstep_run_state", "Always 1; the label is the state of the run.")
      .Add(1, Label("state", TextAt(status, "state")));
  page.Gauge("lockstep_epoch", "Generation of the workers; grows by one with every restart.").Add(At(status, "epoch"));
  page.Gauge("lockstep_step", "Newest step that all ranks have finished; -1 before the first.").Add(At(status, "step"));
  page.Gauge("lockstep_furthest_step", "Furthest step that all ranks ever finished in this run; -1 before the first.")
      .Add(At(status, "furthest_step"));
}

// Of a run that was given one.
void AddPlan(Page& page, const Json& status) {
  const Json& plan = At(status, "plan");
  Metric step = page.Gauge("lockstep_plan_step_time_seconds",
                           "Step time that the plan predicts, and the ends of its 80 % interval.");
  step.Add(At(plan, "predicted_s"), Label("figure", "predicted"));
  step.Add(At(plan, "lo80"), Label("figure", "lo80"));
  step.Add(At(plan, "hi80"), Label("figure", "hi80"));
  page.Gauge("lockstep_plan_drift_ratio", "How much longer steps take than planned: measured over predicted, less one.")
      .Add(At(plan, "drift"));
}

void AddRanks(Page& page, const Json& status) {
  const Json& ranks = At(status, "ranks");
  Metric step = page.Gauge("lockstep_rank_step", "Newest step that the rank has finished; -1 before the first.");
  const auto labels = [](const Json& rank) {
    const std::string number = Label("rank", OneLine(At(rank, "rank"))), node = TextAt(rank, "node");
    return node.empty() ? number : number + "," + Label("node", node);
  };
  for (const Json& rank : ranks) step.Add(At(rank, "step"), labels(rank));
  Metric time = page.Gauge("lockstep_rank_step_time_seconds", "How long the rank's newest finished step took.");
  std::optional<double> longest;
  for (const Json& rank : ranks) {
    const Json& seconds = At(rank, "step_time_s");
    if (!seconds.is_number() || seconds == 0) continue;  // no step of this epoch has ended yet
    time.Add(seconds, labels(rank));
    longest = std::max(longest.value_or(0), seconds.get<double>());
  }
  Metric slowest = page.Gauge("lockstep_step_time_seconds", "The largest lockstep_rank_step_time_seconds.");
  if (longest) slowest.Add(*longest);
  AddPlan(page, status);
  Metric loss = page.Gauge("lockstep_loss", "Loss of the newest step, as the script reported it.");
  loss.Add(At(status, "loss"));
  if (At(status, "loss_is_finite") == false) loss.AddSample("NaN");
}

// Every symptom is there from the start, at 0: a series that begins at 1 shows no increase to Prometheus.
std::map<std::string, int64_t> CountsBySymptom(const Json& incidents) {
  std::map<std::string, int64_t> counts;
  for (int i = 0; i < incident::kSyndromeCount; ++i) counts[incident::SyndromeName(static_cast<Syndrome>(i))] = 0;
  for (const Json& incident : incidents) ++counts[TextAt(incident, "symptom")];
  return counts;
}

void AddIncidents(Page& page, const Json& status, const Json& incidents) {
  Metric total =
      page.Counter("lockstep_incidents_total", "Incidents of the run, by the symptom of their leading finding.");
  for (const auto& [symptom, count] : CountsBySymptom(incidents)) total.Add(count, Label("symptom", symptom));
  const auto open = std::count_if(incidents.begin(), incidents.end(), [](const Json& incident) {
    return incident.contains("closed") && incident["closed"].is_null();
  });
  page.Gauge("lockstep_incidents_open", "Incidents that are not closed yet.").Add(open);
  page.Counter("lockstep_restarts_total", "Restarts of the workers.").Add(At(status, "restarts"));
}

void AddEttr(Page& page, const Json& status) {
  const Json& ettr = At(status, "ettr");
  Metric ratio =
      page.Gauge("lockstep_ettr_ratio",
                 "Effective training time ratio: productive share of wall time, of the whole run or of the last hour.");
  ratio.Add(At(ettr, "cumulative"), Label("window", "all"));
  ratio.Add(At(ettr, "sliding_1h"), Label("window", "1h"));
  page.Gauge("lockstep_run_seconds", "Wall time since the run began.").Add(At(ettr, "wall_s"));
  Metric lost = page.Counter("lockstep_lost_seconds_total", "Wall time that was not productive, by what it went into.");
  for (const auto& [phase, seconds] : At(ettr, "lost_s").items()) lost.Add(seconds, Label("phase", phase));
}

void AddCheckpoints(Page& page, const Json& status) {
  const Json& checkpoint = At(status, "checkpoint");
  const Json& step = At(checkpoint, "step");
  // Before the first commit there is nothing to have an age, whatever number stands there.
  page.Gauge("lockstep_checkpoint_age_seconds", "Time since the end of the newest step that is committed by all ranks.")
      .Add(step.is_null() ? Json() : At(checkpoint, "age_s"));
  page.Gauge("lockstep_checkpoint_step", "Newest step that is committed by all ranks: where a restart would begin.")
      .Add(step);
  Metric total =
      page.Counter("lockstep_checkpoints_total", "Checkpoints that ranks took, left out, or lost to a late write.");
  for (const char* result : {"taken", "skipped", "torn"}) total.Add(At(checkpoint, result), Label("result", result));
  page.Counter("lockstep_checkpoint_blocked_seconds_total",
               "Time training waited for checkpoint copies, summed over ranks.")
      .Add(At(checkpoint, "blocked_s"));
}

void AddDisk(Page& page, const Json& status) {
  const Json& peers = At(At(status, "checkpoint"), "peers");
  page.Gauge("lockstep_checkpoint_kept_step", "Step of the newest checkpoint that exists on two nodes.")
      .Add(At(peers, "step"));
  page.Gauge("lockstep_checkpoint_nodes_alone", "Nodes whose checkpoints no other node keeps.")
      .Add(At(peers, "nodes_alone"));
  page.Counter("lockstep_checkpoint_kept_bytes_total", "Checkpoints that other nodes keep, before deduplication.")
      .Add(At(peers, "kept_bytes"));
  page.Counter("lockstep_checkpoint_sent_bytes_total", "What of them had to be sent.").Add(At(peers, "sent_bytes"));
  page.Gauge("lockstep_checkpoint_held_bytes", "Memory in which nodes keep what others sent.")
      .Add(At(peers, "held_bytes"));
  const Json& disk = At(At(status, "checkpoint"), "disk");
  page.Counter("lockstep_checkpoint_flushes_total", "Checkpoints written to disk.").Add(At(disk, "flushes"));
  page.Counter("lockstep_checkpoint_flush_failures_total",
               "Checkpoints that could not be written to disk, or not in time.")
      .Add(At(disk, "failures"));
  page.Gauge("lockstep_checkpoint_flushed_step", "Step of the newest checkpoint that this run wrote to disk or loaded.")
      .Add(At(disk, "step"));
  page.Gauge("lockstep_checkpoint_flushed_age_seconds", "Time since that checkpoint was written or loaded.")
      .Add(At(disk, "age_s"));
  page.Gauge("lockstep_checkpoint_flush_seconds", "How long the newest flush took.")
      .Add(At(disk, "flushes") == 0 ? Json() : At(disk, "flush_s"));
  const Json& upload = At(disk, "upload");
  page.Counter("lockstep_checkpoint_uploads_total", "Checkpoints copied to the store of --checkpoint-upload.")
      .Add(At(upload, "uploads"));
  page.Counter("lockstep_checkpoint_upload_failures_total", "Copies of checkpoints that failed or were given up.")
      .Add(At(upload, "failures"));
  page.Gauge("lockstep_checkpoint_uploaded_step", "Step of the newest checkpoint in the store.")
      .Add(At(upload, "step"));
  page.Gauge("lockstep_checkpoint_uploaded_age_seconds", "Time since it came there.").Add(At(upload, "age_s"));
}

void AddWatchers(Page& page, const Json& status) {
  Metric records =
      page.Counter("lockstep_records_total", "Step records of the ranks that were kept in the run's file, or lost.");
  for (const char* result : {"kept", "dropped"})
    records.Add(At(At(status, "records"), result), Label("result", result));
  Metric output = page.Counter("lockstep_output_dropped_bytes_total",
                               "Output of the workers that did not reach their log, or the console.");
  for (const char* where : {"log", "console"})
    output.Add(At(At(status, "output"), fmt::format("{}_dropped_bytes", where)), Label("where", where));
  page.Counter("lockstep_journal_errors_total", "Events that could not be written to the journal at once.")
      .Add(At(status, "journal_errors"));
  page.Counter("lockstep_unreadable_messages_total", "What agents said and could not be read.")
      .Add(At(status, "unreadable_messages"));
  Metric posts =
      page.Counter("lockstep_webhook_posts_total",
                   "Incident messages to the webhook: delivered, failed after all tries, or dropped for a full queue.");
  for (const char* result : {"delivered", "failed", "dropped"})
    posts.Add(At(At(status, "webhook"), result), Label("result", result));
}

}  // namespace

std::string RenderMetrics(const Json& status, const Json& incidents) {
  Page page;
  AddJob(page, status);
  if (!status.is_object()) return page.Take();
  AddRanks(page, status);
  AddIncidents(page, status, incidents);
  AddEttr(page, status);
  AddCheckpoints(page, status);
  AddDisk(page, status);
  AddWatchers(page, status);
  return page.Take();
}

}  // namespace lockstep::serve
