#include "lockstep/node/run_spec.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/agent/collectors.h"
#include "lockstep/agent/launch.h"
#include "lockstep/agent/python.h"
#include "lockstep/base/file.h"
#include "lockstep/base/host.h"
#include "lockstep/base/open_files.h"
#include "lockstep/node/feeds.h"
#include "lockstep/node/install.h"
#include "lockstep/node/kept_options.h"
#include "lockstep/node/run_dir.h"
#include "lockstep/remote/copies.h"

namespace lockstep::node {
namespace {

namespace fs = std::filesystem;

absl::Status CheckProgram(const std::string& name) {
  if (agent::FindProgram(name)) return absl::OkStatus();
  const bool is_path = name.find('/') != std::string::npos;
  return NotFound("--no-python: {} is not {}", name,
                  is_path ? "an executable file" : "a program on PATH; a file here is ./" + name);
}

// <--log-dir>/<run id>_<random>, as torchrun names it, whose random letters are X here; without --log-dir, files that
// --redirects or --tee ask for lie in the run directory.
std::string PlanLogDir(const agent::RunSpec& spec) {
  const agent::Torchrun& torchrun = spec.torchrun;
  if (torchrun.log_dir.empty()) return torchrun.streams.empty() ? "" : spec.run_dir + "/logs";
  return fmt::format("{}/{}_XXXXXX", fs::absolute(torchrun.log_dir).lexically_normal().string(),
                     fs::path(torchrun.run_id.empty() ? spec.job : torchrun.run_id).filename().string());
}

absl::StatusOr<std::string> MakeLogDir(const agent::RunSpec& spec) {
  std::string path = PlanLogDir(spec);
  if (spec.torchrun.log_dir.empty()) return path;
  const std::string base = fs::path(path).parent_path().string();
  std::error_code error;
  fs::create_directories(base, error);
  if (error || mkdtemp(path.data()) == nullptr)
    return Errno(error ? error.value() : errno, "--log-dir {}: making a folder for this run", base);
  return path;
}

absl::Status CheckScript(const RunOptions& options) {
  if (options.command.empty())
    return InvalidArgument("no script to run; usage: lockstep run [options] SCRIPT [ARGS...]");
  if (options.module) return absl::OkStatus();
  const std::string& script = options.command.front();
  if (options.torchrun.no_python) return CheckProgram(script);
  if (!fs::exists(script))
    return NotFound("script {} does not exist (looked in {})", script, fs::current_path().string());
  if (fs::is_directory(script) && !fs::exists(script + "/__main__.py"))
    return InvalidArgument("{} is a directory without a __main__.py; name a script, or a module with -m", script);
  if (access(script.c_str(), R_OK) != 0)
    return MakeError(absl::StatusCode::kPermissionDenied, fmt::format("script {} is not readable", script));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> MakeToken() {
  uint64_t random[2];
  if (getrandom(random, sizeof(random), 0) != sizeof(random)) return Errno(errno, "getrandom");
  return fmt::format("{:016x}{:016x}", random[0], random[1]);
}

control::JobSpec MakeJob(const RunOptions& options) {
  control::JobSpec job;
  job.name = options.job;
  job.ranks = options.ranks;
  job.max_restarts = options.max_restarts.value_or(job.max_restarts);
  job.restarts_without_steps = options.max_restarts.has_value();
  job.no_progress_limit = options.no_progress_limit;
  job.observe_only = options.observe_only;
  job.grace = options.grace;
  job.policy = options.recovery;
  job.standbys = options.nodes.expected.standbys;
  job.can_ask = options.cluster != "none" && !(options.standby_job.empty() && options.standby_command.empty());
  return job;
}

namespace {

// NCCL loads one profiler only. Ours may be told by its name, as to a rank that begins a run, or by one of its paths.
bool NcclHasNoOther(const std::string& ours) {
  const std::string told = agent::Lookup({}, "NCCL_PROFILER_PLUGIN", "");
  const fs::path folder = fs::path(ours).parent_path(), name = fs::path(ours).filename();
  const auto is_told = [&](const fs::path& path) {
    std::error_code error;
    return fs::equivalent(told, path, error);
  };
  // It is in PREFIX/lib, too, where a wheel, which has no links, has a copy.
  return told.empty() || told == name || is_told(ours) || is_told(folder / "../.." / name);
}

// Touches nothing.
absl::StatusOr<agent::RunSpec> PlanSpec(const RunOptions& options) {
  LS_RETURN_IF_ERROR(CheckScript(options));
  if (options.ranks < 1) return InvalidArgument("--nproc-per-node must be at least 1, found {}", options.ranks);
  LS_RETURN_IF_ERROR(AllowOpenFiles(options.ranks));
  agent::RunSpec spec;
  const absl::StatusOr<agent::PythonChoice> python = agent::FindPython(options.python);
  if (!python.ok() && !options.torchrun.no_python) return python.status();
  if (python.ok()) spec.python = python->path;  // else only the store would have needed it: rank 0 hosts it
  if (python.ok()) spec.python_from = python->from;
  LS_ASSIGN_OR_RETURN(const Installation installation, FindInstallation());
  spec.package_dir = installation.package_dir;
  spec.client_lib = installation.client_lib;
  if (options.preload) spec.gloo_lib = installation.gloo_lib;
  if (options.nccl_profiler && NcclHasNoOther(installation.nccl_lib)) spec.nccl_lib = installation.nccl_lib;
  spec.job = !options.job.empty() ? options.job
                                  : fmt::format("{}-{}", fs::path(options.command.front()).stem().string(), getpid());
  spec.cwd = fs::current_path().string();
  spec.command = options.command;
  spec.module = options.module;
  spec.ranks = options.ranks;
  spec.place.world_size = options.ranks;  // on one node; for several, the coordinator says
  spec.node_name = options.nodes.own_name.empty() ? HostName() : options.nodes.own_name;
  LS_ASSIGN_OR_RETURN(spec.run_token, MakeToken());
  LS_ASSIGN_OR_RETURN(spec.node_token, MakeToken());
  spec.start_method = options.start_method;
  spec.torchrun = options.torchrun;
  spec.checkpoint_budget = options.checkpoint_budget;
  spec.max_restarts = options.max_restarts.value_or(spec.max_restarts);
  spec.allow_drill = options.allow_drill;
  if (!options.checkpoint_dir.empty())
    spec.checkpoint_dir = fs::absolute(options.checkpoint_dir).lexically_normal().string();
  if (!options.checkpoint_upload.empty()) {
    if (options.checkpoint_dir.empty())
      return InvalidArgument("--checkpoint-upload needs --checkpoint-dir, for what is on disk there is uploaded");
    const absl::Status url = remote::CheckUrl(options.checkpoint_upload, SystemClock());
    if (!url.ok()) return InvalidArgument("--checkpoint-upload: {}", Message(url));
    const bool path = !remote::IsUrl(options.checkpoint_upload);
    spec.checkpoint_upload =
        path ? fs::absolute(options.checkpoint_upload).lexically_normal().string() : options.checkpoint_upload;
  }
  spec.checkpoint_interval = options.checkpoint_interval;
  spec.checkpoint_keep = options.checkpoint_keep;
  spec.checkpoint_flush_limit = options.checkpoint_flush_limit;
  spec.layout = options.layout;
  LS_ASSIGN_OR_RETURN(spec.feeds, ParseFeeds(options.feeds));
  spec.watching = KeptOptions(options);
  return spec;
}

}  // namespace

absl::StatusOr<agent::RunSpec> MakeSpec(const RunOptions& options) {
  LS_ASSIGN_OR_RETURN(agent::RunSpec spec, PlanSpec(options));
  if (!agent::CanPreload(spec.gloo_lib, spec.python)) spec.gloo_lib.clear();
  LS_ASSIGN_OR_RETURN(spec.run_dir, MakeRunDir(options.run_dir, spec.job));
  LS_ASSIGN_OR_RETURN(spec.torchrun.log_dir, MakeLogDir(spec));
  LS_RETURN_IF_ERROR(KeepSpec(spec));
  return spec;
}

absl::Status AllowOpenFiles(int ranks) {
  const uint64_t needed = agent::OpenFilesFor(ranks), allowed = lockstep::AllowOpenFiles(needed);
  if (allowed >= needed) return absl::OkStatus();
  return FailedPrecondition("a process may have {} files open here, and Lockstep needs {}: raise `ulimit -n`", allowed,
                            needed);
}

namespace {

// The processes beside the ranks.
Json Helpers(const agent::RunSpec& spec) {
  Json processes = {"lockstep run (agent)", "lockstep starter"};
  const bool may_fork = spec.start_method != agent::StartMethod::kExec && !spec.torchrun.no_python;
  if (may_fork) processes.push_back("zygote: python with torch imported, if it is safe to fork");
  for (const agent::FeedSpec& feed : spec.feeds)
    processes.push_back(fmt::format("lockstep feed serve: {} of {}", feed.name, feed.data));
  if (!spec.python.empty() && spec.place.node == 0) processes.push_back("rendezvous store");
  return processes;
}

std::string NodesText(const Nodes& nodes) {
  if (nodes.most == kAsCoordinatorSays) return "as the coordinator says";
  return nodes.least == nodes.most ? std::to_string(nodes.most) : fmt::format("{}:{}", nodes.least, nodes.most);
}

// What only the start decides is said in words.
agent::Environment PlannedEnvironment(const RunOptions& options, const agent::RunSpec& spec, int rank) {
  const bool several = options.nodes.several();
  const agent::EpochPlan plan{.store_host = several ? "node 0's address" : spec.torchrun.master_addr,
                              .agent_store = !spec.python.empty()};
  agent::Environment environment = agent::WorkerEnvironment(spec, plan, rank);
  const int port = spec.torchrun.master_port;
  environment["MASTER_PORT"] =
      !several && port != 0 ? fmt::format("{}, or a free one if it is taken", port) : "a free one";
  environment["LOCKSTEP_WORKER_PID"] = "its pid";
  constexpr const char* kIfItCan = ", if liblockstep-gloo.so can be preloaded";
  if (!spec.gloo_lib.empty() && spec.nccl_lib.empty()) environment["LOCKSTEP_TRAILS"] += kIfItCan;
  if (!spec.gloo_lib.empty() && spec.torchrun.no_python) {  // a script's has it no more when that begins
    agent::AddCollectors(spec, environment);
    environment["LD_PRELOAD"] += kIfItCan;
  }
  if (spec.python.empty()) return environment;  // both, where torch's version is not known
  for (const auto& [name, which] : {std::pair("NCCL_ASYNC_ERROR_HANDLING", ", where torch is older than 2.2"),
                                    std::pair("TORCH_NCCL_ASYNC_ERROR_HANDLING", ", where torch is 2.2 or newer")})
    if (environment.contains(name)) environment[name] += which;
  return environment;
}

}  // namespace

absl::StatusOr<Json> DryRun(const RunOptions& options) {
  LS_ASSIGN_OR_RETURN(agent::RunSpec spec, PlanSpec(options));
  if (spec.python.empty()) spec.gloo_lib.clear();
  const Nodes& nodes = options.nodes;
  LS_ASSIGN_OR_RETURN(spec.run_dir, PlanRunDir(options.run_dir, spec.job));
  spec.torchrun.log_dir = PlanLogDir(spec);
  spec.place.nodes = std::max(nodes.most, 1);
  spec.place.node = std::max(nodes.own_rank, 0);
  // Of other nodes it is not known how many ranks they bring: as many as here.
  spec.place.first_rank = spec.place.node * spec.ranks;
  spec.place.world_size = spec.place.nodes * spec.ranks;
  Json ranks = Json::array();
  for (int rank = 0; rank < spec.ranks; ++rank)
    ranks.push_back({{"rank", agent::GlobalRank(spec, rank).value()},
                     {"command", agent::WorkerCommand(spec, rank)},
                     {"environment", PlannedEnvironment(options, spec, rank)}});
  return Json{{"node", spec.node_name},
              {"node_rank", nodes.own_rank < 0 && nodes.several() ? Json("as they come") : Json(spec.place.node)},
              {"nodes", NodesText(nodes)},
              {"coordinator", nodes.endpoint.empty()
                                  ? "in this process"
                                  : fmt::format("{}{}", nodes.endpoint, nodes.may_lead ? ", here if it is free" : "")},
              {"run_dir", spec.run_dir},
              {"working_directory", spec.cwd},
              {"processes", Helpers(spec)},
              {"ranks", ranks}};
}

absl::Status KeepSpec(const agent::RunSpec& spec) {
  return WriteFileAtomically(spec.run_dir + "/run.json", RenderJson(ToJson(spec)));
}

}  // namespace lockstep::node
