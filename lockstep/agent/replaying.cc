#include "lockstep/agent/replaying.h"

#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/agent/code_copy.h"
#include "lockstep/agent/launch.h"
#include "lockstep/agent/replay_child.h"
#include "lockstep/agent/replayed_ranks.h"
#include "lockstep/base/background_thread.h"
#include "lockstep/base/child.h"
#include "lockstep/base/file.h"
#include "lockstep/detect/replay_runs.h"
#include "lockstep/probe/cores.h"
#include "lockstep/probe/gpu.h"

namespace lockstep::agent {
namespace {

constexpr char kOptedIn[] = "opted_in";  // as python/lockstep/__init__.py has it
constexpr char kOurModel[] = "lockstep._replay_model";
constexpr size_t kMostReport = 1 << 20;  // of all ranks of a node together

std::vector<int> VersionsThatOptedIn(const RunSpec& spec) {
  std::vector<int> versions;
  std::error_code ignored;
  if (spec.torchrun.no_python) return versions;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("{}/{}", spec.run_dir, kOptedIn), ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.empty() && name.find_first_not_of("0123456789") == std::string::npos && name.size() < 9)
      versions.push_back(std::stoi(name));
  }
  return versions;
}

// Where a run finds its program, and leaves what it says.
struct Scene {
  EpochPlan plan;
  std::string folder;
};

std::string FileOf(const Scene& scene, const control::ReplayRun& run, int rank, const char* suffix) {
  return fmt::format("{}/run{}_rank{}.{}", scene.folder, run.run, rank, suffix);
}

absl::StatusOr<Scene> SceneOf(const RunSpec& spec, const control::ReplayRun& run) {
  Scene scene;
  scene.folder = fmt::format("{}/incident_{}", spec.run_dir, run.incident);
  LS_RETURN_IF_ERROR(MakeDirectory(scene.folder));
  LS_RETURN_IF_ERROR(MakeDirectory(scene.folder += "/replay"));
  std::error_code ignored;  // of a search that another coordinator led
  for (int rank = run.first_rank; rank < run.first_rank + spec.ranks; ++rank)
    for (const char* suffix : {"log", "jsonl"}) std::filesystem::remove(FileOf(scene, run, rank, suffix), ignored);
  scene.plan.version = run.version.number;
  scene.plan.environment = run.version.env;
  if (!run.own_script) return scene;
  LS_ASSIGN_OR_RETURN(scene.plan.code, PathOfCode(spec, run.version));
  if (!scene.plan.code.empty()) {
    LS_ASSIGN_OR_RETURN(scene.plan.code_root, CodeRoot(spec));
  }
  return scene;
}

RanksToReplay::Rank RankOf(const RunSpec& spec, const control::ReplayRun& run, const Scene& scene, int local) {
  ReplayPlace place{
      run.first_rank + local, run.ranks,      local, spec.ranks, run.index, static_cast<int>(run.nodes.size()),
      run.master_host,        run.master_port};
  const Json plan = {{"layers", run.layers},  {"steps", run.steps},
                     {"run", run.run},        {"machine", spec.place.node},
                     {"machines", run.nodes}, {"report", FileOf(scene, run, place.rank, "jsonl")}};
  RanksToReplay::Rank rank;
  rank.name = detect::ReplayedRankName("node " + spec.node_name, place.rank);
  rank.start.environment = PythonEnvironment(spec, true);
  AddVersion(spec, scene.plan, rank.start.environment);
  for (auto& [name, value] : ReplayEnvironment(place, plan)) rank.start.environment[name] = value;
  if (spec.torchrun.virtual_local_rank) AddVirtualLocalRank(local, rank.start.environment);
  rank.start.log = FileOf(scene, run, place.rank, "log");
  if (run.own_script) rank.start.command = ScriptCommand(spec, local, scene.plan.code);
  return rank;
}

RanksToReplay RanksOf(const RunSpec& spec, const control::ReplayRun& run, const Scene& scene) {
  RanksToReplay ranks;
  ranks.program = {spec.python,
                   spec.package_dir,
                   spec.cwd,
                   run.own_script ? spec.command : std::vector<std::string>{kOurModel},
                   !run.own_script || spec.module,
                   scene.plan.code_root,
                   scene.plan.code,
                   scene.plan.environment,
                   spec.start_method == StartMethod::kExec};
  ranks.deadline = run.deadline;
  for (int local = 0; local < spec.ranks; ++local) ranks.ranks.push_back(RankOf(spec, run, scene, local));
  return ranks;
}

