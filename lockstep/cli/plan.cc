#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/cli/commands.h"
#include "lockstep/plan/madmax_report.h"

namespace lockstep::cli {
namespace {

struct MadmaxFlags {
  std::string configs, golden;
  bool json = false;
};

void AddMadmax(CLI::App& plan, int& exit_code) {
  auto flags = std::make_shared<MadmaxFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = plan.add_subcommand(
      "madmax", "MAD-Max's model (ISCA 2024) computed anew, beside what its authors' program gave: how far apart");
  command->add_option("--configs", flags->configs, "Models and systems, JSON")->required();
  command->add_option("--golden", flags->golden, "Configurations and what that program gave, CSV")->required();
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep plan madmax --configs madmax_configs.json --golden madmax_golden.csv");
  command->callback(
      [flags, &exit_code] { exit_code = PrintReport(plan::CompareMadmax(flags->configs, flags->golden), flags->json); });
}

}  // namespace

void AddPlan(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("plan", "How a model should run on a cluster, and how long a step will take");
  command->require_subcommand(1);
  AddMadmax(*command, exit_code);
}

}  // namespace lockstep::cli
