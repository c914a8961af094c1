// `lockstep report`: many runs of a cluster as one document. docs/models/history.md says what each figure means. Pure:
// the report's "now" is the newest event of all journals, so the same journals give the same bytes at any time.
//
//   fmt::print("{}", RenderText(ClusterReport(past, {.days = 28})));
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/history/run.h"
#include "lockstep/history/sizing.h"

namespace lockstep::history {

// What was found where runs were looked for.
struct Past {
  struct Unread {
    std::string path, why;
  };
  std::vector<RunFacts> runs;
  std::vector<Unread> unread;   // in the order in which they were met
  int64_t without_journal = 0;  // directories of nodes that attended a job: its journal is with the node that led it
};

struct ReportOptions {
  double days = 28;       // in which lemons are looked for, back from the newest event
  bool all_runs = false;  // list them all, and not only the costliest
  SizingOptions sizing{};
};

// {window {days, from, to}, runs {read, completed, failed, stopped, unfinished, without_journal, unread}, unread
// [{path, why}], ettr {cumulative, by_ranks, sliding_1h, wall_h, rank_hours}, costliest_runs [{...}], incidents,
// resolution, time, failures (tables.h), lemons {...}, standbys (sizing.h), drills {incidents, lost_s}}. Requires a
// run.
Json ClusterReport(const Past& past, const ReportOptions& options);

}  // namespace lockstep::history
