#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>
#include <vector>

#include "lockstep/cli/checks.h"
#include "lockstep/cli/interrupt.h"
#include "lockstep/cli/plan_commands.h"
#include "lockstep/cli/plan_question.h"
#include "lockstep/node/install.h"
#include "lockstep/plan/emit.h"
#include "lockstep/plan/fit.h"
#include "lockstep/plan/report.h"
#include "lockstep/plan/step_graph.h"
#include "lockstep/plan/step_trace.h"

namespace lockstep::cli {
namespace {

constexpr double kTransferShareToNote = .05;  // of the step: above it the closed form may be more than 2 % off
constexpr size_t kEmitTried = 1000;  // layouts, the best first, for flags of one that the framework can carry out

absl::StatusOr<plan::Candidate> PredictedLayout(const std::string& layout, const plan::Cluster& cluster) {
  plan::Workload work = cluster.base;
  work.zero = 1;
  LS_RETURN_IF_ERROR(plan::TakeLayout(layout, work));
  return plan::Predict(work, cluster.rates);
}

void ShowProgress(double share) {
  if (isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\rlockstep: {:.0f} % of the layouts tried ", 100 * share);
}

absl::StatusOr<plan::SearchResult> Searched(const PlanFlags& flags, const PlanQuestion& question) {
  EndAtInterrupt();
  bool showed = false;
  const plan::SearchOptions options{.keep = flags.emit.empty() ? flags.top : std::max(flags.top, kEmitTried),
                                    .objective = question.objective,
                                    .space = question.space,
                                    .threads = flags.threads > 0 ? flags.threads : std::thread::hardware_concurrency(),
                                    .stops = Interrupted,
                                    .progress = [&](double share) { ShowProgress(share), showed = true; }};
  plan::SearchResult result = plan::Search(question.clusters, options);
  if (showed && isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\r\033[K");
  const plan::Cluster& first = question.clusters.front();
  if (result.best.empty() && result.stopped)
    return MakeError(absl::StatusCode::kCancelled, "interrupted before a layout was found that fits");
  if (!result.nearest.empty())
    return MakeError(absl::StatusCode::kResourceExhausted,
                     plan::WhatWouldFit(first.base, result.nearest[0], first.rates, question.machines, Interrupted));
  const auto needs_one_stage = [](const plan::Offload& offload) { return offload.weights; };
  if (result.best.empty() && std::ranges::all_of(question.space.offloads, needs_one_stage))
    return InvalidArgument(
        "no layout divides {} accelerators, a batch of {} and {} heads with --offload weights, which needs pp 1, and a "
        "schedule 1f1b",
        first.base.accelerators, first.base.global_batch, first.base.heads);
  const bool has_1f1b =
      std::ranges::find(question.space.schedules, plan::Schedule::k1F1B) != question.space.schedules.end();
  if (result.best.empty())
    return InvalidArgument("no layout divides {} accelerators, a batch of {} and {} heads{}", first.base.accelerators,
                           first.base.global_batch, first.base.heads,
                           has_1f1b ? ""
                                    : ", with as many microbatches as these schedules need (zb-h1 one a stage, zb-2p "
                                      "and dualpipe two); add 1f1b, or a larger --batch");
  return result;
}

// Returns the names of the files.
absl::StatusOr<std::vector<std::string>> WriteStep(const plan::StepGraph& step, const plan::StepTimes& times,
                                                   const std::string& out) {
  if (out.ends_with(".et")) return plan::WriteChakraTraces(step, out);
  LS_RETURN_IF_ERROR(plan::WriteTimeline(step, times, out));
  return std::vector{out};
}

// What --failures, --out and slow networks add to the report of one layout.
absl::Status Extend(const PlanFlags& flags, const plan::Candidate& one, const plan::Rates& rates, Json& report) {
  if (!flags.failures.empty()) {
    LS_ASSIGN_OR_RETURN(const std::string path, node::FindPreset("downtime", flags.failures));
    LS_ASSIGN_OR_RETURN(const cost::DowntimeSpec spec, cost::ReadDowntimeSpec(path));
    const absl::StatusOr<Json> goodput = plan::GoodputReport(one, spec);
    if (!goodput.ok()) return InvalidArgument("--failures {}: {}", flags.failures, Message(goodput.status()));
    report["with_failures"] = *goodput;
  }
  const double transfers = one.step[plan::Part::kPipeline] / one.step.total().value;
  if (flags.out.empty() && transfers < kTransferShareToNote) return absl::OkStatus();
  Json& graph = report["graph"] = {{"layout", plan::LayoutText(one.workload)}};
  if (transfers >= kTransferShareToNote)
    graph["note"] = fmt::format(
        "transfers between stages take {:.2g} % of the step; the closed form has every stage wait for all of them, and "
        "may be more than 2 % off",
        100 * transfers);
  const absl::StatusOr<plan::StepGraph> step = plan::BuildStepGraph(one.workload, rates);
  if (!step.ok() && flags.out.empty()) return absl::OkStatus();  // too large for a graph; the note stands
  LS_RETURN_IF_ERROR(step.status());
  const plan::StepTimes times = plan::Simulate(*step);
  graph["ops"] = step->ops.size(), graph["step_time_s"] = times.total.value;
  if (flags.out.empty()) return absl::OkStatus();
  const absl::StatusOr<std::vector<std::string>> files = WriteStep(*step, times, flags.out);
  if (!files.ok()) return FailedPrecondition("{}", Message(files.status()));  // a full disk is no plan that doesn't fit
  graph["files"] = *files;
  return absl::OkStatus();
}

struct Answer {
  Json report;
  std::string flags;  // of a framework; empty: not asked
  std::string note;   // why these are not the flags of the best layout, and of which they are; where they fall short
};

// Of the first of those that the framework can carry out.
absl::Status Emit(const std::string& framework, std::span<const plan::Candidate> ranked, Answer& answer) {
  absl::Status first_why;
  if (const plan::Candidate& best = ranked.front(); !best.memory.Fits(best.workload.machine))
    return MakeError(absl::StatusCode::kResourceExhausted,
                     "--emit: this layout does not fit the memory: it needs " + plan::NeedsText(best));
  for (const plan::Candidate& one : ranked) {
    absl::StatusOr<std::string> emitted = plan::EmitFlags(framework, one.workload);
    first_why.Update(emitted.status());
    if (!emitted.ok()) continue;
    const std::string of = plan::LayoutText(one.workload);
    answer.flags = *std::move(emitted);
    answer.note = plan::EmitNote(framework, one.workload);
    if (!first_why.ok())
      answer.note = fmt::format("{}; these are the flags of: {}{}{}", Message(first_why), of,
                                answer.note.empty() ? "" : "; ", answer.note);
    answer.report["flags"] = answer.flags;
    answer.report["flags_of"] = of;
    if (!answer.note.empty()) answer.report["flags_note"] = answer.note;
    return absl::OkStatus();
  }
  return first_why;
}

absl::Status CheckOut(const std::string& out) {
  if (out.empty() || out.ends_with(".json") || out.ends_with(".json.gz") || out.ends_with(".et"))
    return absl::OkStatus();
  return InvalidArgument("--out {}: expected a name that ends with .json, .json.gz or .et", out);
}

// Of one of the clusters, or precisions, at least.
absl::Status CheckEmits(const std::string& framework, std::span<const plan::Cluster> clusters) {
  absl::Status first_why;
  for (const plan::Cluster& cluster : clusters) {
    const absl::Status can = plan::CheckEmit(framework, cluster.base);
    if (can.ok()) return can;
    first_why.Update(can);
  }
  return first_why;
}

// Of one layout, or of a search, the best first.
absl::StatusOr<Answer> AnswerOf(const PlanFlags& flags, std::span<const plan::Candidate> ranked,
                                const plan::Rates& rates, Json report) {
  Answer answer{std::move(report), "", ""};
  LS_RETURN_IF_ERROR(Extend(flags, ranked.front(), rates, answer.report));
  if (!flags.emit.empty()) LS_RETURN_IF_ERROR(Emit(flags.emit, ranked, answer));
  return answer;
}

absl::StatusOr<Answer> Answered(const PlanFlags& flags, const PlanQuestion& question) {
  const plan::Cluster& first = question.clusters.front();
  LS_RETURN_IF_ERROR(CheckOut(flags.out));
  if (!flags.emit.empty()) LS_RETURN_IF_ERROR(CheckEmits(flags.emit, question.clusters));
  if (!flags.compare.empty()) {
    std::vector<plan::Candidate> both;
    for (const std::string& layout : flags.compare) {
      absl::StatusOr<plan::Candidate> one = PredictedLayout(layout, first);
      if (!one.ok()) return InvalidArgument("--compare {}: {}", layout, Message(one.status()));
      both.push_back(*std::move(one));
    }
    return Answer{plan::ComparisonReport(both[0], both[1], first.rates), "", ""};
  }
  if (!flags.layout.empty()) {
    LS_ASSIGN_OR_RETURN(const plan::Candidate one, PredictedLayout(flags.layout, first));
    if (!flags.explain.empty()) {
      LS_ASSIGN_OR_RETURN(Json report, ExplainPlan(flags.explain, one, first.rates));
      return Answer{std::move(report), "", ""};
    }
    return AnswerOf(flags, {&one, 1}, first.rates, plan::PredictionReport(one, first.rates, true));
  }
  LS_ASSIGN_OR_RETURN(plan::SearchResult result, Searched(flags, question));
  const std::vector<plan::Candidate> ranked = result.best;
  result.best.resize(std::min(result.best.size(), flags.top));
  return AnswerOf(flags, ranked, plan::RatesOf(ranked.front(), question.clusters),
                  plan::SearchReport(result, question.clusters));
}

absl::StatusOr<Answer> Plan(const PlanFlags& flags) {
  LS_ASSIGN_OR_RETURN(const PlanQuestion question, AskedBy(flags));
  absl::StatusOr<Answer> answer = Answered(flags, question);
  if (answer.ok()) answer->report.update(NotesOf(question));
  return answer;
}

int Print(const absl::StatusOr<Answer>& answer, bool as_json) {
  if (!answer.ok()) return PrintPlan(answer.status(), as_json);
  if (as_json || answer->flags.empty()) return PrintPlan(answer->report, as_json);
  if (!answer->note.empty()) fmt::print(stderr, "lockstep: {}\n", answer->note);
  Json beside = Json::object();  // the flags are for a script; what else was asked for is for who reads along
  for (const char* key : {"with_failures", "graph", "model_note", "machine_note"})
    if (answer->report.contains(key)) beside[key] = answer->report[key];
  if (!beside.empty()) fmt::print(stderr, "{}", RenderText(beside));
  fmt::print("{}", answer->flags);
  return 0;
}

}  // namespace

void AddWork(CLI::App& command, PlanFlags& flags) {
  command.add_option("--model", flags.model, "A preset, a .toml file, or a config.json of Hugging Face");
  command
      .add_option("--cluster", flags.clusters,
                  "NAME:N, N accelerators: h100-80gb:64, or my.toml:64; several with commas")
      ->delimiter(',');
  command.add_option("--batch", flags.batch, "Sequences of a step")->check(AboveZero());
  command.add_option("--seq", flags.sequence, "Tokens of a sequence; default: the model's context")->check(AboveZero());
  command.add_option("--precision", flags.precisions, "Of the layers' matrices: bf16, fp8 or fp4; several with commas")
      ->delimiter(',')
      ->check(CLI::IsMember({"bf16", "fp8", "fp4"}))
      ->capture_default_str();
  command.add_option("--stack", flags.stack,
                     "Whose habits: nemo, megatron-core, torchtitan, ... (presets/plan/stacks.toml); default: nemo, "
                     "with --emit those of its framework");
  command.add_option("--calibration", flags.calibration, "Folder of `lockstep plan calibrate`; default: the presets");
  command.add_option("--training", flags.training, "full, or lora: adapters beside frozen weights")
      ->check(CLI::IsMember({"full", "lora"}))
      ->capture_default_str();
  command
      .add_option("--freeze", flags.freeze,
                  "Parts that are trained no further: embedding, layers:N, the first N; both with a comma")
      ->delimiter(',');
  command.add_option("--usd-per-hour", flags.usd_per_hour, "Price of an accelerator, in dollars an hour")
      ->check(Between(plan::kUsdPerHour.least, plan::kUsdPerHour.most));
  command.add_option("--power-w", flags.power_w, "Watts of an accelerator with its share of the host")
      ->check(Between(plan::kWatts.least, plan::kWatts.most));
}

namespace {

// What a search tries: no choice where the layout is given.
std::vector<CLI::Option*> AddSpace(CLI::App& command, PlanFlags& flags) {
  return {
      command
          .add_option("--schedule", flags.schedules,
                      "To search: 1f1b (interleaved too), zb-h1, zb-2p, dualpipe; several with commas")
          ->delimiter(',')
          ->capture_default_str(),
      command.add_option("--stages", flags.stages, "To search: even, or any, first and last with fewer layers too")
          ->check(CLI::IsMember({"even", "any"}))
          ->capture_default_str(),
      command
          .add_option(
              "--offload", flags.offloads,
              "To search, what lies in the host's memory: none, optimizer, weights (and the optimizer), activations, "
              "optimizer+activations, weights+activations; several with commas")
          ->delimiter(',')
          ->capture_default_str(),
      command
          .add_option(
              "--shard", flags.shard,
              "To search: all replicas share what ZeRO 3 shares, or any: those of a domain of fast links, too (HSDP)")
          ->check(CLI::IsMember({"all", "any"}))
          ->capture_default_str(),
      command
          .add_option("--moe-chunks", flags.moe_chunks,
                      "To search: in how many pieces experts exchange and compute; several with commas")
          ->delimiter(',')
          ->check(Between(1, plan::kMostMoeChunks))
          ->capture_default_str(),
      command
          .add_option("--space", flags.space,
                      "To search: usual, or whole, with what nobody would choose (docs/models/plan.md)")
          ->check(CLI::IsMember({"usual", "whole"}))
          ->capture_default_str(),
      command.add_option("--objective", flags.objective, "To search for: throughput, cost or energy")
          ->check(CLI::IsMember({"throughput", "cost", "energy"}))
          ->capture_default_str(),
      command.add_option("--top", flags.top, "So many layouts")->check(Between(1, 1000))->capture_default_str(),
      command.add_option("--threads", flags.threads, "To search with; default: one per core")->check(Between(1, 1024)),
  };
}

// What is added to the answer about one layout.
std::vector<CLI::Option*> AddExtras(CLI::App& command, PlanFlags& flags) {
  return {
      command.add_option("--failures", flags.failures,
                         "Add what is left with failures: a preset of `lockstep downtime`, or a .toml"),
      command
          .add_option("--emit", flags.emit,
                      "Print the layout (of a search the first that the framework can carry out) as flags: megatron or "
                      "torchtitan")
          ->check(CLI::IsMember({"megatron", "torchtitan"})),
      command.add_option("--out", flags.out,
                         "Write its step: .json or .json.gz for Perfetto, .et for Chakra, a file per stage"),
  };
}

void AddAsked(CLI::App& command, PlanFlags& flags) {
  auto* layout = command
                     .add_option("--layout", flags.layout,
                                 "Predict this one alone: tp=8,pp=4,mbs=1,zero=1,recompute=full:3,schedule=zb-h1,"
                                 "stages=5+6x2+5,offload=optimizer")
                     ->check([](const std::string& text) { return text.empty() ? "expected KEY=VALUE,..." : ""; });
  auto* compare =
      command.add_option("--compare", flags.compare, "Two layouts, term by term")->expected(2)->excludes(layout);
  auto* explain = command
                      .add_option("--explain", flags.explain,
                                  "Why a job in this layout takes longer than predicted, term by term: its files of "
                                  "the PyTorch profiler, one per rank, JSON or JSON.gz; or of Nsight Systems, SQLite")
                      ->expected(1, -1)
                      ->needs(layout);
  for (CLI::Option* of_search : AddSpace(command, flags)) of_search->excludes(layout)->excludes(compare);
  for (CLI::Option* extra : AddExtras(command, flags)) extra->excludes(compare)->excludes(explain);
}

void AddSearch(CLI::App& command, int& exit_code) {
  auto flags = std::make_shared<PlanFlags>();  // lives as long as the callbacks of the parser
  AddWork(command, *flags);
  AddAsked(command, *flags);
  command.add_flag("--json", flags->json, "One JSON document on stdout");
  command.footer("Example: lockstep plan --model llama3-70b --cluster h100-80gb:64 --batch 128 --precision fp8");
  command.callback([flags, &command, &exit_code] {
    if (command.get_subcommands().empty()) exit_code = Print(Plan(*flags), flags->json);
  });
}

}  // namespace

int PrintPlan(const absl::StatusOr<Json>& report, bool as_json) {
  const int exit_code = PrintReport(report, as_json);
  const absl::StatusCode code = report.status().code();
  return code == absl::StatusCode::kResourceExhausted || code == absl::StatusCode::kCancelled ? kExitNo : exit_code;
}

void AddPlan(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("plan", "How a model should run on a cluster, and how long a step will take");
  command->require_subcommand(0, 1);
  AddSearch(*command, exit_code);
  AddPlanValidate(*command, exit_code);
  AddPlanCalibrate(*command, exit_code);
  AddPlanMadmax(*command, exit_code);
  AddPlanMoe(*command, exit_code);
  AddPlanDlrm(*command, exit_code);
  AddPlanInference(*command, exit_code);
}

}  // namespace lockstep::cli
