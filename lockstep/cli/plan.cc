#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cluster/presets.h"
#include "lockstep/node/install.h"
#include "lockstep/plan/calibrate.h"
#include "lockstep/plan/madmax_report.h"
#include "lockstep/plan/model_file.h"
#include "lockstep/plan/moe_schedule.h"
#include "lockstep/plan/report.h"
#include "lockstep/plan/validate.h"

namespace lockstep::cli {
namespace {

struct MadmaxFlags {
  std::string configs, golden;
  bool json = false;
};

void AddMadmax(CLI::App& plan, int& exit_code) {
  auto flags = std::make_shared<MadmaxFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = plan.add_subcommand(
      "madmax", "MAD-Max's model (ISCA 2024) computed anew, beside what its authors' program gave: how far apart");
  command->add_option("--configs", flags->configs, "Models and systems, JSON")->required();
  command->add_option("--golden", flags->golden, "Configurations and what that program gave, CSV")->required();
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep plan madmax --configs madmax_configs.json --golden madmax_golden.csv");
  command->callback([flags, &exit_code] {
    exit_code = PrintReport(plan::CompareMadmax(flags->configs, flags->golden), flags->json);
  });
}

void AddMoe(CLI::App& plan, int& exit_code) {
  struct Flags {
    std::string grid;
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();  // lives as long as the callbacks of the parser
  CLI::App* command = plan.add_subcommand(
      "moe", "Schedules of mixtures of experts (Parm's S1 and S2, FSMoE's chunks), computed for a grid of layers");
  command->add_option("FILE", flags->grid, "Layers and what these formulas gave elsewhere, CSV")->required();
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep plan moe parm_grid.csv");
  command->callback([flags, &exit_code] { exit_code = PrintReport(plan::CompareMoe(flags->grid), flags->json); });
}

// ---- measured runs ----

absl::StatusOr<std::string> PresetsFolder() {
  LS_ASSIGN_OR_RETURN(const node::Installation installation, node::FindInstallation());
  return installation.presets + "/plan";
}

absl::StatusOr<plan::MeasuredTable> ReadTable(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string folder, PresetsFolder());
  LS_ASSIGN_OR_RETURN(const plan::Machines machines, plan::ReadMachines(folder + "/machines.toml"));
  return plan::ReadMeasured(path, machines);
}

// Of each kind of hardware in the table that has some.
absl::StatusOr<plan::RatesByName> RatesOf(const plan::MeasuredTable& table, const std::string& calibration) {
  LS_ASSIGN_OR_RETURN(const std::string folder, PresetsFolder());
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

void AddValidate(CLI::App& plan, int& exit_code) {
  auto flags = std::make_shared<ValidateFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = plan.add_subcommand("validate", "Predictions beside a table of measured runs: how far apart");
  command->add_option("FILE", flags->table, "Measured runs, CSV (docs/formats/measured.md)")->required();
  command->add_option("--calibration", flags->calibration, "Rates of `lockstep plan calibrate`, for all rows");
  command->add_flag("--rows", flags->rows, "Add the prediction of each row");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep plan validate measured.csv --json");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Validate(*flags), flags->json); });
}

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

void AddCalibrate(CLI::App& plan, int& exit_code) {
  auto flags = std::make_shared<CalibrateFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = plan.add_subcommand("calibrate", "Fit the rates of a kind of hardware to measured runs on it");
  command->add_option("FILE", flags->table, "Measured runs, CSV (docs/formats/measured.md)")->required();
  command->add_option("-o,--out", flags->out, "File to write, TOML")->required();
  command->add_option("--rates", flags->rates, "Of a table of several: which kind of hardware");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep plan calibrate measured.csv --rates h100 -o h100.toml");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Calibrate(*flags), flags->json); });
}

// ---- a model on a cluster ----

struct PlanFlags {
  std::string model, cluster, layout, precision = "bf16", calibration;
  int batch = 0, sequence = 0;
  size_t top = 5;
  bool json = false;
};

// "NAME:N", N accelerators of that machine.
absl::Status TakeCluster(const PlanFlags& flags, const std::string& folder, plan::Workload& work) {
  const size_t colon = flags.cluster.rfind(':');
  const std::string count = colon == std::string::npos ? "" : flags.cluster.substr(colon + 1);
  const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), work.accelerators);
  if (error != std::errc() || end != count.data() + count.size() || work.accelerators < 1)
    return InvalidArgument("--cluster {}: expected NAME:N, N accelerators, such as h100-80gb:64", flags.cluster);
  LS_ASSIGN_OR_RETURN(const plan::Machines machines, plan::ReadMachines(folder + "/machines.toml"));
  LS_ASSIGN_OR_RETURN(work.machine, machines.Find(flags.cluster.substr(0, colon)));
  return absl::OkStatus();
}

absl::StatusOr<plan::Workload> WorkloadOf(const PlanFlags& flags, const std::string& folder) {
  plan::Workload work;
  work.sequence = flags.sequence;
  work.global_batch = flags.batch;
  work.gradient_bytes = 2;
  LS_RETURN_IF_ERROR(TakeCluster(flags, folder, work));
  LS_ASSIGN_OR_RETURN(const node::Installation installation, node::FindInstallation());
  LS_RETURN_IF_ERROR(plan::TakeModel(flags.model, cluster::Presets(installation.presets), work));
  if (flags.precision == "fp8") work.precision = plan::Precision::kFp8;
  if (flags.precision == "fp4") work.precision = plan::Precision::kFp4;
  const bool lacks =
      (flags.precision == "fp8" && work.machine.fp8 == 0) || (flags.precision == "fp4" && work.machine.fp4 == 0);
  if (lacks) return InvalidArgument("--precision {}: {} has none", flags.precision, work.machine.name);
  if (work.sequence < 1) return InvalidArgument("--seq: the model has no context of its own; say how many tokens");
  return work;
}

std::string WhatWouldFit(const plan::Candidate& nearest) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  return fmt::format(
      "no layout fits the memory: the least is {:.1f} GiB of {:.1f} ({}); what would help, cheapest first: fewer "
      "tokens in "
      "a sequence, more accelerators, accelerators with more memory",
      nearest.memory.total() / kGiB, nearest.workload.machine.memory / kGiB, plan::LayoutText(nearest.workload));
}

