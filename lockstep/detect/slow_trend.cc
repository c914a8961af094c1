// Whether a job has become slower as a whole (comm_slow.h).
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <tuple>

#include "lockstep/base/median.h"
#include "lockstep/detect/comm_slow.h"
#include "lockstep/detect/job_steps.h"

namespace lockstep::detect {
namespace {

constexpr size_t kCandidates = 200;  // for the moment of the change

// What comes again and again: a collective of the largest communicator. Launches of one member, which tell the period
// as well as those of all; by sequence.
struct Beat {
  uint32_t communicator = 0, function = 0;
  std::vector<std::pair<int64_t, int64_t>> launches;  // sequence, wall time
};

bool IsLaunch(const trace::CommOp& op) { return op.direction == trace::Direction::kCollective && op.created_ns >= 0; }

// Half of the time lies between launches so far from each other, or farther.
int64_t RestNs(const Beat& beat) {
  std::vector<int64_t> rests;
  for (size_t i = 1; i < beat.launches.size(); ++i)
    rests.push_back(std::max<int64_t>(0, beat.launches[i].second - beat.launches[i - 1].second));
  return MiddleOfSum(std::move(rests));
}

// As one of its ranks launched its collectives.
JobSteps StepsOf(const trace::CommLog& log) {
  const std::vector<Moves> moves = MovesOf(log.functions);
  std::vector<Met> all;
  int rank = -1;
  for (const trace::CommOp& op : log.ops) {
    if (!IsLaunch(op)) continue;
    if (rank < 0) rank = op.rank;
    if (op.rank == rank)
      all.push_back({op.communicator, op.sequence, op.function, moves[op.function], op.created_ns, op.bytes});
  }
  return FindJobSteps(std::move(all));
}

// Of those of which there are enough the one that rests for longest: once in a step.
Beat FindBeat(const trace::CommLog& log, size_t enough) {
  // Communicator, function, magnitude of bytes, rank; whether it was seen to end: else the time may be the host's,
  // which runs ahead, not the device's.
  using Key = std::tuple<uint32_t, uint32_t, int, int, bool>;
  const auto size_of = [&](const trace::CommOp& op) { return log.communicators[op.communicator].ranks.size(); };
  size_t largest = 0;
  for (const trace::CommOp& op : log.ops)
    if (IsLaunch(op)) largest = std::max(largest, size_of(op));
  std::map<Key, Beat> beats;
  for (const trace::CommOp& op : log.ops) {
    if (!IsLaunch(op) || size_of(op) < largest) continue;
    Beat& beat =
        beats[{op.communicator, op.function, static_cast<int>(std::bit_width(op.bytes)), op.rank, op.duration_ns >= 0}];
    beat.communicator = op.communicator;
    beat.function = op.function;
    beat.launches.emplace_back(op.sequence, op.created_ns);
  }
  Beat best;
  int64_t longest_ns = 0;
  for (auto& [key, beat] : beats) {
    std::sort(beat.launches.begin(), beat.launches.end());
    const int64_t rest_ns = beat.launches.size() < enough ? 0 : RestNs(beat);
    if (rest_ns <= longest_ns) continue;
    longest_ns = rest_ns;
    best = std::move(beat);
  }
  return best;
}

struct Periods {
  std::vector<double> log_ns;      // logarithms
  std::vector<int64_t> launch_ns;  // when each began
};

// The number counts all collectives of the communicator: where it goes on by another amount than usual, a script does
// something else, or records are missing; by a multiple of it, some are. Empty: there is too much of the former.
Periods PeriodsOf(const Beat& beat) {
  constexpr double kUsual = 0.8;  // of the periods
  std::map<int64_t, size_t> counts;
  for (size_t i = 1; i < beat.launches.size(); ++i) ++counts[beat.launches[i].first - beat.launches[i - 1].first];
  counts.erase(0);  // told twice
  if (counts.empty()) return {};
  const int64_t usual = std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
                          return a.second < b.second;
                        })->first;
  Periods periods;
  size_t others = 0;
  for (size_t i = 1; i < beat.launches.size(); ++i) {
    const auto [before, from] = beat.launches[i - 1];
    const auto [sequence, to] = beat.launches[i];
    if (sequence == before) continue;
    if ((sequence - before) % usual != 0 || to <= from) {
      ++others;
      continue;
    }
    const auto beats = (sequence - before) / usual;
    const auto times = static_cast<double>(beats);
    periods.log_ns.push_back(std::log(static_cast<double>(to - from) / times));
    periods.launch_ns.push_back(from);
  }
  const auto all = static_cast<double>(periods.log_ns.size() + others);
  return static_cast<double>(periods.log_ns.size()) < kUsual * all ? Periods{} : periods;
}

