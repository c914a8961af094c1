#include "lockstep/detect/stack_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lockstep/incident/rank_ranges.h"
#include "lockstep/incident/some.h"

namespace lockstep::detect {
namespace {

using incident::Finding;
using incident::RanksAsRanges;
using incident::Suspect;
using incident::Syndrome;
using trace::ProcessRole;
using RankSet = std::set<int>;

constexpr size_t kMostLines = 18;  // of evidence, with those about helpers

std::vector<int> Listed(const RankSet& ranks) { return {ranks.begin(), ranks.end()}; }

RankSet Without(const RankSet& ranks, const RankSet& others) {
  RankSet left;
  std::set_difference(ranks.begin(), ranks.end(), others.begin(), others.end(), std::inserter(left, left.end()));
  return left;
}

std::vector<Suspect> Suspects(const RankSet& ranks) {
  std::vector<Suspect> suspects;
  suspects.reserve(ranks.size());
  for (const int rank : ranks) suspects.push_back(incident::SuspectRank(RankId(rank)));
  return suspects;
}

// Where each rank stands in a graph of waits.
struct Ends {
  RankSet outside;  // waited for, and in nothing
  RankSet silent;   // likewise, but of these nobody knows anything
  RankSet stuck;    // in a call to which all have come, and of which one is waited for; without such calls, in any
};

class Judgement {
 public:
  Judgement(std::span<const trace::ProcessStack> stacks, const StackContext& context) : context_(context) {
    verdict_.stacks = ClusterStacks(stacks, context.lines);
    for (const Trainer& trainer : verdict_.stacks.trainers) trainer_of_[trainer.rank] = &trainer;
    for (const Trainer& trainer : verdict_.stacks.trainers) Sort(trainer);
    if (context.layout)
      for (int rank = 0; rank < context.layout->WorldSize(); ++rank)
        if (!trainer_of_.contains(rank)) unread_.insert(rank);
    for (const WaitFor& wait : context.waits.waits)
      for (const std::vector<int>* ranks : {&wait.in, &wait.behind})
        std::copy_if(ranks->begin(), ranks->end(), std::inserter(unread_, unread_.end()),
                     [&](int rank) { return !trainer_of_.contains(rank); });
    verdict_.no_stack = Listed(unread_);
    ranks_ = inside_.size() + outside_.size() + unknown_.size() + unread_.size();
  }

  StackVerdict Run() {
    FindOutliers();
    const bool named =
        NameByWaits(context_.waits, StackBasis::kWaitFor) || NameStopped() ||
        (context_.layout && NameByWaits(InferWaits(*context_.layout, verdict_.stacks), StackBasis::kLayout)) ||
        NameOutside() || NameOutliers() || NameHelpers() || NameTogether();
    if (named) Finish();
    return std::move(verdict_);
  }

 private:
  const StackCluster& ClusterAt(int index) const { return verdict_.stacks.clusters[static_cast<size_t>(index)]; }
  const StackCluster* ClusterOf(int rank) const {
    const auto found = trainer_of_.find(rank);
    if (found == trainer_of_.end() || found->second->cluster == Trainer::kUnread) return nullptr;
    return &ClusterAt(found->second->cluster);
  }

  void Sort(const Trainer& trainer) {
    const StackCluster* cluster = ClusterOf(trainer.rank);
    if (cluster == nullptr) {
      unread_.insert(trainer.rank);
    } else {
      RankSet* const sets[] = {&unknown_, &inside_, &outside_};
      sets[static_cast<size_t>(cluster->in_communication)]->insert(trainer.rank);
    }
    if (trainer.stopped) stopped_.insert(trainer.rank);
  }

  // The place of more than half of the trainers that were read, if there is one; clusters stand by size.
  const StackCluster* Dominant() const {
    const auto& clusters = verdict_.stacks.clusters;
    const size_t read = inside_.size() + outside_.size() + unknown_.size();
    const bool has = !clusters.empty() && clusters.front().role == ProcessRole::kTrainer;
    return has && 2 * clusters.front().ranks.size() > read ? &clusters.front() : nullptr;
  }

  void FindOutliers() {
    const StackCluster* dominant = Dominant();
    if (dominant == nullptr) return;
    for (const Trainer& trainer : verdict_.stacks.trainers)
      if (const StackCluster* own = ClusterOf(trainer.rank); own != nullptr && own != dominant)
        verdict_.outliers.push_back(trainer.rank);
  }

