#include "lockstep/explain/passes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "lockstep/base/median.h"
#include "lockstep/base/parallel.h"
#include "lockstep/explain/sample.h"

namespace lockstep::explain {

Passes::Passes(const trace::TracedJob& job, const Times& times, size_t threads)
    : job_(job), times_(times), threads_(threads), usual_(job.ops.size()), pace_(job.lanes.size(), 1) {
  const size_t stages = At(job.pp);
  for (size_t pass = 0; pass < kPasses; ++pass) {
    ops_[pass].resize(stages);
    of_stage_[pass].resize(stages);
    in_lane_[pass].assign(stages, std::vector<double>(job.lanes.size()));
  }
  for (uint32_t op = 0; op < job.ops.size(); ++op) {
    const trace::JobOp& one = job.ops[op];
    if (!IsPass(one.type)) continue;
    ops_[At(PassOf(one.type))][At(one.stage)].push_back(op);
    chunks_ = std::max(chunks_, At(one.chunk + 1));
    microbatches_ = std::max(microbatches_, At(one.microbatch + 1));
    segments_ |= one.type == trace::OpType::kSegment;
  }
  if (segments_) {
    chunks_ = 1;
    steady_.resize(stages);
    for (auto& of_stage : steady_) of_stage.resize(At(job.dp));
  }
  by_place_.resize(kPasses * At(job.pp) * chunks_ * microbatches_);
  for (const auto& by_stage : ops_)
    for (const std::vector<uint32_t>& ops : by_stage)
      for (const uint32_t op : ops)
        if (job.ops[op].microbatch >= 0)
          by_place_[PlaceOf(PassOf(job.ops[op].type), job.ops[op].stage, job.ops[op])] = op;
  lanes_of_.resize(At(job.dp));
  for (size_t lane = 0; lane < job.lanes.size(); ++lane) lanes_of_[At(job.lanes[lane].dp)].push_back(lane);
  std::vector<size_t> places(kPasses * stages);
  std::iota(places.begin(), places.end(), size_t{0});
  Measure(places);
  if (FindPace()) Measure(places);
}

void Passes::Update(const CellTimes& changed) {
  std::vector<bool> touched(kPasses * At(job_.pp));
  for (const auto& [cell, seconds] : changed) {
    const trace::JobOp& op = job_.ops[cell / job_.lanes.size()];
    if (IsPass(op.type)) touched[At(PassOf(op.type)) * At(job_.pp) + At(op.stage)] = true;
  }
  std::vector<size_t> places;
  for (size_t place = 0; place < touched.size(); ++place)
    if (touched[place]) places.push_back(place);
  Measure(places);
}

void Passes::Measure(const std::vector<size_t>& places) {
  ParallelFor(places.size(), threads_, [&](size_t i, size_t /*worker*/) {
    const size_t pass = places[i] / At(job_.pp), stage = places[i] % At(job_.pp);
    FindUsual(pass, stage);
    segments_ ? FindInLaneOfSegments(pass, stage) : FindInLane(pass, stage);
  });
}

bool Passes::HasPass(int pass) const {
  return std::any_of(ops_[At(pass)].begin(), ops_[At(pass)].end(), [](const auto& ops) { return !ops.empty(); });
}

const char* Passes::Name(int pass) const { return pass == 1 ? "backward" : HasPass(1) ? "forward" : "compute"; }

std::optional<uint32_t> Passes::Same(uint32_t op, int pass, int stage) const {
  if (job_.ops[op].microbatch < 0) return std::nullopt;
  return by_place_[PlaceOf(pass, stage, job_.ops[op])];
}

void Passes::FindUsual(size_t pass, size_t stage) {
  of_stage_[pass][stage] = 0;
  std::map<int, std::vector<uint32_t>> by_chunk;
  for (const uint32_t op : ops_[pass][stage]) by_chunk[job_.ops[op].chunk].push_back(op);
  for (const auto& [chunk, of_chunk] : by_chunk) {
    std::vector<double> medians;
    for (const std::vector<size_t>& lanes : lanes_of_) {
      std::vector<double> durations;
      durations.reserve(of_chunk.size() * lanes.size());
      for (const uint32_t op : of_chunk)
        for (const size_t lane : lanes)
          if (Has(op, lane)) durations.push_back(Duration(op, lane) / pace_[lane]);
      if (!durations.empty()) medians.push_back(Median(std::move(durations)));
    }
    const double usual = LowerMedian(medians);
    for (const uint32_t op : of_chunk) usual_[op] = usual;
    of_stage_[pass][stage] += segments_ ? usual * static_cast<double>(of_chunk.size()) : usual;
  }
}

void Passes::FindInLane(size_t pass, size_t stage) {
  const std::vector<uint32_t>& ops = ops_[pass][stage];
  // Some lanes at once: those of an op stand beside each other.
  constexpr size_t kLanes = 16;
  for (size_t first = 0; first < job_.lanes.size(); first += kLanes) {
    const size_t count = std::min(kLanes, job_.lanes.size() - first);
    std::array<std::vector<double>, kLanes> relative;
    std::array<double, kLanes> usual{};
    for (const uint32_t op : ops)
      for (size_t i = 0; i < count; ++i) {
        if (!Has(op, first + i)) continue;
        relative[i].push_back(Relative(op, first + i));
        usual[i] += Usual(op, first + i);
      }
    for (size_t i = 0; i < count; ++i)
      in_lane_[pass][stage][first + i] = usual[i] == 0 ? 1 : Median(std::move(relative[i]));
  }
}

// Microbatches are alike; segments are not, and most are small: all together. A pause is none of the lane's pace.
void Passes::FindInLaneOfSegments(size_t pass, size_t stage) {
  std::vector<double>& in_lane = in_lane_[pass][stage];
  for (int dp = 0; dp < job_.dp && !ops_[pass][stage].empty(); ++dp) {
    const SteadySegments& steady = steady_[stage][At(dp)].emplace(*this, static_cast<int>(stage), dp);
    for (const size_t lane : LanesOf(dp)) {
      double seconds = 0, usual = 0;
      for (const uint32_t op : ops_[pass][stage])
        if (Has(op, lane)) seconds += steady.Seconds(op, lane), usual += Usual(op, lane);
      in_lane[lane] = usual == 0 ? 1 : seconds / usual;
    }
  }
}

std::vector<double> Passes::HealthyBySet(size_t pass, size_t stage) const {
  const std::vector<uint32_t>& first = job_.graph.first_lane;
  const std::vector<double>& lanes = in_lane_[pass][stage];
  std::vector<double> healthy;
  healthy.reserve(job_.steps.size());
  for (size_t set = 0; set < job_.steps.size(); ++set)
    healthy.push_back(LowerMedian(std::vector(lanes.begin() + first[set], lanes.begin() + first[set + 1])));
  return healthy;
}

// How far at least half of them are from 1, all on the same side; else 1.
static double InCommon(std::vector<double> ratios) {
  if (ratios.empty()) return 1;
  std::sort(ratios.begin(), ratios.end());
  const double lower = ratios[(ratios.size() - 1) / 2], upper = ratios[ratios.size() / 2];
  return std::clamp(1.0, lower, upper);
}

bool Passes::FindPace() {
  constexpr double kSteady = 0.03;
  std::vector<std::vector<double>> relative(job_.steps.size());  // of stages and passes, to their own median
  for (size_t pass = 0; pass < kPasses; ++pass)
    for (size_t stage = 0; stage < At(job_.pp); ++stage) {
      if (ops_[pass][stage].empty()) continue;
      const std::vector<double> healthy = HealthyBySet(pass, stage);
      const double typical = Median(healthy);
      for (size_t set = 0; set < healthy.size() && typical > 0; ++set) relative[set].push_back(healthy[set] / typical);
    }
  std::vector<double> paces;
  paces.reserve(relative.size());
  for (std::vector<double>& of_step : relative) paces.push_back(InCommon(std::move(of_step)));
  const double typical = Median(paces);
  const auto steady = [&](double pace) { return pace <= 0 || std::abs(pace / typical - 1) < kSteady; };
  if (typical <= 0 || std::all_of(paces.begin(), paces.end(), steady)) return false;
  for (size_t lane = 0; lane < pace_.size(); ++lane)
    if (const double pace = paces[SetOf(lane)]; pace > 0) pace_[lane] = pace / typical;
  return true;
}

size_t Passes::SetOf(size_t lane) const {
  const std::vector<uint32_t>& first = job_.graph.first_lane;
  return static_cast<size_t>(std::upper_bound(first.begin(), first.end(), lane) - first.begin()) - 1;
}

}  // namespace lockstep::explain
