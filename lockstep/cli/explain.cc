#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "lockstep/base/json_text.h"
#include "lockstep/base/number.h"
#include "lockstep/cli/checks.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/explain_watch.h"
#include "lockstep/explain/compat.h"
#include "lockstep/explain/explained.h"
#include "lockstep/explain/fleet.h"
#include "lockstep/explain/page.h"
#include "lockstep/explain/report.h"
#include "lockstep/explain/timeline.h"
#include "lockstep/trace/job_files.h"
#include "lockstep/trace/kineto_name.h"
#include "lockstep/trace/run_trace.h"
#include "lockstep/trace/straggler_meta.h"

namespace lockstep::cli {
namespace {

struct ExplainFlags {
  std::string meta, compat, out, shard;
  std::vector<std::string> traces, kineto, chakra, steps;
  std::optional<int> rank, threads;
  std::optional<size_t> window;
  bool json = false, watch = false, whole_timelines = false;
};

// "12" or "20-23".
absl::StatusOr<trace::StepRange> ParseSteps(const std::string& text) {
  std::string_view rest = text;
  const auto first = TakeNumber<int64_t>(rest);
  const auto last = rest.starts_with('-') ? WholeNumber<int64_t>(rest.substr(1)) : rest.empty() ? first : std::nullopt;
  if (!first || !last || *last < *first)
    return InvalidArgument("--steps {}: expected a step, or a range such as 20-23", text);
  return trace::StepRange{*first, *last};
}

// "2/8", or by the task of a Slurm step.
absl::StatusOr<explain::Shard> ParseShard(const std::string& text) {
  if (text.empty()) return explain::Shard{};
  const char *task = std::getenv("SLURM_PROCID"), *tasks = std::getenv("SLURM_NTASKS");
  const bool by_slurm = text == "auto";
  if (by_slurm && (task == nullptr || tasks == nullptr))
    return InvalidArgument(
        "--shard auto: SLURM_PROCID and SLURM_NTASKS are not set; start it by srun, or say --shard I/N");
  const std::string numbers = by_slurm ? fmt::format("{}/{}", task, tasks) : text;
  std::string_view rest = numbers;
  const auto index = TakeNumber<int>(rest);
  const auto count = rest.starts_with('/') ? WholeNumber<int>(rest.substr(1)) : std::nullopt;
  if (index && count && *index >= 0 && *index < *count) return explain::Shard{*index, *count};
  return InvalidArgument("--shard {}: expected I/N with I from 0 to N - 1, or auto", numbers);
}

bool IsRun(const std::vector<std::string>& paths) { return paths.size() == 1 && trace::IsRun(paths.front()); }

int Threads(const ExplainFlags& flags) {
  return flags.threads.value_or(static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
}

absl::StatusOr<Json> ExplainOne(const ExplainFlags& flags) {
  if (flags.traces.empty() + flags.kineto.empty() + flags.chakra.empty() != 2)
    return InvalidArgument(
        "expected a TRACE with --meta META, the directory of a run, directories of traces, --kineto with the files of "
        "a PyTorch profiler, or "
        "--chakra with execution traces");
  if (flags.traces.size() > 1) return InvalidArgument("{}: expected one TRACE, or directories only", flags.traces[1]);
  const bool run = IsRun(flags.traces), by_rank = flags.traces.empty() || run;  // a file, or a trail, for each
  trace::JobFiles files{{}, by_rank ? "" : flags.traces.front(), flags.meta, flags.kineto, flags.chakra};
  if (run) files.run = flags.traces.front();
  if (std::error_code error; !by_rank && !std::filesystem::exists(files.trace, error))
    return NotFound("{}: no such file or directory", files.trace);
  if (!by_rank && flags.meta.empty()) return InvalidArgument("--meta: expected the YAML file beside {}", files.trace);
  if (!by_rank && flags.rank) return InvalidArgument("--rank belongs to --kineto and --chakra");
  if (by_rank && !(flags.meta.empty() && flags.compat.empty()))
    return InvalidArgument("--meta and --compat belong to a TRACE of the straggler schema, not to a file per rank");
  if (flags.rank && flags.kineto.size() + flags.chakra.size() != 1)
    return InvalidArgument("--rank names the rank of one file, found {}", flags.kineto.size() + flags.chakra.size());
  if (!flags.chakra.empty() && !flags.steps.empty())
    return InvalidArgument("--steps: an execution trace has no steps; --chakra takes it whole");
  if (!flags.shard.empty()) return InvalidArgument("--shard belongs to directories");
  explain::Explained::Options options{{}, flags.rank, Threads(flags)};
  for (const std::string& text : flags.steps) {
    LS_ASSIGN_OR_RETURN(options.steps.emplace_back(), ParseSteps(text));
  }
  LS_ASSIGN_OR_RETURN(const explain::Explained explained, explain::Explained::Of(files, options));
  const explain::WhatIf& analysis = explained.analysis();
  if (!flags.compat.empty()) {
    LS_ASSIGN_OR_RETURN(const trace::StragglerMeta meta, trace::ReadStragglerMeta(flags.meta));
    LS_RETURN_IF_ERROR(explain::WriteCompat(flags.compat, analysis, meta));
  }
  Json report = explained.report();
  if (!flags.out.empty()) {
    const explain::TimelineChoice choice = explain::ChooseSlices(
        explained.job(), analysis, flags.whole_timelines ? std::numeric_limits<size_t>::max() : explain::kMostSlices);
    if (!choice.left_out.empty()) report["left_out"] = choice.left_out;
    LS_RETURN_IF_ERROR(explain::WritePage(flags.out, report, explain::StepsReport(analysis)));
    LS_RETURN_IF_ERROR(explain::WriteTimelines(flags.out, explained.job(), analysis, choice));
  }
  return report;
}

absl::StatusOr<Json> ExplainDirectories(const ExplainFlags& flags) {
  if (!flags.meta.empty() || !flags.compat.empty() || !flags.steps.empty() || flags.rank || !flags.kineto.empty() ||
      !flags.chakra.empty() || flags.whole_timelines)
    return InvalidArgument(
        "--meta, --compat, --steps, --rank, --kineto, --chakra and --whole-timelines belong to one job, not to "
        "directories");
  explain::FleetOptions options;
  LS_ASSIGN_OR_RETURN(options.shard, ParseShard(flags.shard));
  if (!flags.shard.empty() && flags.out.empty())
    return InvalidArgument("--shard: the shards join in a directory that all see; name it by --out");
  options.out = flags.out;
  options.version = LOCKSTEP_VERSION;
  options.threads = Threads(flags);
  LS_ASSIGN_OR_RETURN(const std::vector<trace::JobFiles> jobs, trace::FindJobs(flags.traces));
  return explain::ExplainFleet(jobs, options);
}

absl::Status Watch(const ExplainFlags& flags) {
  if (flags.traces.size() != 1 || flags.meta.empty())
    return InvalidArgument("--watch: expected one TRACE, plain CSV, and --meta META");
  if (!flags.kineto.empty() || !flags.chakra.empty() || !flags.compat.empty() || !flags.out.empty() ||
      !flags.steps.empty())
    return InvalidArgument("--watch only prints: --kineto, --chakra, --compat, --out and --steps do not go with it");
  WatchOptions options{flags.traces.front(), flags.meta};
  options.window = flags.window.value_or(options.window);
  options.json = flags.json;
  return WatchTrace(options);
}

bool AreDirectories(const std::vector<std::string>& paths) {
  std::error_code error;
  return !paths.empty() && std::all_of(paths.begin(), paths.end(), [&](const std::string& path) {
    return std::filesystem::is_directory(path, error);
  });
}

absl::StatusOr<Json> Explain(const ExplainFlags& flags) {
  return AreDirectories(flags.traces) && !IsRun(flags.traces) ? ExplainDirectories(flags) : ExplainOne(flags);
}

}  // namespace

void AddExplain(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ExplainFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command =
      app.add_subcommand("explain", "Why a traced job is slow: what each op type, stage and worker costs");
  command->add_option(
      "TRACE", flags->traces,
      "Rows of ops: Parquet, CSV or CSV.gz (docs/formats/straggler.md); or the directory of a run under "
      "Lockstep, which may still go on; or directories, for a report of all jobs whose traces lie in "
      "them");
  command->add_option("--meta", flags->meta, "YAML with the sizes of the parallel dimensions");
  command
      ->add_option("--kineto,--nsys", flags->kineto,
                   "Instead of a TRACE: the files of the PyTorch profiler, one per rank, JSON or JSON.gz; or of Nsight "
                   "Systems, SQLite")
      ->expected(1, -1);
  command->add_option("--chakra", flags->chakra, "Instead of a TRACE: Chakra execution traces, one per rank (*.et)")
      ->expected(1, -1);
  command->add_option("--rank", flags->rank, "The rank of the one file that does not tell it")
      ->check(Between(0, trace::kMostKinetoRanks - 1));
  command->add_option("--steps", flags->steps, "Only these steps, such as 12 or 20-23; may be given several times");
  CLI::Option* out = command->add_option(
      "--out", flags->out,
      "Also write a page with heatmaps (index.html), timelines for Perfetto, and JSON into this directory");
  command
      ->add_flag("--whole-timelines", flags->whole_timelines,
                 "Timelines of all steps and ranks, also where a file has more than a million slices")
      ->needs(out);
  command->add_option("--compat", flags->compat,
                      "Also write the files of the published what-if analysis into this directory");
  command
      ->add_option("--threads", flags->threads,
                   "Of directories: jobs at a time; of one job: replays at a time (default: as many as cores)")
      ->check(Between(1, 1024));
  command->add_option(
      "--shard", flags->shard,
      "Of directories: only every Nth job, from the Ith on, as I/N; auto: by the task of srun. The last "
      "shard to end joins all in --out");
  CLI::Option* watch = command->add_flag(
      "--watch", flags->watch,
      "Follow a TRACE that is still written (plain CSV): a report of the newest steps after each step");
  command->add_option("--window", flags->window, "Steps that a report of --watch is of (default: 32)")
      ->check(Between(1, 100'000))
      ->needs(watch);
  command->add_flag("--json", flags->json, "One JSON document on stdout (--watch: one on a line for each step)");
  command->footer("Example: lockstep explain trace.parquet --meta meta.yaml --out why");
  command->callback([flags, &exit_code] {
    if (flags->watch) {
      const absl::Status status = Watch(*flags);
      exit_code = status.ok() ? 0 : PrintError(status);
      return;
    }
    absl::StatusOr<Json> report = Explain(*flags);
    if (report.ok() && report->contains("waits_for_shards")) {
      // On stderr: srun mixes what tasks print, and stdout is to hold the one report alone.
      fmt::print(stderr, "lockstep: shard {}: {} jobs done; shards {} are still at work\n",
                 report->at("shard").get<std::string>(), OneLine(report->at("jobs")),
                 OneLine(report->at("waits_for_shards")));
      return;
    }
    if (report.ok() && !flags->json) *report = explain::Brief(*report);
    exit_code = PrintReport(report, flags->json);
    const bool of_jobs = report.ok() && report->contains("damaged_jobs");
    if (of_jobs && report->at("damaged") == report->at("jobs")) exit_code = kExitNo;  // none could be explained
  });
}

}  // namespace lockstep::cli
