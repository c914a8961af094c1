// What the samples of all ranks say about the job: it makes progress, stands still, is paused. Turns samples into the
// events that the state machine hears.
// What slows the job down or keeps it waiting in communication is named, and never reason to act by force.
// Pure: time comes in, nothing goes out but the answer. Cost: that of detect::HangDetector.
//
//   Judge judge(policy, world_size);
//   judge.Begin(epoch);                      // with every Spawn, and after a take-over
//   judge.Add(samples);
//   for (const EventBody& event : judge.At(state, fleet.progress(), now)) ...
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/control/comm_motion.h"
#include "lockstep/control/link.h"
#include "lockstep/control/machine.h"
#include "lockstep/control/pace.h"
#include "lockstep/control/stack_findings.h"
#include "lockstep/trace/comm_log.h"
#include "lockstep/trace/comm_share.h"

namespace lockstep::control {

class Judge {
 public:
  Judge(const detect::HangLimits& limits, int world_size)
      : detector_(limits, world_size), hang_limit_(limits.hang_limit) {}

  // This epoch acts from now on. Samples of another one are left aside.
  void Begin(EpochId epoch);
  // Nobody watched for a while: what was seen before says nothing about now.
  void LookAfresh() {
    detector_.Reset();
    motion_ = {};
  }
  void Add(const Samples& samples);
  void Add(CommunicationSeen seen);
  void Add(int node, StacksSeen seen);
  // Nobody watches these for now.
  void Forget(const std::vector<RankId>& ranks);
  // `progress`: the job's, as far as it is known.
  std::vector<EventBody> At(const State& state, const Progress& progress, Nanos now);
  // Before StacksKept is told: who holds the job up by what agents said of the moment.
  std::vector<EventBody> AtStacks(const JobSpec& spec, const Progress& progress, Nanos now);
  // Of the acting epoch, lately; 0: not known.
  Seconds step_time() const { return pace_.step_time(); }
  // Share of the time that ranks spend in collectives, lately, where their records tell.
  std::optional<double> in_collectives() const { return trace::ShareInCollectives(Log()); }
  // Once: that some ranks have joined, and which have not. Empty: nothing is to be said.
  std::string TakeAbsent() { return std::exchange(absent_, ""); }
  // A stall is on: dearer counters and stacks would decide it.
  bool wants_stacks() const { return wants_stacks_; }

 private:
  trace::CommLog Log() const;
  void TellUnseen(const State& state, Nanos now, std::vector<EventBody>& events);
  bool NoteJoined(const std::vector<int>& absent, int ranks, Nanos now);
  void TellProgress(const State& state, const Progress& progress, Nanos now, std::vector<EventBody>& events);
  void TellPause(const State& state, std::vector<EventBody>& events) const;
  void TellCommunication(const State& state, const Progress& progress, Nanos now, std::vector<EventBody>& events);
  std::vector<incident::Finding> FindStuck(const trace::CommLog& log, bool unseen);
  bool LossesAreFinite(int ranks) const;
  void TellLosses(const State& state, const Progress& progress, Nanos now, std::vector<EventBody>& events);
  bool MayBeWork(const State& state, const incident::Finding& finding, Nanos now) const;
  void TellSuspicions(const State& state, const Progress& progress, Nanos now, std::vector<EventBody>& events);
  void TellRecovered(const State& state, std::vector<EventBody>& events) const;

  // What is suspected alike in one stall. Of a large job each telling is long, and who is suspected may change with
  // every sample: others are told no sooner than after as long as it has lasted when it was told before.
  struct Suspicion {
    Nanos first, newest;
    std::set<std::string> as;
  };

  detect::HangDetector detector_;
  Seconds hang_limit_;
  EpochId epoch_;
  std::map<RankId, detect::RankSample> newest_;
  bool some_joined_ = false, all_joined_ = false;  // in this epoch or in one before it
  Nanos joined_since_;                             // of this epoch some have; 0: none
  std::string absent_;
  bool absent_told_ = false;
  bool wants_stacks_ = false;
  int64_t caught_up_told_ = -1, trial_told_ = -1;
  Pace pace_;
  Nanos progress_told_;
  std::map<std::pair<incident::Syndrome, bool>, Suspicion> suspicions_told_;  // by certainty
  std::map<RankId, BadLoss> bad_losses_;
  bool losses_told_ = false;

  Trails trails_;
  bool trails_new_ = false;
  CommMotion motion_;
  StackTexts stacks_;
  Nanos communication_due_;
  std::map<std::string, Nanos> communication_told_;  // and when it was last seen
  std::string under_way_;                            // in communication at the look before
  bool stuck_ = false;                               // and there, at the newest look, was a hang
};

}  // namespace lockstep::control
