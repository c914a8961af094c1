#include "lockstep/detect/slow_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "lockstep/base/lower_median.h"

namespace lockstep::detect {
namespace {

// The rounds in parts of equal time. Who is slow is so in the newest three of them, and more than once in each: a
// stall, a checkpoint of one rank, is something else.
constexpr size_t kSpans = 4, kNewest = 3;

struct Excess {
  std::array<int64_t, kSpans> alone_ns{};            // beyond what the members of the same collectives took
  std::array<int64_t, kSpans> longest_ns{};          // of it, in one round
  absl::btree_map<uint32_t, int64_t> waited_for_ns;  // by the member that came in the middle; by communicator
  int64_t rounds = 0;

  int64_t sum() const { return std::accumulate(alone_ns.begin(), alone_ns.end(), int64_t{0}); }
  int64_t waited_for() const {
    return std::accumulate(waited_for_ns.begin(), waited_for_ns.end(), int64_t{0},
                           [](int64_t sum, const auto& one) { return sum + one.second; });
  }
};

using ByRank = std::vector<std::pair<int, Excess>>;  // ascending

ByRank ExcessOfRanks(const Rounds& rounds) {
  absl::flat_hash_map<int, Excess> of_ranks;
  for (const Round& round : rounds.all) {
    if (std::any_of(round.parts.begin(), round.parts.end(), [](const Part& part) { return part.alone_ns < 0; }))
      continue;
    std::vector<int64_t> alone, came;
    alone.reserve(round.parts.size());
    came.reserve(round.parts.size());
    for (const Part& part : round.parts) {
      alone.push_back(part.alone_ns);
      came.push_back(part.came_ns);
    }
    // The lower ones: of two members the faster is the measure.
    const int64_t usual = LowerMedian(std::move(alone)), middle = LowerMedian(std::move(came));
    const int64_t into = round.began_ns - rounds.begin_ns;
    const size_t span =
        std::min(kSpans - 1, static_cast<size_t>(into * static_cast<int64_t>(kSpans) / rounds.length_ns()));
    for (const Part& part : round.parts) {
      Excess& excess = of_ranks[part.rank];
      const int64_t beyond = (part.alone_ns - usual) * round.stands_for;
      excess.alone_ns[span] += beyond;
      excess.longest_ns[span] = std::max(excess.longest_ns[span], beyond);
      excess.waited_for_ns[round.communicator] += std::max<int64_t>(0, part.came_ns - middle) * round.stands_for;
      ++excess.rounds;
    }
  }
  ByRank ascending(std::make_move_iterator(of_ranks.begin()), std::make_move_iterator(of_ranks.end()));
  std::ranges::sort(ascending, {}, &ByRank::value_type::first);
  return ascending;
}

// What the job loses: how long the largest group waits that waits for it at all. A smaller one may wait for longer,
// while the others are still at work, as in a pipeline that has slack.
int64_t LostByAll(const Excess& excess, const trace::CommLog& log) {
  constexpr int64_t kAtAll = 4;  // this part of what the group waits that waits longest
  int64_t longest = 0, lost = 0;
  for (const auto& [communicator, waited] : excess.waited_for_ns) longest = std::max(longest, waited);
  size_t largest = 0;
  for (const auto& [communicator, waited] : excess.waited_for_ns) {
    const size_t size = log.communicators[communicator].ranks.size();
    if (waited * kAtAll < longest || size < largest) continue;
    lost = size > largest ? waited : std::max(lost, waited);
    largest = size;
  }
  return lost;
}

double ShareOf(int64_t part_ns, int64_t whole_ns) {
  return static_cast<double>(part_ns) / static_cast<double>(whole_ns);
}

// How much the ranks differ from each other in their excess.
struct Spread {
  double middle, deviation;
};
Spread SpreadOf(const ByRank& of_ranks, int64_t whole_ns) {
  std::vector<double> shares;
  shares.reserve(of_ranks.size());
  for (const auto& [rank, excess] : of_ranks) shares.push_back(ShareOf(excess.sum(), whole_ns));
  const double middle = LowerMedian(shares);
  return {middle, RobustDeviation(std::move(shares), middle)};
}

}  // namespace

std::vector<incident::Finding> FindSlowRanks(const trace::CommLog& log, const Rounds& rounds,
                                             const CommThresholds& thresholds) {
  const ByRank of_ranks = ExcessOfRanks(rounds);
  if (of_ranks.empty()) return {};
  const int64_t whole = rounds.length_ns();
  const Spread spread = SpreadOf(of_ranks, whole);
  std::vector<std::pair<double, incident::Finding>> found;
  for (const auto& [rank, excess] : of_ranks) {
    const double share = ShareOf(excess.sum(), whole) - std::max(0.0, spread.middle);
    const double waited_for = ShareOf(excess.waited_for(), whole);
    if (share < thresholds.slow_share || waited_for < thresholds.slow_share / 2 ||
        share < thresholds.slow_deviation * spread.deviation)
      continue;
    const auto lasts = [&](size_t span) {
      const int64_t often = excess.alone_ns[span] - excess.longest_ns[span];
      return ShareOf(often * static_cast<int64_t>(kSpans), whole) >= thresholds.slow_share / 2;
    };
    size_t since = kSpans;
    while (since > 0 && lasts(since - 1)) --since;
    if (kSpans - since < kNewest) continue;
    incident::Finding finding;
    finding.syndrome = incident::Syndrome::kNonCommunicationSlow;
    finding.suspects = {incident::SuspectRank(RankId(rank))};
    finding.certain = log.doubt.empty();
    finding.probe = log.doubt;
    finding.price.share = std::min(share, ShareOf(LostByAll(excess, log), whole));
    finding.since = Nanos{rounds.begin_ns + whole * static_cast<int64_t>(since) / static_cast<int64_t>(kSpans)};
    finding.evidence = {
        fmt::format("{:.1f} % of the time rank {} was by itself for longer than the others before they met",
                    100 * share, rank),
        fmt::format("{:.1f} % of the time others waited for it; {} collectives in {:.1f} s", 100 * waited_for,
                    excess.rounds, static_cast<double>(whole) / 1e9)};
    found.emplace_back(share, std::move(finding));
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<incident::Finding> findings;
  findings.reserve(found.size());
  for (auto& [share, finding] : found) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace lockstep::detect