  // ---- who waits for whom ----

  Ends FindEnds(const WaitGraph& graph) const {
    std::unordered_set<int> waiting, stuck, waited;
    for (const WaitFor& wait : graph.waits) {
      (wait.behind.empty() && !wait.somebody ? stuck : waiting).insert(wait.in.begin(), wait.in.end());
      waited.insert(wait.behind.begin(), wait.behind.end());
    }
    Ends ends;
    RankSet all_stuck;
    for (const WaitFor& wait : graph.waits) {
      if (!wait.behind.empty() || wait.somebody) continue;
      const bool is_waited =
          std::any_of(wait.in.begin(), wait.in.end(), [&](int rank) { return waited.contains(rank); });
      for (const int rank : wait.in) {
        if (waiting.contains(rank)) continue;
        all_stuck.insert(rank);
        if (is_waited) ends.stuck.insert(rank);  // who faces the one that is waited for may be to blame as well
      }
    }
    if (ends.stuck.empty()) ends.stuck = all_stuck;
    for (const int rank : waited)
      if (!waiting.contains(rank) && !stuck.contains(rank))
        (Speaks(rank, graph) ? ends.outside : ends.silent).insert(rank);
    return ends;
  }

  // A stack that is unknown tells less than one that is outside.
  bool Speaks(int rank, const WaitGraph& graph) const {
    if (outside_.contains(rank)) return true;
    const bool told = &graph == &context_.waits && !std::binary_search(graph.silent.begin(), graph.silent.end(), rank);
    return told || inside_.contains(rank);
  }

  bool NameByWaits(const WaitGraph& graph, StackBasis basis) {
    if (graph.waits.empty()) return false;
    Ends ends = FindEnds(graph);
    // That all are in one call together tells nobody apart.
    if (ends.outside.empty() && ends.stuck.size() >= inside_.size() + outside_.size()) ends.stuck.clear();
    RankSet suspects = !ends.outside.empty() ? ends.outside : !ends.stuck.empty() ? ends.stuck : ends.silent;
    // What calls don't tell, a rank outside of all of them does.
    if (ends.outside.empty() && basis == StackBasis::kLayout && !outside_.empty()) return false;
    if (suspects.empty()) return false;
    RankSet ambiguous = ends.silent;
    ambiguous.insert(ends.stuck.begin(), ends.stuck.end());
    if (basis == StackBasis::kLayout) ambiguous.insert(outside_.begin(), outside_.end());
    const bool is_in = ends.outside.empty() && !ends.stuck.empty();
    Open(is_in ? Syndrome::kCommunicationHang : Syndrome::kNotEntered, basis, suspects, Without(ambiguous, suspects));
    const RankSet explained = Explained(graph, suspects);
    verdict_.confidence = Share(explained.size());
    TellWaits(graph, suspects);
    evidence().push_back(fmt::format("{} of {} ranks are named or wait for {}, directly or through others",
                                     explained.size(), ranks_, suspects.size() == 1 ? "it" : "them"));
    verdict_.finding->certain =
        graph.hangs && basis == StackBasis::kWaitFor && StacksAgree(ends, suspects) && explained.size() == ranks_;
    return true;
  }

  // Two sources that know nothing of each other say the same.
  bool StacksAgree(const Ends& ends, const RankSet& suspects) const {
    return verdict_.finding->ambiguous_with.empty() && std::all_of(suspects.begin(), suspects.end(), [&](int rank) {
             return ends.outside.contains(rank) ? outside_.contains(rank) : inside_.contains(rank);
           });
  }

  static RankSet Explained(const WaitGraph& graph, const RankSet& suspects) {
    std::unordered_map<int, std::vector<const WaitFor*>> waits_for;
    for (const WaitFor& wait : graph.waits)
      for (const int rank : wait.behind) waits_for[rank].push_back(&wait);
    RankSet explained = suspects;
    std::vector<int> open(suspects.begin(), suspects.end());
    while (!open.empty()) {
      const auto found = waits_for.find(open.back());
      open.pop_back();
      if (found == waits_for.end()) continue;
      for (const WaitFor* wait : std::exchange(found->second, {}))
        for (const int rank : wait->in)
          if (explained.insert(rank).second) open.push_back(rank);
    }
    return explained;
  }

