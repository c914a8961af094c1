#include "lockstep/drill/drill.h"

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "lockstep/cli/checks.h"
#include "lockstep/cli/commands.h"
#include "lockstep/node/query.h"
#include "lockstep/node/run_dir.h"

namespace lockstep::cli {
namespace {

struct DrillFlags {
  std::string run_dir, fault, schedule;
  std::optional<int> rank;
  std::optional<uint64_t> seed;
  bool random_rank = false, dry_run = false, json = false;
  drill::Fault options;
  std::vector<std::pair<const CLI::Option*, const char*>> of_fault;  // options of one fault, and their keys in a plan
};

void DeclareFault(CLI::App& command, DrillFlags& flags) {
  drill::Fault& options = flags.options;
  const std::map<std::string, double> units = {{"ms", 0.001}, {"s", 1}, {"m", 60}, {"h", 3600}};
  command.add_option("fault", flags.fault, drill::KindNames());
  const auto of_fault = [&flags](const char* key, const CLI::Option* option) {
    flags.of_fault.emplace_back(option, key);
  };
  of_fault("rank", command.add_option("--rank", flags.rank, "The rank to strike"));
  of_fault("rank", command.add_flag("--random-rank", flags.random_rank, "Strike a rank drawn from the seed"));
  of_fault("for_s", command
                        .add_option("--for", options.hold.value,
                                    "stop, freeze, slow, cut-link, fill-disk: how long, such as 10s or 2m")
                        ->transform(CLI::AsNumberWithUnit(units))
                        ->check(Between(drill::kShortestHold.value, drill::kLongestHold.value))
                        ->capture_default_str());
  of_fault("share", command.add_option("--share", options.share, "slow: percent of one processor that the rank keeps")
                        ->check(Between(1, 99))
                        ->capture_default_str());
  of_fault(
      "code",
      command.add_option("--code", options.code, "exit: the exit code")->check(Between(1, 255))->capture_default_str());
  of_fault("dir", command.add_option("--dir", options.directory, "fill-disk: a directory of the file system to fill"));
  of_fault("margin_bytes",
           command.add_option("--margin", options.margin.value, "fill-disk: what stays free, such as 64MB")
               ->transform(Size())
               ->capture_default_str());
}

void Declare(CLI::App& command, DrillFlags& flags) {
  DeclareFault(command, flags);
  command.add_option("--run", flags.run_dir, kNewestLiveRun)->check(NotEmpty());
  command.add_option("--schedule", flags.schedule, "Faults and their times from this TOML file (docs/drill.md)");
  command.add_option("--seed", flags.seed, "For random ranks; default: the schedule's, else a new one, which is shown");
  command.add_flag("--dry-run", flags.dry_run, "Print the plan and break nothing");
  command.add_flag("--json", flags.json, "One JSON document on stdout");
  command.footer(
      "Only what was started with --allow-drill can be drilled: a run, or a coordinator that stands alone.\n"
      "Example: lockstep drill kill --rank 2");
}

absl::StatusOr<drill::Fault> OneFault(const DrillFlags& flags, const drill::Ranks& ranks) {
  drill::Fault fault = flags.options;
  LS_ASSIGN_OR_RETURN(fault.kind, drill::KindFromName(flags.fault));
  LS_RETURN_IF_ERROR(drill::CheckReach(fault.kind, ranks));
  for (const auto& [option, key] : flags.of_fault)
    if (option->count() > 0 && !drill::Takes(fault.kind, key))
      return InvalidArgument("{} has no effect on {}: {}", option->get_name(), flags.fault, option->get_description());
  fault.rank = flags.rank;
  if (flags.rank && flags.random_rank) return InvalidArgument("--rank and --random-rank exclude each other");
  if (drill::StrikesRank(fault.kind) && !flags.rank && !flags.random_rank)
    return InvalidArgument("{} strikes a rank: name it with --rank, or let --random-rank draw one", flags.fault);
  if (flags.rank && !ranks.Has(*flags.rank))
    return InvalidArgument("--rank must be {} to {}, the ranks of this node, found {}: drill others where they run",
                           ranks.first, ranks.first + ranks.count - 1, *flags.rank);
  LS_RETURN_IF_ERROR(drill::CheckFault(fault));
  return fault;
}

absl::StatusOr<drill::Plan> MakePlan(const DrillFlags& flags, const drill::Ranks& ranks) {
  drill::Plan plan;
  if (flags.fault.empty() == flags.schedule.empty())
    return InvalidArgument("name one fault ({}) or a --schedule FILE", drill::KindNames());
  if (!flags.schedule.empty()) {
    for (const auto& [option, key] : flags.of_fault)
      if (option->count() > 0)
        return InvalidArgument("{} has no effect with --schedule: write {} into {}", option->get_name(), key,
                               flags.schedule);
    LS_ASSIGN_OR_RETURN(plan, drill::ReadPlan(flags.schedule, ranks));
  } else {
    LS_ASSIGN_OR_RETURN(plan.faults.emplace_back().fault, OneFault(flags, ranks));
  }
  if (flags.seed) plan.seed = flags.seed;
  if (!plan.seed) plan.seed = std::random_device()();
  drill::DrawRanks(plan, ranks);
  return plan;
}

absl::Status CheckAllowed(const agent::RunSpec& spec) {
  if (spec.allow_drill) return absl::OkStatus();
  return FailedPrecondition("{} takes no drills: it was started without --allow-drill", spec.run_dir);
}

// Else nobody would see the fault, or it would strike others.
absl::Status CheckWatched(const std::string& run_dir) {
  LS_ASSIGN_OR_RETURN(const Json status, node::QueryStatus(run_dir));
  if (status.value("trouble", "").empty()) return node::CheckPidNamespace(run_dir);
  return FailedPrecondition("{}: {}", run_dir, status.value("trouble", ""));
}

drill::Rim RimOf(const std::string& run_dir, bool quiet) {
  return {.status = [run_dir] { return node::QueryStatus(run_dir); },
          .announce =
              [run_dir](const Json& what) {
                Json request = what;
                request["op"] = "drill";
                return node::Ask(run_dir, request);
              },
          .say =
              [quiet](const std::string& line) {
                if (!quiet) fmt::print("{}\n", line);
                std::fflush(stdout);
              }};
}

int PrintDrill(const drill::Report& report, bool as_json) {
  if (as_json) fmt::print("{}", RenderJson(ToJson(report)));
  for (const std::string& failed : report.failed) fmt::print(stderr, "lockstep: not done: {}\n", failed);
  return report.failed.empty() ? 0 : kExitNo;
}

absl::StatusOr<int> Start(const DrillFlags& flags) {
  LS_ASSIGN_OR_RETURN(const std::string run_dir, node::FindLiveRunDir(flags.run_dir));
  LS_ASSIGN_OR_RETURN(agent::RunSpec spec, agent::ReadRunSpec(run_dir));
  LS_RETURN_IF_ERROR(node::CheckInPlace(run_dir, spec));
  LS_ASSIGN_OR_RETURN(drill::Plan plan, MakePlan(flags, {.first = spec.place.first_rank, .count = spec.ranks}));
  if (flags.dry_run) return PrintReport(ToJson(plan), flags.json);
  LS_RETURN_IF_ERROR(CheckAllowed(spec));
  LS_RETURN_IF_ERROR(CheckWatched(run_dir));
  const SystemClock clock;
  drill::Drill drill(std::move(spec), std::move(plan), RimOf(run_dir, flags.json), clock);
  return PrintDrill(drill.Run(), flags.json);
}

}  // namespace

void AddDrill(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<DrillFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = app.add_subcommand("drill", "Break a running job on purpose, as a rehearsal");
  Declare(*command, *flags);
  command->callback([flags, &exit_code] {
    const auto result = Start(*flags);
    exit_code = result.ok() ? *result : PrintError(result.status());
  });
}

}  // namespace lockstep::cli
