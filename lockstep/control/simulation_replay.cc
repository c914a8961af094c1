// The search for a bad machine by replays, in a simulation: as node/head_replay.cc leads it.
#include <algorithm>

#include "lockstep/control/simulation_run.h"

namespace lockstep::control {
namespace {

constexpr Seconds kLookAtReplay{0.1};

}  // namespace

void Simulation::Hear(int node, const ReplayReady& ready) {
  if (!replay_) return;
  replay_->Hear(node, ready, schedule_.now());
  TellReplay();
}

void Simulation::Hear(int node, const ReplayEnded& ended) {
  if (!replay_) return;
  replay_->Hear(node, ended, schedule_.now());
  TellReplay();
}

// As node/head_replay.cc.
void Simulation::Ask(const Probe& probe) {
  if (probe.rung == Rung::kReplay) {
    ++result_.replays;
    const auto id = static_cast<uint64_t>(schedule_.now().value);
    ReplayQuestion question = QuestionOf(state(), probe, id);
    if (plan_.mutant == Mutant::kReplayOfAnother)
      std::rotate(question.nodes.begin(), question.nodes.begin() + 1, question.nodes.end());
    replay_ = std::make_unique<ReplaySearch>(std::move(question), schedule_.now());
    LookAtReplay(id);
  } else if (plan_.mutant != Mutant::kProbeForever) {
    schedule_.In(probe.at_most, [this, probe] { EndProbe(probe); });
  }
  for (int node = 0; node < cluster_.nodes(); ++node) Down(node, Asked(node, probe));
}

Told Simulation::Asked(int node, const Command& command) const {
  const auto* probe = std::get_if<Probe>(&command);
  if (probe == nullptr || probe->rung != Rung::kReplay || !replay_) return fleet_->Asked(node, command);
  Probe of_search = *probe;
  of_search.search = replay_->id();
  return Command(of_search);
}

void Simulation::LookAtReplay(uint64_t id) {
  if (!replay_ || replay_->id() != id || plan_.mutant == Mutant::kReplayForever) return;
  schedule_.In(kLookAtReplay, [this, id] { LookAtReplay(id); });
  replay_->Tick(schedule_.now());
  TellReplay();
}

void Simulation::TellReplay() {
  for (const auto& [node, told] : replay_->TakeWords()) Down(node, told);
  const std::optional<Probed> answer = replay_->TakeAnswer();
  if (!answer) return;
  Tell("the replay is over: {}", answer->note);
  replay_.reset();
  Handle(*answer);
}

void Simulation::LeaveReplay() {
  if (!replay_ || (state().mode == Mode::kProbing && state().fault.plan.rung == Rung::kReplay)) return;
  DownAll(ReplayStop{replay_->id(), 0});
  replay_.reset();
}

}  // namespace lockstep::control
