#include "lockstep/explain/passes.h"

#include "lockstep/explain/sample.h"

namespace lockstep::explain {

const char* PassName(int pass) { return pass == 0 ? "forward" : "backward"; }

Passes::Passes(const trace::StragglerJob& job, const Times& times) : job_(job), times_(times), usual_(job.ops.size()) {
  for (auto& by_stage : ops_) by_stage.resize(At(job.pp));
  for (uint32_t op = 0; op < job.ops.size(); ++op) {
    const trace::JobOp& one = job.ops[op];
    if (one.type != trace::OpType::kForwardCompute && one.type != trace::OpType::kBackwardCompute) continue;
    const int pass = one.type == trace::OpType::kForwardCompute ? 0 : 1;
    ops_[At(pass)][At(one.stage)].push_back(op);
    by_place_[{pass, one.stage, one.chunk, one.microbatch}] = op;
  }
  lanes_of_.resize(At(job.dp));
  for (size_t lane = 0; lane < job.lanes.size(); ++lane) lanes_of_[At(job.lanes[lane].dp)].push_back(lane);
  FindUsual();
  FindInLane();
}

bool Passes::Has(uint32_t op, size_t lane) const {
  return job_.graph.absent.empty() || job_.graph.absent[Cell(op, lane)] == 0;
}

std::optional<uint32_t> Passes::Same(uint32_t op, int pass, int stage) const {
  const auto found = by_place_.find({pass, stage, job_.ops[op].chunk, job_.ops[op].microbatch});
  return found == by_place_.end() ? std::nullopt : std::optional(found->second);
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
        for (const uint32_t op : ops)
          if (Has(op, lane)) relative.push_back(Relative(op, lane));
        medians.push_back(relative.empty() ? 1 : Median(std::move(relative)));
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
