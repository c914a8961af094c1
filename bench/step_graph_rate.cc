// How many configurations a second are carried out as graphs of up to a thousand ops, on one core: of each the graph is
// built and replayed, the layout, microbatches and schedule another one each time.
//
//   step_graph_rate LEAST RUNS    of those of LEAST ops or more, prints {"configurations", "ops" (in the mean),
//                                 "most_ops", "per_s": [...]}
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/base/report.h"
#include "lockstep/plan/step_graph.h"
#include "lockstep/plan/test_workload.h"

namespace {

using namespace lockstep;

constexpr size_t kMostOps = 1000;

// All of so many ops at least, and kMostOps at most.
std::vector<plan::Workload> Configurations(size_t least) {
  std::vector<plan::Workload> all;
  for (const plan::Schedule schedule :
       {plan::Schedule::k1F1B, plan::Schedule::kZeroBubbleH1, plan::Schedule::kZeroBubble2p, plan::Schedule::kDualPipe})
    for (const int pp : {2, 4, 8})
      for (const int chunks : {1, 2})
        for (int microbatches = 2 * pp; microbatches <= 64; microbatches += pp) {
          plan::Workload work = plan::TestWorkload();
          work.schedule = schedule;
          work.accelerators = work.pp = pp, work.dp = 1, work.microbatch = 1;
          work.chunks = chunks, work.global_batch = microbatches;
          work.layers = 2 * pp * chunks;
          const auto graph = plan::BuildStepGraph(work, plan::Rates{});
          if (work.Validate().ok() && graph.ok() && graph->ops.size() <= kMostOps && graph->ops.size() >= least)
            all.push_back(work);
        }
  return all;
}

Json Measure(size_t least, int runs) {
  const std::vector<plan::Workload> all = Configurations(least);
  Json per_s = Json::array();
  size_t ops = 0, most = 0;
  for (int run = 0; run < runs; ++run) {
    ops = 0;
    const auto begin = std::chrono::steady_clock::now();
    for (const plan::Workload& work : all) {
      const auto step = plan::BuildStepGraph(work, plan::Rates{});
      if (!step.ok() || plan::Simulate(*step).total.value <= 0) return {};
      ops += step->ops.size(), most = std::max(most, step->ops.size());
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    per_s.push_back(double(all.size()) / took.count());
  }
  return {
      {"configurations", all.size()}, {"ops", double(ops) / double(all.size())}, {"most_ops", most}, {"per_s", per_s}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  fmt::print("{}\n", OneLine(Measure(size_t(std::atoi(argv[1])), std::atoi(argv[2]))));
  return 0;
}
