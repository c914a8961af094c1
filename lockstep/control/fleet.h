// The nodes of a job seen as one. What an agent says is true of its own ranks; here it becomes what is true of the job:
// an epoch runs when it runs on every node, is stopped when it is stopped on every node, stands at the step of the
// slowest, and can go back to the newest checkpoint that every node holds.
// Pure. Facts are of one epoch and only grow, so that saying one again, late or twice changes nothing: a node that was
// out of reach says all it knows when it is back. What was asked for is told anew when one node says it anew: a
// coordinator that took over may have heard it before it asked. Of one node it is the identity.
// Cost: of what one node says, none of the number of nodes, unless that is true of all now, or where to begin is
// chosen.
//
//   Fleet fleet(KeepersOf(job.nodes, layout));
//   fleet.Begin(epoch);                       // with every Spawn, and after a take-over
//   for (const EventBody& event : fleet.Hear(node, said)) coordinator.Handle(event);
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/control/holdings.h"
#include "lockstep/control/link.h"
#include "lockstep/control/slowest.h"

namespace lockstep::control {

class Fleet {
 public:
  // By node, who keeps its checkpoints; -1: nobody.
  explicit Fleet(std::vector<int> keepers)
      : keepers_(std::move(keepers)),
        nodes_(keepers_.size()),
        keeps_at_(keepers_.size()),
        code_kept_(keepers_.size(), -1),
        first_kept_(keepers_.size()),
        holdings_(keepers_.size()),
        slowest_(keepers_.size()) {}

  // This epoch acts from now on; what was known of an older one is forgotten. `in_loop`: all nodes were in their loop
  // when somebody else led.
  void Begin(EpochId epoch, bool in_loop = false);
  // What is now true of the job because of what `node` said. Events of other epochs pass through: the state machine
  // counts them.
  std::vector<EventBody> Hear(int node, const EventBody& said);
  // In memory, then in that of keepers, then on disk. What nodes are to be asked because of it is in TakeQuestions().
  std::vector<EventBody> Hear(int node, const RestoreFound& found);
  using Questions = std::vector<std::pair<int, Told>>;
  Questions TakeQuestions() { return std::exchange(questions_, {}); }
  // None of these is a choice: with every ChooseRestore.
  void Poison(std::vector<CheckpointId> poisoned) { poisoned_ = std::move(poisoned); }
  // Nobody waits any longer for those that have not answered this probe. Node names are the caller's business.
  Probed Overdue(Rung rung, std::vector<int>& unanswered) const;
  // On which processes of the epoch may still run.
  std::vector<int> Unstopped() const;
  bool HasStopped(int node) const { return nodes_[static_cast<size_t>(node)].stopped; }
  int nodes() const { return static_cast<int>(nodes_.size()); }
  // What to tell a node that is back, for a command that is pending.
  Told Asked(int node, const Command& command) const;
  void Hear(int node, const KeepsAt& where);
  // HOST:PORT of those with whom it tests the ways between them, where they listen now: after each test elsewhere.
  std::vector<std::string> RingOf(int node) const;
  // Who keeps a node's checkpoints, and where, once that has been said.
  std::optional<std::pair<int, KeepsAt>> KeeperOf(int node) const;
  // Whose checkpoints this node keeps.
  std::vector<int> WardsOf(int node) const;
  // True: because of this a checkpoint is whole on all nodes.
  bool Hear(int node, const Holding& holding);
  // What ranks may now give up, when there is news of that since the last call.
  std::optional<Commit> CommitNews() { return holdings_.News(); }
  // The oldest that may still become whole and is not, and who does not say to hold it.
  std::optional<CheckpointId> Pending() const { return holdings_.Pending(); }
  std::vector<int> Without(const CheckpointId& point) const { return holdings_.Without(point); }
  // All agents are there, and one was away until now: they meet from where the job stands. True: all are to be told.
  bool MeetAnew() { return holdings_.MeetFrom(progress().step); }
  // The newest such news, for a node that may have missed it.
  const Commit& commit() const { return holdings_.commit(); }
  void Hear(int node, const Samples& samples);
  // Its agent is out of reach: as soon as another node says a newer step, until it says one itself, its old one holds
  // the job's back no more. Before that nothing tells that the job goes on.
  void Away(int node);
  // It will not come back, or another one is in its place: whatever ran there runs no more, nor does it hold anything.
  std::vector<EventBody> Gone(int node);
  // The same, and nobody has its place: until the world is counted anew, nothing is waited for there.
  std::vector<EventBody> Vacate(int node);

