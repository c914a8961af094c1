// The reports of a run: what `lockstep status`, `lockstep incidents`, /api/v1/status and /metrics show. One struct
// each, one JSON form.
#pragma once

#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/control/machine.h"

namespace lockstep::control {

struct RankStatus {
  RankId rank;
  int64_t pid = 0;
  std::string state;  // "running", "stopped", "frozen", "exited", ...; kUnknown: its agent is out of reach
  int64_t step = -1;
  Seconds step_time;
};

// Their copies in a store elsewhere.
struct Uploaded {
  std::string url;
  std::optional<CheckpointId> newest;  // that is there
  Seconds age;                         // since then
  int64_t uploads = 0, failures = 0;
  Seconds took;            // the newest upload
  bool uploading = false;  // now
  std::string error;       // of the newest upload; empty: it succeeded
};

// Checkpoints on disk, as the run's agent knows them.
struct OnDisk {
  std::string directory;
  std::optional<CheckpointId> flushed;  // the newest that this run wrote or loaded
  Seconds age;                          // since then
  int64_t flushes = 0, failures = 0;
  Seconds took;                      // the newest flush
  bool flushing = false;             // now
  std::string error;                 // of the newest flush; empty: it succeeded
  std::optional<Uploaded> upload{};  // none: they are not uploaded
};

// Checkpoints that exist a second time, in the memory of another node.
struct PeerCopies {
  std::optional<CheckpointId> newest;  // of this node, or of the node that lags most
  int alone = 0;                       // nodes whose checkpoints nobody else keeps
  Bytes kept, sent;                    // since the agent began: what was kept elsewhere, and what of it had to be sent
  Bytes in_gaps;                       // of what was sent: while no collective was under way
  Bytes held;                          // what is kept for others now
  std::string error;                   // why nobody keeps them
};

// What the agent sees beyond the state: gauges of the moment.
struct Observed {
  std::vector<RankStatus> ranks;
  // NaN: nobody told one; infinite: that of some rank is no finite number.
  double loss = std::numeric_limits<double>::quiet_NaN();
  std::optional<CheckpointId> committed;
  std::optional<Seconds> checkpoint_age;  // since the committed step finished; none: not known
  int64_t checkpoints = 0, checkpoints_skipped = 0, checkpoints_torn = 0;
  Seconds checkpoint_blocked;                                       // summed over ranks
  std::optional<OnDisk> disk;                                       // none: the run keeps no checkpoints on disk
  std::optional<PeerCopies> peers;                                  // none: there is one node
  int64_t records = 0, records_dropped = 0, records_unwritten = 0;  // lost: by full rings; by the disk
  Bytes log_dropped, console_dropped;                               // of the workers' output
  std::string start_method;                                         // "zygote" or "exec"; of a standby: as they would
  std::map<std::string, std::string> standbys;                      // their start methods, by token
};

// What is left of that when the agent is out of reach, and said it so long ago: how its ranks are now is not known.
inline constexpr std::string_view kUnknown = "unknown";
Observed OutOfReach(Observed observed, Nanos ago);

// What was counted by an agent that has begun anew since `last`, or is no part of the job any more (nothing `now`),
// goes into `before`.
void KeepCounts(const Observed& last, const Observed& now, Observed& before);
// What the agents of all nodes see, as one. The loss is the mean over those that know one; counts go on from `before`.
Observed Together(const std::vector<Observed>& nodes, const Observed& before = {});

// Null in place of what nobody saw; objects keep their members.
void Forget(Json& value);
// docs/formats/status.md
Json StatusReport(const State& state, const Observed& observed, Nanos now);
// [incident::ToJson(...)] with phases from the ledger.
Json IncidentsReport(const State& state, Nanos now);
// Incident with its phases filled from the ledger, and the drill behind it, if one is.
incident::Incident WithPhases(const State& state, size_t index, Nanos now);
std::vector<incident::Incident> AllWithPhases(const State& state, Nanos now);
// Whose ranks had this one right before that moment; null: the job's nodes have no names.
const NodeSpec* NodeAt(const State& state, RankId rank, Nanos at);

}  // namespace lockstep::control
