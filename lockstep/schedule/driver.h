// What a coordinator may want of the scheduler of its cluster. It says what is wanted now, as often as it likes; the
// driver works off the difference in a thread of its own and tells what came of it.
// Invariants: Want and TakeOutcomes never wait for the scheduler; a want that is repeated asks for nothing twice, not
// even by a coordinator that took over from another one.
//
//   driver->Want({.machines = 1, .incident = 3, .here = {"n1", "n2"}});
//   for (const Outcome& outcome : driver->TakeOutcomes()) ...   // "asked Slurm for a machine: job 17"
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::schedule {

// No job but this one shall get the machine, for this reason.
struct Drain {
  std::string host, reason;
  int64_t incident = 0;
  bool operator==(const Drain&) const = default;
};

struct Wanted {
  int machines = 0;                   // that come to stand by, beside those that do
  int64_t incident = 0;               // on whose account; 0: of none
  std::vector<std::string> here{};    // the job's, and those that stand by
  std::vector<std::string> banned{};  // that were in the job, and may not come again
  std::vector<Drain> drains{};
  bool operator==(const Wanted&) const = default;
};

// For the record of an incident.
struct Outcome {
  int64_t incident = 0;
  std::string drained{};  // the host that a Drain was about; empty: about none
  std::string text;       // one sentence
};

struct Counts {
  int64_t asked = 0, cancelled = 0, drained = 0, refused = 0;  // refused: commands that failed, or did not answer
};

class Driver {
 public:
  virtual ~Driver() = default;
  virtual void Want(const Wanted& wanted) = 0;
  virtual std::vector<Outcome> TakeOutcomes() = 0;
  virtual Counts counts() const = 0;

  // The job is over: what was asked for and has not come is not needed any more. Blocks, for some seconds at most.
  virtual void End() = 0;
  // It could not go on here: the scheduler is to begin it anew, at once. Blocks, for some seconds at most; what it
  // ends, if it succeeds, is also this process. An error says why it is not begun anew.
  virtual absl::Status Requeue() = 0;
};

}  // namespace lockstep::schedule
