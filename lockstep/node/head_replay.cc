// The nodes of a stopped job, asked: each for itself, or in groups that replay some steps.
#include "lockstep/node/head.h"

namespace lockstep::node {

void Head::Ask(const control::Probe& probe) {
  const Nanos now = clock_.Now();
  if (probe.rung == control::Rung::kReplay) {
    const auto id = static_cast<uint64_t>(now.value);  // none that a coordinator before this one had
    replay_ = std::make_unique<control::ReplaySearch>(control::QuestionOf(state(), probe, id), now);
    probe_deadline_ = Nanos{};  // the search has its own
  } else {
    probe_deadline_ = now + ToNanos(probe.at_most);
  }
  for (size_t node = 0; node < nodes_.size(); ++node)
    Tell(static_cast<int>(node), Asked(static_cast<int>(node), probe));
}

control::Told Head::Asked(int node, const control::Command& command) const {
  const auto* probe = std::get_if<control::Probe>(&command);
  if (probe == nullptr || probe->rung != control::Rung::kReplay || !replay_) return fleet_->Asked(node, command);
  control::Probe of_search = *probe;
  of_search.search = replay_->id();
  return control::Command(of_search);
}

void Head::Hear(int node, const control::ReplayReady& ready) {
  if (!replay_) return;
  replay_->Hear(node, ready, clock_.Now());
  TellReplay();
}

void Head::Hear(int node, const control::ReplayEnded& ended) {
  if (!replay_) return;
  replay_->Hear(node, ended, clock_.Now());
  TellReplay();
}

// The answer last: it leads out of the search.
void Head::TellReplay() {
  for (const auto& [node, told] : replay_->TakeWords()) Tell(node, told);
  const std::optional<control::Probed> answer = replay_->TakeAnswer();
  if (!answer) return;
  replay_.reset();
  Handle(*answer);
}

// The job is not probing for it any more: a stop, or a node that was lost.
void Head::LeaveReplay() {
  const bool probes = state().mode == control::Mode::kProbing && state().fault.plan.rung == control::Rung::kReplay;
  if (!replay_ || probes) return;
  TellAll(control::ReplayStop{replay_->id(), 0});
  replay_.reset();
}

}  // namespace lockstep::node
