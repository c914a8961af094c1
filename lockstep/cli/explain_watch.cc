#include "lockstep/cli/explain_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/cli/interrupt.h"
#include "lockstep/explain/explained.h"
#include "lockstep/explain/report.h"
#include "lockstep/trace/straggler_follower.h"
#include "lockstep/trace/straggler_meta.h"

namespace lockstep::cli {
namespace {

constexpr timespec kPeriod{.tv_sec = 0, .tv_nsec = 100'000'000};  // between looks at a file that did not grow

std::string Line(const Json& report) {
  std::string line = fmt::format("step {}  {:.3f} s  S {:.3f}", report.at("step").get<int64_t>(),
                                 report.at("step_s").at("measured").get<double>(), report.at("slowdown").get<double>());
  for (const Json& cause : report.at("causes")) {
    std::vector<std::string> who;
    who.reserve(cause.at("suspects").size());
    for (const Json& suspect : cause.at("suspects")) who.push_back(explain::SuspectText(suspect));
    line += fmt::format("  {} ({}): {:.3f} s", cause.at("cause").get<std::string>(),
                        who.empty() ? "the whole job" : fmt::format("{}", fmt::join(who, "; ")),
                        cause.at("gain_s").get<double>());
  }
  return line + "\n";
}

void Print(const Json& report, bool json) {
  constexpr char kClear[] = "\033[H\033[2J";
  if (json) {
    fmt::print("{}\n", OneLine(report));
  } else if (isatty(STDOUT_FILENO) != 0) {
    fmt::print("{}{}", kClear, RenderText(explain::Brief(report)));
  } else {
    fmt::print("{}", Line(report));
  }
  std::fflush(stdout);
}

// An error: of the steps in the window, say for want of a row that was lost. Later ones may be well.
absl::StatusOr<Json> ReportOf(const trace::StragglerFollower& follower) {
  LS_ASSIGN_OR_RETURN(trace::TracedJob job, follower.Window());
  const explain::Explained explained(std::move(job));
  LS_RETURN_IF_ERROR(explained.CheckTimes());
  Json report = {{"step", follower.step()}};
  report.update(explained.report());
  return report;
}

}  // namespace

absl::Status WatchTrace(const WatchOptions& options) {
  LS_ASSIGN_OR_RETURN(const trace::StragglerMeta meta, trace::ReadStragglerMeta(options.meta));
  LS_ASSIGN_OR_RETURN(auto follower, trace::StragglerFollower::Open(options.trace, meta, options.window));
  EndAtInterrupt();
  while (!Interrupted()) {
    LS_ASSIGN_OR_RETURN(const bool completed, follower.Advance());
    if (!completed) {
      nanosleep(&kPeriod, nullptr);
      continue;
    }
    const absl::StatusOr<Json> report = ReportOf(follower);
    if (report.ok()) {
      Print(*report, options.json);
    } else {
      fmt::print(stderr, "lockstep: step {}: {}\n", follower.step(), Message(report.status()));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep::cli
