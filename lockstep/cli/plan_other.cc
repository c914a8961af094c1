// `lockstep plan dlrm` and `lockstep plan inference`: other questions than how a decoder trains.
#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/cli/checks.h"
#include "lockstep/cli/plan_commands.h"
#include "lockstep/cli/plan_question.h"
#include "lockstep/node/install.h"
#include "lockstep/plan/dlrm.h"
#include "lockstep/plan/inference.h"

namespace lockstep::cli {
namespace {

struct DlrmFlags {
  std::string model, cluster, stack = "nemo", calibration;
  int batch = 0;
  bool json = false;
};

absl::StatusOr<Json> Recommended(const DlrmFlags& flags) {
  LS_ASSIGN_OR_RETURN(const plan::Machines machines, KnownMachines());
  LS_ASSIGN_OR_RETURN(const plan::Cluster cluster,
                      ClusterNamed(flags.cluster, machines, flags.stack, flags.calibration));
  LS_ASSIGN_OR_RETURN(const std::string path, node::FindPreset("dlrm", flags.model));
  LS_ASSIGN_OR_RETURN(plan::Dlrm model, plan::ReadDlrm(path));
  model.batch = flags.batch;
  LS_ASSIGN_OR_RETURN(Json report,
                      plan::DlrmReport(model, {cluster.base.machine, cluster.base.accelerators}, cluster.rates));
  if (const std::string note = plan::UnitNote(cluster.base.machine); !note.empty()) report["machine_note"] = note;
  return report;
}

struct InferenceFlags {
  PlanFlags plan;
  plan::Requests requests;
};

absl::StatusOr<Json> Served(const InferenceFlags& flags) {
  PlanFlags asked = flags.plan;
  asked.sequence = flags.requests.prompt;
  LS_ASSIGN_OR_RETURN(const PlanQuestion question, AskedBy(asked));
  const plan::Cluster& cluster = question.clusters.front();
  plan::Requests requests = flags.requests;
  requests.batch = asked.batch;
  LS_ASSIGN_OR_RETURN(Json report, plan::InferenceReport(cluster.base, cluster.rates, requests, asked.top));
  report.update(NotesOf(question));
  return report;
}

}  // namespace

void AddPlanDlrm(CLI::App& plan, int& exit_code) {
  auto flags = std::make_shared<DlrmFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command =
      plan.add_subcommand("dlrm", "How to split the tables of a recommendation model, and its step time");
  command->add_option("MODEL", flags->model, "Tables and layers: a preset, or a .toml (docs/models/plan.md)")
      ->required();
  command->add_option("--cluster", flags->cluster, "NAME:N, N accelerators: a100-40gb:128")->required();
  command->add_option("--batch", flags->batch, "Samples of a step")->check(AboveZero())->required();
  command->add_option("--calibration", flags->calibration, "Folder of `lockstep plan calibrate`; default: the presets");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep plan dlrm dlrm-a --cluster a100-40gb:128 --batch 65536");
  command->callback([flags, &exit_code] { exit_code = PrintPlan(Recommended(*flags), flags->json); });
}

void AddPlanInference(CLI::App& plan, int& exit_code) {
  auto flags = std::make_shared<InferenceFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command =
      plan.add_subcommand("inference", "How fast a model answers: its first token, and each further one");
  command->add_option("--model", flags->plan.model, "A preset, a .toml file, or a config.json of Hugging Face")
      ->required();
  command->add_option("--cluster", flags->plan.clusters, "NAME:N, N accelerators: h100-80gb:8")
      ->required()
      ->expected(1);
  command->add_option("--batch", flags->plan.batch, "Sequences at a time, of one replica")
      ->check(AboveZero())
      ->required();
  command->add_option("--prompt", flags->requests.prompt, "Tokens of a prompt")->check(Between(1, 1 << 24))->required();
  command->add_option("--output", flags->requests.output, "Tokens of an answer")
      ->check(Between(1, 1 << 24))
      ->required();
  command->add_option("--precision", flags->plan.precisions, "Of the weights: bf16, fp8 or fp4")
      ->expected(1)
      ->check(CLI::IsMember({"bf16", "fp8", "fp4"}))
      ->capture_default_str();
  command->add_option("--calibration", flags->plan.calibration,
                      "Folder of `lockstep plan calibrate`; default: the presets");
  command->add_option("--top", flags->plan.top, "So many layouts")->check(Between(1, 1000))->capture_default_str();
  command->add_flag("--json", flags->plan.json, "One JSON document on stdout");
  command->footer(
      "Example: lockstep plan inference --model llama3-70b --cluster h100-80gb:8 --batch 16 --prompt 2048 --output "
      "256");
  command->callback([flags, &exit_code] { exit_code = PrintPlan(Served(*flags), flags->plan.json); });
}

}  // namespace lockstep::cli
