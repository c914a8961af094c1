#include "lockstep/detect/rank_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/base/median.h"

namespace lockstep::detect {

RankSteps::RankSteps(const Rounds& rounds) : ends_ns_(rounds.steps.ends_ns) {
  for (const Round& round : rounds.newest()) Add(round);
  std::vector<double> variances;
  variances.reserve(of_ranks_.size());
  for (const auto& [rank, own] : of_ranks_) variances.push_back(VarianceOf(own));
  usual_variance_ = LowerMedian(std::move(variances));
}

double RankSteps::DeviationsOf(int rank, int64_t since_ns) const {
  const auto found = of_ranks_.find(rank);
  if (found == of_ranks_.end()) return 0;
  const std::span<const Taken> all = found->second;
  const std::span<const Taken> own = all.subspan(std::min(all.size(), StepAt(since_ns)));
  const double variance = std::max(VarianceOf(own), usual_variance_) * static_cast<double>(Count(own));
  return variance > 0 ? SumOf(own).beyond_ns / std::sqrt(variance) : std::numeric_limits<double>::infinity();
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
    std::vector<Taken>& own = of_ranks_[part.rank];
    own.resize(ends_ns_.size() + 1);
    own[step].beyond_ns += static_cast<double>((part.alone_ns - usual) * round.stands_for);
    own[step].usual_ns += static_cast<double>(usual * round.stands_for);
    own[step].is_told = true;
  }
}

size_t RankSteps::Count(std::span<const Taken> steps) {
  return static_cast<size_t>(std::ranges::count_if(steps, &Taken::is_told));
}

RankSteps::Taken RankSteps::SumOf(std::span<const Taken> steps) {
  Taken sum;
  for (const Taken& step : steps) sum.beyond_ns += step.beyond_ns, sum.usual_ns += step.usual_ns;
  return sum;
}

double RankSteps::VarianceOf(std::span<const Taken> steps) {
  const Taken sum = SumOf(steps);
  const double part = sum.usual_ns > 0 ? sum.beyond_ns / sum.usual_ns : 0;
  double squares = 0;
  for (const Taken& step : steps) squares += std::pow(step.beyond_ns - part * step.usual_ns, 2);
  return squares / std::max(1.0, static_cast<double>(Count(steps)) - 1);
}

}  // namespace lockstep::detect
