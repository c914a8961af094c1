#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/cli/plan_commands.h"
#include "lockstep/plan/calibrate.h"
#include "lockstep/plan/validate.h"

namespace lockstep::cli {
namespace {

absl::StatusOr<plan::Known> ReadKnown() {
  LS_ASSIGN_OR_RETURN(const std::string folder, PlanPresets());
  return plan::ReadKnown(folder);
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
  std::vector<std::string> tables;
  std::string out;
  bool fresh = false, rows = false, json = false;
};

// Of each run what fits without its fifth of the runs, and without its family, predict.
Json RowsOf(const plan::Runs& runs, const plan::Calibrated& calibrated) {
  Json rows = Json::array();
  for (size_t i = 0; i < runs.size(); ++i) {
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

absl::StatusOr<Json> Calibrate(const CalibrateFlags& flags) {
  LS_ASSIGN_OR_RETURN(const plan::Known known, ReadKnown());
  std::vector<plan::MeasuredTable> tables;
  for (const std::string& path : flags.tables) {
    LS_ASSIGN_OR_RETURN(tables.emplace_back(), plan::ReadMeasured(path, known));
  }
  plan::Runs runs;
  size_t skipped = 0;
  for (const plan::MeasuredTable& table : tables) {
    skipped += table.skipped.size();
    for (const plan::MeasuredRun& run : table.runs)
      if (run.Measured().step_s > 0) runs.push_back(&run);
  }
  if (runs.empty())
    return InvalidArgument("{}: no run to calibrate with ({} rows were skipped; `lockstep plan validate` says why)",
                           flags.tables.front(), skipped);
  LS_ASSIGN_OR_RETURN(const std::string presets, PlanPresets());
  plan::Calibration base;
  if (!flags.fresh) {
    LS_ASSIGN_OR_RETURN(base, plan::ReadCalibration(presets));
  }
  const plan::Calibrated calibrated = plan::Calibrate(runs, known, flags.fresh ? nullptr : &base);
  const plan::Calibration& calibration = calibrated.calibration;
  const std::string about = fmt::format("Fitted by `lockstep plan calibrate` to {} measured runs.", runs.size());
  LS_RETURN_IF_ERROR(plan::WriteCalibration(calibration, flags.out, about));
  Json report = {{"folder", flags.out},
                 {"runs", runs.size()},
                 {"skipped", skipped},
                 {"mean_error", plan::MeanError(runs, calibration)},
                 {"scatter_unseen", calibration.hardware.begin()->second.scatter},
                 {"doubt_unseen", calibration.hardware.begin()->second.doubt}};
  if (flags.rows) report["rows"] = RowsOf(runs, calibrated);
  return report;
}

}  // namespace

void AddPlanCalibrate(CLI::App& plan, int& exit_code) {
  auto flags = std::make_shared<CalibrateFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command =
      plan.add_subcommand("calibrate", "Fit the rates of hardware and the habits of software to measured runs");
  command->add_option("FILES", flags->tables, "Measured runs, CSV (docs/formats/measured.md)")->required();
  command->add_option("-o,--out", flags->out, "Folder to write")->required();
  command->add_flag("--fresh", flags->fresh,
                    "Begin at what is usual, not at the presets, which were fitted to published runs");
  command->add_flag("--rows", flags->rows,
                    "Add each run with what fits without its fifth of the runs, and without its family, predict");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep plan calibrate measured.csv -o calibration");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Calibrate(*flags), flags->json); });
}

}  // namespace lockstep::cli
