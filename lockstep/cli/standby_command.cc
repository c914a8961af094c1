#include "lockstep/cli/standby_command.h"

#include <algorithm>
#include <array>

#include "lockstep/base/child.h"

namespace lockstep::cli {
namespace {

// Of this node, or of whoever leads.
constexpr std::array kNotForAStandby = {
    "nnodes",     "node-rank",   "node-name", "rdzv-endpoint", "rdzv-backend", "master-addr",  "master-port",
    "local-addr", "coordinator", "run",       "resume",        "standbys",     "cluster",      "standby-job",
    "policy",     "plan",        "webhook",   "token-file",    "metrics-port", "metrics-host", "dry-run"};

bool IsForAStandby(const CLI::Option& option) {
  const auto is_named = [&](const char* name) { return option.check_lname(name); };
  return option.count() > 0 && std::none_of(kNotForAStandby.begin(), kNotForAStandby.end(), is_named);
}

}  // namespace

std::vector<std::string> StandbyCommand(const CLI::App& run, const std::string& coordinator) {
  std::vector<std::string> command = {OwnBinary().value_or("")};
  for (const CLI::Option* option : run.get_options()) {
    if (option->get_lnames().empty() || !IsForAStandby(*option)) continue;
    const std::string name = "--" + option->get_lnames().front();
    const bool is_switch = option->get_expected_max() == 0;
    if (is_switch) command.push_back(name);
    if (is_switch) continue;
    for (const std::string& value : option->results()) command.push_back(name + "=" + value);
  }
  command.push_back("--coordinator=" + coordinator);
  std::vector<std::string> script = run.remaining();
  if (script.size() > 1 && script[1] == "--") script.insert(script.begin() + 1, "--");  // one is taken away
  command.insert(command.end(), script.begin(), script.end());
  return command;
}

}  // namespace lockstep::cli
