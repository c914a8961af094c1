#include "lockstep/detect/rank_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/base/median.h"

namespace lockstep::detect {
namespace {

constexpr size_t kFewest = 3;
constexpr size_t kScale = 6;  // so many are left that are several in a row

}  // namespace

RankSteps::RankSteps(const Rounds& rounds) : ends_ns_(rounds.steps.ends_ns) {
  for (const Round& round : rounds.newest()) Add(round);
  std::vector<std::vector<double>> variances;  // by scale and rank
  for (const auto& [rank, own] : of_ranks_) {
    Steps steps = ToldSince(own, 0);
    for (size_t scale = 0; scale == 0 || steps.size() >= kScale; ++scale) {
      if (scale == variances.size()) variances.emplace_back();
      variances[scale].push_back(VarianceOf(steps));
      steps = InPairs(steps);
    }
  }
  for (std::vector<double>& one : variances) usual_variance_.push_back(LowerMedian(std::move(one)));
}

double RankSteps::DeviationsOf(int rank, int64_t since_ns) const {
  const auto found = of_ranks_.find(rank);
  if (found == of_ranks_.end()) return 0;
  Steps steps = ToldSince(found->second, StepAt(since_ns));
  double least = std::numeric_limits<double>::infinity();
  for (size_t scale = 0; scale == 0 || (steps.size() >= kScale && scale < usual_variance_.size()); ++scale) {
    if (steps.size() < kFewest) return 0;
    double sum_ns = 0;
    for (const Taken& step : steps) sum_ns += step.beyond_ns;
    const double variance = std::max(VarianceOf(steps), usual_variance_[scale]) * static_cast<double>(steps.size());
    if (variance > 0) least = std::min(least, sum_ns / std::sqrt(variance));
    steps = InPairs(steps);
  }
  return least;
}

size_t RankSteps::StepAt(int64_t ns) const {
  return static_cast<size_t>(std::ranges::lower_bound(ends_ns_, ns) - ends_ns_.begin());
}

void RankSteps::Add(const Round& round) {
  std::vector<int64_t> alone;
  alone.reserve(round.parts.size());
  for (const Part& part : round.parts) alone.push_back(part.alone_ns);
  if (std::ranges::any_of(alone, [](int64_t ns) { return ns < 0; })) return;
  const int64_t usual = LowerMedian(std::move(alone));
  const size_t step = StepAt(round.began_ns);
  for (const Part& part : round.parts) {
    Steps& own = of_ranks_[part.rank];
    own.resize(ends_ns_.size() + 1);
    own[step].beyond_ns += static_cast<double>((part.alone_ns - usual) * round.stands_for);
    own[step].usual_ns += static_cast<double>(usual * round.stands_for);
    own[step].is_told = true;
  }
}

// Without the tenth in which the rank took longest beyond the others, for stalls are something else. In a pause that
// all make a rank is late by no more than in any other step.
RankSteps::Steps RankSteps::ToldSince(const Steps& all, size_t first) {
  constexpr size_t kOneOf = 10;
  constexpr double kMost = 2;  // times what is usual of steps
  Steps told;
  std::vector<double> usual;
  for (size_t i = first; i < all.size(); ++i) {
    if (!all[i].is_told) continue;
    told.push_back(all[i]);
    usual.push_back(all[i].usual_ns);
  }
  const double most_ns = kMost * LowerMedian(std::move(usual));
  for (Taken& step : told) step.usual_ns = std::min(step.usual_ns, most_ns);
  for (size_t left = (told.size() + kOneOf - 1) / kOneOf; left > 0; --left)
    told.erase(std::ranges::max_element(told, {}, &Taken::beyond_ns));
  return told;
}

RankSteps::Steps RankSteps::InPairs(const Steps& steps) {
  Steps pairs;
  for (size_t i = steps.size() % 2; i + 1 < steps.size(); i += 2)
    pairs.push_back({steps[i].beyond_ns + steps[i + 1].beyond_ns, steps[i].usual_ns + steps[i + 1].usual_ns, true});
  return pairs;
}

double RankSteps::VarianceOf(const Steps& steps) {
  if (steps.size() < kFewest) return 0;
  double beyond_ns = 0, usual_ns = 0;
  for (const Taken& step : steps) beyond_ns += step.beyond_ns, usual_ns += step.usual_ns;
  const double part = usual_ns > 0 ? beyond_ns / usual_ns : 0;
  double squares = 0;
  for (const Taken& step : steps) squares += std::pow(step.beyond_ns - part * step.usual_ns, 2);
  return squares / static_cast<double>(steps.size() - 1);
}

}  // namespace lockstep::detect
