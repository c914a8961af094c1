#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/cli/commands.h"
#include "lockstep/detect/diagnosis.h"
#include "lockstep/trace/comm_files.h"

namespace lockstep::cli {
namespace {

struct Flags {
  std::vector<std::string> paths;
  std::string thresholds;
  bool json = false;
};

absl::StatusOr<Json> Diagnose(const Flags& flags) {
  detect::CommThresholds thresholds;
  if (!flags.thresholds.empty()) {
    LS_ASSIGN_OR_RETURN(thresholds, detect::ReadCommThresholds(flags.thresholds));
  }
  LS_ASSIGN_OR_RETURN(const trace::CommLog log, trace::ReadCommFiles(flags.paths));
  return detect::DiagnosisReport(detect::DiagnoseCommunication(log, thresholds), log);
}

}  // namespace

void AddDiagnose(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<Flags>();  // lives as long as the callbacks of the parser
  CLI::App* command = app.add_subcommand(
      "diagnose", "Which rank keeps a job waiting, or which rank or link slows it down, from what its ranks noted");
  command
      ->add_option("PATH", flags->paths,
                   "Trails of our collectors, a run's directory, or dumps of PyTorch's Flight Recorder (pickle or "
                   "JSON), one per rank, or files of NCCL's Inspector, one per process, or directories of them; or the "
                   "status of NCCL's RAS, JSON or text")
      ->required();
  command->add_option("--thresholds", flags->thresholds,
                      "TOML file: from when on a job hangs or is slow; presets/detect.toml has all keys");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep diagnose /tmp/nccl_trace_rank_*");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Diagnose(*flags), flags->json); });
}

}  // namespace lockstep::cli
