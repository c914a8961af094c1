#include "lockstep/detect/replay_grid.h"

#include <fmt/ranges.h>

#include <cmath>

namespace lockstep::detect {
namespace {

constexpr int kMostMachines = 1 << 20;

int RoundedUp(int value, int by) { return (value + by - 1) / by; }

ReplayGrid GridOf(int machines, int unit, int pipelines) {
  const int m = unit * pipelines;
  return {machines, unit, m, RoundedUp(machines, m)};
}

bool Fits(int machines, int unit, int pipelines) {
  const ReplayGrid grid = GridOf(machines, unit, pipelines);
  return grid.n >= 2 && grid.unique() && (unit == 1 || machines % grid.m == 0);
}

// All k that fit, ascending; k^2 * unit <= pipelines of the job, which bounds them.
std::vector<int> FittingPipelines(int machines, int unit) {
  std::vector<int> fitting;
  for (int k = 1; k * k * unit <= machines / unit + k; ++k) {
    if (Fits(machines, unit, k)) fitting.push_back(k);
  }
  return fitting;
}

absl::Status ValidateMachines(int machines, int unit) {
  if (machines < 1 || machines > kMostMachines)
    return InvalidArgument("machines must be 1 to {}, found {}", kMostMachines, machines);
  if (unit < 1) return InvalidArgument("a pipeline must have at least 1 machine, found {}", unit);
  if (machines % unit != 0) {
    return InvalidArgument("{} machines are no whole pipelines of {}: leave {} of them out, or add {}", machines, unit,
                           machines % unit, unit - machines % unit);
  }
  if (machines < 2 * unit) {
    return InvalidArgument("{} machines with {} in a pipeline form one group, and a replay compares at least two",
                           machines, unit);
  }
  return absl::OkStatus();
}

absl::Status Refusal(int machines, int unit, int k) {
  const ReplayGrid grid = GridOf(machines, unit, k);
  const std::vector<int> fitting = FittingPipelines(machines, unit);
  const std::string advice = fitting.empty() ? "no number of pipelines does; leave it out, for a third round"
                                             : fmt::format("possible: {}", fmt::join(fitting, ", "));
  if (unit > 1 && machines % grid.m != 0) {
    return InvalidArgument("{} machines are no whole groups of {} ({} pipelines of {}); {}", machines, grid.m, k, unit,
                           advice);
  }
  return InvalidArgument(
      "groups of {} machines ({} pipelines of {}) are only {}, and with m > n two machines share both groups; {}",
      grid.m, k, unit, grid.n, advice);
}

// Groups without pipelines may be uneven, so where only groups of one machine divide them, sqrt(z) is as good.
int BestPipelines(int machines, int unit) {
  const std::vector<int> fitting = FittingPipelines(machines, unit);
  if (unit > 1) return fitting.empty() ? 1 : fitting.back();
  int best = 1;
  for (const int k : fitting) {
    if (machines % k == 0) best = k;
  }
  return best > 1 ? best : std::max(1, static_cast<int>(std::sqrt(machines)));
}

}  // namespace

std::vector<Machines> ReplayGrid::Rows() const {
  std::vector<Machines> rows(static_cast<size_t>(n));
  for (int x = 0; x < machines; ++x) rows[static_cast<size_t>(x / m)].push_back(x);
  return rows;
}

std::vector<Machines> ReplayGrid::Columns() const {
  std::vector<Machines> columns(static_cast<size_t>(n));
  for (int x = 0; x < machines; ++x) columns[static_cast<size_t>(x % n)].push_back(x);
  return columns;
}

absl::StatusOr<ReplayGrid> ChooseReplayGrid(int machines, int unit, std::optional<int> pipelines) {
  LS_RETURN_IF_ERROR(ValidateMachines(machines, unit));
  if (!pipelines) return GridOf(machines, unit, BestPipelines(machines, unit));
  if (*pipelines < 1) return InvalidArgument("a group must have at least 1 pipeline, found {}", *pipelines);
  if (*pipelines > machines / unit)
    return InvalidArgument("a group of {} pipelines is more than the {} there are", *pipelines, machines / unit);
  if (!Fits(machines, unit, *pipelines)) return Refusal(machines, unit, *pipelines);
  return GridOf(machines, unit, *pipelines);
}

}  // namespace lockstep::detect