absl::StatusOr<Json> Plan(const PlanFlags& flags) {
  LS_ASSIGN_OR_RETURN(const std::string folder, PresetsFolder());
  LS_ASSIGN_OR_RETURN(plan::Workload work, WorkloadOf(flags, folder));
  const std::string path =
      flags.calibration.empty() ? folder + "/rates_" + work.machine.rates + ".toml" : flags.calibration;
  LS_ASSIGN_OR_RETURN(const plan::Rates rates, plan::ReadRates(path));
  if (!flags.layout.empty()) {
    work.zero = 1;
    LS_RETURN_IF_ERROR(plan::TakeLayout(flags.layout, work));
    return plan::PredictionReport(plan::Predict(work, rates), rates);
  }
  const plan::SearchResult result = plan::Search(work, rates, {.keep = flags.top});
  if (!result.nearest.empty()) return MakeError(absl::StatusCode::kResourceExhausted, WhatWouldFit(result.nearest[0]));
  if (result.best.empty())
    return InvalidArgument("no layout divides {} accelerators, a batch of {} and {} heads", work.accelerators,
                           work.global_batch, work.heads);
  return plan::SearchReport(result, rates);
}

void AddSearch(CLI::App& command, int& exit_code) {
  auto flags = std::make_shared<PlanFlags>();  // lives as long as the callbacks of the parser
  command.add_option("--model", flags->model, "A preset, a .toml file, or a config.json of Hugging Face");
  command.add_option("--cluster", flags->cluster, "NAME:N, N accelerators: h100-80gb:64");
  command.add_option("--batch", flags->batch, "Sequences of a step")->check(CLI::PositiveNumber);
  command.add_option("--seq", flags->sequence, "Tokens of a sequence; default: the model's context")
      ->check(CLI::PositiveNumber);
  command.add_option("--precision", flags->precision, "Of the layers' matrices: bf16, fp8 or fp4")
      ->check(CLI::IsMember({"bf16", "fp8", "fp4"}))
      ->capture_default_str();
  command.add_option("--layout", flags->layout, "Predict this one alone: tp=8,pp=4,mbs=1,zero=1,recompute=none");
  command.add_option("--top", flags->top, "So many layouts")->check(CLI::Range(1, 1000))->capture_default_str();
  command.add_option("--calibration", flags->calibration, "Rates of `lockstep plan calibrate`");
  command.add_flag("--json", flags->json, "One JSON document on stdout");
  command.footer("Example: lockstep plan --model llama3-70b --cluster h100-80gb:64 --batch 128 --precision fp8");
  command.callback([flags, &command, &exit_code] {
    if (!command.get_subcommands().empty()) return;
    if (flags->model.empty() || flags->cluster.empty() || flags->batch == 0) {
      exit_code = PrintError(InvalidArgument("lockstep plan needs --model, --cluster and --batch; see --help"));
      return;
    }
    const absl::StatusOr<Json> report = Plan(*flags);
    exit_code = PrintReport(report, flags->json);
    if (report.status().code() == absl::StatusCode::kResourceExhausted) exit_code = kExitNo;
  });
}

}  // namespace

void AddPlan(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("plan", "How a model should run on a cluster, and how long a step will take");
  command->require_subcommand(0, 1);
  AddSearch(*command, exit_code);
  AddValidate(*command, exit_code);
  AddCalibrate(*command, exit_code);
  AddMadmax(*command, exit_code);
  AddMoe(*command, exit_code);
}

}  // namespace lockstep::cli
