// Who takes part in a job: collects the agents of its nodes before it begins, gives each a place, and knows them again
// when they come back. Refusals say which two agents disagree on what. An agent of another run is not refused: it is to
// look elsewhere.
// Who comes later waits as a standby, as many as the run allows that are fit to take a place. Whose place was taken is
// refused for good. Pure. A job begins when as many nodes are there as it may have, or as many as it must have and
// nobody else came for a while (torchrun's "last call").
//
//   Roster roster(run, {.standbys = 1});
//   LS_RETURN_IF_ERROR(roster.Admit(join, now));
//   if (roster.IsComplete(now)) ... roster.nodes(), roster.PlaceOf(join.token)
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"
#include "lockstep/control/events.h"

namespace lockstep::control {

// The version of what agents and coordinator say to each other. One more or one less is understood.
inline constexpr int kLinkVersion = 1;
inline constexpr Seconds kLastCall{30};

// What an agent says first.
struct Join {
  int version = kLinkVersion;
  std::string name{};   // of its node
  std::string token{};  // of the agent: the same whenever it comes back
  std::string run{};    // which it belongs to; empty: none yet
  int node_rank = -1;   // -1: any
  int ranks = 1;
  int least_nodes = 1, most_nodes = 1;  // 0: as the coordinator says
  bool keeps_on_disk = false;           // it has a directory for checkpoints
  uint64_t first_epoch = 1;             // above those of all checkpoints there
  std::string rdzv_id{};                // torchrun's name of the job; empty: none was given
  std::string layout{};                 // of the job, as JSON; empty: not known there
  int64_t term = 0;                     // the newest of a coordinator that it has attended
  std::string job{};                    // its name on that node; of an older version: empty
  std::string entry{};                  // what its workers are started with; of an older version: empty
};

struct Place {
  int node = 0;  // kStandby: none yet
  int first_rank = 0;
  int world_size = 1;
  int nodes = 1;
  bool operator==(const Place&) const = default;
};
inline constexpr int kStandby = -1;

// What whoever leads was told of the nodes.
struct Expected {
  int least_nodes = 0, most_nodes = 0;  // 0: what the nodes themselves say
  int standbys = 0;
};

class Roster {
 public:
  // run: names this very run among all that ever use the same address.
  explicit Roster(std::string run, Expected expected = {}) : run_(std::move(run)), expected_(expected) {}
  // Of a run that goes on.
  Roster(std::string run, const std::vector<NodeSpec>& nodes, Expected expected);

  // Error: the agent belongs to another run.
  absl::Status CheckRun(const Join& join) const;
  absl::Status Admit(const Join& join, Nanos now);
  // It went away before it had a place.
  void Leave(const std::string& token);
  // The place of a node is another one's now, who waited for it; whoever had it is refused, with `why`.
  void Seat(int node, const NodeSpec& standby, const std::string& why);
  // The job has these nodes now. Those that are new waited for a place; those that are not there any more have none.
  void Resize(const std::vector<NodeSpec>& nodes);
  // So many standbys more than were expected are welcome now: they were asked for.
  void Welcome(int asked_for) { asked_for_ = asked_for; }
  // Whether the agent of a node is there: of one that is not, somebody else may have the name, and wait for the place.
  void AskWhoAttends(std::function<bool(int node)> attends) { attends_ = std::move(attends); }
  // Whether a standby could take a place: of those whose machine is broken, and says so, none fills one of `standbys`.
  void AskWhoIsFit(std::function<bool(const NodeSpec& standby)> is_fit) { is_fit_ = std::move(is_fit); }
  void Refuse(const std::string& token, const std::string& why) { refused_[token] = why; }
  // From then on the answer stays true.
  bool IsComplete(Nanos now);
  // As many are there as the job must have: it begins when the last call is over.
  bool HasEnough() const;

  const std::string& run() const { return run_; }
  // How many there may be; valid once complete.
  const Expected& count() const { return expected_; }
  // Valid once complete. PlaceOf: kStandby for one that has none.
  const std::vector<NodeSpec>& nodes() const { return nodes_; }
  Place PlaceOf(const std::string& token) const;
  // Above those of all checkpoints that any node finds.
  EpochId first_epoch() const { return EpochId(first_epoch_); }
  // As one of the nodes has it; empty: none does.
  const std::string& layout() const { return layout_; }
  const std::string& entry() const { return entry_; }
  // Its name on node 0.
  const std::string& job() const { return job_; }
  // "2 of 3 nodes are here: a, b"
  std::string Progress() const;

 private:
  absl::Status Check(const Join& join) const;
  absl::Status CheckStandby(const Join& join) const;
  absl::Status CheckAgainst(const Join& join, const Join& other) const;
  int LeastNodes() const;
  int MostNodes() const;
  void SeatAll();

  std::string run_;
  Expected expected_;
  std::vector<Join> waiting_;                   // until the job begins; then the standbys
  std::map<std::string, std::string> refused_;  // by token: why
  Nanos newest_;                                // when the newest one came
  uint64_t first_epoch_ = 1;
  int asked_for_ = 0;
  std::function<bool(int node)> attends_ = [](int) { return true; };
  std::function<bool(const NodeSpec& standby)> is_fit_ = [](const NodeSpec&) { return true; };
  std::string layout_, job_, entry_;
  std::vector<NodeSpec> nodes_;
  std::optional<Join> member_;  // one of these, as it said who it is
};

}  // namespace lockstep::control
