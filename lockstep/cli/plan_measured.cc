#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/cli/plan_commands.h"
#include "lockstep/cli/plan_question.h"
#include "lockstep/node/install.h"
#include "lockstep/plan/calibrate.h"
#include "lockstep/plan/profiled_runs.h"
#include "lockstep/plan/validate.h"

namespace lockstep::cli {
namespace {

absl::StatusOr<plan::Known> ReadKnown() {
  LS_ASSIGN_OR_RETURN(const node::Installation installation, node::FindInstallation());
  return plan::ReadKnown(installation.presets);
}

struct ValidateFlags {
  std::string table, calibration;
  bool rows = false, json = false;
};

absl::StatusOr<Json> Validate(const ValidateFlags& flags) {
  LS_ASSIGN_OR_RETURN(const plan::Known known, ReadKnown());
  LS_ASSIGN_OR_RETURN(const plan::MeasuredTable table, plan::ReadMeasured(flags.table, known));
  LS_ASSIGN_OR_RETURN(const std::string presets, PlanPresets());
  LS_ASSIGN_OR_RETURN(const plan::Calibration calibration,
                      plan::ReadCalibration(flags.calibration.empty() ? presets : flags.calibration));
  return plan::ValidateReport(table, calibration, {.rows = flags.rows});
}

}  // namespace

void AddPlanValidate(CLI::App& plan, int& exit_code) {
  auto flags = std::make_shared<ValidateFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = plan.add_subcommand("validate", "Predictions beside a table of measured runs: how far apart");
  command->add_option("FILE", flags->table, "Measured runs, CSV (docs/formats/measured.md)")->required();
  command->add_option("--calibration", flags->calibration, "Folder of `lockstep plan calibrate`; default: the presets");
  command->add_flag("--rows", flags->rows, "Add the prediction of each row");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep plan validate measured.csv --json");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Validate(*flags), flags->json); });
}

namespace {

struct CalibrateFlags {
  std::vector<std::string> tables, trace;
  std::string out;
  PlanFlags work;  // of the trace
  bool fresh = false, rows = false, json = false;
};

// Of each run what fits without its fifth of the runs, and without its family, predict.
Json RowsOf(const plan::Runs& runs, const plan::Calibrated& calibrated) {
  Json rows = Json::array();
  for (size_t i = 0; i < calibrated.without_fold.size(); ++i) {  // parts of a trace come behind these
    const auto predicted = [&](const plan::LeftOut& one) {
      return runs[i]->Measured().step_s * std::exp(-one.residual);
    };
    rows.push_back({{"id", runs[i]->id()},
                    {"family", runs[i]->family()},
                    {"step_time_s", runs[i]->Measured().step_s},
                    {"without_fold_s", predicted(calibrated.without_fold[i])},
                    {"without_family_s", predicted(calibrated.without_family[i])},
                    {"doubt", calibrated.without_family[i].doubt}});
  }
  return rows;
}

// What was taken from elsewhere, and what is far off what `known` predicts.
Json AssumedOf(const std::vector<std::string>& paths, const std::vector<plan::MeasuredTable>& tables,
               const plan::Calibration& known) {
  Json all = Json::array();
  for (size_t i = 0; i < tables.size(); ++i)
    for (const plan::SkippedRow& row : plan::AssumedOf(tables[i], known))
      all.push_back({{"table", paths[i]}, {"row", row.row}, {"what", row.why}});
  return all;
}

absl::StatusOr<std::vector<plan::MeasuredRun>> RunsOfTrace(const CalibrateFlags& flags, Json& notes) {
  if (flags.trace.empty()) return std::vector<plan::MeasuredRun>();
  LS_ASSIGN_OR_RETURN(const PlanQuestion question, AskedBy(flags.work));
  notes = NotesOf(question);
  const plan::Cluster& cluster = question.clusters.front();
  plan::Workload work = cluster.base;
  work.zero = 1;
  LS_RETURN_IF_ERROR(plan::TakeLayout(flags.work.layout, work));
  LS_ASSIGN_OR_RETURN(const plan::MeasuredParts measured, MeasuredBy(flags.trace, work));
  return plan::ProfiledRuns(measured, work, cluster.rates);
}

// What the fit has changed of the hardware and the stack that the trace is of.
Json Changed(const plan::Workload& work, const plan::Calibration& before, const plan::Calibration& after) {
  constexpr double kSame = .005;
  const plan::Rates from = before.Of(work).value_or(plan::Rates{}), to = after.Of(work).value_or(plan::Rates{});
  Json rows = Json::array();
  for (const plan::RateField& field : plan::RateFields()) {
    const double a = from.*field.member, b = to.*field.member;
    if (std::abs(b - a) > kSame * std::abs(a)) rows.push_back({{"rate", field.name}, {"before", a}, {"after", b}});
  }
  return rows;
}

absl::StatusOr<Json> Calibrate(const CalibrateFlags& flags) {
  LS_ASSIGN_OR_RETURN(const plan::Known known, ReadKnown());
  std::vector<plan::MeasuredTable> tables;
  if (flags.tables.empty() && flags.trace.empty())
    return InvalidArgument("lockstep plan calibrate: expected tables of measured runs, or --trace; see --help");
  for (size_t i = 0; i < flags.tables.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (std::error_code error; std::filesystem::equivalent(flags.tables[i], flags.tables[j], error))
        return InvalidArgument("{}: it is given twice", flags.tables[i]);
  for (const std::string& path : flags.tables) {
    LS_ASSIGN_OR_RETURN(tables.emplace_back(), plan::ReadMeasured(path, known));
  }
  plan::Runs runs;
  size_t skipped = 0, rows = 0;
  for (const plan::MeasuredTable& table : tables) {
    skipped += table.skipped.size();
    rows += table.skipped.size() + table.runs.size();
    for (const plan::MeasuredRun& run : table.runs)
      if (run.Measured().step_s > 0 && !run.guesses().sizes) runs.push_back(&run);
  }
  Json notes = Json::object();
  LS_ASSIGN_OR_RETURN(const std::vector<plan::MeasuredRun> profile, RunsOfTrace(flags, notes));
  const size_t whole = runs.size();
  for (const plan::MeasuredRun& run : profile) runs.push_back(&run);
  if (flags.fresh && whole == 0 && flags.tables.empty())
    return InvalidArgument("--fresh needs whole runs: a trace alone says too little; leave it out, or add a table");
  if (runs.empty() && flags.tables.empty())
    return InvalidArgument("--trace: none of its parts is a hundredth of the step that is measured and predicted");
  if (runs.empty() || (flags.fresh && whole == 0))
    return InvalidArgument(
        "{}: no run to calibrate with: {} of {} rows were skipped (`lockstep plan validate` says why), of the others "
        "none has a step_time_s, or its model's sizes",
        flags.tables.front(), skipped, rows);
  LS_ASSIGN_OR_RETURN(const std::string presets, PlanPresets());
  const absl::StatusOr<plan::Calibration> read =
      plan::ReadCalibration(flags.work.calibration.empty() ? presets : flags.work.calibration);
  if (!flags.fresh) LS_RETURN_IF_ERROR(read.status());
  const plan::Calibration base = flags.fresh ? plan::Calibration() : *read;
  const plan::Calibrated calibrated = plan::Calibrate(runs, known, flags.fresh ? nullptr : &base);
  const plan::Calibration& calibration = calibrated.calibration;
  const std::string about = fmt::format("Fitted by `lockstep plan calibrate` to {} measured runs{}.", whole,
                                        profile.empty() ? "" : " and a profile");
  LS_RETURN_IF_ERROR(plan::WriteCalibration(calibration, flags.out, about));
  Json report = {{"folder", flags.out},
                 {"runs", whole},
                 {"skipped", skipped},
                 {"assumed", AssumedOf(flags.tables, tables, read.ok() ? *read : calibration)},
                 {"mean_error", plan::MeanError(runs, calibration)},
                 {"scatter_unseen", calibration.hardware.begin()->second.scatter},
                 {"doubt_unseen", calibration.hardware.begin()->second.doubt}};
  if (flags.rows) report["rows"] = RowsOf(runs, calibrated);
  report.update(notes);
  if (profile.empty()) return report;
  report["parts_of_trace"] = profile.size();
  report["mean_error_before"] = plan::MeanError(runs, base);
  report["changed"] = Changed(profile.front().workload(), base, calibration);
  return report;
}

}  // namespace

void AddPlanCalibrate(CLI::App& plan, int& exit_code) {
  auto flags = std::make_shared<CalibrateFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command =
      plan.add_subcommand("calibrate", "Fit the rates of hardware and the habits of software to measured runs");
  command->add_option("FILES", flags->tables, "Measured runs, CSV (docs/formats/measured.md)");
  CLI::Option* trace = command->add_option("--trace", flags->trace,
                                           "Files of the PyTorch profiler or of Nsight Systems, one per rank, of a job "
                                           "that --model, --cluster, --batch and --layout are of");
  const size_t before = command->get_options().size();
  AddWork(*command, flags->work);
  const std::vector<CLI::Option*> options = command->get_options();
  for (size_t i = before; i < options.size(); ++i)
    if (options[i]->get_name() != "--calibration") options[i]->needs(trace);
  CLI::Option* layout = command->add_option("--layout", flags->work.layout, "As in lockstep plan");
  trace->expected(1, -1)->needs(layout);
  layout->needs(trace);
  command->add_option("-o,--out", flags->out, "Folder to write")->required();
  command
      ->add_flag("--fresh", flags->fresh,
                 "Begin at what is usual, not at the presets, which were fitted to published runs")
      ->excludes(command->get_option("--calibration"));
  command->add_flag("--rows", flags->rows,
                    "Add each run with what fits without its fifth of the runs, and without its family, predict");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep plan calibrate measured.csv -o calibration");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Calibrate(*flags), flags->json); });
}

}  // namespace lockstep::cli
