#include "lockstep/control/version.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

namespace lockstep::control {

const char* VersionStageName(VersionStage stage) {
  constexpr std::array<const char*, 6> kNames = {"copying", "waiting", "on_trial", "good", "bad", "dropped"};
  return kNames[static_cast<size_t>(stage)];
}

std::string StageText(const Update& update) {
  constexpr std::array<const char*, 6> kTexts = {
      "the nodes take their copies", "waits for a restart", "on trial", "accepted", "bad", "not taken"};
  const std::string text = kTexts[static_cast<size_t>(update.stage)];
  return update.why.empty() || update.stage == VersionStage::kGood ? text : text + ": " + update.why;
}

std::string WhatIsNew(const Version& version) {
  std::string what = version.code.empty() ? "" : "code " + version.code;
  for (const auto& [name, value] : version.env) what += fmt::format("{}{}={}", what.empty() ? "" : ", ", name, value);
  return what.empty() ? "as the run was started" : what;
}

std::string VersionText(const Version& version) {
  return fmt::format("version {} ({})", version.number, WhatIsNew(version));
}

Json EnvironmentJson(const std::map<std::string, std::string>& env) {
  Json json = Json::object();
  for (const auto& [name, value] : env) json[name] = value;
  return json;
}

std::map<std::string, std::string> ReadEnvironment(incident::Fields& parent) {
  std::map<std::string, std::string> env;
  const Json* json = parent.Optional("env");
  if (json == nullptr) return env;
  for (const auto& [name, value] : json->items()) {
    if (!value.is_string()) return parent.Fail(InvalidArgument("env: {} must be a string", name)), env;
    env[name] = value.get<std::string>();
  }
  return env;
}

}  // namespace lockstep::control