// A rank that reports nothing has none; of more than there is room for, the last lines are left out, and that is said.
void AddReports(const control::ReplayRun& run, const RunSpec& spec, const Scene& scene, control::ReplayEnded& ended) {
  const size_t most = kMostReport / static_cast<size_t>(spec.ranks);
  for (int local = 0; local < spec.ranks; ++local) {
    std::string text = ReadFile(FileOf(scene, run, run.first_rank + local, "jsonl")).value_or("");
    if (text.size() > most) {
      text.resize(most);
      ended.error = fmt::format("a rank reports more than {} bytes: check fewer tensors, or one that holds them", most);
    }
    ended.reports.push_back(text.substr(0, text.rfind('\n') + 1));  // npos + 1 is 0
  }
}

absl::StatusOr<RanksReplayed> Replay(const RunSpec& spec, const control::ReplayRun& run, const Scene& scene,
                                     const std::stop_token& stop) {
  LS_ASSIGN_OR_RETURN(const std::string self, OwnBinary());
  const ChildOptions options{.at_most = run.deadline + control::kUntilRanksRun,
                             .input = InputText(RanksOf(spec, run, scene))};
  LS_ASSIGN_OR_RETURN(const ChildEnd end, RunChild({self, "replay-ranks"}, options, stop));
  if (end.signal != 0 || end.code != 0) return Unavailable("{}", HowItEnded("the process that runs the ranks", end));
  LS_ASSIGN_OR_RETURN(RanksReplayed replayed, ReadReplayed(end.out));
  if (!replayed.error.empty()) return Unavailable("{}", replayed.error);
  return replayed;
}

// Who was told to stop has nothing to say but what its ranks reported until then.
control::ReplayEnded RunRanks(const RunSpec& spec, const control::ReplayRun& run, const std::stop_token& stop) {
  control::ReplayEnded ended{run.search, run.run};
  const absl::StatusOr<Scene> scene = SceneOf(spec, run);
  if (!scene.ok()) {
    ended.error = Message(scene.status());
    return ended;
  }
  const absl::StatusOr<RanksReplayed> replayed = Replay(spec, run, *scene, stop);
  if (!replayed.ok() && !stop.stop_requested()) ended.error = Message(replayed.status());
  if (replayed.ok()) {
    ended.trouble = replayed->trouble;
    ended.troubled_at = replayed->troubled_at;
    ended.port_taken = replayed->port_taken;
  }
  AddReports(run, spec, *scene, ended);
  return ended;
}

}  // namespace

Replaying::~Replaying() {
  EndThread();
  answers_.Close();
}

// Whatever it would answer is not heard any more.
void Replaying::EndThread() {
  ++turn_;
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
}

void Replaying::StopAll() {
  EndThread();
  run_ = 0;
  over_ = true;
  ended_.reset();
}

void Replaying::Ready(const RunSpec& spec, const control::Probe& probe) {
  if (probe.search < search_ || (probe.search == search_ && over_)) return;
  if (probe.search != search_) StopAll();
  search_ = probe.search;
  over_ = false;
  control::ReplayReady ready{.search = search_, .host = spec.address};
  ready.opted_in = VersionsThatOptedIn(spec);
  ready.processor = probe::ProcessorModel() + ", " + probe::GpuText();
  ready.run = run_;
  const absl::StatusOr<int> port = FreePort(0);
  if (port.ok()) ready.port = *port;
  if (!port.ok()) ready.error = Message(port.status());
  say_(ready);
  if (ended_) say_(*ended_);
}

void Replaying::Begin(const RunSpec& spec, const control::ReplayRun& run) {
  if (run.search != search_ || over_ || run.run < run_) return;
  if (run.run == run_) {
    if (ended_) say_(*ended_);
    return;
  }
  EndThread();
  run_ = run.run;
  ended_.reset();
  thread_ = std::jthread([this, spec, run, turn = turn_](const std::stop_token& stop) {
    TakeNoSignals();
    control::ReplayEnded ended = RunRanks(spec, run, stop);
    ended.port = FreePort(0).value_or(0);
    answers_.Post([this, turn, ended = std::move(ended)] {
      if (turn != turn_) return;
      ended_ = ended;
      say_(ended);
    });
  });
}

void Replaying::Stop(const control::ReplayStop& stop) {
  if (stop.search != search_ || over_) return;
  if (stop.run == 0) return StopAll();
  if (stop.run == run_ && thread_.joinable()) thread_.request_stop();
}

}  // namespace lockstep::agent
