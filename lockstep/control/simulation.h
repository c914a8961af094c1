// A job of many nodes in virtual time: the shipped Coordinator and Conductor, a journal, simulated agents and workers,
// and a network that delays, loses and repeats. A seed decides all: what breaks, when, and in which order news arrives.
//
// Checked after every event (simulation_promises.h): at most one epoch acts; a checkpoint that was complete everywhere
// is what the next epoch begins from, or a newer one, and is never a mixture; no restart without a cause, and none
// beyond the budget; nobody is evicted who was not accused, nor more than the caps allow. At the end: the job came to
// its end, as it was ordered to if it was, nothing of it runs, every incident is closed, the ledger adds up to the wall
// time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::control {

// Ways to break the control plane, so that it can be seen that the simulation would see them.
enum class Mutant {
  kNone,
  kNoFence,           // news of an older epoch is taken for news of this one
  kStaleCommands,     // an agent carries out commands of an older epoch
  kCommitEarly,       // a rank gives up a checkpoint when its own node has a newer one
  kStaleWriter,       // a killed rank's copy goes on
  kFirstNodeStopped,  // stopped on one node counts as stopped
  kAnyNodesPoint,     // what one node can restore counts as what all can
  kNoBudget,          // restarts are not counted
  kForgetPending,     // a node that is back is not told what it missed
  kSpawnTwice,        // a repeated Spawn starts the workers again
  kNeverCaughtUp,     // progress is not told
  kTrustJournal,      // that an agent acts for an epoch which the journal does not know changes nothing
  kNeverDead,         // what can no longer become whole is kept all the same
  kOneLook,           // when nodes find different checkpoints on disk, nobody looks for an older one
  kNeverBack,         // that a lost agent is back is not told
  kNeverGone,         // that one will not come back is not told
  kGoneRunsOn,        // what ran on a node that is gone counts as running
  kDeafToStop,        // a stop is forgotten while the ranks are being killed for a restart
  kStopOnce,          // asked for again, a stop is no faster
  kStopPerNode,       // one stop that reaches all nodes counts as many
  kNoCap,             // evictions are not counted
  kNoFloor,           // nor the machines that are left
  kNoDryRun,          // what is only to be said is done
  kOneAlert,          // one alert of the network is enough
  kWrongNode,         // an alert is taken for that of another node
  kProbeForever,      // a node that does not answer a probe is waited for
  kStopForever,       // so are ranks of a node that is to be evicted, which do not end
  kAwaitForever,      // a lost node is waited for though nobody comes in its place
  kCommitUnkept,      // a checkpoint counts as committed though nobody keeps a copy of it
  kMixedCode,         // a version that one node has copied counts as copied by all
  kReplayForever,     // a node that does not answer in a replay is waited for
  kReplayOfAnother,   // who fails in replays is taken for another node
  kEndForever,        // processes that do not end are waited for when the job is to end
  kNeverUnseen,       // a job that tells no steps never counts as training
  kBlameOthers,       // a coordinator that was stopped gives nobody more time
  kDeafToStandbys,    // what a standby says of its machine is not heard
  // Of worlds that change.
  kNoLeast,       // the world becomes smaller than it may
  kVacantRunsOn,  // what ran on a node that the job goes on without is waited for
  kOldNumbers,    // what was written under the old numbers is taken for written under the new ones
  kAllAlike,      // ranks that differ are taken for replicas
};
inline constexpr int kMutants = 39, kFirstOfWorlds = 36;
const char* MutantName(Mutant mutant);

struct SimulationPlan {
  uint64_t seed = 1;
  int nodes = 3;
  int ranks_per_node = 2;
  bool elastic = false;      // the world may change
  bool agents_lost = false;  // two at a time, of which one's ranks end, and nothing else breaks
  Mutant mutant = Mutant::kNone;
  bool story = false;  // tell it
};

struct SimulationResult {
  std::string broken;  // which promise, when, how; empty = all held
  int restarts = 0;
  int faults = 0;
  int replays = 0, replay_evictions = 0;
  double virtual_s = 0;
  // "running" and "running -> stopping", and how often; before the job was asked for, it is in mode "none".
  std::map<std::string, int> modes, transitions;
  std::map<std::string, int> worlds;  // the ways in which they changed, and how often
  int unseen = 0, after_all = 0;      // loops that began by time alone, and that told steps then
  std::vector<std::string> story;
};

SimulationResult Simulate(const SimulationPlan& plan);

}  // namespace lockstep::control
