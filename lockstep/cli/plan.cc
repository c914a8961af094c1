#include <fmt/ranges.h>

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

absl::StatusOr<plan::Known> ReadKnown() {
  LS_ASSIGN_OR_RETURN(const std::string folder, PresetsFolder());
  return plan::ReadKnown(folder);
}

struct ValidateFlags {
  std::string table, calibration;
  bool rows = false, json = false;
};

absl::StatusOr<Json> Validate(const ValidateFlags& flags) {
  LS_ASSIGN_OR_RETURN(const plan::Known known, ReadKnown());
  LS_ASSIGN_OR_RETURN(const plan::MeasuredTable table, plan::ReadMeasured(flags.table, known));
  LS_ASSIGN_OR_RETURN(const std::string presets, PresetsFolder());
  LS_ASSIGN_OR_RETURN(const plan::Calibration calibration,
                      plan::ReadCalibration(flags.calibration.empty() ? presets : flags.calibration));
  return plan::ValidateReport(table, calibration, {.rows = flags.rows});
}

void AddValidate(CLI::App& plan, int& exit_code) {
  auto flags = std::make_shared<ValidateFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = plan.add_subcommand("validate", "Predictions beside a table of measured runs: how far apart");
  command->add_option("FILE", flags->table, "Measured runs, CSV (docs/formats/measured.md)")->required();
  command->add_option("--calibration", flags->calibration, "Folder of `lockstep plan calibrate`; default: the presets");
  command->add_flag("--rows", flags->rows, "Add the prediction of each row");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep plan validate measured.csv --json");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Validate(*flags), flags->json); });
}

struct CalibrateFlags {
  std::vector<std::string> tables;
  std::string out;
  bool fresh = false, json = false;
};

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
  LS_ASSIGN_OR_RETURN(const std::string presets, PresetsFolder());
  plan::Calibration base;
  if (!flags.fresh) {
    LS_ASSIGN_OR_RETURN(base, plan::ReadCalibration(presets));
  }
  const plan::Calibration calibration = plan::Calibrate(runs, known, flags.fresh ? nullptr : &base);
  const std::string about = fmt::format("Fitted by `lockstep plan calibrate` to {} measured runs.", runs.size());
  LS_RETURN_IF_ERROR(plan::WriteCalibration(calibration, flags.out, about));
  return Json{{"folder", flags.out},
              {"runs", runs.size()},
              {"skipped", skipped},
              {"mean_error", plan::MeanError(runs, calibration)},
              {"spread_unseen", calibration.hardware.begin()->second.residual_high}};
}

void AddCalibrate(CLI::App& plan, int& exit_code) {
  auto flags = std::make_shared<CalibrateFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command =
      plan.add_subcommand("calibrate", "Fit the rates of hardware and the habits of software to measured runs");
  command->add_option("FILES", flags->tables, "Measured runs, CSV (docs/formats/measured.md)")->required();
  command->add_option("-o,--out", flags->out, "Folder to write")->required();
  command->add_flag("--fresh", flags->fresh,
                    "Begin at what is usual, not at the presets, which were fitted to published runs");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep plan calibrate measured.csv -o calibration");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Calibrate(*flags), flags->json); });
}

// ---- a model on a cluster ----

struct PlanFlags {
  std::string model, cluster, layout, precision = "bf16", stack = "nemo", calibration;
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

// Of the machine and the stack, which is put into the workload.
absl::StatusOr<plan::Rates> TakeRates(const PlanFlags& flags, const std::string& folder, plan::Workload& work) {
  LS_ASSIGN_OR_RETURN(const plan::Calibration calibration,
                      plan::ReadCalibration(flags.calibration.empty() ? folder : flags.calibration));
  const plan::Stack* stack = calibration.stacks.Find(flags.stack);
  if (stack == nullptr) {
    std::vector<std::string> names;
    for (const plan::Stack& known : calibration.stacks.all()) names.push_back(known.name);
    return InvalidArgument("--stack {}: expected one of {}", flags.stack, fmt::join(names, ", "));
  }
  work.stack = stack->name;
  work.keeps = stack->memory;
  work.flash = !stack->memory.unfused;
  const std::optional<plan::Rates> rates = calibration.Of(work);
  if (!rates) return InvalidArgument("--cluster {}: there are no rates for {}", flags.cluster, work.machine.rates);
  return *rates;
}

absl::StatusOr<Json> Plan(const PlanFlags& flags) {
  LS_ASSIGN_OR_RETURN(const std::string folder, PresetsFolder());
  LS_ASSIGN_OR_RETURN(plan::Workload work, WorkloadOf(flags, folder));
  LS_ASSIGN_OR_RETURN(const plan::Rates rates, TakeRates(flags, folder, work));
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
  command
      .add_option("--stack", flags->stack,
                  "Whose habits: nemo, megatron-core, torchtitan, ... (presets/plan/stacks.toml)")
      ->capture_default_str();
  command.add_option("--calibration", flags->calibration, "Folder of `lockstep plan calibrate`; default: the presets");
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
