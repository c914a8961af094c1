#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "lockstep/cli/commands.h"

namespace lockstep::cli {

int PrintError(const absl::Status& status) {
  fmt::print(stderr, "lockstep: {}\n", Message(status));
  return kExitBadInput;
}

int PrintReport(const absl::StatusOr<Json>& report, bool as_json) {
  if (!report.ok()) return PrintError(report.status());
  fmt::print("{}", as_json ? RenderJson(*report) : RenderText(*report));
  return 0;
}

}  // namespace lockstep::cli
