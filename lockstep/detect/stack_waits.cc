#include "lockstep/detect/stack_waits.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lockstep/detect/comm_hang.h"
#include "lockstep/detect/comm_waits.h"

namespace lockstep::detect {
namespace {

using cluster::Dimension;

class Inference {
 public:
  Inference(const cluster::Layout& layout, const StackClusters& stacks)
      : layout_(layout), stacks_(stacks), cluster_of_(static_cast<size_t>(layout.WorldSize()), Trainer::kUnread) {
    for (const Trainer& trainer : stacks.trainers) cluster_of_[static_cast<size_t>(trainer.rank)] = trainer.cluster;
  }

  WaitGraph Run() {
    for (size_t i = 0; i < stacks_.clusters.size(); ++i) {
      const StackCluster& cluster = stacks_.clusters[i];
      if (cluster.role != trace::ProcessRole::kTrainer || cluster.in_communication != InCollective::kYes) continue;
      if (cluster.partners == Partners::kGroup && cluster.dimension && layout_.Size(*cluster.dimension) > 1) {
        AddGroups(static_cast<int>(i), *cluster.dimension);
      } else if (IsTransfer(cluster.partners) && layout_.pp > 1) {
        for (const int rank : cluster.ranks) AddTransfer(rank, cluster);
      } else {
        graph_.waits.push_back({cluster.ranks, {}, cluster.place, true});
      }
    }
    return std::move(graph_);
  }

 private:
  static bool IsTransfer(Partners partners) { return partners != Partners::kUnknown && partners != Partners::kGroup; }

  // Of each group that some of the cluster's ranks belong to.
  void AddGroups(int cluster, Dimension dimension) {
    if (!groups_.contains(dimension)) groups_[dimension] = layout_.Groups(dimension);
    const std::string what = fmt::format(
        "{} ({} group)", stacks_.clusters[static_cast<size_t>(cluster)].place,
        cluster::DimensionName(layout_.cp == 1 && dimension == Dimension::kDpCp ? Dimension::kDp : dimension));
    for (const std::vector<RankId>& group : groups_[dimension]) {
      WaitFor wait{{}, {}, what, false};
      for (const RankId member : group) {
        const bool in = cluster_of_[static_cast<size_t>(member.value())] == cluster;
        (in ? wait.in : wait.behind).push_back(member.value());
      }
      if (!wait.in.empty()) graph_.waits.push_back(std::move(wait));
    }
  }

  void AddTransfer(int rank, const StackCluster& cluster) {
    const std::vector<RankId> stages = layout_.Group(Dimension::kPp, RankId(rank));
    const auto at = std::find(stages.begin(), stages.end(), RankId(rank));
    WaitFor wait{{rank}, {}, cluster.place, false};
    if (cluster.partners != Partners::kBehind && at != stages.begin()) wait.behind.push_back((at - 1)->value());
    if (cluster.partners != Partners::kBefore && at + 1 != stages.end()) wait.behind.push_back((at + 1)->value());
    // Chunks of an interleaved pipeline go from its end to its beginning, too.
    wait.somebody = wait.behind.empty();
    if (wait.behind.size() == 1 && Faces(wait.behind.front(), rank, cluster.partners)) {
      wait.in.push_back(wait.behind.front());
      std::sort(wait.in.begin(), wait.in.end());
      wait.behind.clear();
    }
    graph_.waits.push_back(std::move(wait));
  }

  // The neighbour waits for this one in its turn: both have come, and yet it does not end.
  bool Faces(int other, int rank, Partners partners) const {
    const int cluster = cluster_of_[static_cast<size_t>(other)];
    if (cluster == Trainer::kUnread) return false;
    const Partners towards = stacks_.clusters[static_cast<size_t>(cluster)].partners;
    const bool after = other > rank;
    return (partners == Partners::kBehind && after && towards == Partners::kBefore) ||
           (partners == Partners::kBefore && !after && towards == Partners::kBehind);
  }

  const cluster::Layout& layout_;
  const StackClusters& stacks_;
  std::vector<int> cluster_of_;  // by rank
  std::map<Dimension, std::vector<std::vector<RankId>>> groups_;
  WaitGraph graph_;
};

std::string NameOf(const trace::CommLog& log, const trace::CommOp& op) {
  if (op.direction != trace::Direction::kCollective && op.peer < 0)
    return fmt::format("a transfer ({}) with a rank that is not known", log.functions[op.function]);
  if (op.direction != trace::Direction::kCollective)
    return fmt::format("a {} rank {}", op.direction == trace::Direction::kSend ? "send to" : "receive from", op.peer);
  return fmt::format("{} {} of communicator {}", log.functions[op.function], op.sequence,
                     log.communicators[op.communicator].name);
}

}  // namespace

WaitGraph WaitsOf(const trace::CommLog& log, const CommThresholds& thresholds) {
  WaitGraph graph;
  const CommDiagnosis diagnosis = FindHangs(log, thresholds);
  if (diagnosis.findings.empty()) return graph;
  graph.hangs = std::any_of(diagnosis.findings.begin(), diagnosis.findings.end(),
                            [](const incident::Finding& finding) { return finding.certain; });
  graph.silent = diagnosis.no_report;
  const Standing standing(log);
  const Waits waits(standing);
  for (const Wait& wait : waits.all()) {
    WaitFor out{wait.in, wait.behind, NameOf(log, *wait.op), wait.somebody};
    std::sort(out.in.begin(), out.in.end());
    std::sort(out.behind.begin(), out.behind.end());
    graph.waits.push_back(std::move(out));
  }
  return graph;
}

WaitGraph InferWaits(const cluster::Layout& layout, const StackClusters& stacks) {
  return Inference(layout, stacks).Run();
}

}  // namespace lockstep::detect
