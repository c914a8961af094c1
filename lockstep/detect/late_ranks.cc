#include "lockstep/detect/late_ranks.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "lockstep/base/median.h"
#include "lockstep/detect/round_order.h"
#include "lockstep/detect/shared_work.h"

namespace lockstep::detect {
namespace {

// Of the newest steps that are compared, at the least. Who is late is so in all but a tenth of them: by chance, where a
// rank is late in every second, in one look of 5,000 at so many.
constexpr size_t kTimes = 20, kOneNotOf = 10;

struct Meeting {
  double beyond_ns = 0, usual_ns = 0, waited_ns = 0, length_ns = 0;  // since the one before
  int64_t at_ns = 0, end_ns = 0;
  bool is_told = false;  // of a step: enough of what groups took

  Meeting& operator+=(const Meeting& next) {
    beyond_ns += next.beyond_ns, usual_ns += next.usual_ns, waited_ns += next.waited_ns, length_ns += next.length_ns;
    at_ns = next.at_ns, end_ns = next.end_ns;
    return *this;
  }
};

using Meetings = std::vector<std::map<int, std::vector<Meeting>>>;  // by communicator and rank, the newest last

class Meeters {
 public:
  Meeters(const trace::CommLog& log, const std::vector<bool>& alike)
      : alike_(alike), shared_(alike), before_ns_(log.communicators.size()), meetings_(log.communicators.size()) {}

  void Add(const Round& round) {
    std::vector<int64_t> alone, came;
    for (const Part& part : round.parts) {
      alone.push_back(part.alone_ns);
      came.push_back(part.came_ns);
    }
    const bool is_known = std::ranges::all_of(alone, [](int64_t ns) { return ns >= 0; });
    const auto [beyond, usual] = shared_.Add(round, is_known ? LowerMedian(alone) : 0);
    if (beyond.empty()) return;
    std::vector<double> since;  // in whichever communicator it was found
    for (size_t i = 0; i < round.parts.size(); ++i) {
      const int rank = round.parts[i].rank;
      const int64_t sum = beyond_ns_[rank] += beyond[i];
      since.push_back(static_cast<double>(sum - std::exchange(then_ns_[{round.communicator, rank}], sum)));
    }
    int64_t end_ns = round.began_ns;
    for (const Part& part : round.parts) end_ns = std::max(end_ns, part.left_ns);
    const std::optional<int64_t> before = std::exchange(before_ns_[round.communicator], end_ns);
    if (!before || end_ns <= *before) return;
    const std::vector<double> above = AboveOthers(since);
    const int64_t middle = LowerMedian(came);
    for (size_t i = 0; i < round.parts.size(); ++i) {
      const int64_t waited = std::max<int64_t>(0, came[i] - middle) * round.stands_for;
      meetings_[round.communicator][round.parts[i].rank].push_back(
          {above[i], static_cast<double>(usual), static_cast<double>(waited), static_cast<double>(end_ns - *before),
           round.began_ns, end_ns});
    }
  }

  bool IsWhole() const { return shared_.IsWhole(); }
  const Meetings& meetings() const { return meetings_; }

 private:
  const std::vector<bool>& alike_;
  SharedWork shared_;
  absl::flat_hash_map<int, int64_t> beyond_ns_;                     // by rank
  absl::flat_hash_map<std::pair<uint32_t, int>, int64_t> then_ns_;  // it, at the newest round of a communicator
  std::vector<std::optional<int64_t>> before_ns_;                   // by communicator: the round before ended
  Meetings meetings_;
};

int64_t BeginNs(const Meeting& one) { return one.end_ns - static_cast<int64_t>(one.length_ns); }

// What meetings came to in each step of the job: up to the first that ends as the step does, or later.
std::vector<Meeting> ByStep(const std::vector<Meeting>& all, const JobSteps& job) {
  constexpr double kClose = 0.05;  // groups that end a step do so at about the same time
  const auto close_ns = static_cast<int64_t>(kClose * static_cast<double>(job.usual_ns));
  std::vector<Meeting> steps;
  Meeting step;
  auto end = std::ranges::upper_bound(job.ends_ns, BeginNs(all.front()) + close_ns);
  for (const Meeting& one : all) {
    step += one;
    if (end == job.ends_ns.end()) break;
    if (one.end_ns + close_ns < *end) continue;
    steps.push_back(std::exchange(step, {}));
    end = std::upper_bound(end, job.ends_ns.end(), one.end_ns + close_ns);
  }
  return steps;
}

// The newest, back to a moment at least, from the first on of which enough is told of what groups took.
std::vector<Meeting> NewestSteps(std::vector<Meeting> steps, int64_t back_to_ns) {
  size_t first = steps.size() - std::min(steps.size(), kTimes);
  while (first > 0 && BeginNs(steps[first]) > back_to_ns) --first;
  steps.erase(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(first));
  double usual_ns = 0;
  for (const Meeting& one : steps) usual_ns += one.usual_ns / static_cast<double>(steps.size());
  constexpr double kEnough = 0.25;
  for (Meeting& one : steps) one.is_told = usual_ns > 0 && one.usual_ns >= kEnough * usual_ns;
  steps.erase(steps.begin(), std::ranges::find_if(steps, &Meeting::is_told));
  return steps;
}

// The steps of a rank in one communicator. Of what groups take one collective of many may be told, here one before
// which they take long, there one before which they don't, and in some steps none: alike for all groups. So what a
// group takes beyond others is seen beside what these take.
class Steps {
 public:
  Steps(const std::vector<Meeting>& all, const Rounds& rounds)
      : steps_(NewestSteps(ByStep(all, rounds.steps), rounds.LastlyNs())) {
    for (const Meeting& step : steps_) {
      sum_ += step;
      compared_ += step.is_told;
    }
  }

