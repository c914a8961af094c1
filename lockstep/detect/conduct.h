// What the job and its ranks are doing at one moment, as far as the rules of docs/models/detect.md ask. Pure.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/detect/awake.h"
#include "lockstep/detect/hang.h"
#include "lockstep/detect/history.h"
#include "lockstep/detect/step_time.h"

namespace lockstep::detect {

// One rank that is neither done nor dead.
struct RankView {
  RankId rank;
  const RankHistory* history;  // never null
  const RankSample* last;      // never null
  const StackSample* stack;    // null = none that is fresh
};
using Ranks = std::vector<const RankView*>;

// The job at a moment. What it points to must outlive it.
struct Situation {
  const HangLimits& limits;
  AwakeUntil awake;
  Nanos now;
  std::vector<RankView> ranks{};  // the unfinished ones
  Nanos advance{};                // when a rank last finished a step or entered the loop, or the epoch began
  bool unseen = false;            // it tells no steps, and trains as far as can be told
  bool waits = false;             // ... and has been waiting in communication since `advance`, a stall by any measure
  // Nobody trains as far as steps tell, somebody waits in communication, and nothing has moved there since `advance`:
  // in a job that goes on nothing does for so long at most.
  std::optional<Seconds> usual_quiet{};
  bool in_loop = false;       // somebody trains
  bool expects_loop = false;  // ... or did in an earlier epoch: this job does train
  bool stepped = false;       // ... and has finished a step in this epoch
  std::optional<StepTime> step_time{};
};

Seconds Ago(const Situation& job, Nanos since);
// The same, less the time that does not count (awake.h).
Seconds Watched(const Situation& job, Nanos since);

// A halted rank is blamed, and a stall is named, after so long: max(3 steps, least_stall), or first_step_limit where no
// step is known. A halt is evidence, so a usual step is the measure; a name is a guess, so a slow one is. Where nobody
// tells steps, a halt's measure is how long communication is quiet, `usual`.
Seconds HaltLimit(const HangLimits& limits, Seconds usual);
Seconds HaltLimit(const Situation& job);
Seconds NamingLimit(const Situation& job);

InCollective Place(const RankView& view);
// Those of the job that are not among `ranks`.
Ranks Others(const Situation& job, const Ranks& ranks);
// Every rank that is not a suspect waits in a collective; one whose stack can't be read, if it has been idle for the
// blocked limit. False if nobody is left to wait.
bool OthersWait(const Situation& job, const Ranks& suspects);

// Since when all of this has held: free to run, no sign of work, at least three stack samples with one signature. `now`
// if it does not.
Nanos StillSince(const Situation& job, const RankView& view);
// Still for the blocked limit, outside the collective, and no thread of it can go on by itself.
bool Blocked(const Situation& job, const RankView& view);
// Since when the rank has been at one spot with no sign of work but processor time.
Nanos SpinningSince(const Situation& job, const RankView& view);
bool Spinning(const Situation& job, const RankView& view);
// Outside the collective and lately at work by any measure: what a long evaluation, a save, a download look like.
bool WorksOutside(const Situation& job, const RankView& view);

}  // namespace lockstep::detect
