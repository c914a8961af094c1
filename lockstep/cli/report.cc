#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/cli/checks.h"
#include "lockstep/cli/commands.h"
#include "lockstep/history/report.h"
#include "lockstep/node/past.h"

namespace lockstep::cli {
namespace {

struct ReportFlags {
  std::vector<std::string> directories;
  double days = 28;
  std::optional<int64_t> machines;
  std::optional<double> replace_h, reschedule, requeue;
  bool all_runs = false, json = false;
};

absl::StatusOr<Json> Reported(const ReportFlags& flags) {
  history::ReportOptions options{.days = flags.days, .all_runs = flags.all_runs, .sizing = {}};
  options.sizing.machines = flags.machines;
  if (flags.replace_h) options.sizing.replace = Seconds{*flags.replace_h * 3600};
  if (flags.reschedule) options.sizing.reschedule = Seconds{*flags.reschedule};
  if (flags.requeue) options.sizing.requeue = Seconds{*flags.requeue};
  LS_ASSIGN_OR_RETURN(const history::Past past, node::ReadPast(flags.directories));
  return history::ClusterReport(past, options);
}

}  // namespace

void AddReport(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ReportFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = app.add_subcommand(
      "report", "What happened in all runs of a cluster: ETTR, incidents, failures, lemons, standbys");
  command->add_option("DIR", flags->directories, "Run directories, or folders that hold them at any depth")->required();
  command->add_option("--days", flags->days, "In which lemon nodes are looked for, back from the newest event")
      ->check(Between(1e-3, 3650.0))
      ->capture_default_str();
  command->add_option("--machines", flags->machines, "To size standbys for; default: the nodes of the largest run")
      ->check(Between(1, 1'000'000));
  command->add_option("--replace-h", flags->replace_h, "Hours until another machine stands by for one that was taken")
      ->check(Between(0.0, 1e4));
  CLI::Option* reschedule =
      command->add_option("--reschedule-s", flags->reschedule, "Without a standby, until another machine is in the job")
          ->check(Between(0.0, 1e9));
  command->add_option("--requeue-s", flags->requeue, "Until the whole job is scheduled anew")
      ->check(Between(0.0, 1e9))
      ->needs(reschedule);
  command->add_flag("--all-runs", flags->all_runs, "List all runs, and not only the twelve that lost most");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep report /runs --replace-h 24 --json");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Reported(*flags), flags->json); });
}

}  // namespace lockstep::cli
