#include "lockstep/explain/passes.h"

#include <algorithm>
#include <map>

#include "lockstep/base/lower_median.h"
#include "lockstep/explain/sample.h"

namespace lockstep::explain {

Passes::Passes(const trace::TracedJob& job, const Times& times) : job_(job), times_(times), usual_(job.ops.size()) {
  for (auto& by_stage : ops_) by_stage.resize(At(job.pp));
  for (uint32_t op = 0; op < job.ops.size(); ++op) {
    const trace::JobOp& one = job.ops[op];
    if (!IsPass(one.type)) continue;
    ops_[At(PassOf(one.type))][At(one.stage)].push_back(op);
    chunks_ = std::max(chunks_, At(one.chunk + 1));
    microbatches_ = std::max(microbatches_, At(one.microbatch + 1));
  }
  by_place_.resize(kPasses * At(job.pp) * chunks_ * microbatches_);
  for (const auto& by_stage : ops_)
    for (const std::vector<uint32_t>& ops : by_stage)
      for (const uint32_t op : ops) by_place_[PlaceOf(PassOf(job.ops[op].type), job.ops[op].stage, job.ops[op])] = op;
  lanes_of_.resize(At(job.dp));
  for (size_t lane = 0; lane < job.lanes.size(); ++lane) lanes_of_[At(job.lanes[lane].dp)].push_back(lane);
  FindUsual();
  FindInLane();
}

bool Passes::HasPass(int pass) const {
  return std::any_of(ops_[At(pass)].begin(), ops_[At(pass)].end(), [](const auto& ops) { return !ops.empty(); });
}

const char* Passes::Name(int pass) const { return pass == 1 ? "backward" : HasPass(1) ? "forward" : "compute"; }

std::optional<uint32_t> Passes::Same(uint32_t op, int pass, int stage) const {
  return by_place_[PlaceOf(pass, stage, job_.ops[op])];
}

void Passes::FindUsual() {
  for (const auto& by_stage : ops_)
    for (const std::vector<uint32_t>& ops : by_stage) {
      std::map<int, std::vector<uint32_t>> by_chunk;
      for (const uint32_t op : ops) by_chunk[job_.ops[op].chunk].push_back(op);
      for (const auto& [chunk, of_chunk] : by_chunk) {
        std::vector<double> medians;
        for (const std::vector<size_t>& lanes : lanes_of_) {
          std::vector<double> durations;
          durations.reserve(of_chunk.size() * lanes.size());
          for (const uint32_t op : of_chunk)
            for (const size_t lane : lanes)
              if (Has(op, lane)) durations.push_back(Duration(op, lane));
          if (!durations.empty()) medians.push_back(Median(std::move(durations)));
        }
        for (const uint32_t op : of_chunk) usual_[op] = LowerMedian(medians);
      }
    }
}

void Passes::FindInLane() {
  for (size_t pass = 0; pass < kPasses; ++pass)
    for (const std::vector<uint32_t>& ops : ops_[pass]) {
      std::vector<double>& medians = in_lane_[pass].emplace_back();
      for (size_t lane = 0; lane < job_.lanes.size(); ++lane) {
        std::vector<double> relative;
        double duration = 0, usual = 0;
        for (const uint32_t op : ops) {
          if (!Has(op, lane)) continue;
          relative.push_back(Relative(op, lane));
          duration += Duration(op, lane);
          usual += usual_[op];
        }
        // Microbatches are alike; segments are not, and most are small.
        const bool segments = !ops.empty() && job_.ops[ops.front()].type == trace::OpType::kSegment;
        const double typical = segments ? (usual == 0 ? 1 : duration / usual) : Median(std::move(relative));
        medians.push_back(usual == 0 ? 1 : typical);
      }
    }
}

double Passes::Usual(int pass, int stage) const {
  std::map<int, double> by_chunk;
  for (const uint32_t op : Ops(pass, stage)) by_chunk[job_.ops[op].chunk] = usual_[op];
  double sum = 0;
  for (const auto& [chunk, seconds] : by_chunk) sum += seconds;
  return sum;
}

}  // namespace lockstep::explain
