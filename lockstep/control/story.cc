#include "lockstep/control/story.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/base/wall_time.h"
#include "lockstep/control/report.h"

namespace lockstep::control {
namespace {

using incident::Incident;

double After(const Incident& incident, Nanos at) { return ToSeconds(at - incident.opened).value; }

// A fault begins before anybody notices, hence the sign; what is less than a millisecond before is no -0.
std::string Line(const Incident& incident, Nanos at, const std::string& text) {
  return fmt::format("{:+.3f} s  {}", std::round(After(incident, at) * 1e3) / 1e3 + 0.0, text);
}

Json SeenLines(const Incident& incident) {
  Json lines = Json::array();
  for (const incident::Finding& finding : incident.findings) {
    lines.push_back(Line(incident, finding.since, incident::Headline(finding)));
    for (size_t i = 1; i < finding.evidence.size(); ++i) lines.push_back("    " + finding.evidence[i]);
  }
  return lines;
}

Json DecisionsJson(const State& state, const Incident& incident) {
  Json list = Json::array();
  for (const Decided& decided : state.decisions) {
    if (decided.incident != incident.id) continue;
    Json refused = Json::array();
    for (const Refusal& refusal : decided.decision.refused)
      refused.push_back(fmt::format("{}: {}", RungName(refusal.rung), refusal.why));
    list.push_back({{"after_s", After(incident, decided.at)},
                    {"symptom", SymptomName(decided.symptom)},
                    {"rung", RungName(decided.decision.rung)},
                    {"reason", decided.decision.reason},
                    {"refused", std::move(refused)}});
  }
  return list;
}

Json DoneLines(const Incident& incident) {
  Json lines = Json::array();
  for (const incident::Action& action : incident.actions)
    lines.push_back(Line(incident, action.at, (action.done ? "" : "would be: ") + action.text));
  return lines;
}

Json CostJson(const Incident& incident) {
  return {{"detect_s", incident.phases.detect.value},
          {"decide_s", incident.phases.decide.value},
          {"restart_s", incident.phases.restart.value},
          {"recompute_s", incident.phases.recompute.value},
          {"steps_lost", incident.steps_lost}};
}

// Another epoch began on its account. All that only named or noted something left the job where it was.
bool WasRestarted(const Incident& incident) {
  return std::any_of(incident.actions.begin(), incident.actions.end(), [](const incident::Action& action) {
    return action.done && action.kind != incident::ActionKind::kNote;
  });
}

std::string Outcome(const State& state, const Incident& incident) {
  if (incident.closed.value == 0)
    return state.mode == Mode::kFinished ? "it is open"
                                         : fmt::format("it is open; the job is {}", ModeName(state.mode));
  const std::string closed = fmt::format("closed after {:.3f} s", After(incident, incident.closed));
  const bool ended_with_it = incident.closed == state.finished && state.exit_code != 0;
  if (ended_with_it) return fmt::format("{}, with the job: {}", closed, state.verdict);
  const auto next = std::find_if(state.incidents.begin(), state.incidents.end(), [&](const Incident& other) {
    return other.id > incident.id && other.epoch.value() != 0 && other.opened == incident.closed;
  });
  if (next != state.incidents.end())
    return fmt::format("{}: incident {} struck before the job was back", closed, next->id);
  if (!WasRestarted(incident)) return closed + ": the job went on";
  if (state.frontier < 0) return closed + ": the job trained again, as far as can be told of one that tells no steps";
  return closed + ": the job was back where it had been";
}

}  // namespace

absl::StatusOr<Json> Story(const State& state, int64_t id, Nanos now) {
  const auto count = static_cast<int64_t>(state.incidents.size());
  if (id < 1 || id > count)
    return NotFound("there is no incident {}: this run has had {}; see lockstep incidents", id, count);
  const Incident incident = WithPhases(state, static_cast<size_t>(id - 1), now);
  return Json{{"incident", incident.id},
              {"headline", incident::Headline(incident)},
              {"opened", IsoTime(incident.opened_wall)},
              {"seen", SeenLines(incident)},
              {"decisions", DecisionsJson(state, incident)},
              {"done", DoneLines(incident)},
              {"cost", CostJson(incident)},
              {"outcome", Outcome(state, incident)}};
}

}  // namespace lockstep::control
