// What simulated nodes find out about themselves while the job stands, alone and in groups.
#include <fmt/format.h>

#include "lockstep/control/simulation_cluster.h"

namespace lockstep::control {
namespace {

constexpr double kPortTaken = 0.03, kCrashes = 0.5, kSometimes = 0.3, kShows = 0.5;

}  // namespace

void Cluster::Spoil(int index, Rung found_by) {
  Node& node = nodes_[At(index)];
  node.spoiled = found_by;
  node.crashes = chance_.Hits(kCrashes);
  node.sometimes = chance_.Hits(kSometimes);
}

void Cluster::Do(int index, const Probe& command) {
  const Node& node = nodes_[At(index)];
  if (command.epoch < node.epoch || node.mute) return;
  if (command.search != 0) return SayReady(index, command);
  Probed answer{command.epoch, command.rung, {}, {}};
  if (node.spoiled == command.rung) {
    incident::Finding finding;
    finding.syndrome = incident::Syndrome::kMachineFault;
    finding.suspects = {{incident::Suspect::Kind::kNode, node.name}};
    finding.evidence = {"it computes another sum"};
    finding.certain = true;
    answer.findings = {finding};
  }
  schedule_.In(chance_.Between(0.05, 0.5), [this, index, answer] { Remember(index, answer.epoch, answer); });
}

// It is asked again when it was out of reach, and whatever is older than what it knows comes late.
void Cluster::SayReady(int index, const Probe& probe) {
  Node& node = nodes_[At(index)];
  if (probe.search < node.search) return;
  if (probe.search > node.search) {
    node.search = probe.search;
    node.replay = 0;
    node.replayed.reset();
  }
  ReplayReady ready{.search = node.search, .host = node.name, .port = 1 + index, .processor = "one for all"};
  ready.run = node.replay;
  SayNow(index, ready);
  if (node.replayed) SayNow(index, *node.replayed);
}

ReplayEnded Cluster::Replayed(int index, const ReplayRun& run) {
  const Node& node = nodes_[At(index)];
  ReplayEnded ended{.search = run.search, .run = run.run, .troubled_at = schedule_.now(), .port = 1 + index};
  const bool shows = node.spoiled == Rung::kReplay && (!node.sometimes || chance_.Hits(kShows));
  ended.port_taken = run.index == 0 && chance_.Hits(kPortTaken);
  if (ended.port_taken || (shows && node.crashes)) ended.trouble = fmt::format("node {} failed", node.name);
  const std::string digest = shows ? fmt::format("of {}", node.name) : "right";
  for (int rank = 0; rank < plan_.ranks_per_node; ++rank)
    ended.reports.push_back(
        fmt::format(R"({{"step":0,"scope":"everywhere","values":{{"gradient":["{}",0]}}}})", digest) + "\n");
  return ended;
}

void Cluster::Answer(int index, const ReplayEnded& ended) {
  Node& node = nodes_[At(index)];
  if (node.search != ended.search || node.replay != ended.run || node.replayed) return;
  node.replayed = ended;
  SayNow(index, ended);
}

void Cluster::Do(int index, const ReplayRun& run) {
  Node& node = nodes_[At(index)];
  if (run.search != node.search || run.run < node.replay) return;
  if (run.run == node.replay && node.replayed) return SayNow(index, *node.replayed);
  if (run.run == node.replay) return;
  node.replay = run.run;
  node.replayed.reset();
  schedule_.In(chance_.Between(0.02, 0.3), [this, index, ended = Replayed(index, run)] { Answer(index, ended); });
}

void Cluster::Do(int index, const ReplayStop& stop) {
  const Node& node = nodes_[At(index)];
  if (stop.run != 0) return Answer(index, {.search = stop.search, .run = stop.run});
  if (stop.search == node.search) nodes_[At(index)].replay = 0;
}

}  // namespace lockstep::control
