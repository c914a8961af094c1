// How many standbys the losses of nodes that were seen ask for, and what standbys save at the times that were seen.
//
// Of n nodes lost in T node-days the rate is n / T, with exact 95 % limits; a day's chance is 1 − exp(−rate). The
// models are those of cost/standby.h. Pure.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/history/run.h"

namespace lockstep::history {

struct SizingOptions {
  std::optional<int64_t> machines;             // to size for; else the nodes of the largest run
  std::optional<Seconds> replace;              // until another machine stands by
  std::optional<Seconds> reschedule, requeue;  // not seen in a journal: a run ends where Lockstep can't go on
};

// {machines, nodes_lost, node_days, daily_rate, daily_rate_low, daily_rate_high, enough {per_day, per_day_at_high,
// while_replaced}, seen {days, most_in_a_day, quantile}, times {evict_s, restart_s}, scheduling: as of `lockstep
// standbys`}; null: not known.
Json SizingReport(const std::vector<RunFacts>& runs, const SizingOptions& options);

}  // namespace lockstep::history
