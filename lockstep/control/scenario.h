// Test support: drives the state machine by hand and turns its answers into short text, so that a scenario reads as a
// conversation.
//
//   Scenario job({.ranks = 4});
//   job.Train(1, 10);                                                           // epoch 1 runs and has finished step
//   10 EXPECT_EQ(job.Hear(20, Killed(1, 2, SIGKILL)), "kill 1 after 0 s, announce 1");
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/control/machine.h"

namespace lockstep::control {

inline Nanos At(double seconds) { return ToNanos(Seconds{seconds}); }

inline std::string PointText(const std::optional<CheckpointId>& point) {
  return point ? fmt::format("{}/{}", point->epoch.value(), point->step) : "none";
}

struct CommandText {
  std::string operator()(const Spawn& c) const {
    return fmt::format("spawn {}{}", c.epoch.value(),
                       c.version.number > 0 ? fmt::format(" version {}", c.version.number) : "");
  }
  std::string operator()(const KeepStacks& c) const { return fmt::format("keep stacks of {}", c.epoch.value()); }
  std::string operator()(const WaitForCulprit& c) const {
    return fmt::format("wait {} s for a culprit", c.at_most.value);
  }
  std::string operator()(const KillEpoch& c) const {
    return fmt::format("kill {} after {} s", c.epoch.value(), c.grace.value);
  }
  std::string operator()(const ChooseRestore& c) const { return fmt::format("choose for {}", c.next.value()); }
  std::string operator()(const PublishRestore& c) const {
    return fmt::format("publish {} {}", c.epoch.value(), PointText(c.point));
  }
  std::string operator()(const Seat& c) const { return fmt::format("seat {}", c.node); }
  std::string operator()(const Vacate& c) const { return fmt::format("vacate {}", c.node); }
  std::string operator()(const Resize& c) const { return fmt::format("resize to {}", c.from.size()); }
  std::string operator()(const Probe& c) const { return fmt::format("{} {}", RungName(c.rung), c.epoch.value()); }
  std::string operator()(const WaitForStop& c) const { return fmt::format("wait {} s for the end", c.at_most.value); }
  std::string operator()(const KeepCode& c) const { return fmt::format("keep code {}", c.version.number); }
  std::string operator()(const AskForNodes& c) const { return fmt::format("ask for {} nodes", c.count); }
  std::string operator()(const Announce& c) const { return fmt::format("announce {}", c.incident.id); }
  std::string operator()(const Finish& c) const { return fmt::format("finish {}", c.exit_code); }
};

inline std::string Text(const std::vector<Command>& commands) {
  std::string text;
  for (const Command& command : commands) text += (text.empty() ? "" : ", ") + std::visit(CommandText{}, command);
  return text;
}

inline RankExited Exit(uint64_t epoch, int rank, ExitStatus status, Progress progress = {}, double exited = 0) {
  return {EpochId(epoch), RankId(rank), status, std::nullopt, progress, At(exited)};
}
inline RankExited Killed(uint64_t epoch, int rank, int signal, Progress progress = {}, double exited = 0) {
  return Exit(epoch, rank, {0, signal}, progress, exited);
}
// As its own agent saw it, this rank had finished `step`.
inline RankExited InItsStep(RankExited event, int64_t step) {
  event.step = step;
  return event;
}
inline RankExited Raised(uint64_t epoch, int rank, const char* type, Progress progress = {}, double exited = 0) {
  RankExited event = Exit(epoch, rank, {1, 0}, progress, exited);
  event.exception = ExceptionInfo{type, "it went wrong", "train.py:41 in forward", false};
  return event;
}
inline RankExited LostPeer(uint64_t epoch, int rank, Progress progress = {}, double exited = 0) {
  RankExited event = Exit(epoch, rank, {1, 0}, progress, exited);
  event.exception = ExceptionInfo{"RuntimeError", "Connection closed by peer", "train.py:50 in main", true};
  return event;
}
inline RankExited TimedOut(uint64_t epoch, int rank, Progress progress = {}, double exited = 0) {
  RankExited event = LostPeer(epoch, rank, progress, exited);
  event.exception->message = "Timed out waiting 8000ms for recv operation to complete";
  event.exception->timed_out = true;
  return event;
}
// Of its own, while it handled the error of a lost peer.
inline RankExited RaisedAfterLoss(uint64_t epoch, int rank, const char* type, Progress progress = {},
                                  double exited = 0) {
  RankExited event = Raised(epoch, rank, type, progress, exited);
  event.exception->after_loss = true;
  return event;
}
inline Suspected Suspect(uint64_t epoch, int rank, bool certain, double since = 0, Progress progress = {}) {
  incident::Finding finding;
  finding.syndrome = incident::Syndrome::kStopped;
  finding.suspects = {incident::SuspectRank(RankId(rank))};
  finding.certain = certain;
  finding.since = At(since);
  return {EpochId(epoch), finding, progress};
}
inline Progress Step(int64_t step, double end) { return {step, At(end)}; }
inline CheckpointId Checkpoint(uint64_t epoch, int64_t step) { return {EpochId(epoch), step}; }

class Scenario {
 public:
  explicit Scenario(JobSpec spec) { Hear(1, JobStarted{std::move(spec)}); }

  std::string Hear(double at, EventBody body) {
    commands = Step(state, Event{At(at), At(at), std::move(body)});
    if (const absl::Status valid = Validate(state); !valid.ok()) return "INVALID: " + Message(valid);
    return Text(commands);
  }
  // The acting epoch comes up: its loop begins at `begin`, from the restore point that was chosen.
  void ComeUp(double begin) {
    Hear(begin, EpochSpawned{state.epoch});
    Hear(begin, LoopBegan{state.epoch, At(begin), state.restore});
  }
  // Answers KillEpoch, probes (nothing was found) and ChooseRestore, so that the next epoch is spawned from `point`.
  void Restart(double at, std::optional<CheckpointId> point) {
    Hear(at, EpochStopped{state.epoch});
    while (state.mode == Mode::kProbing) Hear(at, Probed{state.epoch, state.fault.plan.rung, {}, {}});
    Hear(at, RestoreChosen{EpochId(state.epoch.value() + 1), point, {}});
  }
  void See(int64_t step, double end) { Hear(end, ProgressSeen{state.epoch, {step, At(end)}}); }
  const incident::Incident& Incident(size_t index) const { return state.incidents[index]; }
  std::string Headline(size_t index) const { return incident::Headline(Incident(index)); }

  State state;
  std::vector<Command> commands;
};

// Nodes of two ranks each, with these names; epoch 1 has finished step 10 at 12 s.
inline Scenario OfNodes(const std::vector<std::string>& names, JobSpec spec) {
  for (const std::string& name : names) spec.nodes.push_back({name, 2, name + "'s"});
  spec.ranks = 2 * static_cast<int>(names.size());
  Scenario job(std::move(spec));
  job.ComeUp(2);
  job.See(10, 12);
  return job;
}

// Node b, the second of them, is off at 20 s, and its ranks are missed.
inline std::string LoseB(Scenario& job) {
  job.Hear(20, AgentLost{1, "b", "its connection was lost", At(20)});
  job.Hear(20.2, LostPeer(1, 0, Step(12, 19), 20.1));
  return job.Hear(21.2, SecondaryGraceOver{EpochId(1)});
}

}  // namespace lockstep::control
