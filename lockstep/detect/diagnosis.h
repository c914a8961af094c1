// The document of `lockstep diagnose`: what was found in what ranks told of their communication.
#pragma once

#include "lockstep/base/report.h"
#include "lockstep/detect/comm_hang.h"
#include "lockstep/detect/stack_groups.h"
#include "lockstep/detect/stack_report.h"

namespace lockstep::detect {

// {healthy (null: nothing was found, but not all was seen: a blind spot, a damaged file, a rank without report),
// verdicts [{syndrome, headline, certain, suspects
// [{rank | node | port | link | software}], ambiguous_with, probe, evidence [...], since, price}], no_report [rank],
// reported, damaged [...], blind_spot, counters {name: count}}. `since` is wall time (ISO 8601), null where nothing
// tells it; `price` is null: what a hang costs is all. `rank` is text where it is not known which of the job's it is.
Json DiagnosisReport(const CommDiagnosis& diagnosis, const trace::CommLog& log);
// ... with what the stacks say, which stands first, and as `stacks` (stack_report.h). `reported` and `no_report` are of
// the stacks where the log is empty.
Json DiagnosisReport(CommDiagnosis diagnosis, trace::CommLog log, const StackVerdict& stacks, Reader reader);

}  // namespace lockstep::detect