  void TellWaits(const WaitGraph& graph, const RankSet& suspects) {
    std::vector<std::pair<const WaitFor*, std::vector<int>>> told;
    for (const WaitFor& wait : graph.waits) {
      std::vector<int> named;
      std::copy_if(wait.behind.begin(), wait.behind.end(), std::back_inserter(named),
                   [&](int rank) { return suspects.contains(rank); });
      if (!named.empty()) told.emplace_back(&wait, std::move(named));
    }
    incident::TellSome(told, "such calls", evidence(), [&](const auto& one) {
      const auto& [wait, named] = one;
      evidence().push_back(fmt::format("{} in {}: {} for {}", RanksAsRanges(wait->in), wait->what,
                                       wait->in.size() == 1 ? "waits" : "wait", RanksAsRanges(named)));
    });
  }

  // ---- by stacks alone ----

  // Where it was stopped tells nothing: it would go on from there.
  bool NameStopped() {
    const RankSet waiting = Without(inside_, stopped_);
    if (stopped_.empty() || waiting.empty()) return false;
    RankSet ambiguous = outside_;
    ambiguous.insert(unread_.begin(), unread_.end());
    Open(Syndrome::kStopped, StackBasis::kStopped, stopped_, Without(ambiguous, stopped_));
    verdict_.confidence = Share(waiting.size() + stopped_.size());
    evidence().push_back(fmt::format("{} of {} ranks wait in communication", waiting.size(), ranks_));
    return true;
  }

  // As with one rank's stack: where nobody is known to be outside, those of whom nothing is known.
  bool NameOutside() {
    if (inside_.empty()) return false;
    RankSet suspects = outside_;
    if (suspects.empty()) suspects = unknown_;
    if (suspects.empty()) suspects = unread_;
    if (suspects.empty()) return false;
    RankSet ambiguous = unknown_;
    ambiguous.insert(unread_.begin(), unread_.end());
    Open(Syndrome::kNotEntered, StackBasis::kOutside, suspects, Without(ambiguous, suspects));
    verdict_.confidence = Share(inside_.size() + suspects.size());
    evidence().push_back(fmt::format("{} of {} ranks wait in communication", inside_.size(), ranks_));
    return true;
  }

  bool NameOutliers() {
    if (inside_.empty() || verdict_.stacks.clusters.front().ranks.size() == inside_.size()) return false;
    const StackCluster* dominant = Dominant();
    if (dominant == nullptr) return NameTie();
    const RankSet outliers(verdict_.outliers.begin(), verdict_.outliers.end());
    RankSet others;
    if (context_.layout) {
      const SharedGroup group = FindSharedGroup(*context_.layout, verdict_.outliers);
      if (group.ranks.size() < ranks_) others.insert(group.ranks.begin(), group.ranks.end());
    }
    const bool shared = !others.empty();
    Open(Syndrome::kDesynchronised, shared ? StackBasis::kSharedGroup : StackBasis::kOutliers, outliers,
         Without(others, outliers));
    verdict_.confidence = Share(dominant->ranks.size());
    evidence().push_back(fmt::format("most wait elsewhere: {}", PlaceText(*dominant)));
    verdict_.finding->probe = "who waits for whom: trails, or dumps of the Flight Recorder, of the same moment";
    return true;
  }

  bool NameTie() {
    Open(Syndrome::kDesynchronised, StackBasis::kTie, {}, inside_);
    verdict_.confidence = Share(verdict_.stacks.clusters.front().ranks.size());
    verdict_.finding->probe = "in which of these places the program should be";
    return true;
  }

  // All trainers wait in one place: what they wait for may be a helper of one of them.
  bool NameHelpers() {
    if (inside_.empty()) return false;
    for (const ProcessRole role : {ProcessRole::kCheckpointWriter, ProcessRole::kDataWorker}) {
      const RankSet suspects = HelperOutliers(role);
      if (suspects.empty()) continue;
      Open(Syndrome::kStalled, StackBasis::kHelpers, suspects, {});
      evidence().push_back(fmt::format("all trainers: {}", PlaceText(verdict_.stacks.clusters.front())));
      TellClusters(role, suspects);
      verdict_.finding->probe = fmt::format("a second look: whether the {}s move", trace::RoleName(role));
      return true;
    }
    return false;
  }