  size_t compared() const { return compared_; }
  double share() const { return sum_.beyond_ns / sum_.length_ns; }
  double waited() const { return sum_.waited_ns / sum_.length_ns; }
  int64_t since_ns() const { return steps_.front().at_ns; }
  int64_t begin_ns() const { return BeginNs(steps_.front()); }

  // What a step's is off its usual part of what others take, squared.
  double Variance() const {
    double squares = 0;
    for (const Meeting& step : steps_) squares += std::pow(step.beyond_ns - Part() * step.usual_ns, 2);
    return squares / static_cast<double>(compared_ - 1);
  }
  // By how many times what chance makes of the sum, where that of one step has this variance.
  double Deviations(double variance) const {
    return sum_.beyond_ns / std::sqrt(variance * static_cast<double>(compared_));
  }
  // By `share` of the time.
  bool IsLateOften(double share) const {
    const double of_usual = share * sum_.length_ns / sum_.usual_ns;
    size_t not_late = 0, none_waits = 0;
    for (const Meeting& step : steps_) {
      not_late += step.is_told && step.beyond_ns < of_usual * step.usual_ns;
      none_waits += step.waited_ns < share * step.length_ns;
    }
    return not_late <= compared_ / kOneNotOf && none_waits <= steps_.size() / kOneNotOf;
  }

 private:
  double Part() const { return sum_.beyond_ns / sum_.usual_ns; }

  std::vector<Meeting> steps_;
  Meeting sum_;
  size_t compared_ = 0;
};

// The fewer steps are known, the less of what they differ by: so by more.
bool IsBeyondChance(const Steps& steps, double variance, const CommThresholds& thresholds) {
  const double fewer = std::max(1.0, static_cast<double>(kTimes) / static_cast<double>(steps.compared()));
  return steps.Deviations(std::max(variance, steps.Variance())) >= thresholds.slow_deviation * fewer;
}

}  // namespace

LateRanks FindLateRanks(const trace::CommLog& log, const Rounds& rounds, const std::vector<bool>& alike,
                        const CommThresholds& thresholds) {
  Meeters meeters(log, alike);
  for (const uint32_t one : OrderOfRanks(rounds.all)) meeters.Add(rounds.all[one]);
  LateRanks found;
  found.is_whole = meeters.IsWhole();
  for (size_t i = 0; i < meeters.meetings().size(); ++i) {
    std::vector<std::pair<int, Steps>> of_ranks;
    double variances = 0;
    const bool several_hosts = CountHosts(log.communicators[i], log) > 1;
    for (const auto& [rank, all] : meeters.meetings()[i]) {
      Steps steps(all, rounds);
      if (several_hosts) {
        found.are_groups |= std::ranges::any_of(all, [](const Meeting& one) { return one.usual_ns > 0; });
        found.most_steps = std::max(found.most_steps, steps.compared());
      }
      if (steps.compared() < LateRanks::kFewest) continue;
      variances += steps.Variance();
      of_ranks.emplace_back(rank, std::move(steps));
    }
    if (of_ranks.empty()) continue;
    const double variance = variances / static_cast<double>(of_ranks.size());
    for (const auto& [rank, steps] : of_ranks) {
      if (steps.begin_ns() > rounds.LastlyNs() + rounds.steps.usual_ns ||  // the first may not be told
          std::min(steps.share(), steps.waited()) < thresholds.slow_share ||
          !steps.IsLateOften(thresholds.slow_share / 2) || !IsBeyondChance(steps, variance, thresholds))
        continue;
      Late& one = found.late[rank];
      if (steps.share() > one.share) one = {steps.share(), steps.waited(), steps.since_ns(), steps.compared()};
    }
  }
  return found;
}

}  // namespace lockstep::detect
