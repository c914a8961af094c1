#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/cli/plan_commands.h"
#include "lockstep/plan/calibrate.h"
#include "lockstep/plan/validate.h"

namespace lockstep::cli {
namespace {

absl::StatusOr<plan::MeasuredTable> ReadTable(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string folder, PlanPresets());
  LS_ASSIGN_OR_RETURN(const plan::Machines machines, plan::ReadMachines(folder + "/machines.toml"));
  return plan::ReadMeasured(path, machines);
}

// Of each kind of hardware in the table that has some.
absl::StatusOr<plan::RatesByName> RatesOf(const plan::MeasuredTable& table, const std::string& calibration) {
  LS_ASSIGN_OR_RETURN(const std::string folder, PlanPresets());
  plan::RatesByName rates;
  for (const plan::MeasuredRun& run : table.runs) {
    const std::string& name = run.workload().machine.rates;
    if (rates.contains(name)) continue;
    const std::string path = calibration.empty() ? folder + "/rates_" + name + ".toml" : calibration;
    absl::StatusOr<plan::Rates> read = plan::ReadRates(path);
    if (absl::IsNotFound(read.status()) && calibration.empty()) continue;
    LS_RETURN_IF_ERROR(read.status());
    rates.emplace(name, *read);
  }
  return rates;
}

struct ValidateFlags {
  std::string table, calibration;
  bool rows = false, json = false;
};

absl::StatusOr<Json> Validate(const ValidateFlags& flags) {
  LS_ASSIGN_OR_RETURN(const plan::MeasuredTable table, ReadTable(flags.table));
  LS_ASSIGN_OR_RETURN(const plan::RatesByName rates, RatesOf(table, flags.calibration));
  return plan::ValidateReport(table, rates, {.rows = flags.rows});
}

}  // namespace

void AddPlanValidate(CLI::App& plan, int& exit_code) {
  auto flags = std::make_shared<ValidateFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = plan.add_subcommand("validate", "Predictions beside a table of measured runs: how far apart");
  command->add_option("FILE", flags->table, "Measured runs, CSV (docs/formats/measured.md)")->required();
  command->add_option("--calibration", flags->calibration, "Rates of `lockstep plan calibrate`, for all rows");
  command->add_flag("--rows", flags->rows, "Add the prediction of each row");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep plan validate measured.csv --json");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Validate(*flags), flags->json); });
}

namespace {

struct CalibrateFlags {
  std::string table, out, rates;
  bool json = false;
};

absl::StatusOr<plan::Runs> RunsOf(const plan::MeasuredTable& table, const CalibrateFlags& flags) {
  plan::Runs runs;
  std::string kind = flags.rates;
  for (const plan::MeasuredRun& run : table.runs) {
    const std::string& name = run.workload().machine.rates;
    if (run.Measured().step_s == 0) continue;
    if (kind.empty()) kind = name;
    if (name == kind) runs.push_back(&run);
    if (name != kind && flags.rates.empty())
      return InvalidArgument("{}: it has runs on {} and on {}: say which with --rates", flags.table, kind, name);
  }
  if (runs.empty()) return InvalidArgument("{}: no run to calibrate with", flags.table);
  return runs;
}

absl::StatusOr<Json> Calibrate(const CalibrateFlags& flags) {
  LS_ASSIGN_OR_RETURN(const plan::MeasuredTable table, ReadTable(flags.table));
  LS_ASSIGN_OR_RETURN(const plan::Runs runs, RunsOf(table, flags));
  const plan::Rates rates = plan::Calibrate(runs, {});
  const std::string about = fmt::format("# Fitted by `lockstep plan calibrate` to {} measured runs.\n", runs.size());
  LS_RETURN_IF_ERROR(WriteFileAtomically(flags.out, plan::RatesText(rates, about)));
  return Json{{"file", flags.out},
              {"runs", runs.size()},
              {"mean_error", plan::MeanError(runs, rates)},
              {"residual_low", rates.residual_low},
              {"residual_high", rates.residual_high}};
}

}  // namespace

void AddPlanCalibrate(CLI::App& plan, int& exit_code) {
  auto flags = std::make_shared<CalibrateFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = plan.add_subcommand("calibrate", "Fit the rates of a kind of hardware to measured runs on it");
  command->add_option("FILE", flags->table, "Measured runs, CSV (docs/formats/measured.md)")->required();
  command->add_option("-o,--out", flags->out, "File to write, TOML")->required();
  command->add_option("--rates", flags->rates, "Of a table of several: which kind of hardware");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep plan calibrate measured.csv --rates h100 -o h100.toml");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Calibrate(*flags), flags->json); });
}

}  // namespace lockstep::cli
