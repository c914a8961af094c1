// What a run leaves for history: the facts of one replayed journal, small enough to keep ten thousand of them. Times of
// its ledger and incidents are those of `lockstep status` and `lockstep incidents`; nothing is counted twice here.
// Pure.
//
//   const RunFacts run = RunOf("/runs/gpt", {.state = state, .last = at, .last_wall = wall});
#pragma once

#include <string>
#include <vector>

#include "lockstep/control/machine.h"

namespace lockstep::history {

// A journal, read to its end.
struct Replayed {
  control::State state;
  Nanos first, last;        // its oldest and its newest event
  Nanos last_wall;          // the newest in wall time
  bool stop_asked = false;  // by a person, or by a signal
  std::string host{};       // where a job without named nodes ran
};

// How an incident ended; of several actions the one that weighs most.
// kShrink: nobody took the place of a node that went.
enum class Resolution { kOpen, kByItself, kRestart, kReplan, kHotUpdate, kRollback, kShrink, kEvict, kEnd };
const char* ResolutionName(Resolution resolution);  // "hot_update"

// kStopped: by a person, or by a signal.
enum class Ending { kUnfinished, kCompleted, kFailed, kStopped };
const char* EndingName(Ending ending);  // "completed"

// What failed, as far as it was named. kWatcher: a coordinator or an agent, without which training goes on.
enum class Component { kJob, kRank, kNode, kLink, kSoftware, kWatcher };
inline constexpr int kComponents = 6;
const char* ComponentName(Component component);

struct Incident {
  incident::Syndrome symptom = incident::Syndrome::kStalled;
  Component component = Component::kJob;
  Resolution resolution = Resolution::kOpen;
  bool certain = false;
  bool drill = false;
  Nanos opened;  // wall time
  incident::Phases phases{};
  std::vector<std::string> nodes{};  // each once: those named, and those of the ranks named
  int64_t nodes_lost = 0;            // that went on its account, or with which the job ended
  // An error that ended the job with a verdict is in the program, whatever rank or node it struck.
  bool IsOfProgram() const { return symptom == incident::Syndrome::kExit && resolution == Resolution::kEnd; }
  // Certain, and the job could not go on as it was: slowness is none.
  bool IsFailure() const { return certain && !incident::IsSlowness(symptom) && symptom != incident::Syndrome::kUpdate; }
};

// From when to when (wall time) a node was part of the job.
struct Stay {
  std::string node;
  Nanos from, to;
};

// From when to when (wall time) the job was of so many ranks and nodes.
struct Size {
  Nanos from, to;
  int ranks = 1;
  int64_t nodes = 1;
};

struct RunFacts {
  std::string path, job;
  Ending ending = Ending::kUnfinished;
  std::string verdict{};  // why it ended, for people
  bool stop_asked = false;
  int64_t restarts = 0;
  Nanos begin, end;  // wall time; of a run that has not finished, up to its newest event
  control::Ledger ledger;
  Nanos wall_offset;  // wall time - the ledger's time
  std::vector<Incident> incidents;
  std::vector<Stay> stays;
  std::vector<Size> sizes;  // one after the other, from begin to end

  Nanos ledger_end() const { return end - wall_offset; }
  control::Ledger::Sums Phases(const Size& size) const {
    return ledger.Within(size.from - wall_offset, size.to - wall_offset);
  }
  // Of the largest world.
  int MostRanks() const;
  int64_t MostNodes() const;
};

// Requires that the job has begun. The loss of a node for which no standby waited ends a job without an incident of its
// own; here it is one, the last.
RunFacts RunOf(std::string path, const Replayed& replayed);

}  // namespace lockstep::history
