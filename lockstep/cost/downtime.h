// What failures cost a synchronous job: the share of its time that is lost, by phase; how often to checkpoint; how many
// spare nodes are enough. docs/models/downtime.md has the formulas.
//
//   LS_ASSIGN_OR_RETURN(DowntimeSpec spec, ReadDowntimeSpec("presets/downtime/c4-2023-12.toml"));
//   LS_ASSIGN_OR_RETURN(const Json report, DowntimeReport(spec));
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::cost {

struct DowntimeSpec {
  // Either counted over a time on the wall, in which the job waited for no spare, or the mean time that the job runs
  // between two of them.
  std::optional<double> failures;
  std::optional<Seconds> period;
  std::optional<Seconds> between_failures;
  std::optional<int> accelerators;  // of the job that they are of; a job of more has as many more (`lockstep plan`)
  // After each: until it is noticed, until it is known what to replace and that is replaced, until the job runs again.
  Seconds detect, diagnose, restart;
  Seconds checkpoint_interval{1800};  // of training, from the end of one to the begin of the next
  Seconds checkpoint_cost;            // training stands still so long for each
  // Without them nodes are replaced at once.
  std::optional<int> spares;
  std::optional<Seconds> node_repair;  // until a node that failed is a spare again, on average

  // kInvalidArgument: neither a rate of failures or both, something negative or without end, more downtime than time,
  // or more failures counted than a job that waits for its nodes can have.
  absl::Status Validate() const;
};

// TOML; times in s, but days and hours where the key says so (period_days, between_failures_h, node_repair_h).
absl::StatusOr<DowntimeSpec> ReadDowntimeSpec(const std::string& path);

// So many times as often, while it runs: a job that is down can't fail. Requires a valid one.
DowntimeSpec WithFailures(DowntimeSpec spec, double times);

// Shares of the time on the wall.
struct Downtime {
  double failures_per_day = 0;  // of time on the wall
  double lost_work = 0, detect = 0, diagnose = 0, restart = 0;
  double no_spare = 0;     // waits until a node is repaired
  double checkpoints = 0;  // training stands still for them; no part of the total
  double total() const { return lost_work + detect + diagnose + restart + no_spare; }
  double useful() const { return std::max(0.0, 1 - total() - checkpoints); }  // but for rounding
};
// Requires a valid spec.
Downtime Expect(const DowntimeSpec& spec);

// The interval that leaves most useful time; nullopt where checkpoints cost nothing (the shorter the better) or nothing
// ever fails (the longer).
std::optional<Seconds> BestInterval(const DowntimeSpec& spec);
// Of a job with so many spares, the share of its time in which it waits for one: Erlang's loss formula. `load`: nodes
// that would be away at a time if it never waited, which is failures per second that it does not, times their repair.
double WaitsForSpare(double load, int spares);
// The fewest with which that is at most 0.01 %; nullopt: not even 100,000. Requires node_repair.
std::optional<int> EnoughSpares(const DowntimeSpec& spec);

// {failures_per_day, downtime, useful, shares {lost_work, detect, diagnose, restart, no_spare, checkpoints}, checkpoint
// {interval_s, best_interval_s, useful_at_best}, spares {given, enough, waiting [{spares, share}]}, notes [text] (what
// makes it inexact; not there if nothing)}; null: not asked; of `enough`: no number is.
absl::StatusOr<Json> DowntimeReport(const DowntimeSpec& spec);

}  // namespace lockstep::cost
