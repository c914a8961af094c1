#include "lockstep/node/kept_options.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"

namespace lockstep::node {
namespace {

struct Path {
  std::string& path;  // empty: none
};

// Visits each with its name in run.json and its flag; no flag: a job file sets it, or it follows from others.
template <typename Visit>
void ForEachKept(RunOptions& options, const Visit& visit) {
  visit("hang_limit_s", "--hang-limit-s", options.hang_limits.hang_limit.value);
  visit("blocked_limit_s", "--blocked-limit-s", options.hang_limits.blocked_limit.value);
  visit("spin_limit_s", "--spin-limit-s", options.hang_limits.spin_limit.value);
  visit("first_step_limit_s", "", options.hang_limits.first_step_limit.value);
  visit("least_stall_s", "", options.hang_limits.least_stall.value);
  visit("cluster", "--cluster", options.cluster);
  visit("standby_job", "--standby-job", Path{options.standby_job});
  visit("standby_command", "", options.standby_command);
  visit("plan", "--plan", Path{options.plan_file});
  visit("inspect", "--inspect", options.inspections);
  visit("metrics_port", "--metrics-port", options.metrics_port);
  visit("metrics_host", "--metrics-host", options.metrics_host);
  visit("token_file", "--token-file", Path{options.token_file});
  visit("webhook", "--webhook", options.webhook);
  visit("stop_signals", "--signals-to-handle", options.stop_signals);
  visit("join_timeout_s", "--rdzv-conf", options.nodes.join_timeout.value);
}

Json Plain(const Path& value) {
  return value.path.empty() ? "" : std::filesystem::absolute(value.path).lexically_normal().string();
}
Json Plain(const inspect::Settings& value) { return value == inspect::Settings() ? "" : inspect::SettingsText(value); }
template <typename Value>
Json Plain(const Value& value) {
  return value;
}

absl::Status Take(const Json& json, Path into) {
  json.get_to(into.path);
  return absl::OkStatus();
}
absl::Status Take(const Json& json, inspect::Settings& into) {
  LS_ASSIGN_OR_RETURN(into, inspect::ParseSettings(json.get<std::string>(), "inspect"));
  return absl::OkStatus();
}
template <typename Value>
absl::Status Take(const Json& json, Value& into) {
  json.get_to(into);
  return absl::OkStatus();
}

}  // namespace

std::string KeptOptions(const RunOptions& options) {
  Json kept = Json::object();
  RunOptions same = options;
  ForEachKept(same, [&](const char* name, const char*, const auto& value) { kept[name] = Plain(value); });
  return OneLine(kept);
}

absl::Status TakeKept(const std::string& kept, const std::function<bool(const std::string& flag)>& given,
                      RunOptions& options) {
  const Json json = ParseJson(kept);
  absl::Status status;
  ForEachKept(options, [&](const char* name, const std::string& flag, auto&& value) {
    if (!json.is_object() || !json.contains(name) || (!flag.empty() && given(flag))) return;
    try {
      status.Update(Take(json[name], value));
    } catch (const Json::exception&) {
      status = DataLoss("{} is not what it should be: {}", name, OneLine(json[name]));
    }
  });
  return status;
}

std::vector<std::string> KeptFlags() {
  std::vector<std::string> flags;
  RunOptions none;
  ForEachKept(none, [&](const char*, const std::string& flag, const auto&) {
    if (!flag.empty()) flags.push_back(flag);
  });
  return flags;
}

}  // namespace lockstep::node
