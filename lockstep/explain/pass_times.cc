#include "lockstep/explain/pass_times.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "lockstep/explain/sample.h"

namespace lockstep::explain {
namespace {

void Divide(const Passes& passes, uint32_t op, const Lanes& lanes, double ratio, CellTimes& times) {
  for (const size_t lane : lanes)
    if (passes.Has(op, lane)) Set(passes, op, lane, passes.Duration(op, lane) / ratio, times);
}

}  // namespace

double Ratio(const Passes& passes, int pass, int stage, const Lanes& lanes) {
  std::vector<double> values;
  values.reserve(lanes.size());
  for (const size_t lane : lanes) values.push_back(passes.InLane(pass, stage, lane));
  return Median(std::move(values));
}

double SpreadOfLanes(const Passes& passes) {
  std::vector<double> spreads;
  for (int dp = 0; dp < passes.job().dp; ++dp)
    if (!passes.LanesOf(dp).empty()) spreads.push_back(SpreadOfLanes(passes, dp));
  return spreads.empty() ? 0 : Median(std::move(spreads));
}

double SpreadOfLanes(const Passes& passes, int dp) {
  std::vector<double> in_lanes;
  for (const size_t lane : passes.LanesOf(dp)) in_lanes.push_back(passes.InLane(0, 0, lane));
  return RobustSpread(std::move(in_lanes));
}

double ByChance(double spread, size_t lanes) {
  constexpr double kSurely = 4;  // standard deviations
  return kSurely * kMedianSpread * spread / std::sqrt(static_cast<double>(lanes));
}

void Set(const Passes& passes, uint32_t op, size_t lane, double seconds, CellTimes& times) {
  times.emplace_back(static_cast<uint32_t>(passes.job().graph.Cell(op, lane)), static_cast<float>(seconds));
}

void Divide(const Passes& passes, int pass, int stage, const Lanes& lanes, double ratio, CellTimes& times) {
  if (ratio <= 1) return;
  times.reserve(times.size() + passes.Ops(pass, stage).size() * lanes.size());
  for (const uint32_t op : passes.Ops(pass, stage)) Divide(passes, op, lanes, ratio, times);
}

double Ratio(const Passes& passes, uint32_t op, const Lanes& lanes) {
  std::vector<double> relative;
  for (const size_t lane : lanes)
    if (passes.Has(op, lane)) relative.push_back(passes.Relative(op, lane));
  return Median(std::move(relative));
}

void DivideEach(const Passes& passes, int pass, int stage, const Lanes& lanes, CellTimes& times) {
  for (const uint32_t op : passes.Ops(pass, stage))
    if (const double ratio = Ratio(passes, op, lanes); ratio > 0) Divide(passes, op, lanes, ratio, times);
}

std::string TimeText(double seconds) {
  return seconds < 1 ? fmt::format("{:.1f} ms", 1e3 * seconds) : fmt::format("{:.2f} s", seconds);
}

CauseSuspect WorkerSuspect(const trace::TracedJob& job, int dp, int stage) {
  const int32_t rank = job.ranks[static_cast<size_t>(dp)][static_cast<size_t>(stage)];
  return {dp, stage, rank < 0 ? std::nullopt : std::optional(rank), {}, {}};
}

std::vector<CauseSuspect> MostPaused(const trace::TracedJob& job, const std::map<std::pair<int, int>, size_t>& pauses) {
  constexpr size_t kMostNamed = 8;
  std::vector<std::tuple<size_t, int32_t, int, int>> order;  // count, rank, dp, stage
  order.reserve(pauses.size());
  for (const auto& [worker, count] : pauses)
    order.emplace_back(count, job.ranks[static_cast<size_t>(worker.first)][static_cast<size_t>(worker.second)],
                       worker.first, worker.second);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::get<0>(a) != std::get<0>(b) ? std::get<0>(a) > std::get<0>(b) : std::get<1>(a) < std::get<1>(b);
  });
  std::vector<CauseSuspect> suspects;
  for (const auto& [count, rank, dp, stage] : order)
    if (suspects.size() < kMostNamed) suspects.push_back(WorkerSuspect(job, dp, stage));
  return suspects;
}

Lanes AllLanes(const trace::TracedJob& job) {
  Lanes lanes(job.lanes.size());
  std::iota(lanes.begin(), lanes.end(), size_t{0});
  return lanes;
}

}  // namespace lockstep::explain
