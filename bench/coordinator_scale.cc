// What a job of many nodes costs its coordinator to hear: the words of all agents, once each, through the fleet and the
// state machine, on one core. The journal is in memory, nothing is sent: what is measured is counting and deciding.
// Ranks are those of a layout of TP x PP x DP, 8 per node. Seconds are CPU time.
//
//   coordinator_scale NODES ROUNDS     NODES a multiple of 16; prints {"nodes", "ranks", "keepers_s": [...], ...}
#include <fmt/ranges.h>

#include <cstdlib>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/control/coordinator.h"
#include "lockstep/control/fleet.h"
#include "lockstep/control/keepers.h"
#include "lockstep/control/memory_journal.h"

namespace lockstep::control {
namespace {

constexpr int kRanksPerNode = 8, kStages = 16;
constexpr EpochId kEpoch{1}, kNext{2};

// Of this thread: the same as by a clock, where nothing else runs.
double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Job {
 public:
  explicit Job(int nodes) : nodes_(nodes), layout_{.tp = kRanksPerNode, .dp = nodes / kStages, .pp = kStages} {
    for (int node = 0; node < nodes; ++node)
      spec_.nodes.push_back({fmt::format("node{}", node), kRanksPerNode, fmt::format("token{}", node)});
    spec_.ranks = nodes * kRanksPerNode;
    spec_.layout = cluster::LayoutJson(layout_);
  }

  void Run(std::map<std::string, std::vector<double>>& seconds) {
    const auto time = [&](const char* what, auto&& work) {
      const double begin = CpuSeconds();
      work();
      seconds[what].push_back(CpuSeconds() - begin);
    };
    std::vector<int> keepers;
    time("keepers_s", [&] { keepers = KeepersOf(spec_.nodes, layout_); });
    fleet_ = std::make_unique<Fleet>(std::move(keepers));
    time("begin_s", [&] { Begin(); });
    time("step_s", [&] { Step(1); });
    time("probe_s", [&] { Probes(); });
    time("lost_connections_s", [&] { Leave(); });
    time("stopped_s", [&] { Say([](int) { return EpochStopped{kEpoch}; }); });
    LS_CHECK(Is(Mode::kChoosing), "mode {}", ModeName(coordinator_->state().mode));
    time("restore_s", [&] { Restore(); });
    LS_CHECK(Is(Mode::kSpawning), "mode {}", ModeName(coordinator_->state().mode));
  }

 private:
  bool Is(Mode mode) const { return coordinator_->state().mode == mode; }

  void Handle(const std::vector<EventBody>& events) {
    for (const EventBody& event : events) LS_CHECK(coordinator_->Handle(event).ok(), "{}", TypeName(event));
  }
  // The same by the agents of all nodes.
  template <typename Word>
  void Say(const Word& word) {
    clock_.Advance(Seconds{0.1});
    for (int node = 0; node < nodes_; ++node) Handle(fleet_->Hear(node, EventBody(word(node))));
  }

  void Begin() {
    coordinator_ = std::make_unique<Coordinator>(journal_, clock_);
    Handle({JobStarted{spec_}});
    fleet_->Begin(kEpoch);
    for (int node = 0; node < nodes_; ++node) fleet_->Hear(node, KeepsAt{fmt::format("node{}", node), 1, 2});
    Say([](int) { return EpochSpawned{kEpoch}; });
    Say([&](int) { return LoopBegan{kEpoch, clock_.Now(), {}}; });
    LS_CHECK(Is(Mode::kRunning), "mode {}", ModeName(coordinator_->state().mode));
  }

  // Each agent tells its ranks' progress, and the checkpoint of the step, as control/conductor.cc takes them.
  void Step(int64_t step) {
    clock_.Advance(Seconds{1});
    size_t commits = 0;
    for (int node = 0; node < nodes_; ++node) {
      fleet_->Hear(node, Samples{kEpoch, {}, {}, {step, clock_.Now() - Nanos{node}}, {}});
      if (fleet_->Hear(node, Holding{kEpoch, {{kEpoch, step}}, {}, step})) commits += fleet_->CommitNews() ? 1 : 0;
    }
    LS_CHECK(commits == 1 && fleet_->progress().step == step, "{} commits", commits);
    Handle({ProgressSeen{kEpoch, fleet_->progress()}});
  }

  void Probes() {
    const Command probe = Probe{kEpoch, Rung::kDiagnose, 1, Seconds{60}};
    size_t ringed = 0;
    for (int node = 0; node < nodes_; ++node) {
      const Told asked = fleet_->Asked(node, probe);
      ringed += std::get<Probe>(std::get<Command>(asked)).ring.empty() ? 0 : 1;
    }
    LS_CHECK(ringed == static_cast<size_t>(nodes_), "{} of {} nodes have a ring", ringed, nodes_);
  }

  // One rank is killed, and all others lose their connections to it.
  void Leave() {
    clock_.Advance(Seconds{1});
    for (int rank = 0; rank < spec_.ranks; ++rank) {
      RankExited exit{kEpoch, RankId(rank), {1, 0}, {}, {1, clock_.Now() - ToNanos(Seconds{1})}, clock_.Now()};
      exit.exception = ExceptionInfo{"RuntimeError", "Connection closed by peer", "train.py:50 in main", true};
      if (rank == spec_.ranks / 2)
        exit.exception.reset(), exit.status = {0, SIGKILL}, exit.exited = clock_.Now() - Nanos{1};
      Handle(fleet_->Hear(rank / kRanksPerNode, EventBody(exit)));
    }
  }

  void Restore() {
    for (int node = 0; node < nodes_; ++node) {
      RestoreFound found{.epoch = kNext, .points = {{kEpoch, 1}}, .rejected = {}};
      found.kept = {{node == 0 ? nodes_ - 1 : node - 1, {kEpoch, 1}}};
      found.held = {node, nodes_};
      Handle(fleet_->Hear(node, found));
    }
  }

  const int nodes_;
  const cluster::Layout layout_;
  JobSpec spec_;
  FakeClock clock_;
  MemoryJournal journal_;
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<Coordinator> coordinator_;
};

int Run(int nodes, int rounds) {
  std::map<std::string, std::vector<double>> seconds;
  for (int round = 0; round < rounds; ++round) Job(nodes).Run(seconds);
  fmt::print("{{\"nodes\": {}, \"ranks\": {}", nodes, nodes * kRanksPerNode);
  for (const auto& [what, samples] : seconds) fmt::print(", \"{}\": [{:.4f}]", what, fmt::join(samples, ", "));
  fmt::print("}}\n");
  return 0;
}

}  // namespace
}  // namespace lockstep::control

int main(int argc, char** argv) {
  const int nodes = argc == 3 ? std::atoi(argv[1]) : 0, rounds = argc == 3 ? std::atoi(argv[2]) : 0;
  if (nodes < 32 || nodes % lockstep::control::kStages != 0 || rounds < 1) {
    fmt::print(stderr, "usage: coordinator_scale NODES ROUNDS, with NODES a multiple of 16 (stages), 32 or more\n");
    return 2;
  }
  return lockstep::control::Run(nodes, rounds);
}