struct Change {
  size_t at = 0;
  double before = 0, after = 0;  // medians, logarithms
  double deviations = 0;
};

Change ChangeAt(const std::vector<double>& periods, size_t at) {
  const std::vector<double> head(periods.begin(), periods.begin() + static_cast<std::ptrdiff_t>(at));
  const std::vector<double> tail(periods.begin() + static_cast<std::ptrdiff_t>(at), periods.end());
  Change change{at, LowerMedian(head), LowerMedian(tail), 0};
  const double spread = std::max({RobustDeviation(head, change.before), RobustDeviation(tail, change.after), 1e-3});
  const auto inverse = [](size_t count) { return 1 / static_cast<double>(count); };
  const double error = kMedianSpread * spread * std::sqrt(inverse(head.size()) + inverse(tail.size()));
  change.deviations = (change.after - change.before) / error;
  return change;
}

// Medians hardly change while a few of the other side are among them, so the moment is the one at which each period
// lies with the median that it is nearer to.
size_t MomentOf(const std::vector<double>& periods, const Change& change) {
  double misfit = 0, least = 0;  // of all up to here being before, less that of their being after
  size_t best = 0;
  for (size_t i = 0; i < periods.size(); ++i) {
    misfit += std::abs(periods[i] - change.before) - std::abs(periods[i] - change.after);
    if (misfit >= least) continue;
    least = misfit;
    best = i + 1;
  }
  return std::min(best, periods.size() - 1);
}

}  // namespace

std::vector<incident::Finding> FindTrend(const trace::CommLog& log, const CommThresholds& thresholds) {
  const size_t least = thresholds.trend_steps;
  if (StepsOf(log).size() < 2 * least) return {};  // lengths make all that comes in a step longer
  const Beat beat = FindBeat(log, 2 * least + 1);
  const Periods periods = PeriodsOf(beat);
  const size_t count = periods.log_ns.size();
  if (count < 2 * least) return {};
  Change change;
  const size_t stride = 1 + (count - 2 * least) / kCandidates;
  for (size_t at = least; at + least <= count; at += stride)
    if (const Change one = ChangeAt(periods.log_ns, at); one.deviations > change.deviations) change = one;
  if (change.at > 0) change = ChangeAt(periods.log_ns, MomentOf(periods.log_ns, change));
  if (change.at < least || count - change.at < least) return {};
  const double ratio = std::exp(change.after - change.before);
  if (change.deviations < thresholds.trend_deviation || ratio < thresholds.trend_ratio) return {};
  // It lasts: the newest are slow, too.
  const std::vector<double> newest(periods.log_ns.end() - static_cast<std::ptrdiff_t>(least), periods.log_ns.end());
  if (std::exp(LowerMedian(newest) - change.before) < thresholds.trend_ratio) return {};
  incident::Finding finding;
  finding.syndrome = incident::Syndrome::kJobSlow;
  finding.probe = "whether the script has begun something else, such as longer sequences or a validation";
  finding.since = Nanos{periods.launch_ns[change.at]};
  finding.price.share = 1 - 1 / ratio;
  finding.price.ranks = static_cast<int>(log.communicators[beat.communicator].ranks.size());
  finding.evidence = {
      fmt::format("from one {} to the next it took {:.3g} s, and takes {:.3g} s since: {:.2f} times as long",
                  log.functions[beat.function], std::exp(change.before) / 1e9, std::exp(change.after) / 1e9, ratio),
      fmt::format("{} times before, {} since; no rank or way is known to be slower than the others", change.at,
                  count - change.at)};
  return {std::move(finding)};
}

}  // namespace lockstep::detect
