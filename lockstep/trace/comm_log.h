// What the ranks of a job told of their communication, whatever told it: the communicators, the ops that each rank
// launched on them in its own order, how far each had come, and how long its messages took. Plain data; made by the
// importers (flight_recorder.h, inspector.h, ras.h, ras_text.h, trails.h), asked by detect/comm_hang.h and
// detect/comm_slow.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/trace/counter.h"
#include "lockstep/trace/data_wait.h"

namespace lockstep::trace {

struct Communicator {
  std::string name;         // "35"; its ranks belong to its identity
  std::string description;  // "TENSOR_MODEL_PARALLEL_GROUP"
  std::vector<int> ranks;   // of the job, by their place in the communicator
  // Of its collectives one of so many is told, whichever its number picks (trail_file.h, Thin); and of those that
  // follow a long time of the rank by itself, where they are others. 0: they aren't.
  int64_t told_one_of = 1, long_told_one_of = 0;
  // Members that it has, where that is told: those of which no rank is known are not in `ranks`.
  size_t size = 0;
  // What would show that one of `ranks`, which nobody told, is in another group; empty: nothing.
  std::string doubt = {};
  // Where nobody told its ranks: others that reported, and told nothing of it. They may be in it. Ascending.
  std::vector<int> perhaps = {};

  int64_t StandsFor(bool after_long) const { return after_long ? long_told_one_of : told_one_of; }
  size_t unknown() const { return size > ranks.size() ? size - ranks.size() : 0; }
};

enum class OpState : uint8_t { kScheduled, kStarted, kCompleted };
enum class Direction : uint8_t { kCollective, kSend, kReceive };

// There are very many: fields of a size stand together, so that none is lost to alignment.
struct CommOp {
  static constexpr int64_t kAlone = 0, kUnderWay = -1;
  uint32_t communicator = 0;  // index
  int rank = -1;
  int peer = -1;          // rank of the job; of a send or receive whose peer is known
  uint32_t function = 0;  // index: "all_reduce"
  int waits_for = -1;     // rank whose message it waited for when the log was taken
  uint32_t shape = 0;     // index, of what goes in, with its type: "[4096,1] BFloat16"; 0 unknown
  Direction direction = Direction::kCollective;
  OpState state = OpState::kScheduled;
  bool ring = false;           // known to be one: each member hears from one other alone
  bool awaits_device = false;  // it has not ended, and the rank's own device has not come to it
  bool after_long = false;     // it is one of `long_told_one_of`
  int64_t sequence = 0;        // of a collective: its number in the communicator, the same on all ranks
  int64_t order = 0;           // in which the rank launched its ops, over all communicators
  // Of a transfer: those of the rank with the same number run together, and each of them holds it. kAlone: it runs
  // after what was launched before. kUnderWay: it runs together with all other such ones, whatever was launched before.
  int64_t batch = kAlone;
  int64_t created_ns = -1;   // wall time of the launch; -1 unknown
  int64_t duration_ns = -1;  // from launch to end, of an op that has ended; -1 unknown
  int64_t age_ns = -1;       // since launch when the log was taken, of an op that had not ended; -1 unknown
  int64_t alone_ns = -1;     // before it: since the rank had left the collective before, whichever it was; -1 unknown
  int64_t held_up_ns = -1;   // of a send or receive: the rank waited for it until it ended; -1 unknown
  uint64_t bytes = 0;        // that the rank sent for it; 0 unknown
  int64_t messages = -1;     // that it had waited for by the time when the log was taken; -1 unknown
};

// What a rank's messages of one op to or from one peer came to.
struct CommTransfer {
  static constexpr int64_t kAlone = -1;
  uint32_t communicator = 0;  // index
  int64_t sequence = 0;       // of its op; kAlone: of a send or receive outside of collectives
  int rank = -1, peer = -1;   // of the job
  Direction direction = Direction::kSend;
  uint32_t count = 0;  // messages
  uint64_t bytes = 0;
  int64_t waited_ns = 0;  // the rank was held up until they were sent, or there
  int64_t first_ns = 0;   // of it, by the first message, since the rank came; -1 unknown
  int64_t wire_ns = -1;   // of sends: on their way to a receiver that was ready; -1 unknown
  uint8_t port = 0;       // of the rank's network device
  int64_t ended_ns = -1;  // wall time of the last
};

// Counters that a rank keeps of a communicator's collectives: they hold even where ops were lost.
struct CommCount {
  uint32_t communicator = 0;
  int rank = -1;
  int64_t enqueued = -1, completed = -1;
};

struct CommLog {
  std::vector<Communicator> communicators;
  std::vector<std::string> functions;
  std::vector<std::string> shapes = {""};  // few, of very many ops
  std::vector<int> reported;               // ranks that told anything, ascending
  std::vector<int> world;                  // ranks that the job has, ascending, where that is told beside communicators
  std::vector<CommOp> ops;
  std::vector<CommTransfer> transfers;
  // When steps ended, or several in a row, wall time, ascending, and what that takes: of the rank in the middle of
  // those that told so beside their records. Empty: none did.
  std::vector<int64_t> step_ends_ns;
  int64_t step_ns = 0;
  std::vector<CommCount> counts;
  std::vector<DataWait> data_waits;
  // Ranks that others are ahead of: where some members told nothing, they may wait for those in what they launched
  // last.
  std::set<int> may_wait;
  std::set<int> whole;  // ranks of which all sends and receives are told, from their first on
  // The newest op was launched just before the log was taken: the job may have been running, and what the log shows may
  // be over a moment later.
  bool moving = false;
  // Of some ops under way nobody knows whether they have begun, or even ended: they count as ended here. Or there may
  // be some of which nothing is told.
  bool unseen = false;
  std::map<int, std::string> hosts;    // of ranks, where known
  std::map<int, std::string> remarks;  // of ranks, to be added to evidence: "considered dead by NCCL's RAS"
  // Ranks whose process launches nothing more, and why: it is stopped, or gone. Null: nobody looked, as at who dumps
  // what he knows because the job hangs.
  std::optional<std::map<int, std::string>> at_rest;
  // Of ranks whose processes ran when the log was taken, where that is known: since they last launched or ended
  // anything.
  std::map<int, int64_t> quiet_ns;
  std::map<int, std::string> processes;  // of ranks, to be told with them: "GPU 2 of process 71 on 10.0.0.1"
  // Where ranks are not known to be the job's: of what their numbers are, "communicator 0xa". Empty: they are.
  std::string numbered_in;
  // What would show that a rank was not by itself, but waited where the log has nothing; empty: nothing.
  std::string doubt;
  std::string blind_spot;  // what such a log can't show; empty: nothing worth a word
  std::vector<Counter> counters;
  // What could not be read, with the reason; the ranks, where their names tell them, are not among those that reported.
  std::vector<std::string> damaged;

  void AddBlindSpot(std::string_view more) { (blind_spot += blind_spot.empty() ? "" : "; ") += more; }
};

}  // namespace lockstep::trace
