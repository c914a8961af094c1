// A worker that is slow, in all steps or some; a stage that has too much to do. docs/models/explain.md has the rules.
#include <algorithm>
#include <array>

#include "lockstep/base/status.h"
#include "lockstep/explain/pass_times.h"
#include "lockstep/explain/slow_lanes.h"

namespace lockstep::explain {
namespace {

constexpr double kSlower = 1.03;  // times the mean of the other stages

Remedy RemedyOf(const Passes& passes, int dp, int stage, const SlowLanes& slow) {
  Remedy remedy;
  std::string evidence;
  for (int pass = 0; pass < kPasses && passes.HasPass(pass); ++pass) {
    const double ratio = slow.ratios[static_cast<size_t>(pass)];
    if (passes.OfSegments())
      DivideEach(passes, pass, stage, slow.lanes, remedy.durations);
    else
      Divide(passes, pass, stage, slow.lanes, ratio, remedy.durations);
    evidence += fmt::format("{}{} {:.2f}", pass == 0 ? "" : " and ", passes.Name(pass), ratio);
  }
  CauseSuspect suspect = WorkerSuspect(passes.job(), dp, stage);
  const std::vector<trace::JobLane>& all = passes.job().lanes;
  if (!slow.always) suspect.first_step = all[slow.lanes.front()].step, suspect.last_step = all[slow.lanes.back()].step;
  remedy.cause.kind = slow.always ? CauseKind::kWorker : CauseKind::kTransientWorker;
  remedy.cause.suspects.push_back(suspect);
  remedy.cause.evidence = {evidence + " times what the other ranks of its stage take"};
  if (!slow.always)
    remedy.cause.evidence.push_back(fmt::format("in {} of {} steps", slow.lanes.size(), passes.LanesOf(dp).size()));
  return remedy;
}

}  // namespace

std::vector<Remedy> FindSlowWorkers(const Passes& passes, const SlowWorkers& workers) {
  std::vector<Remedy> found;
  for (int dp = 0; dp < passes.job().dp; ++dp)
    for (int stage = 0; stage < passes.job().pp; ++stage)
      if (const auto& slow = workers.Of(dp, stage)) found.push_back(RemedyOf(passes, dp, stage, *slow));
  return found;
}

std::vector<Remedy> FindSlowStages(const Passes& passes) {
  const int pp = passes.job().pp;
  const Lanes lanes = AllLanes(passes.job());
  std::vector<Remedy> found;
  for (int stage = 0; stage < pp && pp > 1; ++stage) {
    struct Load {
      double own = 0, others = 0;  // s: of this stage, and of all others
    };
    std::array<Load, kPasses> loads;
    Load both;
    for (int pass = 0; pass < kPasses; ++pass) {
      Load& load = loads[static_cast<size_t>(pass)];
      for (int each = 0; each < pp; ++each) (each == stage ? load.own : load.others) += passes.Usual(pass, each);
      both.own += load.own;
      both.others += load.others;
    }
    const double mean = both.others / (pp - 1);
    if (both.own < kSlower * mean) continue;
    Remedy remedy;
    std::string evidence;
    for (int pass = 0; pass < kPasses; ++pass) {
      const Load& load = loads[static_cast<size_t>(pass)];
      const double usual = load.others / (pp - 1), ratio = usual == 0 ? 1 : load.own / usual;
      Divide(passes, pass, stage, lanes, ratio, remedy.durations);
      const double balanced = (load.own + load.others) / pp;
      for (int each = 0; each < pp && usual > 0 && balanced > 0; ++each)
        for (const uint32_t op : passes.Ops(pass, each))
          remedy.balanced.emplace_back(op, balanced / (each == stage ? load.own : usual));
      evidence += fmt::format("{}{} {:.2f}", pass == 0 ? "" : " and ", passes.Name(pass), ratio);
    }
    remedy.cause.kind = CauseKind::kStage;
    remedy.cause.suspects.push_back({{}, stage, {}, {}, {}});
    const double surplus = both.own - (both.own + both.others) / pp;
    remedy.cause.evidence = {
        evidence + " times the mean of the other stages, on all ranks",
        fmt::format("{:.0f} % of its layers moved to the others would balance it", 100 * surplus / both.own)};
    found.push_back(std::move(remedy));
  }
  return found;
}

}  // namespace lockstep::explain
