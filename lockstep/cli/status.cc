#include "lockstep/cli/checks.h"
#include "lockstep/cli/commands.h"
#include "lockstep/node/query.h"
#include "lockstep/node/run_dir.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

namespace lockstep::cli {
namespace {

struct QueryFlags {
  std::string run_dir;
  bool json = false;
};

// For people: `lockstep status | head -1` says how a run ended, or what to do about it.
Json WithItsReason(Json status) {
  for (const char* why : {"verdict", "trouble"}) {
    const std::string text = status.value(why, "");
    if (!text.empty()) status["state"] = status.value("state", "") + ": " + text;
  }
  return status;
}

// For people, who look for what came last: of many incidents the newest.
Json NewestOf(Json incidents) {
  constexpr size_t kMost = 20;
  if (incidents.size() <= kMost) return incidents;
  const size_t older = incidents.size() - kMost;
  const Json newest(Json::array_t(incidents.begin() + static_cast<ptrdiff_t>(older), incidents.end()));
  return {{"older", fmt::format("{} incidents, which --json has", older)}, {"newest", newest}};
}

using Query = absl::StatusOr<Json> (*)(const std::string& run_dir);
using Shown = Json (*)(Json report);  // as text
using Find = absl::StatusOr<std::string> (*)(const std::string& path);

absl::StatusOr<Json> Ask(const QueryFlags& flags, Find find, Query query) {
  LS_ASSIGN_OR_RETURN(const std::string run_dir, find(flags.run_dir));
  return query(run_dir);
}

void AddQuery(CLI::App& app, const std::string& name, const std::string& what, const std::string& example, Find find,
              Query query, int& exit_code, Shown shown = nullptr) {
  auto flags = std::make_shared<QueryFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = app.add_subcommand(name, what);
  command->add_option("--run", flags->run_dir, find == node::FindLiveRunDir ? kNewestLiveRun : kNewestRun)
      ->check(NotEmpty());
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: " + example);
  command->callback([flags, find, query, shown, &exit_code] {
    absl::StatusOr<Json> report = Ask(*flags, find, query);
    if (report.ok() && shown != nullptr && !flags->json) report = shown(*std::move(report));
    exit_code = PrintReport(report, flags->json);
  });
}

}  // namespace

void AddStatus(CLI::App& app, int& exit_code) {
  AddQuery(app, "status", "Where the job stands: ranks, steps, checkpoints, and where the time went",
           "lockstep status --json", node::FindRunDir, node::QueryStatus, exit_code, WithItsReason);
}

void AddIncidents(CLI::App& app, int& exit_code) {
  AddQuery(app, "incidents", "What went wrong, who was named, what was done, what it cost", "lockstep incidents --json",
           node::FindRunDir, node::QueryIncidents, exit_code, NewestOf);
}

void AddStop(CLI::App& app, int& exit_code) {
  AddQuery(
      app, "stop", "End a job: SIGTERM to its workers, SIGKILL after the grace of its run", "lockstep stop",
      node::FindLiveRunDir,
      [](const std::string& run_dir) -> absl::StatusOr<Json> {
        LS_RETURN_IF_ERROR(node::AskStop(run_dir));
        return Json{{"stopping", run_dir}};
      },
      exit_code);
}

}  // namespace lockstep::cli
