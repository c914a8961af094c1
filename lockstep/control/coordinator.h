// The driver of the state machine: stamps an event, steps the state, writes the event to the journal in one
// transaction, and only then hands out the commands. What a rim carries out is therefore always in the journal first.
// The ends of ranks from which nothing follows are written together, with what comes next or at the next Tick.
// Trouble with the journal (a full disk) never stops training: the events wait in memory, are counted, and go in with
// a later one, or at a Tick. But a journal that another coordinator writes by now refuses, and then no command is
// handed out any more. Who has which place is on disk before anybody is told: until it is, the coordinator holds its
// commands back, and hears nothing but a stop and drills. Whoever leads begins anew then, as a coordinator that has
// taken over. Thread-compatible. Cost of an event: about one SQLite transaction without fsync.
//
//   Coordinator coordinator(*journal, clock);
//   LS_ASSIGN_OR_RETURN(std::vector<Command> commands, coordinator.Handle(JobStarted{spec}));
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/control/machine.h"
#include "lockstep/store/journal.h"

namespace lockstep::control {

// The state that a journal leads to. An error names the event that cannot be read.
absl::StatusOr<State> ReplayEvents(const std::vector<store::Event>& rows);

class Coordinator {
 public:
  // Both must outlive the coordinator. The journal must be empty; see Resume for one that is not.
  Coordinator(store::Journal& journal, const Clock& clock) : journal_(journal), clock_(clock) {}

  struct Resumed;
  // Replays the journal into the state, enters WatcherGone, and returns what is to be carried out again (all commands
  // are idempotent). An error names the event that cannot be read; a journal written before the last reboot has no
  // workers to adopt and is refused. watched: when the one before was last there, if somebody noted it; else, and where
  // that is older, the journal's newest event tells.
  static absl::StatusOr<Resumed> Resume(store::Journal& journal, const Clock& clock, Nanos watched = {});

  // Fails, and changes nothing, for a JobStarted whose spec makes no sense. FailedPrecondition: another coordinator
  // leads, and this one is to do nothing more.
  absl::StatusOr<std::vector<Command>> Handle(const EventBody& body);
  // Places change, and the journal does not have it yet. What a Tick returns after that is what was held back.
  bool holds() const { return !held_.empty(); }
  // The same for people, with why the journal can't be written; empty: it does not hold back.
  std::string WhyItHolds() const;

  const State& state() const { return state_; }
  int64_t journal_errors() const { return journal_errors_; }                                        // failed appends
  int64_t events_waiting() const { return in_vain() ? static_cast<int64_t>(waiting_.size()) : 0; }  // for a later one
  int64_t events_dropped() const { return events_dropped_; }  // progress marks given up when too many waited

 private:
  bool in_vain() const { return tried_.value != 0; }
  absl::StatusOr<std::vector<Command>> Decide(const EventBody& body);
  absl::StatusOr<std::vector<Command>> HandleTick();
  void Hold(std::vector<Command>& commands);
  void Keep(store::Event row);
  absl::Status Write(bool at_event);
  void NoteFailure(const absl::Status& status);
  void NoteSuccess();

  store::Journal& journal_;
  const Clock& clock_;
  State state_;
  std::vector<store::Event> waiting_;  // stepped, but not yet in the journal
  std::vector<Command> held_;          // until the journal has what changes places, and all before it
  std::optional<EventBody> stop_;      // that was asked for meanwhile
  std::vector<EventBody> drills_;      // that an agent let strike meanwhile
  bool sync_due_ = false;
  bool is_lost_ = false;  // nobody will take over by this journal: places need not wait for it
  std::string failure_;   // of the newest append that failed
  Nanos tried_, pause_;   // to write them, in vain, and when again; 0: not so
  int64_t journal_errors_ = 0;
  int64_t events_dropped_ = 0;
};

struct Coordinator::Resumed {
  std::unique_ptr<Coordinator> coordinator;
  std::vector<Command> commands;
};

}  // namespace lockstep::control
