// What led to what in an incident, and which policy decides that.
#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/cli/checks.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/coordinator_flags.h"
#include "lockstep/node/query.h"
#include "lockstep/node/run_dir.h"

namespace lockstep::cli {
namespace {

struct WhyFlags {
  int64_t incident = 0;
  std::string run_dir;
  bool json = false;
};

absl::StatusOr<Json> Why(const WhyFlags& flags) {
  LS_ASSIGN_OR_RETURN(const std::string run_dir, node::FindRunDir(flags.run_dir));
  return node::QueryWhy(run_dir, flags.incident);
}

struct PolicyFlags {
  std::string file = "default";
  bool json = false;
};

absl::StatusOr<Json> ShowPolicy(const PolicyFlags& flags) {
  LS_ASSIGN_OR_RETURN(const control::Policy policy, FindPolicy(flags.file));
  return control::PolicyReport(policy);
}

}  // namespace

void AddWhy(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<WhyFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = app.add_subcommand(
      "why", "Tell an incident as a story: what was seen, considered, refused and done, and what it cost");
  command->add_option("INCIDENT", flags->incident, "Its number, as lockstep incidents has it")
      ->required()
      ->check(Between(1, 1e9));
  command->add_option("--run", flags->run_dir, kNewestRun)->check(NotEmpty());
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep why 2");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Why(*flags), flags->json); });
}

void AddPolicy(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<PolicyFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command =
      app.add_subcommand("policy", "Print what Lockstep does about which fault, and the limits it keeps");
  command
      ->add_option("--policy", flags->file,
                   "TOML file, or the name of a preset; presets/policy/default.toml has all keys")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep policy --policy mine.toml");
  command->callback([flags, &exit_code] { exit_code = PrintReport(ShowPolicy(*flags), flags->json); });
}

}  // namespace lockstep::cli
