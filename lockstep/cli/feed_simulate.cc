#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/cli/checks.h"
#include "lockstep/cli/feed.h"
#include "lockstep/sampling/simulate.h"

namespace lockstep::cli {
namespace {

struct FeedSimulateFlags {
  std::string sets, policy = "auto", evict = "auto";
  sampling::SimulateOptions options;
  int64_t cache = 0, seed = 1;
  bool orders = false, json = false;
};

absl::StatusOr<Json> SimulateFeed(FeedSimulateFlags flags) {
  if (flags.policy != "auto") {
    LS_ASSIGN_OR_RETURN(flags.options.policy, sampling::ParsePolicy(flags.policy));
  }
  if (flags.evict != "auto" && flags.evict != "fewest-jobs")
    return InvalidArgument("--evict {}: expected auto or fewest-jobs", flags.evict);
  flags.options.cache_items = static_cast<uint64_t>(flags.cache);
  flags.options.seed = static_cast<uint64_t>(flags.seed);
  flags.options.fewest_jobs = flags.evict == "fewest-jobs";
  LS_ASSIGN_OR_RETURN(const auto sets, sampling::ReadItemSets(flags.sets));
  LS_ASSIGN_OR_RETURN(const auto feed, sampling::Simulate(sets, flags.options));
  return sampling::ToJson(feed, flags.orders);
}

}  // namespace

void AddFeedSimulate(CLI::App& feed, int& exit_code) {
  auto flags = std::make_shared<FeedSimulateFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = feed.add_subcommand(
      "simulate", "How many items jobs with these sets would prepare, and in which order they come");
  command->add_option("--sets", flags->sets, "One line for each job: item ids and ranges, 0-3999,5000")->required();
  command->add_option("--policy", flags->policy,
                      "auto (the default: whichever prepares least), dsa, common, packed, paced, aligned, independent");
  command->add_option("--cache", flags->cache, "Items that fit into the cache (default 0)")
      ->check(Between(0, int64_t{1} << 62));
  command->add_option("--start", flags->options.start, "When each job starts, in epochs of the largest set: 0,0.25")
      ->delimiter(',');
  command->add_option("--rates", flags->options.rates, "Items a step of each job (default 1 each)")->delimiter(',');
  command->add_option("--seed", flags->seed, "Other chances (default 1)")->check(NotBelowZero());
  command->add_option("--evict", flags->evict,
                      "auto: what is needed last, if orders are known; fewest-jobs: what the fewest jobs still need");
  command->add_flag("--orders", flags->orders, "Add the ids in the order in which each job gets them");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep feed simulate --sets jobs.txt --cache 256 --start 0,0.25");
  command->callback([flags, &exit_code] { exit_code = PrintReport(SimulateFeed(*flags), flags->json); });
}

}  // namespace lockstep::cli
