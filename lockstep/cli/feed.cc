#include "lockstep/cli/feed.h"

namespace lockstep::cli {

void AddFeed(CLI::App& app, int& exit_code) {
  CLI::App* feed = app.add_subcommand("feed", "Data of many training jobs, prepared once");
  feed->require_subcommand(1);
  AddFeedServe(*feed, exit_code);
  AddFeedStatus(*feed, exit_code);
  AddFeedTop(*feed, exit_code);
  AddFeedSimulate(*feed, exit_code);
  AddFeedPlan(*feed, exit_code);
  AddFeedBench(*feed, exit_code);
  AddFeedIndex(*feed, exit_code);
  AddFeedShow(*feed, exit_code);
}

}  // namespace lockstep::cli
