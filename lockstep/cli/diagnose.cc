#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/cli/commands.h"
#include "lockstep/detect/diagnosis.h"
#include "lockstep/trace/comm_files.h"

namespace lockstep::cli {
namespace {

absl::StatusOr<Json> Diagnose(const std::vector<std::string>& paths) {
  LS_ASSIGN_OR_RETURN(const trace::CommLog log, trace::ReadCommFiles(paths));
  return detect::DiagnosisReport(detect::DiagnoseCommunication(log), log);
}

}  // namespace

void AddDiagnose(CLI::App& app, int& exit_code) {
  struct Flags {
    std::vector<std::string> paths;
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();  // lives as long as the callbacks of the parser
  CLI::App* command =
      app.add_subcommand("diagnose", "Which rank keeps a hanging job waiting, from what its ranks dumped");
  command
      ->add_option(
          "PATH", flags->paths,
          "Dumps of PyTorch's Flight Recorder, one per rank, pickle or JSON, or directories of them; or the JSON "
          "status of NCCL's RAS")
      ->required();
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep diagnose /tmp/nccl_trace_rank_*");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Diagnose(flags->paths), flags->json); });
}

}  // namespace lockstep::cli
