#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/cli/commands.h"
#include "lockstep/explain/compat.h"
#include "lockstep/explain/report.h"
#include "lockstep/trace/straggler_csv.h"
#include "lockstep/trace/straggler_meta.h"

namespace lockstep::cli {
namespace {

struct ExplainFlags {
  std::string trace, meta, compat;
  std::vector<std::string> steps;
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

absl::StatusOr<Json> Explain(const ExplainFlags& flags) {
  LS_ASSIGN_OR_RETURN(const trace::StragglerMeta meta, trace::ReadStragglerMeta(flags.meta));
  std::vector<trace::StepRange> steps;
  for (const std::string& text : flags.steps) {
    LS_ASSIGN_OR_RETURN(steps.emplace_back(), ParseSteps(text));
  }
  trace::StragglerSink sink(meta, std::move(steps));
  LS_RETURN_IF_ERROR(trace::ReadStragglerCsv(flags.trace, sink));
  std::vector<trace::Counter> counters = sink.Counters();
  auto job = trace::BuildStragglerJob(sink.TakeRows(), meta);
  if (!job.ok()) return InvalidArgument("{}: {}", flags.trace, Message(job.status()));
  counters.insert(counters.end(), job->counters.begin(), job->counters.end());
  const explain::WhatIf analysis(*job);
  if (!flags.compat.empty()) LS_RETURN_IF_ERROR(explain::WriteCompat(flags.compat, analysis, meta));
  return explain::Report(analysis, explain::FindCauses(*job, analysis, explain::kStraggles), meta, counters);
}

}  // namespace

void AddExplain(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ExplainFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command =
      app.add_subcommand("explain", "Why a traced job is slow: what each op type, stage and worker costs");
  command->add_option("TRACE", flags->trace, "Rows of ops, CSV or CSV.gz (docs/formats/straggler.md)")->required();
  command->add_option("--meta", flags->meta, "YAML with the sizes of the parallel dimensions")->required();
  command->add_option("--steps", flags->steps, "Only these steps, such as 12 or 20-23; may be given several times");
  command->add_option("--compat", flags->compat,
                      "Also write the files of the published what-if analysis into this directory");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep explain trace.csv.gz --meta meta.yaml");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Explain(*flags), flags->json); });
}

}  // namespace lockstep::cli
