#include "lockstep/inspect/alert.h"

#include <fmt/format.h>

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

}  // namespace lockstep::inspect
