#include <fmt/core.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/agent/code_copy.h"
#include "lockstep/agent/launch.h"
#include "lockstep/base/clean.h"
#include "lockstep/base/clock.h"
#include "lockstep/cli/checks.h"
#include "lockstep/cli/commands.h"
#include "lockstep/node/past.h"
#include "lockstep/node/query.h"
#include "lockstep/node/run_dir.h"

#include <filesystem>

namespace lockstep::cli {
namespace {

// For the nodes to have their copies; what takes longer is told by `lockstep status`.
constexpr Seconds kPatience{10};
constexpr auto kPoll = std::chrono::milliseconds(10);

struct UpdateFlags {
  std::string run_dir, code;
  std::vector<std::string> env;
  bool now = false, json = false;
  double within_s = 24 * 3600;
};

absl::StatusOr<std::map<std::string, std::string>> ReadVariables(const std::vector<std::string>& words) {
  std::map<std::string, std::string> env;
  for (const std::string& word : words) {
    LS_RETURN_IF_ERROR(CheckText("--env", word));
    const size_t equals = word.find('=');
    if (equals == std::string::npos)
      return InvalidArgument("--env needs KEY=VALUE, found \"{}\"; KEY= makes it empty", word);
    const std::string name = word.substr(0, equals);
    if (const std::string why = agent::WhyNotSet(name); !why.empty()) return InvalidArgument("--env {}: {}", name, why);
    env[name] = word.substr(equals + 1);
  }
  return env;
}

// What the workers are started with; a coordinator of nodes has it from them.
absl::StatusOr<std::string> FindEntry(const std::string& run_dir, const agent::RunSpec& spec) {
  if (!spec.command.empty()) return agent::EntryOf(spec);
  LS_ASSIGN_OR_RETURN(const Json status, node::Ask(run_dir, {{"op", "status"}}));
  if (status.contains("entry")) return status.at("entry").get<std::string>();
  return FailedPrecondition(
      "{} does not know what its nodes run: none has joined yet, or an older release began the job", run_dir);
}

absl::StatusOr<control::UpdateAsked> ReadRequest(const UpdateFlags& flags, const std::string& run_dir,
                                                 const agent::RunSpec& spec) {
  control::UpdateAsked asked;
  if (flags.code.empty() && flags.env.empty())
    return InvalidArgument("name what is new: --code DIR, --env KEY=VALUE, or both");
  LS_ASSIGN_OR_RETURN(asked.env, ReadVariables(flags.env));
  asked.now = flags.now;
  asked.within = Seconds{flags.within_s};
  if (flags.code.empty()) return asked;
  LS_RETURN_IF_ERROR(agent::CheckCode(spec, flags.code));
  asked.code = std::filesystem::canonical(flags.code).string();
  LS_RETURN_IF_ERROR(CheckText("--code", asked.code));
  LS_ASSIGN_OR_RETURN(const std::string entry, FindEntry(run_dir, spec));
  LS_ASSIGN_OR_RETURN(const agent::CodeTree tree, agent::LookAtCode(entry, asked.code));
  if (const std::string linked = agent::WhatIsLinked(tree); !linked.empty())
    fmt::print(stderr, "lockstep: {}: {}; leave it as it is while the version runs\n", asked.code, linked);
  asked.hash = tree.hash;
  return asked;
}

bool IsBeingCopied(const Json& version) { return version.value("stage", "") == "copying"; }

// As it is once the nodes have their copies, or after a while.
Json Await(const std::string& run_dir, Json version) {
  const SystemClock clock;
  const Nanos until = clock.Now() + ToNanos(kPatience);
  while (IsBeingCopied(version) && clock.Now() < until) {
    std::this_thread::sleep_for(kPoll);
    const auto status = node::Ask(run_dir, {{"op", "status"}});
    if (!status.ok() || !status->contains("versions")) break;
    for (const Json& one : status->at("versions"))
      if (one.at("number") == version.at("number")) version = one;
  }
  return version;
}

std::string DurationText(double seconds) {
  if (seconds >= 7200) return fmt::format("{:.3g} h", seconds / 3600);
  return seconds >= 120 ? fmt::format("{:.3g} min", seconds / 60) : fmt::format("{:.3g} s", seconds);
}

// Of what the run began with, to which a bad version leads back.
std::string WayBack(const std::string& run_dir) {
  const auto status = node::Ask(run_dir, {{"op", "status"}});
  const Json versions = status.ok() ? status->value("versions", Json::array()) : Json::array();
  return versions.empty() ? "" : versions[0].value("why", "");
}

// Of a job with its own checkpoints we know nothing.
std::string WhereFrom(const std::string& run_dir) {
  const auto status = node::Ask(run_dir, {{"op", "status"}});
  const Json checkpoint = status.ok() ? status->value("checkpoint", Json::object()) : Json::object();
  const Json step = checkpoint.value("step", Json());
  if (!step.is_number()) return "from its beginning, for Lockstep knows of no checkpoint";
  return fmt::format("from its newest checkpoint, step {} or later", step.get<int64_t>());
}

std::string WhatWillHappen(const Json& version, const UpdateFlags& flags, const std::string& from) {
  const std::string head = fmt::format("version {}: ", version.value("number", 0));
  if (IsBeingCopied(version)) return head + "not all nodes have their copies yet: see `lockstep status`";
  if (flags.now && version.value("due_in_s", 0.0) > 0)
    return head + fmt::format(
                      "the job is restarted with it as soon as a checkpoint is whole on all nodes, some of which "
                      "are or were out of reach, in {} at the latest",
                      DurationText(version.value("due_in_s", 0.0)));
  if (flags.now) return head + "the job is restarted with it now, " + from;
  return head + fmt::format("it comes with the next restart, in {} at the latest", DurationText(flags.within_s));
}

int Print(const Json& version, const UpdateFlags& flags, const std::string& from) {
  if (flags.json) fmt::print("{}", RenderJson(version));
  if (version.contains("took_back")) {
    if (!flags.json) fmt::print("{}\n", Clean(version.value("why", "")));
    return 0;
  }
  if (version.value("stage", "") == "dropped") {
    fmt::print(stderr, "lockstep: not taken: {}\n", Clean(version.value("why", "")));
    return kExitNo;
  }
  if (!flags.json) fmt::print("{}\n", WhatWillHappen(version, flags, from));
  return 0;
}

absl::StatusOr<int> Update(const UpdateFlags& flags) {
  LS_ASSIGN_OR_RETURN(const std::string run_dir, node::FindLiveRunDir(flags.run_dir));
  LS_ASSIGN_OR_RETURN(const agent::RunSpec spec, agent::ReadRunSpec(run_dir));
  LS_ASSIGN_OR_RETURN(const control::UpdateAsked asked, ReadRequest(flags, run_dir, spec));
  Json request = control::ToJson(control::EventBody(asked));
  request["op"] = "update";
  const std::string from = flags.now ? WhereFrom(run_dir) : "";
  const auto version = node::AskWatched(run_dir, request);
  LS_RETURN_IF_ERROR(version.status());
  const int exit_code = Print(Await(run_dir, *version), flags, from);
  if (flags.json) return exit_code;
  if (const std::string why = WayBack(run_dir); !why.empty()) fmt::print("version 0: {}\n", Clean(why));
  return exit_code;
}

void Declare(CLI::App& command, UpdateFlags& flags) {
  command.add_option("run,--run", flags.run_dir, kNewestLiveRun)->check(NotEmpty());
  command.add_option("--code", flags.code,
                     "Directory of the new code, in place of the script's own; of several nodes, the same on all");
  command.add_option("--env", flags.env, "KEY=VALUE: a variable of the workers' environment; may be given again")
      ->allow_extra_args(false);
  auto* now = command.add_flag("--now", flags.now, "Restart the job for it; default: with the next restart");
  command.add_option("--within", flags.within_s, "Seconds after which it is not waited for another restart any longer")
      ->check(NotBelowZero())
      ->capture_default_str()
      ->excludes(now);
  command.add_flag("--json", flags.json, "One JSON document on stdout");
  command.footer(
      "A version that fails in its first steps is taken back, and the job goes on with the one before.\n"
      "Example: lockstep update --code ~/train-v2 --env LR_SCALE=0.5 --now");
}

}  // namespace

void AddUpdate(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<UpdateFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command =
      app.add_subcommand("update", "New code or environment for a running job: now, or with its next restart");
  Declare(*command, *flags);
  command->callback([flags, &exit_code] {
    const auto result = Update(*flags);
    exit_code = result.ok() ? *result : PrintError(result.status());
  });
}

}  // namespace lockstep::cli
