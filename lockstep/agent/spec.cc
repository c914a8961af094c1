#include "lockstep/agent/spec.h"

#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"

namespace lockstep::agent {

const char* StartMethodName(StartMethod method) {
  switch (method) {
    case StartMethod::kAuto:
      return "auto";
    case StartMethod::kZygote:
      return "zygote";
    case StartMethod::kExec:
      return "exec";
  }
  return "auto";
}

absl::StatusOr<StartMethod> StartMethodFromName(const std::string& name) {
  for (const StartMethod method : {StartMethod::kAuto, StartMethod::kZygote, StartMethod::kExec}) {
    if (name == StartMethodName(method)) return method;
  }
  return InvalidArgument(
      "--start-method must be auto, zygote or exec (or torchrun's spawn, fork or forkserver), found \"{}\"", name);
}

Json ToJson(const RunSpec& spec) {
  Json feeds = Json::array();
  for (const FeedSpec& feed : spec.feeds)
    feeds.push_back({{"data", feed.data}, {"name", feed.name}, {"options", feed.options}});
  return {{"job", spec.job},
          {"run_dir", spec.run_dir},
          {"cwd", spec.cwd},
          {"python", spec.python},
          {"python_from", spec.python_from},
          {"command", spec.command},
          {"module", spec.module},
          {"ranks", spec.ranks},
          {"node", spec.place.node},
          {"first_rank", spec.place.first_rank},
          {"world_size", spec.place.world_size},
          {"nodes", spec.place.nodes},
          {"node_name", spec.node_name},
          {"address", spec.address},
          {"coordinator", spec.coordinator},
          {"endpoint", spec.endpoint},
          {"journal", spec.journal},
          {"run_token", spec.run_token},
          {"node_token", spec.node_token},
          {"start_method", StartMethodName(spec.start_method)},
          {"package_dir", spec.package_dir},
          {"client_lib", spec.client_lib},
          {"gloo_lib", spec.gloo_lib},
          {"nccl_lib", spec.nccl_lib},
          {"checkpoint_budget_bytes", spec.checkpoint_budget.value},
          {"log_limit_bytes", spec.log_limit.value},
          {"max_restarts", spec.max_restarts},
          {"allow_drill", spec.allow_drill},
          {"torchrun", ToJson(spec.torchrun)},
          {"checkpoint_dir", spec.checkpoint_dir},
          {"checkpoint_upload", spec.checkpoint_upload},
          {"checkpoint_interval_s", spec.checkpoint_interval.value},
          {"checkpoint_keep", spec.checkpoint_keep},
          {"checkpoint_flush_limit_s", spec.checkpoint_flush_limit.value},
          {"layout", spec.layout},
          {"feeds", std::move(feeds)},
          {"watching", spec.watching.empty() ? Json::object() : ParseJson(spec.watching)},
          {"adoption_s", spec.adoption.value}};
}

uint64_t OpenFilesFor(int ranks) { return 48 + 12 * static_cast<uint64_t>(ranks); }

RankId GlobalRank(const RunSpec& spec, int index) { return RankId(spec.place.first_rank + index); }

absl::StatusOr<RunSpec> RunSpecFromJson(const std::string& text) {
  const Json json = ParseJson(text);
  if (!json.is_object()) return DataLoss("not a JSON object");
  RunSpec spec;
  const char* reading = "";
  const auto take = [&](const char* key, auto& into) {
    reading = key;
    json.at(key).get_to(into);
  };
  const auto may = [&](const char* key, auto& into) {  // not of every version
    if (json.contains(key)) take(key, into);
  };
  try {
    take("job", spec.job);
    take("run_dir", spec.run_dir);
    take("cwd", spec.cwd);
    take("python", spec.python);
    take("python_from", spec.python_from);
    take("command", spec.command);
    take("module", spec.module);
    take("ranks", spec.ranks);
    take("node", spec.place.node);
    take("first_rank", spec.place.first_rank);
    take("world_size", spec.place.world_size);
    take("nodes", spec.place.nodes);
    take("node_name", spec.node_name);
    may("address", spec.address);
    take("coordinator", spec.coordinator);
    take("endpoint", spec.endpoint);
    may("journal", spec.journal);
    take("run_token", spec.run_token);
    take("node_token", spec.node_token);
    take("package_dir", spec.package_dir);
    take("client_lib", spec.client_lib);
    may("gloo_lib", spec.gloo_lib);
    may("nccl_lib", spec.nccl_lib);
    take("checkpoint_budget_bytes", spec.checkpoint_budget.value);
    take("log_limit_bytes", spec.log_limit.value);
    take("max_restarts", spec.max_restarts);
    take("allow_drill", spec.allow_drill);
    take("checkpoint_dir", spec.checkpoint_dir);
    take("checkpoint_interval_s", spec.checkpoint_interval.value);
    take("checkpoint_keep", spec.checkpoint_keep);
    take("checkpoint_flush_limit_s", spec.checkpoint_flush_limit.value);
    may("layout", spec.layout);
    may("checkpoint_upload", spec.checkpoint_upload);
    reading = "feeds";
    for (const Json& feed : json.value("feeds", Json::array()))
      spec.feeds.push_back({feed.at("data").get<std::string>(), feed.at("name").get<std::string>(),
                            feed.value("options", std::vector<std::string>{})});
    if (json.contains("watching")) spec.watching = OneLine(json["watching"]);
    take("adoption_s", spec.adoption.value);
    reading = "torchrun";
    LS_ASSIGN_OR_RETURN(spec.torchrun, TorchrunFromJson(json.value("torchrun", Json())));
    std::string start_method;
    take("start_method", start_method);
    LS_ASSIGN_OR_RETURN(spec.start_method, StartMethodFromName(start_method));
  } catch (const Json::out_of_range&) {
    return DataLoss("{} is missing", reading);
  } catch (const Json::exception&) {
    return DataLoss("{} is not what it should be: {}", reading, OneLine(json.value(reading, Json())));
  }
  return spec;
}

absl::StatusOr<RunSpec> ReadRunSpec(const std::string& run_dir) {
  const std::string path = run_dir + "/run.json";
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  auto spec = RunSpecFromJson(text);
  if (!spec.ok())
    return DataLoss("{}: damaged: {}; expected it as `lockstep run` wrote it: start a new run in another --run", path,
                    Message(spec.status()));
  return spec;
}

std::string EpochDir(const RunSpec& spec, uint64_t epoch) { return fmt::format("{}/epoch_{}", spec.run_dir, epoch); }

std::string FeedDir(const RunSpec& spec) { return spec.run_dir + "/feed"; }
std::string TrailsDir(const RunSpec& spec) { return spec.run_dir + "/trails"; }
bool KeepsTrails(const RunSpec& spec) { return !spec.gloo_lib.empty() || !spec.nccl_lib.empty(); }
std::string StacksPath(const RunSpec& spec, uint64_t epoch, int rank) {
  return fmt::format("{}/rank_{}.stacks", EpochDir(spec, epoch), rank);
}
std::string ErrorPath(const RunSpec& spec, uint64_t epoch, int rank) {
  return fmt::format("{}/rank_{}.error.json", EpochDir(spec, epoch), rank);
}
std::string DrillPath(const RunSpec& spec, uint64_t epoch, int rank) {
  return fmt::format("{}/rank_{}.drill.json", EpochDir(spec, epoch), rank);
}
std::string TorchErrorPath(const RunSpec& spec, uint64_t epoch, int restart_count, int rank) {
  if (!spec.torchrun.log_dir.empty()) return AttemptDir(spec.torchrun, restart_count, rank) + "/error.json";
  return fmt::format("{}/rank_{}.torchelastic.json", EpochDir(spec, epoch), rank);
}
std::string LogPath(const RunSpec& spec, int rank) { return fmt::format("{}/logs/rank_{}.log", spec.run_dir, rank); }

}  // namespace lockstep::agent
