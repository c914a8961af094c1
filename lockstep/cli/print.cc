#include <fmt/core.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "lockstep/base/clean.h"
#include "lockstep/cli/commands.h"
#include "lockstep/control/events.h"

namespace lockstep::cli {

int PrintError(const absl::Status& status) {
  const std::string line = fmt::format("lockstep: {}\n", CleanLines(Message(status)));
  std::fputs(line.c_str(), stderr);  // fmt::print would throw where it can't write
  return kExitBadInput;
}

int ExitCodeOf(const absl::StatusOr<int>& job) {
  if (job.ok()) return *job;
  PrintError(job.status());
  switch (job.status().code()) {
    case absl::StatusCode::kDeadlineExceeded:  // not all nodes came
      return control::kExitLost;
    case absl::StatusCode::kCancelled:
      return control::kExitFailed;
    default:
      return kExitBadInput;
  }
}

int PrintReport(const absl::StatusOr<Json>& report, bool as_json) {
  if (!report.ok()) return PrintError(report.status());
  fmt::print("{}", as_json ? RenderJson(*report) : RenderText(*report));
  return 0;
}

}  // namespace lockstep::cli
