#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/cli/commands.h"
#include "lockstep/cost/downtime.h"
#include "lockstep/node/install.h"

namespace lockstep::cli {
namespace {

struct DowntimeFlags {
  std::string spec;
  std::optional<double> failures, days, between_h, detect, diagnose, restart, interval, cost, repair_h;
  std::optional<int> spares;
  bool json = false;
};

void Take(const std::optional<double>& flag, Seconds& out) {
  if (flag) out.value = *flag;
}
void Take(const std::optional<double>& flag, double unit, std::optional<Seconds>& out) {
  if (flag) out = Seconds{*flag * unit};
}

absl::StatusOr<Json> Expected(const DowntimeFlags& flags) {
  cost::DowntimeSpec spec;
  if (!flags.spec.empty()) {
    LS_ASSIGN_OR_RETURN(const std::string path, node::FindPreset("downtime", flags.spec));
    LS_ASSIGN_OR_RETURN(spec, cost::ReadDowntimeSpec(path));
  }
  if (flags.failures || flags.days) spec.between_failures.reset();
  if (flags.between_h) spec.failures.reset(), spec.period.reset();
  if (flags.failures) spec.failures = flags.failures;
  Take(flags.days, 86400, spec.period);
  Take(flags.between_h, 3600, spec.between_failures);
  Take(flags.detect, spec.detect);
  Take(flags.diagnose, spec.diagnose);
  Take(flags.restart, spec.restart);
  Take(flags.interval, spec.checkpoint_interval);
  Take(flags.cost, spec.checkpoint_cost);
  Take(flags.repair_h, 3600, spec.node_repair);
  if (flags.spares) spec.spares = flags.spares;
  return cost::DowntimeReport(spec);
}

}  // namespace

void AddDowntime(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<DowntimeFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command =
      app.add_subcommand("downtime", "What failures cost a job, how often to checkpoint, how many spares are enough");
  command->add_option("SPEC", flags->spec, "A preset, such as c4-2023-06, or a .toml file; flags win over it");
  command->add_option("--failures", flags->failures, "Failures of the job, counted over --days");
  command->add_option("--days", flags->days, "Of time on the wall");
  command->add_option("--between-failures-h", flags->between_h, "Or: hours that the job runs between two, on average");
  command->add_option("--detect-s", flags->detect, "Seconds until a failure is noticed");
  command->add_option("--diagnose-s", flags->diagnose, "From there until what failed is known and replaced");
  command->add_option("--restart-s", flags->restart, "From there until the job trains again");
  command->add_option("--checkpoint-interval-s", flags->interval, "Of training between two checkpoints (default 1800)");
  command->add_option("--checkpoint-cost-s", flags->cost, "Training stands still so long for each (default 0)");
  command->add_option("--spares", flags->spares, "Spare nodes; without it, failed nodes are replaced at once");
  command->add_option("--node-repair-h", flags->repair_h, "Until a node that failed is a spare again, on average");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep downtime c4-2023-12 --checkpoint-cost-s 5 --node-repair-h 24 --spares 4");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Expected(*flags), flags->json); });
}

}  // namespace lockstep::cli
