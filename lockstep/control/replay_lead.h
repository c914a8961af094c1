// Leads a job that stands through a search by replays (replay_search.h): carries words between the search and the
// nodes, hands out the answer, and ends the search when the job is not probing for it any more: a stop, or a node that
// was lost. Without a search nothing happens.
//
//   ReplayLead replay({.tell = [&](int node, const Told& told) { ... },
//                      .answered = [&](const Probed& answer) { ... }});
//   replay.Begin(state, probe, now);
//   replay.Hear(node, ready, now);  replay.Tick(now);
//   replay.EndUnless(state);                            // after every event
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "lockstep/control/replay_search.h"

namespace lockstep::control {

class ReplayLead {
 public:
  struct Listener {
    std::function<void(int node, const Told&)> tell;
    std::function<void(const Probed&)> answered;  // there is no search any more
  };

  explicit ReplayLead(Listener listener) : listener_(std::move(listener)) {}

  void Begin(const State& state, const Probe& probe, Nanos now);
  // For a node: the search that a probe is of.
  Command Asked(Command command) const;
  // ReplayReady, ReplayEnded.
  template <typename Answer>
  void Hear(int node, const Answer& answer, Nanos now) {
    if (search_) search_->Hear(node, answer, now);
    Tell();
  }
  // False: there is no search that it could refuse.
  bool Refused(int node, Nanos now);
  // Told at the next tick, if the job is still probing then.
  void Lost(int node);
  void Tick(Nanos now);
  // This process itself was stopped for so long.
  void WasAway(Nanos away);
  void EndUnless(const State& is_probing);

 private:
  void Tell();

  const Listener listener_;
  std::optional<ReplaySearch> search_;
};

}  // namespace lockstep::control
