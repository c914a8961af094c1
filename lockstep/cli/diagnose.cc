#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/cli/commands.h"
#include "lockstep/cluster/layout.h"
#include "lockstep/detect/diagnosis.h"
#include "lockstep/detect/stack_groups.h"
#include "lockstep/trace/comm_files.h"
#include "lockstep/trace/stacks_text.h"

namespace lockstep::cli {
namespace {

struct DiagnoseFlags {
  std::vector<std::string> paths;
  std::string thresholds;
  std::string layout;
  bool json = false;
};

// What communication tells beside the stacks tells for whom ranks wait.
absl::StatusOr<Json> DiagnoseStacks(const DiagnoseFlags& flags, const std::vector<std::string>& paths,
                                    const detect::CommThresholds& thresholds, const trace::CommLog& log) {
  detect::StackContext context;
  if (!flags.layout.empty()) {
    LS_ASSIGN_OR_RETURN(context.layout, cluster::ParseLayout(flags.layout));
  }
  context.waits = detect::WaitsOf(log, thresholds);
  LS_ASSIGN_OR_RETURN(const std::vector<trace::ProcessStack> stacks, trace::ReadStackFiles(paths));
  LS_ASSIGN_OR_RETURN(const detect::StackVerdict verdict, detect::AggregateStacks(stacks, context));
  return detect::DiagnosisReport(detect::DiagnoseCommunication(log, thresholds), log, verdict,
                                 flags.json ? detect::Reader::kProgram : detect::Reader::kPerson);
}

absl::StatusOr<Json> Diagnose(const DiagnoseFlags& flags) {
  detect::CommThresholds thresholds;
  if (!flags.thresholds.empty()) {
    LS_ASSIGN_OR_RETURN(thresholds, detect::ReadCommThresholds(flags.thresholds));
  }
  std::vector<std::string> stacks, others;
  std::partition_copy(flags.paths.begin(), flags.paths.end(), std::back_inserter(stacks), std::back_inserter(others),
                      trace::HasStacks);
  if (stacks.empty() && !flags.layout.empty())
    return InvalidArgument(
        "--layout {}: it is of use with stacks, and no PATH has any; expected an incident's "
        "stacks.txt, or a directory of such files",
        flags.layout);
  trace::CommLog log;
  if (!others.empty()) {
    LS_ASSIGN_OR_RETURN(log, trace::ReadCommFiles(others));
  }
  if (!stacks.empty()) return DiagnoseStacks(flags, stacks, thresholds, log);
  return detect::DiagnosisReport(detect::DiagnoseCommunication(log, thresholds), log);
}

}  // namespace

void AddDiagnose(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<DiagnoseFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = app.add_subcommand(
      "diagnose", "Which rank keeps a job waiting, or which rank or link slows it down, from what its ranks noted");
  command
      ->add_option("PATH", flags->paths,
                   "Trails of our collectors, a run's directory, or dumps of PyTorch's Flight Recorder (pickle or "
                   "JSON), one per rank, or files of NCCL's Inspector, one per process, or directories of them; or the "
                   "status of NCCL's RAS, JSON or text. Or, beside these or alone, the stacks of an incident "
                   "(stacks.txt) of one node or of several, or directories of them")
      ->required();
  command->add_option("--thresholds", flags->thresholds,
                      "TOML file: from when on a job hangs or is slow; presets/detect.toml has all keys");
  command->add_option("--layout", flags->layout,
                      "Of the job, where stacks are given: tp2,pp4,dp4, and order=tp-pp-dp where it is not "
                      "tp-cp-ep-dp-pp");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep diagnose /tmp/nccl_trace_rank_*");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Diagnose(*flags), flags->json); });
}

}  // namespace lockstep::cli
