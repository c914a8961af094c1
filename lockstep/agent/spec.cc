#include "lockstep/agent/spec.h"

#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"

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
          {"adoption_s", spec.adoption.value}};
}

RankId GlobalRank(const RunSpec& spec, int index) { return RankId(spec.place.first_rank + index); }

absl::StatusOr<RunSpec> RunSpecFromJson(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return DataLoss("not a JSON object");
  RunSpec spec;
  try {
    json.at("job").get_to(spec.job);
    json.at("run_dir").get_to(spec.run_dir);
    json.at("cwd").get_to(spec.cwd);
    json.at("python").get_to(spec.python);
    json.at("python_from").get_to(spec.python_from);
    json.at("command").get_to(spec.command);
    json.at("module").get_to(spec.module);
    json.at("ranks").get_to(spec.ranks);
    json.at("node").get_to(spec.place.node);
    json.at("first_rank").get_to(spec.place.first_rank);
    json.at("world_size").get_to(spec.place.world_size);
    json.at("nodes").get_to(spec.place.nodes);
    json.at("node_name").get_to(spec.node_name);
    spec.address = json.value("address", "");
    json.at("coordinator").get_to(spec.coordinator);
    json.at("endpoint").get_to(spec.endpoint);
    spec.journal = json.value("journal", "");
    json.at("run_token").get_to(spec.run_token);
    json.at("node_token").get_to(spec.node_token);
    json.at("package_dir").get_to(spec.package_dir);
    json.at("client_lib").get_to(spec.client_lib);
    spec.gloo_lib = json.value("gloo_lib", "");
    spec.nccl_lib = json.value("nccl_lib", "");
    json.at("checkpoint_budget_bytes").get_to(spec.checkpoint_budget.value);
    json.at("log_limit_bytes").get_to(spec.log_limit.value);
    json.at("max_restarts").get_to(spec.max_restarts);
    json.at("allow_drill").get_to(spec.allow_drill);
    json.at("checkpoint_dir").get_to(spec.checkpoint_dir);
    json.at("checkpoint_interval_s").get_to(spec.checkpoint_interval.value);
    json.at("checkpoint_keep").get_to(spec.checkpoint_keep);
    json.at("checkpoint_flush_limit_s").get_to(spec.checkpoint_flush_limit.value);
    spec.layout = json.value("layout", "");
    spec.checkpoint_upload = json.value("checkpoint_upload", "");
    for (const Json& feed : json.value("feeds", Json::array()))
      spec.feeds.push_back({feed.at("data").get<std::string>(), feed.at("name").get<std::string>(),
                            feed.value("options", std::vector<std::string>{})});
    json.at("adoption_s").get_to(spec.adoption.value);
    LS_ASSIGN_OR_RETURN(spec.torchrun, TorchrunFromJson(json.value("torchrun", Json())));
    LS_ASSIGN_OR_RETURN(spec.start_method, StartMethodFromName(json.at("start_method").get<std::string>()));
  } catch (const Json::exception& error) {
    return DataLoss("{}", error.what());
  }
  return spec;
}

absl::StatusOr<RunSpec> ReadRunSpec(const std::string& run_dir) {
  const std::string path = run_dir + "/run.json";
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  auto spec = RunSpecFromJson(text);
  if (!spec.ok()) return DataLoss("{}: {}", path, Message(spec.status()));
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
