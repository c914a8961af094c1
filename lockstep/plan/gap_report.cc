#include "lockstep/plan/gap_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/plan/interval.h"
#include "lockstep/plan/report.h"

namespace lockstep::plan {
namespace {

constexpr size_t kKernels = 8, kRanks = 3;
constexpr double kFewUnknown = .01;  // of the step

struct Term {
  StepPart part;
  double measured, predicted;
  double difference() const { return measured - predicted; }
};

std::vector<Term> TermsOf(const StepParts& measured, const StepParts& predicted) {
  std::vector<Term> terms;
  for (size_t i = 0; i < kStepParts; ++i)
    if (measured.seconds[i] != 0 || predicted.seconds[i] != 0)
      terms.push_back({static_cast<StepPart>(i), measured.seconds[i], predicted.seconds[i]});
  std::ranges::stable_sort(terms, std::greater(), &Term::difference);
  return terms;
}

Json TermsJson(const Workload& work, const std::vector<Term>& terms, Seconds step) {
  Json rows = Json::array();
  for (const Term& term : terms) {
    const Seconds without{step.value - term.difference()};
    rows.push_back({{"term", StepPartName(term.part)},
                    {"measured_s", term.measured},
                    {"predicted_s", term.predicted},
                    {"difference_s", term.difference()},
                    {"mfu_gain", without.value > 0 ? Json(Mfu(work, without) - Mfu(work, step)) : Json()}});
  }
  return rows;
}

Json KernelsJson(const MeasuredParts& measured) {
  Json rows = Json::array();
  for (const KernelSeconds& kernel : measured.kernels) {
    if (rows.size() >= kKernels) break;
    rows.push_back(
        {{"kernel", kernel.name.substr(0, 80)}, {"term", StepPartName(kernel.part)}, {"seconds", kernel.seconds}});
  }
  return rows;
}

Json RanksJson(std::vector<RankSeconds> ranks) {
  std::ranges::stable_sort(ranks, std::greater(), &RankSeconds::computes);
  Json rows = Json::array();
  for (size_t i = 0; i < std::min(kRanks, ranks.size()); ++i)
    rows.push_back({{"rank", ranks[i].rank}, {"computes_s", ranks[i].computes}, {"waits_s", ranks[i].waits}});
  return rows;
}

Json NotesJson(const Workload& work, const MeasuredParts& measured) {
  Json notes = Json::array();
  const double step = measured.parts.total();
  if (!measured.ends_are_known)
    notes.push_back("no step is followed by another: what passes between steps is not in the measured time");
  if (measured.matched < 1)
    notes.push_back(fmt::format(
        "of {:.0f} % of the communications not all members are given, or their ends do not fit: there, what is longer "
        "than the shortest of its kind counts as waiting",
        100 * (1 - measured.matched)));
  if (!measured.odd_groups.empty())
    notes.push_back(
        fmt::format("ranks {} communicate in a group that this layout does not have ({} such groups): is it "
                    "that of the job?",
                    fmt::join(measured.odd_groups.front(), ", "), measured.odd_groups.size()));
  if (work.pp > 1 && std::cmp_less(measured.ranks.size(), work.accelerators))
    notes.push_back(fmt::format("{} of {} ranks are given: stages differ, so give one rank of each at least",
                                measured.ranks.size(), work.accelerators));
  if (measured.parts[StepPart::kUnknown] > kFewUnknown * step)
    notes.push_back("unknown kernels: none of the names in docs/models/plan.md; \"kernels\" has the longest");
  return notes;
}

struct Planned {
  double step_s = 0, low = 0, high = 0;
};

std::string Verdict(const Workload& work, const std::vector<Term>& terms, double measured, const Planned& plan) {
  std::string text =
      fmt::format("steps take {:.4g} s, {:.1f} % MFU; the plan says {:.4g} s ({:.4g} to {:.4g}), {:.1f} %", measured,
                  100 * Mfu(work, {measured}), plan.step_s, plan.low, plan.high, 100 * Mfu(work, {plan.step_s}));
  if (measured >= plan.low && measured <= plan.high) text += ", within its interval";
  const Term& worst = terms.front();
  if (worst.difference() > 0)
    text += fmt::format("; most beyond the plan: {}, {:.4g} s instead of {:.4g}", StepPartName(worst.part),
                        worst.measured, worst.predicted);
  return text;
}

}  // namespace

Json GapReport(const Candidate& one, const Rates& rates, const MeasuredParts& measured) {
  const Workload& work = one.workload;
  const StepParts predicted = PredictParts(work, rates);
  const double step = measured.parts.total(), planned = one.step.total().value, half = HalfWidthOf(work, rates);
  const Planned plan{planned, planned * std::exp(-half), planned * std::exp(half)};
  const std::vector<Term> terms = TermsOf(measured.parts, predicted);
  Json counters = Json::object();
  for (const trace::Counter& counter : measured.counters) counters[counter.name] = counter.count;
  return {{"verdict", Verdict(work, terms, step, plan)},
          {"machine", work.machine.name},
          {"accelerators", work.accelerators},
          {"layout", LayoutText(work)},
          {"step_time_s", {{"measured", step}, {"predicted", planned}, {"lo80", plan.low}, {"hi80", plan.high}}},
          {"mfu", {{"measured", Mfu(work, {step})}, {"predicted", Mfu(work, {planned})}}},
          {"terms", TermsJson(work, terms, {step})},
          {"kernels", KernelsJson(measured)},
          {"slowest_ranks", RanksJson(measured.ranks)},
          {"trace",
           {{"ranks", measured.ranks.size()},
            {"of", work.accelerators},
            {"steps", measured.steps.size()},
            {"communications_matched", measured.matched}}},
          {"notes", NotesJson(work, measured)},
          {"counters", counters}};
}

}  // namespace lockstep::plan
