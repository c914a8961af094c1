#include "lockstep/cli/plan_question.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/number.h"
#include "lockstep/cli/plan_commands.h"
#include "lockstep/cluster/presets.h"
#include "lockstep/node/install.h"
#include "lockstep/plan/calibration.h"
#include "lockstep/plan/emit.h"
#include "lockstep/plan/model_file.h"

namespace lockstep::cli {
namespace {

absl::Status TakeMachine(const std::string& name, const plan::Machines& known, plan::Workload& work) {
  if (!name.ends_with(".toml")) {
    LS_ASSIGN_OR_RETURN(work.machine, known.Find(name));
    return absl::OkStatus();
  }
  LS_ASSIGN_OR_RETURN(const plan::Machines own, plan::ReadMachines(name));
  if (own.all().size() != 1) return InvalidArgument("{}: expected one [[machine]], found {}", name, own.all().size());
  work.machine = own.all().front().machine;
  return absl::OkStatus();
}

// "NAME:N", N accelerators of that machine; NAME may be a file of one's own.
absl::Status TakeCluster(const std::string& text, const plan::Machines& known, plan::Workload& work) {
  const size_t colon = text.rfind(':');
  const std::string count = colon == std::string::npos ? "" : text.substr(colon + 1);
  work.accelerators = WholeNumber<int>(count).value_or(0);
  if (work.accelerators < 1 || work.accelerators > plan::kMostAccelerators)
    return InvalidArgument("--cluster {}: expected NAME:N, 1 to {} accelerators, such as h100-80gb:64", text,
                           plan::kMostAccelerators);
  return TakeMachine(text.substr(0, colon), known, work);
}

// False: the machine has none.
bool TakePrecision(const std::string& precision, plan::Workload& work) {
  work.precision = precision == "fp8"   ? plan::Precision::kFp8
                   : precision == "fp4" ? plan::Precision::kFp4
                                        : plan::Precision::kBf16;
  return work.machine.Peak(work.precision) > 0;
}

absl::Status CheckWork(const std::string& model, const plan::Workload& work) {
  if (work.sequence < 1) return InvalidArgument("--seq: the model has no context of its own; say how many tokens");
  if (work.Tokens() > plan::kMostTokens)
    return InvalidArgument(
        "--batch {}: of {} tokens each that is {:.3g} tokens a step; it counts sequences, not tokens",
        work.global_batch, work.sequence, work.Tokens());
  if (const absl::Status fits = work.ValidateModel(); !fits.ok())
    return InvalidArgument("--model {}: {}", model, Message(fits));
  return absl::OkStatus();
}

// "embedding", or "layers:N".
absl::Status TakeFrozen(const std::string& part, plan::Workload& work) {
  constexpr std::string_view kLayers = "layers:";
  if (work.training == plan::Training::kLora)
    return InvalidArgument("--freeze {}: beside adapters (--training lora) everything is frozen", part);
  work.frozen.embedding = work.frozen.embedding || part == "embedding";
  if (part == "embedding") return absl::OkStatus();
  if (work.frozen.layers > 0)
    return InvalidArgument("--freeze {}: the first {} are frozen already; say layers once", part, work.frozen.layers);
  const std::string count = part.starts_with(kLayers) ? part.substr(kLayers.size()) : "";
  const int layers = work.frozen.layers = WholeNumber<int>(count).value_or(0);
  if (layers < 1) return InvalidArgument("--freeze {}: expected embedding, or layers:N, the first N", part);
  if (layers >= work.layers)
    return InvalidArgument("--freeze {}: of {} layers at most {} can be frozen", part, work.layers, work.layers - 1);
  return absl::OkStatus();
}

// Flags are predicted as their own framework runs them.
std::string StackOf(const PlanFlags& flags) {
  if (!flags.stack.empty()) return flags.stack;
  return flags.emit.empty() ? "nemo" : std::string(plan::StackOf(flags.emit));
}

// Of the machine and the stack, which is put into the workload.
absl::StatusOr<plan::Rates> TakeRates(const std::string& stack, const std::string& folder, plan::Workload& work) {
  LS_ASSIGN_OR_RETURN(const plan::Calibration calibration, plan::ReadCalibration(folder));
  const plan::Stack* known = calibration.stacks.Find(stack);
  if (known == nullptr) {
    std::vector<std::string> names;
    for (const plan::Stack& one : calibration.stacks.all()) names.push_back(one.name);
    return InvalidArgument("--stack {}: expected one of {}", stack, fmt::join(names, ", "));
  }
  work.stack = known->name;
  work.keeps = known->memory;
  work.flash = !known->memory.unfused;
  const std::optional<plan::Rates> rates = calibration.Of(work);
  if (!rates)
    return NotFound(
        "machine {}: there are no rates \"{}\" in {}; name others of there, or give --calibration DIR of "
        "`lockstep plan calibrate`",
        work.machine.name, work.machine.rates, folder);
  return *rates;
}

absl::StatusOr<plan::Cluster> ClusterOf(const std::string& text, const PlanFlags& flags, const plan::Machines& machines,
                                        std::string& model_note) {
  LS_ASSIGN_OR_RETURN(plan::Cluster cluster, ClusterNamed(text, machines, StackOf(flags), flags.calibration));
  plan::Workload& work = cluster.base;
  work.sequence = flags.sequence;
  work.global_batch = flags.batch;
  if (flags.usd_per_hour > 0) work.machine.usd_per_hour = flags.usd_per_hour;
  if (flags.power_w > 0) work.machine.power = flags.power_w;
  LS_ASSIGN_OR_RETURN(const node::Installation installation, node::FindInstallation());
  LS_RETURN_IF_ERROR(plan::TakeModel(flags.model, cluster::Presets(installation.presets), work, &model_note));
  if (flags.training == "lora") work.training = plan::Training::kLora;
  for (const std::string& part : flags.freeze) LS_RETURN_IF_ERROR(TakeFrozen(part, work));
  LS_RETURN_IF_ERROR(CheckWork(flags.model, work));
  return cluster;
}

absl::StatusOr<plan::Objective> ObjectiveOf(const PlanFlags& flags, const std::vector<plan::Cluster>& clusters) {
  for (const plan::Cluster& cluster : clusters) {
    const plan::Machine& machine = cluster.base.machine;
    if (flags.objective == "cost" && machine.usd_per_hour == 0)
      return InvalidArgument("--objective cost: no price of {} is known; say --usd-per-hour", machine.name);
    if (flags.objective == "energy" && machine.power == 0)
      return InvalidArgument("--objective energy: the power of {} is not known; say --power-w", machine.name);
  }
  if (flags.objective == "cost") return plan::Objective::kCost;
  return flags.objective == "energy" ? plan::Objective::kEnergy : plan::Objective::kTime;
}

// Each machine has one name, by which a report tells it from others, and each cluster is asked for once.
absl::Status CheckNames(const std::vector<std::string>& texts, const std::vector<plan::Cluster>& clusters) {
  for (size_t i = 0; i < texts.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      const plan::Workload &one = clusters[i].base, &other = clusters[j].base;
      const bool are_files =
          texts[i].find(".toml:") != std::string::npos || texts[j].find(".toml:") != std::string::npos;
      const bool are_same = texts[i].substr(0, texts[i].rfind(':')) == texts[j].substr(0, texts[j].rfind(':'));
      if (one.machine.name != other.machine.name) continue;
      if (are_files && !are_same)
        return InvalidArgument("--cluster {},{}: both machines are called {}; give one another name", texts[j],
                               texts[i], one.machine.name);
      if (one.accelerators == other.accelerators)
        return InvalidArgument("--cluster {},{}: these are the same; expected each once", texts[j], texts[i]);
    }
  return absl::OkStatus();
}

template <typename Value>
void AddOnce(const Value& value, std::vector<Value>& all) {
  if (std::ranges::find(all, value) == all.end()) all.push_back(value);
}

absl::Status TakeOffloads(const PlanFlags& flags, PlanQuestion& question) {
  question.space.offloads.clear();
  for (const std::string& name : flags.offloads) {
    const absl::StatusOr<plan::Offload> offload = plan::ParseOffload(name);
    if (!offload.ok()) return InvalidArgument("--offload: {}", Message(offload.status()));
    for (const plan::Cluster& cluster : question.clusters)
      if (const absl::Status known = plan::CheckOffload(cluster.base, *offload); !known.ok())
        return InvalidArgument("--offload: {}", Message(known));
    AddOnce(*offload, question.space.offloads);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> PlanPresets() {
  LS_ASSIGN_OR_RETURN(const node::Installation installation, node::FindInstallation());
  return installation.presets + "/plan";
}

absl::StatusOr<plan::Machines> KnownMachines() {
  LS_ASSIGN_OR_RETURN(const std::string folder, PlanPresets());
  return plan::ReadMachines(folder + "/machines.toml");
}

absl::StatusOr<plan::Cluster> ClusterNamed(const std::string& text, const plan::Machines& known,
                                           const std::string& stack, const std::string& calibration) {
  plan::Cluster cluster;
  LS_RETURN_IF_ERROR(TakeCluster(text, known, cluster.base));
  LS_ASSIGN_OR_RETURN(const std::string presets, PlanPresets());
  LS_ASSIGN_OR_RETURN(cluster.rates, TakeRates(stack, calibration.empty() ? presets : calibration, cluster.base));
  return cluster;
}

Json NotesOf(const PlanQuestion& question) {
  Json notes = Json::object();
  if (!question.model_note.empty()) notes["model_note"] = question.model_note;
  for (const plan::Cluster& cluster : question.clusters)
    if (const std::string note = plan::UnitNote(cluster.base.machine); !note.empty()) notes["machine_note"] = note;
  return notes;
}

absl::StatusOr<PlanQuestion> AskedBy(const PlanFlags& flags) {
  if (flags.model.empty() || flags.clusters.empty() || flags.batch == 0)
    return InvalidArgument("lockstep plan needs --model, --cluster and --batch; see --help");
  const bool picks_one = !flags.layout.empty() || !flags.compare.empty();
  const std::set<std::string> precisions(flags.precisions.begin(), flags.precisions.end());  // each once
  if (picks_one && flags.clusters.size() > 1)
    return InvalidArgument("--layout and --compare are of one cluster, found {}", fmt::join(flags.clusters, ", "));
  if (picks_one && precisions.size() > 1)
    return InvalidArgument("--layout and --compare are of one precision, found {}", fmt::join(precisions, ", "));
  LS_ASSIGN_OR_RETURN(plan::Machines machines, KnownMachines());
  PlanQuestion question{{}, std::move(machines), {}, {}, ""};
  std::vector<plan::Cluster> named;
  for (const std::string& text : flags.clusters) {
    LS_ASSIGN_OR_RETURN(plan::Cluster cluster, ClusterOf(text, flags, question.machines, question.model_note));
    named.push_back(cluster);
    const size_t others = question.clusters.size();
    for (const std::string& precision : precisions)
      if (TakePrecision(precision, cluster.base)) question.clusters.push_back(cluster);
    if (question.clusters.size() == others)
      return InvalidArgument("--precision {}: {} has none", fmt::join(precisions, ","), cluster.base.machine.name);
  }
  LS_RETURN_IF_ERROR(CheckNames(flags.clusters, named));
  LS_ASSIGN_OR_RETURN(question.objective, ObjectiveOf(flags, question.clusters));
  question.space.whole = flags.space == "whole";
  question.space.uneven = flags.stages == "any";
  const std::set<int> moe_chunks(flags.moe_chunks.begin(), flags.moe_chunks.end());  // each once
  if (!moe_chunks.empty() && *moe_chunks.rbegin() > 1 && named.front().base.experts == 0)
    return InvalidArgument("--moe-chunks {}: the model has no experts", *moe_chunks.rbegin());
  question.space.moe_chunks.assign(moe_chunks.begin(), moe_chunks.end());
  question.space.shards_in_domains = flags.shard == "any";
  LS_RETURN_IF_ERROR(TakeOffloads(flags, question));
  question.space.schedules.clear();
  for (const std::string& name : flags.schedules) {
    const absl::StatusOr<plan::Schedule> schedule = plan::ParseSchedule(name);
    if (!schedule.ok()) return InvalidArgument("--schedule: {}", Message(schedule.status()));
    AddOnce(*schedule, question.space.schedules);
  }
  return question;
}

}  // namespace lockstep::cli
