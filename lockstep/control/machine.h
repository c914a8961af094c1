// The control plane as a deterministic state machine: Step(state, event) -> commands. No clock, socket, file or chance in here; the same
// events give the same state and commands, so a journal replays into the state and a simulator can try every order.
//
//   starting -> running -> (confirming) -> stopping -> choosing -> spawning -> starting ...        any -> finishing -> finished
//
// Rules: an event of another epoch than the acting one is counted and ignored. The first certain finding leads; findings that come
// while its incident is open join it. A survivor's connection error is never the culprit. Restart = all ranks, in place, from the newest
// committed checkpoint. It stops for good when the budget is used up, when restarts bring no new step, or when the same
// exception strikes at the same step twice.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/control/events.h"
#include "lockstep/control/ledger.h"
#include "lockstep/incident/incident.h"

namespace lockstep::control {

enum class Mode { kStarting, kRunning, kConfirming, kStopping, kChoosing, kSpawning, kFinishing, kFinished };
const char* ModeName(Mode mode);

struct State {
  JobSpec spec;
  Mode mode = Mode::kStarting;
  bool paused = false;
  EpochId epoch;                       // the one epoch that may act
  int restarts = 0;
  int restarts_without_progress = 0;
  int64_t frontier = -1;               // the furthest step that all ranks ever finished
  bool recomputing = false;            // behind the frontier
  Progress progress;                   // newest known
  std::map<RankId, ExitStatus> exits;  // of the acting epoch
  std::optional<CheckpointId> restore; // where the acting epoch began
  std::vector<incident::Incident> incidents;
  std::optional<size_t> open;          // index of the incident that is open
  std::string last_exception;          // "ValueError at train.py:41 in forward, step 17": repeats end the job
  int64_t ignored_events = 0;          // of a stale epoch
  int exit_code = 0;
  std::string verdict;                 // one sentence on how the job ended
  Ledger ledger;
};

// Applies one event. Time comes from the event alone.
std::vector<Command> Step(State& state, const Event& event);

// Our own invariants; called by tests and debug builds after each step.
absl::Status Validate(const State& state);

}  // namespace lockstep::control
