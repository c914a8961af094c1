#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/cli/plan_commands.h"
#include "lockstep/plan/madmax_report.h"
#include "lockstep/plan/moe_schedule.h"

namespace lockstep::cli {
namespace {

struct MadmaxFlags {
  std::string configs, golden;
  bool json = false;
};

}  // namespace

void AddPlanMadmax(CLI::App& plan, int& exit_code) {
  auto flags = std::make_shared<MadmaxFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = plan.add_subcommand(
      "madmax", "MAD-Max's model (ISCA 2024) computed anew, beside what its authors' program gave: how far apart");
  command->add_option("--configs", flags->configs, "Models and systems, JSON")->required();
  command->add_option("--golden", flags->golden, "Configurations and what that program gave, CSV")->required();
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep plan madmax --configs madmax_configs.json --golden madmax_golden.csv");
  command->callback([flags, &exit_code] {
    exit_code = PrintReport(plan::CompareMadmax(flags->configs, flags->golden), flags->json);
  });
}

void AddPlanMoe(CLI::App& plan, int& exit_code) {
  struct Flags {
    std::string grid;
    bool rows = false, json = false;
  };
  auto flags = std::make_shared<Flags>();  // lives as long as the callbacks of the parser
  CLI::App* command = plan.add_subcommand(
      "moe", "Schedules of mixtures of experts (Parm's S1 and S2, FSMoE's chunks), computed for a grid of layers");
  command->add_option("FILE", flags->grid, "Layers, and, where it is known, what these formulas gave elsewhere, CSV")
      ->required();
  command->add_flag("--rows", flags->rows, "Add what is chosen for each row; always, where nothing is known of any");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep plan moe parm_grid.csv");
  command->callback(
      [flags, &exit_code] { exit_code = PrintReport(plan::CompareMoe(flags->grid, flags->rows), flags->json); });
}

}  // namespace lockstep::cli
