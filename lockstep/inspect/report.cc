#include "lockstep/inspect/report.h"

#include <nlohmann/json.hpp>
#include <tuple>

#include "lockstep/inspect/kernel_log.h"
#include "lockstep/inspect/tree.h"

namespace lockstep::inspect {
namespace {

Json AlertRow(const Alert& alert, Nanos now) {
  const Nanos until = alert.cleared.value != 0 ? alert.cleared : now;
  return {{"item", alert.item},
          {"subject", alert.subject},
          {"class", FaultClassName(alert.fault)},
          {"lasted_s", ToSeconds(until - alert.since).value},
          {"times", alert.times},
          {"text", alert.text}};
}

Json AlertRows(const std::vector<Alert>& alerts, Nanos now) {
  Json rows = Json::array();
  for (const Alert& alert : alerts) rows.push_back(AlertRow(alert, now));
  return rows;
}

}  // namespace

Json InspectionReport(const Inspection& inspection) {
  Json readings = Json::array(), missing = Json::array();
  for (const auto& [source, figures] : inspection.figures)
    for (const Figure& figure : figures)
      readings.push_back({{"source", SourceName(source)}, {"subject", figure.subject}, {"reading", figure.text}});
  for (const auto& [item, why] : inspection.missing) missing.push_back({{"item", item}, {"why", why}});
  return {{"watched_s", inspection.duration.value},
          {"alerts", AlertRows(inspection.alerts, inspection.at)},
          {"cleared", AlertRows(inspection.cleared, inspection.at)},
          {"not_yet_alerts", AlertRows(inspection.pending, inspection.at)},
          {"readings", std::move(readings)},
          {"unavailable", std::move(missing)}};
}

LogFindings FindInLog(std::string_view text) {
  LogFindings found;
  std::map<std::tuple<std::string, std::string, FaultClass>, size_t> place;
  for (const std::string_view line : Lines(text)) {
    ++found.lines;
    std::optional<LogEvent> event = ClassifyKernelLine(KernelText(line));
    if (!event) event = ClassifyOtherLine(KernelText(line));
    if (!event || event->heals) continue;
    found.fault |= event->fault != FaultClass::kWarning;
    const auto [at, is_new] = place.try_emplace({event->item, event->subject, event->fault}, found.findings.size());
    if (is_new) found.findings.push_back({*event, 0, std::string(line.substr(0, 300))});
    ++found.findings[at->second].lines;
  }
  return found;
}

Json LogReport(const LogFindings& found) {
  Json rows = Json::array();
  for (const LogFinding& finding : found.findings)
    rows.push_back({{"item", finding.event.item},
                    {"subject", finding.event.subject},
                    {"class", FaultClassName(finding.event.fault)},
                    {"lines", finding.lines},
                    {"first", finding.first}});
  return {{"lines", found.lines}, {"findings", std::move(rows)}};
}

}  // namespace lockstep::inspect
