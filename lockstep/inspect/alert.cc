#include "lockstep/inspect/alert.h"

#include <nlohmann/json.hpp>

#include "lockstep/incident/fields.h"

namespace lockstep::inspect {

void MissAll(const Settings& settings, const std::string& why, Reading& reading) {
  for (const Item& item : settings.items)
    if (item.source == reading.source) reading.missing[item.name] = why;
}

std::string AlertText(const Alert& alert) {
  const bool over = alert.cleared.value != 0;
  const double lasted = ToSeconds((over ? alert.cleared : alert.raised) - alert.since).value;
  std::string text = fmt::format("{} {}: {} ({}; ", alert.item, alert.subject, alert.text, FaultClassName(alert.fault));
  text += over ? fmt::format("over after {:.0f} s", lasted) : fmt::format("for {:.0f} s", lasted);
  if (alert.times > 1) text += fmt::format(", {} times by now", alert.times);
  return text + ")";
}

Json ToJson(const Alert& alert) {
  return {{"item", alert.item},
          {"subject", alert.subject},
          {"class", FaultClassName(alert.fault)},
          {"text", alert.text},
          {"since_ns", alert.since.value},
          {"raised_ns", alert.raised.value},
          {"cleared_ns", alert.cleared.value},
          {"times", alert.times}};
}

absl::StatusOr<Alert> AlertFromJson(const Json& json) {
  incident::Fields fields(json, "alert");
  Alert alert;
  alert.item = fields.Text("item");
  alert.subject = fields.Text("subject");
  const std::string fault = fields.Text("class");
  alert.text = fields.Text("text");
  alert.since = fields.Time("since_ns");
  alert.raised = fields.Time("raised_ns");
  alert.cleared = fields.Time("cleared_ns");
  alert.times = fields.Int32("times");
  LS_RETURN_IF_ERROR(fields.status());
  const std::optional<FaultClass> known = FaultClassFromName(fault);
  if (!known) return InvalidArgument("alert: unknown class \"{}\"", fault);
  alert.fault = *known;
  return alert;
}

}  // namespace lockstep::inspect