  // Ranks whose helpers of a role are elsewhere than more than half of them.
  RankSet HelperOutliers(ProcessRole role) {
    size_t processes = 0, largest = 0;
    const StackCluster* most = nullptr;
    for (const StackCluster& cluster : verdict_.stacks.clusters) {
      if (cluster.role != role) continue;
      processes += cluster.processes;
      if (cluster.processes > largest) most = &cluster;
      largest = std::max(largest, cluster.processes);
    }
    RankSet ranks;
    if (2 * largest <= processes) return ranks;
    for (const StackCluster& cluster : verdict_.stacks.clusters)
      if (cluster.role == role && &cluster != most) ranks.insert(cluster.ranks.begin(), cluster.ranks.end());
    if (!ranks.empty()) verdict_.confidence = static_cast<double>(largest) / static_cast<double>(processes);
    return ranks;
  }

  bool NameTogether() {
    if (inside_.size() < 2) return false;
    Open(Syndrome::kStalled, StackBasis::kTogether, {}, {});
    evidence().push_back(fmt::format("all wait in one place: {}", PlaceText(verdict_.stacks.clusters.front())));
    verdict_.finding->probe =
        "messages heard in that collective: trails, or dumps of the Flight Recorder, of the same moment";
    return true;
  }

  // ---- text ----

  void Open(Syndrome syndrome, StackBasis basis, const RankSet& suspects, const RankSet& ambiguous) {
    Finding finding;
    finding.syndrome = syndrome;
    finding.suspects = Suspects(suspects);
    finding.ambiguous_with = Suspects(ambiguous);
    verdict_.finding = std::move(finding);
    verdict_.basis = basis;
    suspects_ = suspects;
    TellClusters(ProcessRole::kTrainer, suspects);
  }

  std::vector<std::string>& evidence() { return verdict_.finding->evidence; }

  // "ranks 0-3 in torch/... in all_reduce".
  static std::string PlaceText(const StackCluster& cluster) {
    return fmt::format("{} at {}", RanksAsRanges(cluster.ranks), cluster.place);
  }

  // Where the suspects are; no suspects: where all are.
  void TellClusters(ProcessRole role, const RankSet& suspects) {
    std::vector<std::pair<const StackCluster*, std::vector<int>>> told;
    for (const StackCluster& cluster : verdict_.stacks.clusters) {
      if (cluster.role != role) continue;
      std::vector<int> ranks;
      std::copy_if(cluster.ranks.begin(), cluster.ranks.end(), std::back_inserter(ranks),
                   [&](int rank) { return suspects.empty() || suspects.contains(rank); });
      if (ranks.empty() || (suspects.empty() && verdict_.basis != StackBasis::kTie)) continue;
      told.emplace_back(&cluster, std::move(ranks));
    }
    incident::TellSome(told, "places", evidence(), [&](const auto& one) {
      const auto& [cluster, ranks] = one;
      evidence().push_back(fmt::format("{}{} at {}{}", RanksAsRanges(ranks),
                                       role == ProcessRole::kTrainer ? "" : fmt::format(", {}", trace::RoleName(role)),
                                       cluster->place, Under(*cluster)));
    });
  }

  // The nearest code of the user's below a library.
  static std::string Under(const StackCluster& cluster) {
    const auto own = std::find_if(cluster.frames.begin(), cluster.frames.end(), [](const std::string& frame) {
      return frame.find('/') == std::string::npos && frame.find(" in ") != std::string::npos;
    });
    return own == cluster.frames.end() || *own == cluster.place ? "" : fmt::format(", called from {}", *own);
  }

  void Finish() {
    TellHelpers();
    TellStopped();
    if (!unread_.empty()) evidence().push_back(fmt::format("no stack of {}", RanksAsRanges(verdict_.no_stack)));
    if (!verdict_.finding->certain && verdict_.finding->probe.empty())
      verdict_.finding->probe = "a second look some seconds later: whether they are still there";
    NameMachines();
    TellGroup();
  }

  void TellStopped() {
    std::vector<int> named;
    std::set_intersection(stopped_.begin(), stopped_.end(), suspects_.begin(), suspects_.end(),
                          std::back_inserter(named));
    if (named.empty() || verdict_.basis == StackBasis::kStopped) return;
    evidence().push_back(
        fmt::format("{} {} stopped (state T)", RanksAsRanges(named), named.size() == 1 ? "is" : "are"));
  }

