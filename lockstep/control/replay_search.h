// The replay rung of the ladder: which node of a stopped job is bad, by groups of nodes that replay some steps together
// (detect/group_testing.h), rows of a grid first and then columns. The coordinator leads it; the state machine knows
// only that it probes, and the answer: one that takes over begins a search anew, and late answers of an older one are
// told by its number.
//
// Pure. Silence is no failure: a group is judged when all of its nodes have answered, and run again where no run came
// about. Nobody is named for certain who did not fail once more in a group of its own (ReplayLimits::confirm), where
// half or more of the nodes would be named, or where nodes differ in kind, for then bits may. The search ends by the
// deadline of its question, and when a node is lost, with what it knows until then.
//
//   ReplaySearch search(QuestionOf(state, probe, id), now);
//   search.Hear(node, ready, now);  search.Hear(node, ended, now);  search.Tick(now);
//   for (const auto& [node, told] : search.TakeWords()) Tell(node, told);
//   if (const std::optional<Probed> answer = search.TakeAnswer()) coordinator.Handle(*answer);
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/control/link.h"
#include "lockstep/control/machine.h"
#include "lockstep/detect/replay_runs.h"

namespace lockstep::control {

struct ReplayQuestion {
  struct Node {
    std::string name;
    int ranks = 1;
  };
  uint64_t id = 0;  // of the search; no other one has it
  Probe probe;
  Version version;  // of the script that runs
  std::vector<Node> nodes;
  int pipeline_ranks = 1;  // what tensor, context and pipeline parallelism need together
};
// Of a state that is probing.
ReplayQuestion QuestionOf(const State& state, const Probe& probe, uint64_t id);

class ReplaySearch {
 public:
  ReplaySearch(ReplayQuestion question, Nanos now);
  ReplaySearch(const ReplaySearch&) = delete;
  ReplaySearch& operator=(const ReplaySearch&) = delete;

  uint64_t id() const { return question_.id; }
  void Hear(int node, const ReplayReady& ready, Nanos now);
  void Hear(int node, const ReplayEnded& ended, Nanos now);
  // Its agent is of a version that knows no replay.
  void Refused(int node, Nanos now);
  // It will not come back, or another one has its place.
  void Lost(int node);
  void Tick(Nanos now);
  // Whoever hears the nodes was stopped for so long: no node is late because of that.
  void WasAway(Nanos away);
  // Nobody waits for its answer any more: all nodes are told.
  void Stop();

  using Words = std::vector<std::pair<int, Told>>;
  Words TakeWords() { return std::exchange(words_, {}); }
  // Once.
  std::optional<Probed> TakeAnswer() { return std::exchange(answer_, std::nullopt); }

 private:
  // A group in the present run of its round.
  struct Attempt {
    size_t group = 0;
    uint64_t run = 0;
    int tries = 0;  // this one too
    Nanos began, troubled;
    bool stopped = false;
    std::vector<int> nodes;
    std::map<int, ReplayEnded> answers;  // by node
    std::optional<detect::GroupRun> outcome{};
  };

  void Begin(Nanos now);
  absl::StatusOr<detect::ReplayGrid> ChooseProgram();
  absl::StatusOr<int> PipelineNodes() const;
  void BeginRound(Nanos now);
  void BeginDue(Nanos now);
  void Run(Attempt& attempt, Nanos now);
  // What a node that asks again, or was lost on its way, is to run.
  void RunAgain(Attempt& attempt, const std::string& why, Nanos now);
  void StopRun(Attempt& attempt);
  void Conclude(Attempt& attempt, Nanos now);
  absl::Status Read(const Attempt& attempt, detect::GroupRun& run) const;
  void GoOnIfAllConcluded(Nanos now);
  void Look(Attempt& attempt, Nanos now);
  void End(const std::string& why);
  incident::Finding Doubted(incident::Finding finding, bool done, size_t named) const;
  std::string Note(const std::string& why) const;

  bool over() const { return over_; }
  const std::string& NameOf(int node) const { return question_.nodes[static_cast<size_t>(node)].name; }
  int RanksOf(int node) const { return question_.nodes[static_cast<size_t>(node)].ranks; }
  std::string RankName(size_t group, int rank) const;
  Attempt* AttemptOf(int node, uint64_t run);

  const ReplayQuestion question_;
  Nanos began_;
  const Seconds share_;  // of the time that there is; runs, and waits for answers, are held below it
  std::map<int, ReplayReady> ready_;
  std::map<int, int> port_;  // where ranks could meet next, by node
  std::vector<int> nodes_;   // those that take part: the machines of the grid
  bool own_script_ = true, over_ = false;
  std::vector<std::string> remarks_;
  std::optional<detect::GroupTesting> testing_;
  detect::GroupTestResult result_;  // of whole rounds
  detect::ReplayVotes votes_;
  std::optional<detect::RoundOfRuns> round_;
  std::vector<Attempt> attempts_;
  uint64_t runs_ = 0;
  Words words_;
  std::optional<Probed> answer_;
};

}  // namespace lockstep::control