  // The step of the slowest rank of those nodes that are not away, once all have said theirs or are known to be in
  // their loop. Ranks of a synchronous job whose agent is gone are at most a step behind the others, as long as those
  // go on.
  Progress progress() const;

 private:
  struct Node {
    bool spawned = false, stopped = false, paused = false, away = false, vacant = false;
    std::optional<LoopBegan> loop;
    std::optional<Progress> progress;
    std::optional<std::string> stacks;
    std::optional<CheckpointId> bad_from;  // of EpochStopped
    std::map<Rung, Probed> probed;
    std::optional<RestoreFound> found;
    std::optional<FetchKept> fetch;       // it has been asked to, and has not answered
    int fetches_from = -1;                // the node that keeps it
    std::optional<CheckpointId> fetched;  // it has in memory what its keeper had
  };
  using Events = std::vector<EventBody>;
  // What is asked of all nodes.
  enum class Question { kSpawned, kStopped, kLoop, kStacks, kProbed, kPaused, kProgress, kFound };
  static constexpr size_t kQuestions = 8, kNobody = SIZE_MAX;

  // Of every node, or nobody has its place.
  template <typename Fact>
  bool All(Question question, const Fact& fact) const;
  bool AllProbed(Rung rung) const;
  // What was true of this node is so no more.
  void Unsay(Question question, size_t node) const { lacks_[static_cast<size_t>(question)] = node; }
  size_t IndexOf(const Node& node) const { return static_cast<size_t>(&node - nodes_.data()); }
  // The first answer of a node to the question that stands; later ones are none.
  void Note(int node, const RestoreFound& found);
  Events Choose(EpochId next);
  bool Has(const Node& node, const CheckpointId& point) const;
  std::optional<int> KeptBy(int node, const CheckpointId& point) const;
  // Everyone has it, or somebody keeps it for them.
  bool CanGather(const CheckpointId& point) const;
  void Gather(EpochId next, const CheckpointId& point);
  // fleet_world.cc: where a world begins that is not the one which wrote the checkpoints.
  bool IsAnotherWorld() const;
  bool IsCutAnew() const;
  Events ChooseReplica(EpochId next);
  void Ask(int node, int keeper, const FetchKept& fetch);
  std::string WhyUnfit(const CheckpointId& point) const;
  std::string FoundUnfit() const;
  // From which node, and what.
  std::optional<std::pair<int, FetchKept>> ReplicaFor(EpochId next, int node, const CheckpointId& point) const;
  Events HearFetched(int node, const RestoreFound& found);
  Events HearOnDisk(int node, const RestoreFound& found);
  bool AskOnDisk(EpochId next);
  bool IsPoisoned(const CheckpointId& point) const;
  void Advance(Node& node, const Progress& progress);

  Events Take(Node& node, const EpochSpawned& said);
  Events Take(Node& node, const EpochStopped& said);
  Events Take(Node& node, const LoopBegan& said);
  Events Take(Node& node, const StacksKept& said);
  Events Take(Node& node, const Probed& said);
  Events Take(Node& node, const CodeKept& said);
  Events TakeFirst(Node& node, const CodeKept& said);
  Events Take(Node& node, Alerted said);
  Events Take(Node& node, JobPaused said);
  Events Take(Node& node, JobContinued said);
  template <typename Said>
  Events Take(Node& node, Said said);

  const std::vector<int> keepers_;
  std::vector<Node> nodes_;
  std::vector<std::optional<KeepsAt>> keeps_at_;
  std::vector<int> code_kept_;        // by node, the newest version of which it has a copy; of no epoch
  std::vector<CodeKept> first_kept_;  // by node, what it said of version 0
  EpochId epoch_;
  bool in_loop_ = false;
  Holdings holdings_;
  Slowest slowest_;                // of those that are not away, and of those that are since the newest step
  std::vector<size_t> just_away_;  // the latter
  // By question, a node of which it was not true; it is asked first, for what is true of a node stays so, and then all
  // answers together cost one look at each node. kNobody: it is true of all.
  mutable std::array<size_t, kQuestions> lacks_{};
  // Of the conversation about where to begin anew.
  Questions questions_;
  std::optional<ChooseOnDisk> on_disk_;  // what was asked last; none: memory's stand
  bool on_disk_or_never_ = false;        // what memory has is of no use to this world, and must not be lost either
  // By this node from that one, which says to keep it.
  std::set<std::tuple<int, int, CheckpointId>> not_to_be_had_;
  std::vector<std::string> rejected_;   // by all answers so far
  std::vector<CheckpointId> poisoned_;  // each with its epoch: from this step on
};

}  // namespace lockstep::control
