#include "lockstep/detect/rank_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/base/median.h"

namespace lockstep::detect {
namespace {

constexpr size_t kFewest = 3;
constexpr size_t kScale = 6;         // so many are left that are several in a row
constexpr size_t kTellOfOthers = 4;  // ranks: of fewer, whoever is slow is too many of them

}  // namespace

RankSteps::RankSteps(const Rounds& rounds) : edges_ns_(EdgesOf(rounds)) {
  if (edges_ns_.empty()) return;
  for (const Round& round : rounds.all)
    if (round.began_ns >= edges_ns_.front()) Add(round);
  CompareWithOthers();
  FindUsual();
}

// Of several times as long as ranks are judged by, if the log has it. Of very many steps several in a row are one.
std::vector<int64_t> RankSteps::EdgesOf(const Rounds& rounds) {
  constexpr int64_t kTimes = 8;
  constexpr size_t kMost = 1024;
  std::vector<int64_t> edges;
  if (rounds.steps.ends_ns.empty()) return edges;
  const int64_t from_ns = std::min(rounds.begin_ns, rounds.end_ns - kTimes * rounds.length_ns());
  for (const int64_t end_ns : rounds.steps.ends_ns)
    if (end_ns >= from_ns) edges.push_back(end_ns);
  const size_t in_one = (edges.size() + kMost - 1) / kMost;
  if (in_one <= 1) return edges;
  std::vector<int64_t> fewer;
  for (size_t i = (edges.size() - 1) % in_one; i < edges.size(); i += in_one) fewer.push_back(edges[i]);
  return fewer;
}

std::optional<double> RankSteps::DeviationsOf(int rank, int64_t since_ns) const {
  const auto found = of_ranks_.find(rank);
  if (found == of_ranks_.end()) return std::nullopt;
  Steps steps = ToldSince(found->second, StepAt(since_ns));
  if (steps.size() < kFewest) return std::nullopt;
  double sum_ns = 0;
  for (const Taken& step : steps) sum_ns += step.beyond_ns;
  double count = static_cast<double>(steps.size());
  double least = std::numeric_limits<double>::infinity();
  for (size_t scale = 0; scale < usual_.size(); ++scale, count /= 2) {
    const auto& [usual, known] = usual_[scale];
    const bool by_own = scale == 0 || steps.size() >= kScale;
    if (!by_own && of_ranks_.size() < kTellOfOthers) break;
    // Of a part of several in a row, each of which may be by the same chance.
    const double times = count >= 1 ? count : count * count;
    const double variance = by_own ? std::max(VarianceOf(steps), usual) : usual;
    if (variance > 0) least = std::min(least, sum_ns / std::sqrt(variance * times) / Scarcity(known));
    if (by_own) steps = InPairs(steps);
  }
  return least;
}

size_t RankSteps::StepAt(int64_t ns) const {
  const auto after = std::ranges::upper_bound(edges_ns_, ns) - edges_ns_.begin();
  return static_cast<size_t>(std::max<std::ptrdiff_t>(1, after) - 1);
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
    own.resize(edges_ns_.size());
    own[step].beyond_ns += static_cast<double>((part.alone_ns - usual) * round.stands_for);
    own[step].usual_ns += static_cast<double>(usual * round.stands_for);
    own[step].is_told = true;
  }
}

// Of two, the faster is the usual one in each collective: by that alone both would be slow.
void RankSteps::CompareWithOthers() {
  std::vector<Taken*> told;
  std::vector<double> beyond;
  for (size_t step = 0; step < edges_ns_.size(); ++step) {
    told.clear();
    beyond.clear();
    for (auto& [rank, own] : of_ranks_) {
      if (!own[step].is_told) continue;
      told.push_back(&own[step]);
      beyond.push_back(own[step].beyond_ns);
    }
    const std::vector<double> above = AboveOthers(beyond);
    for (size_t i = 0; i < told.size(); ++i) told[i]->beyond_ns = above[i];
  }
}

void RankSteps::FindUsual() {
  std::vector<std::vector<double>> variances;  // by scale and rank
  for (const auto& [rank, own] : of_ranks_) {
    Steps steps = ToldSince(own, 0);
    for (size_t scale = 0; scale == 0 || steps.size() >= kScale; ++scale, steps = InPairs(steps)) {
      if (scale == variances.size()) {
        variances.emplace_back();
        usual_.emplace_back();
      }
      variances[scale].push_back(VarianceOf(steps));
      usual_[scale].steps = std::max(usual_[scale].steps, steps.size());
    }
  }
  for (size_t scale = 0; scale < usual_.size(); ++scale) {
    std::vector<double>& all = variances[scale];
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
    std::ranges::nth_element(all, middle);
    usual_[scale].variance = *middle;
  }
}

// Student's t beside the normal distribution: by how much more what lies this far out by the same odds does, where so
// many steps tell the variance.
double RankSteps::Scarcity(size_t steps) const {
  constexpr double kWider = 9;  // of 4.5 deviations, within a twentieth from 8 degrees of freedom on
  const size_t others = std::max<size_t>(2, of_ranks_.size()) - 1;
  const size_t freedom = others * (std::max<size_t>(2, steps) - 1);
  return 1 + kWider / static_cast<double>(freedom);
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