  // Helpers of suspects that are where nobody else's are.
  void TellHelpers() {
    if (verdict_.basis == StackBasis::kHelpers) return;
    for (const StackCluster& cluster : verdict_.stacks.clusters) {
      if (cluster.role == ProcessRole::kTrainer || suspects_.empty()) continue;
      const bool only =
          std::all_of(cluster.ranks.begin(), cluster.ranks.end(), [&](int rank) { return suspects_.contains(rank); });
      if (only && evidence().size() < kMostLines)
        evidence().push_back(fmt::format("{} of {} alone at {}", trace::RoleName(cluster.role),
                                         RanksAsRanges(cluster.ranks), cluster.place));
    }
  }

  // None where the node of one of them is not known.
  std::set<std::string> MachinesOf(const std::vector<int>& ranks) const {
    std::set<std::string> machines;
    for (const int rank : ranks) {
      const auto found = trainer_of_.find(rank);
      if (found == trainer_of_.end() || found->second->node.empty()) return {};
      machines.insert(found->second->node);
    }
    return machines;
  }

  void NameMachines() {
    std::vector<int> ranks = Listed(suspects_);
    if (verdict_.basis == StackBasis::kSharedGroup) ranks = FindSharedGroup(*context_.layout, verdict_.outliers).ranks;
    const std::set<std::string> machines = MachinesOf(ranks);
    verdict_.machines.assign(machines.begin(), machines.end());
  }

  void TellGroup() {
    if (!context_.layout || verdict_.outliers.empty()) return;
    GroupRule rule{FindSharedGroup(*context_.layout, verdict_.outliers), 0, 0};
    std::vector<int> to_blame;
    for (const int rank : rule.group.ranks)
      if (suspects_.contains(rank)) to_blame.push_back(rank);
    const std::set<std::string> nodes = MachinesOf(rule.group.ranks);
    rule.machines = nodes.empty() ? rule.group.ranks.size() : nodes.size();
    size_t blamed = nodes.empty() ? to_blame.size() : MachinesOf(to_blame).size();
    if (verdict_.basis == StackBasis::kSharedGroup || verdict_.basis == StackBasis::kOutliers) blamed = 1;
    rule.over_evicted = rule.machines - std::min(blamed, rule.machines);
    evidence().push_back(fmt::format(
        "the smallest parallel group with all that are elsewhere than most ({}: {}) has {} {}, of which {} would be "
        "evicted without need{}",
        rule.group.dimensions.empty() ? "one rank" : rule.group.dimensions, RanksAsRanges(rule.group.ranks),
        rule.machines, nodes.empty() ? "ranks" : "machines", rule.over_evicted,
        blamed == 1 && verdict_.basis != StackBasis::kWaitFor && verdict_.basis != StackBasis::kLayout
            ? " if one is to blame"
            : ""));
    verdict_.group_rule = std::move(rule);
  }

  double Share(size_t ranks) const { return static_cast<double>(ranks) / static_cast<double>(ranks_); }

  const StackContext& context_;
  StackVerdict verdict_;
  std::unordered_map<int, const Trainer*> trainer_of_;
  RankSet inside_, outside_, unknown_, unread_;  // each rank is in one of these
  RankSet stopped_;
  size_t ranks_ = 0;
  RankSet suspects_;
};

absl::Status Check(std::span<const trace::ProcessStack> stacks, const StackContext& context) {
  if (context.layout) LS_RETURN_IF_ERROR(context.layout->Validate());
  std::unordered_set<int> trainers;
  for (const trace::ProcessStack& stack : stacks) {
    if (stack.rank < 0) return InvalidArgument("a stack of rank {}; expected a rank of 0 or more", stack.rank);
    if (context.layout && stack.rank >= context.layout->WorldSize())
      return InvalidArgument("a stack of rank {}, but the layout has {} ranks; expected that of this job", stack.rank,
                             context.layout->WorldSize());
    if (stack.role == ProcessRole::kTrainer && !trainers.insert(stack.rank).second)
      return InvalidArgument("two stacks of rank {}; expected those of one moment, each rank once", stack.rank);
  }
  return absl::OkStatus();
}

}  // namespace

const char* StackBasisName(StackBasis basis) {
  static constexpr const char* kNames[] = {"nothing", "together",     "wait_for", "stopped", "layout",
                                           "outside", "shared_group", "outliers", "helpers", "tie"};
  return kNames[static_cast<size_t>(basis)];
}

absl::StatusOr<StackVerdict> AggregateStacks(std::span<const trace::ProcessStack> stacks, const StackContext& context) {
  LS_RETURN_IF_ERROR(Check(stacks, context));
  return Judgement(stacks, context).Run();
}

}  // namespace lockstep::detect
