// Waits for batches of a data service, by the word of the rank that waited. docs/models/explain.md has the rule.
#include <algorithm>
#include <map>

#include "lockstep/base/status.h"
#include "lockstep/explain/pass_times.h"
#include "lockstep/explain/remedy.h"
#include "lockstep/explain/sample.h"

namespace lockstep::explain {
namespace {

struct OfWorker {
  Remedy remedy;
  double waited = 0;  // s, over all steps
};

}  // namespace

// One for each worker that waited: no op takes longer than without its wait.
std::vector<Remedy> FindDataWaits(const trace::TracedJob& job, const Times& times) {
  const size_t lanes = job.lanes.size();
  std::map<std::pair<int, int>, OfWorker> workers;  // by dp and stage
  for (size_t cell = 0; cell < job.data_waits.size(); ++cell) {
    if (job.data_waits[cell] <= 0 || job.graph.IsAbsent(cell)) continue;
    OfWorker& worker = workers[{job.lanes[cell % lanes].dp, job.ops[cell / lanes].stage}];
    worker.waited += static_cast<double>(job.data_waits[cell]);
    const float without = std::max(0.0F, job.transfers[cell] - job.data_waits[cell]);
    if (without < times.durations[cell]) worker.remedy.durations.emplace_back(static_cast<uint32_t>(cell), without);
  }
  const std::vector<double> step_times(job.step_times.begin(), job.step_times.end());
  std::vector<Remedy> found;
  for (auto& [place, worker] : workers) {
    if (worker.remedy.durations.empty()) continue;
    const double waited = worker.waited / static_cast<double>(job.steps.size());
    CauseSuspect suspect = WorkerSuspect(job, place.first, place.second);
    const auto sources = job.data_sources.find(place);
    worker.remedy.cause.kind = CauseKind::kDataLoading;
    worker.remedy.cause.evidence = {fmt::format("rank {} waits {:.3g} s of each step ({:.0f} %) for {}",
                                                suspect.rank.value_or(-1), waited, 100 * waited / Mean(step_times),
                                                sources == job.data_sources.end() ? "data" : sources->second.Text())};
    worker.remedy.cause.suspects = {std::move(suspect)};
    found.push_back(std::move(worker.remedy));
  }
  return found;
}

}  // namespace lockstep::explain
