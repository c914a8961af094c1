#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/cli/checks.h"
#include "lockstep/cli/commands.h"
#include "lockstep/inspect/reader.h"
#include "lockstep/inspect/report.h"

namespace lockstep::cli {
namespace {

struct InspectFlags {
  std::vector<std::string> paths;
  std::string config, root, log;
  double seconds = 60;
  bool once = false, print_config = false, json = false;
};

// One look has no past: what it sees counts at once.
inspect::Settings WithoutTolerance(inspect::Settings settings) {
  for (inspect::Item& item : settings.items) {
    item.tolerance = {0};
    item.readings = 1;
  }
  return settings;
}

absl::StatusOr<inspect::Settings> SettingsOf(const InspectFlags& flags) {
  inspect::Settings settings;
  if (!flags.config.empty()) {
    LS_ASSIGN_OR_RETURN(settings, inspect::ReadSettings(flags.config));
  }
  return flags.once ? WithoutTolerance(std::move(settings)) : settings;
}

absl::StatusOr<inspect::Where> WhereOf(const InspectFlags& flags) {
  std::error_code error;
  if (!flags.root.empty() && !std::filesystem::is_directory(flags.root, error))
    return NotFound("--root {}: no such directory", flags.root);
  inspect::Where where{inspect::Tree(flags.root == "/" ? "" : flags.root), {}};
  for (const std::string& path : flags.paths) {
    const std::filesystem::path real = std::filesystem::weakly_canonical(where.tree.Path(path), error);
    if (error || !std::filesystem::exists(real, error)) return NotFound("{}: no such file or directory", path);
    where.paths.push_back(flags.root.empty() ? real.string() : path);
  }
  return where;
}

// Reads what is due until `duration` is over; with 0, every source once.
inspect::Inspection Watch(const inspect::Settings& settings, const inspect::Where& where, Seconds duration) {
  const SystemClock clock;
  const Nanos begin = clock.Now();
  inspect::Inspector inspector(settings);
  inspect::Readers readers(settings, where);
  inspect::Inspection seen;
  for (;;) {
    inspector.ReadDue(clock.Now(), [&](inspect::Source source, Nanos now) {
      inspect::Reading reading = readers.Read(source, now);
      seen.figures[source] = reading.figures;
      return reading;
    });
    for (inspect::Alert& alert : inspector.TakeChanges())
      if (alert.cleared.value != 0) seen.cleared.push_back(std::move(alert));
    const Seconds left = duration - ToSeconds(clock.Now() - begin);
    if (left.value <= 0) break;
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::min(left.value, inspector.UntilDue(clock.Now()).value + 0.001)));
  }
  seen.at = clock.Now();
  seen.duration = ToSeconds(seen.at - begin);
  seen.alerts = inspector.Alerts();
  seen.pending = inspector.Pending();
  seen.missing = inspector.missing();
  return seen;
}

int Print(const Json& report, bool json, bool fault) {
  const int printed = PrintReport(report, json);
  return printed == 0 && fault ? kExitNo : printed;
}

absl::StatusOr<int> Inspect(const InspectFlags& flags) {
  LS_ASSIGN_OR_RETURN(const inspect::Settings settings, SettingsOf(flags));
  if (flags.print_config) {
    fmt::print("{}", inspect::SettingsText(settings));
    return 0;
  }
  if (!flags.log.empty()) {
    LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.log));
    const inspect::LogFindings found = inspect::FindInLog(text);
    return Print(inspect::LogReport(found), flags.json, found.fault);
  }
  LS_ASSIGN_OR_RETURN(const inspect::Where where, WhereOf(flags));
  const inspect::Inspection seen = Watch(settings, where, {flags.once ? 0 : flags.seconds});
  return Print(inspect::InspectionReport(seen), flags.json, !seen.alerts.empty());
}

}  // namespace

void AddInspect(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<InspectFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = app.add_subcommand(
      "inspect", "What is wrong with this machine: network, disks, file systems, memory, kernel log, GPUs");
  auto* paths = command->add_option(
      "PATH", flags->paths, "What the job uses: the file systems of these are watched (default: all that hold data)");
  auto* once = command->add_flag("--once", flags->once,
                                 "One look; what it sees is an alert at once, and what takes two looks is not seen");
  auto* seconds =
      command->add_option("--for", flags->seconds,
                          "Seconds to watch (default 60); an alert is what lasts for longer than its item tolerates");
  seconds->check(Between(0.0, 1e7))->excludes(once);
  auto* config =
      command->add_option("--config", flags->config,
                          "TOML file: intervals, thresholds, tolerances; presets/inspect/default.toml has all keys");
  auto* print = command->add_flag("--print-config", flags->print_config,
                                  "Print the settings as such a file, and do nothing else");
  auto* root = command->add_option(
      "--root", flags->root, "Read DIR/proc, DIR/sys and DIR/dev/kmsg: a host's, as a container has them mounted");
  command
      ->add_option("--log", flags->log,
                   "Instead: what the lines of this log say (of dmesg, the journal, or another system)")
      ->excludes(once)
      ->excludes(seconds)
      ->excludes(root)
      ->excludes(config)
      ->excludes(paths);
  command->add_flag("--json", flags->json, "One JSON document on stdout")->excludes(print);
  command->footer(
      "Exit status 1: there is an alert.\n"
      "Example: lockstep inspect --for 60 /data/checkpoints");
  command->callback([flags, &exit_code] {
    const absl::StatusOr<int> code = Inspect(*flags);
    exit_code = code.ok() ? *code : PrintError(code.status());
  });
}

}  // namespace lockstep::cli
