#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/cli/commands.h"
#include "lockstep/explain/compat.h"
#include "lockstep/explain/page.h"
#include "lockstep/explain/report.h"
#include "lockstep/explain/timeline.h"
#include "lockstep/trace/kineto_job.h"
#include "lockstep/trace/straggler_file.h"
#include "lockstep/trace/straggler_meta.h"

namespace lockstep::cli {
namespace {

struct ExplainFlags {
  std::string trace, meta, compat, out;
  std::vector<std::string> kineto, steps;
  std::optional<int> rank;
  bool json = false;
};

// "12" or "20-23".
absl::StatusOr<trace::StepRange> ParseSteps(const std::string& text) {
  trace::StepRange range;
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, range.first);
  range.last = range.first;
  if (error == std::errc() && rest != end && *rest == '-') {
    const auto [behind, second_error] = std::from_chars(rest + 1, end, range.last);
    rest = behind;
    error = second_error;
  }
  if (error != std::errc() || rest != end || range.last < range.first)
    return InvalidArgument("--steps {}: expected a step, or a range such as 20-23", text);
  return range;
}

absl::Status WriteAll(const ExplainFlags& flags, const trace::StragglerJob& job, const explain::WhatIf& analysis,
                      const Json& report) {
  if (flags.out.empty()) return absl::OkStatus();
  LS_RETURN_IF_ERROR(explain::WritePage(flags.out, report, explain::StepsReport(analysis)));
  return explain::WriteTimelines(flags.out, job, analysis);
}

absl::StatusOr<Json> ExplainStraggler(const ExplainFlags& flags, std::vector<trace::StepRange> steps) {
  LS_ASSIGN_OR_RETURN(const trace::StragglerMeta meta, trace::ReadStragglerMeta(flags.meta));
  LS_ASSIGN_OR_RETURN(const trace::StragglerJob job, trace::ReadStragglerJob(flags.trace, meta, std::move(steps)));
  const explain::WhatIf analysis(job);
  if (!flags.compat.empty()) LS_RETURN_IF_ERROR(explain::WriteCompat(flags.compat, analysis, meta));
  Json report = explain::Report(analysis, explain::FindCauses(job, analysis, explain::kStraggles), meta, job.counters);
  LS_RETURN_IF_ERROR(WriteAll(flags, job, analysis, report));
  return report;
}

absl::StatusOr<Json> ExplainKineto(const ExplainFlags& flags, const std::vector<trace::StepRange>& steps) {
  LS_ASSIGN_OR_RETURN(std::vector<trace::KinetoRank> ranks, trace::ReadKinetoFiles(flags.kineto, flags.rank));
  LS_ASSIGN_OR_RETURN(const trace::KinetoJob traced, trace::BuildKinetoJob(std::move(ranks), steps));
  const explain::WhatIf analysis(traced.job);
  trace::StragglerMeta meta;
  meta.dp = traced.job.dp;
  meta.world_size = traced.world_size;
  Json report = explain::Report(analysis, explain::FindCauses(traced.job, analysis, explain::kStraggles), meta,
                                traced.job.counters);
  explain::AddRanks(traced, report);
  LS_RETURN_IF_ERROR(WriteAll(flags, traced.job, analysis, report));
  return report;
}

absl::StatusOr<Json> Explain(const ExplainFlags& flags) {
  if (flags.trace.empty() == flags.kineto.empty())
    return InvalidArgument("expected a TRACE with --meta META, or --kineto with the files of a PyTorch profiler");
  if (flags.kineto.empty() && flags.meta.empty())
    return InvalidArgument("--meta: expected the YAML file beside {}", flags.trace);
  if (flags.kineto.empty() && flags.rank) return InvalidArgument("--rank belongs to --kineto");
  if (!flags.kineto.empty() && !(flags.meta.empty() && flags.compat.empty()))
    return InvalidArgument("--meta and --compat belong to a TRACE of the straggler schema, not to --kineto");
  if (flags.rank && flags.kineto.size() != 1)
    return InvalidArgument("--rank names the rank of one file, found {}", flags.kineto.size());
  std::vector<trace::StepRange> steps;
  for (const std::string& text : flags.steps) {
    LS_ASSIGN_OR_RETURN(steps.emplace_back(), ParseSteps(text));
  }
  return flags.kineto.empty() ? ExplainStraggler(flags, std::move(steps)) : ExplainKineto(flags, steps);
}

}  // namespace

void AddExplain(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ExplainFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command =
      app.add_subcommand("explain", "Why a traced job is slow: what each op type, stage and worker costs");
  command->add_option("TRACE", flags->trace, "Rows of ops: Parquet, CSV or CSV.gz (docs/formats/straggler.md)");
  command->add_option("--meta", flags->meta, "YAML with the sizes of the parallel dimensions");
  command
      ->add_option("--kineto", flags->kineto,
                   "Instead of a TRACE: the files of the PyTorch profiler, one per rank, JSON or JSON.gz")
      ->expected(1, -1);
  command->add_option("--rank", flags->rank, "The rank of the one --kineto file that does not tell it");
  command->add_option("--steps", flags->steps, "Only these steps, such as 12 or 20-23; may be given several times");
  command->add_option(
      "--out", flags->out,
      "Also write a page with heatmaps (index.html), timelines for Perfetto, and JSON into this directory");
  command->add_option("--compat", flags->compat,
                      "Also write the files of the published what-if analysis into this directory");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep explain trace.parquet --meta meta.yaml --out why");
  command->callback([flags, &exit_code] {
    absl::StatusOr<Json> report = Explain(*flags);
    if (report.ok() && !flags->json) *report = explain::Brief(*report);
    exit_code = PrintReport(report, flags->json);
  });
}

}  // namespace lockstep::cli
