// The inspections of a node as one document, for `lockstep inspect`: what was read, what is an alert, what may become
// one, what can't be seen here and why.
#pragma once

#include <map>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/inspect/inspector.h"
#include "lockstep/inspect/kernel_log.h"

namespace lockstep::inspect {

struct Inspection {
  Seconds duration;
  Nanos at;                                       // its end: until then lasts what still holds
  std::map<Source, std::vector<Figure>> figures;  // of the newest reading of each source
  std::vector<Alert> alerts;                      // that hold
  std::vector<Alert> cleared;
  std::vector<Alert> pending;
  std::map<std::string, std::string> missing;
};
Json InspectionReport(const Inspection& inspection);

// The lines of a log, one event for each item, subject and class: with how many lines, and the first of them. Lines of
// the kernel by the first table, others by the second.
struct LogFinding {
  LogEvent event;
  int64_t lines = 0;
  std::string first;
};
struct LogFindings {
  std::vector<LogFinding> findings;
  int64_t lines = 0;
  bool fault = false;  // one that is more than a warning
};
LogFindings FindInLog(std::string_view text);
Json LogReport(const LogFindings& findings);

}  // namespace lockstep::inspect
