#include "lockstep/control/replay_lead.h"

namespace lockstep::control {

void ReplayLead::Begin(const State& state, const Probe& probe, Nanos now) {
  const auto id = static_cast<uint64_t>(now.value);  // none that a coordinator before this one had
  search_.emplace(QuestionOf(state, probe, id), now);
}

Command ReplayLead::Asked(Command command) const {
  auto* probe = std::get_if<Probe>(&command);
  if (search_ && probe != nullptr && probe->rung == Rung::kReplay) probe->search = search_->id();
  return command;
}

bool ReplayLead::Refused(int node, Nanos now) {
  if (!search_) return false;
  search_->Refused(node, now);
  Tell();
  return true;
}

void ReplayLead::Lost(int node) {
  if (search_) search_->Lost(node);
}

void ReplayLead::Tick(Nanos now) {
  if (search_) search_->Tick(now);
  Tell();
}

void ReplayLead::WasAway(Nanos away) {
  if (search_) search_->WasAway(away);
}

// The answer last: it leads out of the search.
void ReplayLead::Tell() {
  if (!search_) return;
  for (const auto& [node, told] : search_->TakeWords()) listener_.tell(node, told);
  const std::optional<Probed> answer = search_->TakeAnswer();
  if (!answer) return;
  search_.reset();
  listener_.answered(*answer);
}

void ReplayLead::EndUnless(const State& is_probing) {
  const bool probes = is_probing.mode == Mode::kProbing && is_probing.fault.plan.rung == Rung::kReplay;
  if (!search_ || probes) return;
  search_->Stop();
  for (const auto& [node, told] : search_->TakeWords()) listener_.tell(node, told);
  search_.reset();
}

}  // namespace lockstep::control
