#include "lockstep/detect/slow_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "lockstep/base/median.h"
#include "lockstep/detect/rank_steps.h"
#include "lockstep/detect/shared_work.h"

namespace lockstep::detect {
namespace {

// The rounds in parts of equal time. Who is slow is so in the newest three of them, and more than once in each: a
// stall, a checkpoint of one rank, is something else.
constexpr size_t kSpans = 4, kNewest = 3;
constexpr double kBeyondChance = 4.5;       // deviations
using Spans = std::array<int64_t, kSpans>;  // ns

int64_t Sum(const Spans& spans) { return std::accumulate(spans.begin(), spans.end(), int64_t{0}); }

// What a rank waited for data.
struct Waited {
  Spans ns{}, longest_ns{};  // the latter: in one wait
  trace::DataSources sources;
};

struct Excess {
  Spans alone_ns{};    // beyond what the members of the same collectives took
  Spans longest_ns{};  // of it, in one round
  Waited waited;
  absl::btree_map<uint32_t, int64_t> waited_for_ns;  // by the member that came in the middle; by communicator
  absl::btree_map<uint32_t, double> waited_share;    // of the time, by communicator
  int64_t rounds = 0;
  bool at_least = false;  // what is not known of it may have been more

  int64_t sum() const { return Sum(alone_ns); }
  int64_t waited_for() const {
    return std::accumulate(waited_for_ns.begin(), waited_for_ns.end(), int64_t{0},
                           [](int64_t sum, const auto& one) { return sum + one.second; });
  }
};

using ByRank = std::vector<std::pair<int, Excess>>;  // ascending

// In the rounds of one communicator.
struct ExcessInOne {
  Spans alone_ns{}, longest_ns{};
  int64_t waited_for_ns = 0, rounds = 0;
  int64_t first_waited_ns = 0;           // of it, in the first round
  int64_t first_end_ns = 0, end_ns = 0;  // of the rounds
  int64_t known = 0;                     // those, too, of which nobody knows how long its members were alone

  // Of the time. From the end of one round to that of another, where they lie far enough apart: of steps of 10 s there
  // are two or three in 30 s, as it happens.
  double WaitedShare(int64_t whole_ns) const {
    const int64_t between_ns = end_ns - first_end_ns;
    if (3 * between_ns < whole_ns) return static_cast<double>(waited_for_ns) / static_cast<double>(whole_ns);
    return static_cast<double>(waited_for_ns - first_waited_ns) / static_cast<double>(between_ns);
  }
};

absl::flat_hash_map<std::pair<int, uint32_t>, ExcessInOne> ExcessByCommunicator(const Rounds& rounds) {
  absl::flat_hash_map<std::pair<int, uint32_t>, ExcessInOne> all;  // by rank and communicator
  std::vector<int64_t> alone, came;
  for (const Round& round : rounds.newest()) {
    alone.clear();
    came.clear();
    for (const Part& part : round.parts) {
      alone.push_back(part.alone_ns);
      came.push_back(part.came_ns);
    }
    const bool is_known = std::ranges::all_of(alone, [](int64_t ns) { return ns >= 0; });
    // The lower ones: of two members the faster is the measure.
    const int64_t usual = LowerMedian(alone), middle = LowerMedian(came);
    const int64_t into = round.began_ns - rounds.begin_ns;
    const size_t span =
        std::min(kSpans - 1, static_cast<size_t>(into * static_cast<int64_t>(kSpans) / rounds.length_ns()));
    for (const Part& part : round.parts) {
      ExcessInOne& excess = all[{part.rank, round.communicator}];
      ++excess.known;
      if (!is_known) continue;
      const int64_t beyond = (part.alone_ns - usual) * round.stands_for;
      excess.alone_ns[span] += beyond;
      excess.longest_ns[span] = std::max(excess.longest_ns[span], beyond);
      const int64_t waited = std::max<int64_t>(0, part.came_ns - middle) * round.stands_for;
      if (excess.rounds == 0) {
        excess.first_waited_ns = waited;
        excess.first_end_ns = part.left_ns;
      }
      excess.end_ns = part.left_ns;
      excess.waited_for_ns += waited;
      ++excess.rounds;
    }
  }
  return all;
}

// A collective of which the rank's record, or too many others', are lost counts as those that are known do; but no more
// of them than these are.
ByRank ExcessOfRanks(const Rounds& rounds) {
  constexpr double kMost = 2;
  absl::flat_hash_map<int, Excess> of_ranks;
  for (const auto& [of, in_one] : ExcessByCommunicator(rounds)) {
    if (in_one.rounds == 0) continue;
    const double told = static_cast<double>(rounds.told[of.second]) / static_cast<double>(in_one.known);
    const double times = std::min(told, kMost);
    const auto whole = [&](int64_t ns) { return static_cast<int64_t>(std::round(static_cast<double>(ns) * times)); };
    Excess& excess = of_ranks[of.first];
    for (size_t span = 0; span < kSpans; ++span) {
      excess.alone_ns[span] += whole(in_one.alone_ns[span]);
      excess.longest_ns[span] = std::max(excess.longest_ns[span], whole(in_one.longest_ns[span]));
    }
    excess.waited_for_ns[of.second] = whole(in_one.waited_for_ns);
    excess.waited_share[of.second] = times * in_one.WaitedShare(rounds.length_ns());
    excess.rounds += in_one.rounds;
    excess.at_least = excess.at_least || told > kMost;
  }
  ByRank ascending(std::make_move_iterator(of_ranks.begin()), std::make_move_iterator(of_ranks.end()));
  std::ranges::sort(ascending, {}, &ByRank::value_type::first);
  return ascending;
}

// Each wait where it lies.
void AddWaits(const trace::CommLog& log, const Rounds& rounds, ByRank& of_ranks) {
  const int64_t whole = rounds.length_ns();
  for (const trace::DataWait& wait : log.data_waits) {
    const auto found = std::ranges::lower_bound(of_ranks, wait.rank, {}, &ByRank::value_type::first);
    const int64_t length = wait.parts.sum_ns();
    if (found == of_ranks.end() || found->first != wait.rank || length <= 0) continue;
    Waited& waited = found->second.waited;
    for (size_t span = 0; span < kSpans; ++span) {
      const auto edge = [&](size_t i) {
        return rounds.begin_ns + whole * static_cast<int64_t>(i) / static_cast<int64_t>(kSpans);
      };
      const int64_t within = std::min(wait.end_ns, edge(span + 1)) - std::max(wait.begin_ns(), edge(span));
      if (within <= 0) continue;
      waited.ns[span] += within;
      waited.longest_ns[span] = std::max(waited.longest_ns[span], within / std::max<int64_t>(1, wait.waits));
      waited.sources.Add(wait, static_cast<double>(within) / static_cast<double>(length));
    }
  }
}

// What ranks wait for data in common: the lower median.
Spans WaitedInCommon(const ByRank& of_ranks) {
  Spans common{};
  for (size_t span = 0; span < kSpans; ++span) {
    std::vector<int64_t> waited;
    waited.reserve(of_ranks.size());
    for (const auto& [rank, excess] : of_ranks) waited.push_back(excess.waited.ns[span]);
    common[span] = LowerMedian(std::move(waited));
  }
  return common;
}

// Waits beyond that are not what the rank did by itself.
void TakeWaitsOut(const Spans& common, ByRank& of_ranks) {
  for (auto& [rank, excess] : of_ranks)
    for (size_t span = 0; span < kSpans; ++span) {
      const int64_t beyond = std::max<int64_t>(0, excess.waited.ns[span] - common[span]);
      excess.alone_ns[span] -= std::min(beyond, std::max<int64_t>(0, excess.alone_ns[span]));
    }
}

// What the job loses by a rank.
class JobLoss {
 public:
  explicit JobLoss(const trace::CommLog& log) : log_(log) {}

  // How long the group waits that reaches furthest of those that wait for it at all. A nearer one may wait for longer,
  // while the others are still at work, as in a pipeline that has slack. Stages of one pipeline come at different
  // times, whoever is slow: where they meet counts only if there are no other groups.
  double Of(const Excess& excess) const {
    constexpr double kAtAll = 8;  // this part of what the group waits that waits longest
    const auto& [alike, reach_of] = groups();
    absl::btree_map<uint32_t, double> waits = excess.waited_share;
    absl::erase_if(waits, [&](const auto& one) { return !alike[one.first]; });
    if (waits.empty()) waits = excess.waited_share;
    double longest = 0, lost = 0;
    for (const auto& [communicator, waited] : waits) longest = std::max(longest, waited);
    Reach furthest;
    for (const auto& [communicator, waited] : waits) {
      const Reach& reach = reach_of[communicator];
      if (waited * kAtAll < longest || reach < furthest) continue;
      lost = reach > furthest ? waited : std::max(lost, waited);
      furthest = reach;
    }
    return lost;
  }

 private:
  using Reach = std::pair<size_t, size_t>;  // over how many hosts a communicator goes, and how many members it has

  struct Groups {  // by communicator
    std::vector<bool> alike;
    std::vector<Reach> reach;
  };

  // Most jobs lose nothing: looked up when first asked for.
  const Groups& groups() const {
    if (groups_) return *groups_;
    groups_ = {AreAlike(log_, PipelinesOf(log_)), {}};
    for (const trace::Communicator& one : log_.communicators)
      groups_->reach.emplace_back(CountHosts(one, log_), one.ranks.size());
    return *groups_;
  }

  const trace::CommLog& log_;
  mutable std::optional<Groups> groups_;
};

double ShareOf(int64_t part_ns, int64_t whole_ns) {
  return static_cast<double>(part_ns) / static_cast<double>(whole_ns);
}

// Of a rank that is late by itself for `share` of the time.
incident::Price PriceOf(const Excess& excess, double share, const JobLoss& loss) {
  return {.share = std::min(share, loss.Of(excess)), .at_least = excess.at_least};
}

// Nor is it what all ranks of a slow group take longer for: the lower median of them.
void TakeGroupsOut(const std::vector<std::set<int>>& groups, ByRank& of_ranks) {
  for (const std::set<int>& group : groups)
    for (size_t span = 0; span < kSpans; ++span) {
      std::vector<int64_t> alone;
      for (const auto& [rank, excess] : of_ranks)
        if (group.contains(rank)) alone.push_back(excess.alone_ns[span]);
      const int64_t common = std::max<int64_t>(0, LowerMedian(std::move(alone)));
      for (auto& [rank, excess] : of_ranks)
        if (group.contains(rank)) excess.alone_ns[span] -= common;
    }
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

// Since which span it has lasted up to the end; kSpans: it doesn't.
template <typename Often>
size_t SinceSpan(const Often& often_ns, int64_t whole, const CommThresholds& thresholds) {
  size_t since = kSpans;
  while (since > 0 && ShareOf(often_ns(since - 1) * static_cast<int64_t>(kSpans), whole) >= thresholds.slow_share / 2)
    --since;
  return kSpans - since < kNewest ? kSpans : since;
}

// A stall, or a checkpoint of one rank, lies in one span, or is the longest of it.
template <typename Often>
bool ComesAndGoes(const Often& often_ns, int64_t whole, const CommThresholds& thresholds) {
  size_t spans = 0;
  for (size_t span = 0; span < kSpans; ++span)
    spans += ShareOf(often_ns(span) * static_cast<int64_t>(kSpans), whole) >= thresholds.slow_share;
  return spans > 1;
}

// For want of data: a rank that waits longer than the others, and that they wait for; or all alike.
class DataFindings {
 public:
  DataFindings(const trace::CommLog& log, const Rounds& rounds, const JobLoss& loss, const CommThresholds& thresholds)
      : log_(log), rounds_(rounds), loss_(loss), thresholds_(thresholds), whole_(rounds.length_ns()) {}

  std::vector<incident::Finding> Find(const ByRank& of_ranks, const Spans& common) {
    FindCommon(of_ranks, common);
    for (const auto& [rank, excess] : of_ranks) FindRank(rank, excess, common);
    std::ranges::stable_sort(findings_, [](const auto& a, const auto& b) { return a.price.share > b.price.share; });
    return std::move(findings_);
  }

 private:
  void FindCommon(const ByRank& of_ranks, const Spans& common) {
    const double share = ShareOf(Sum(common), whole_);
    const size_t since = SinceSpan([&](size_t span) { return common[span]; }, whole_, thresholds_);
    if (share < thresholds_.slow_share || since == kSpans) return;
    trace::DataSources sources;
    for (const trace::DataWait& wait : log_.data_waits)
      if (wait.end_ns > rounds_.begin_ns) sources.Add(wait);
    const auto& [most, excess] =
        *std::ranges::max_element(of_ranks, {}, [](const auto& one) { return Sum(one.second.waited.ns); });
    Add({}, {.share = share}, since,
        {fmt::format("{:.1f} % of the time its ranks waited for {}", 100 * share, sources.Text()),
         fmt::format("rank {} waited longest, {:.1f} %", most, 100 * ShareOf(Sum(excess.waited.ns), whole_))});
  }

  void FindRank(int rank, const Excess& excess, const Spans& common) {
    const Waited& waited = excess.waited;
    const auto beyond = [&](size_t span) {
      const int64_t own = waited.ns[span] - waited.longest_ns[span];
      return std::max<int64_t>(0, own - common[span]);
    };
    const double share = ShareOf(Sum(waited.ns) - Sum(common), whole_);
    const double waited_for = ShareOf(excess.waited_for(), whole_);
    const size_t since = SinceSpan(beyond, whole_, thresholds_);
    if (share < thresholds_.slow_share || waited_for < thresholds_.slow_share / 2 || since == kSpans) return;
    Add({incident::SuspectRank(RankId(rank))}, PriceOf(excess, share, loss_), since,
        {fmt::format("{:.1f} % of the time rank {} waited for {}", 100 * ShareOf(Sum(waited.ns), whole_), rank,
                     waited.sources.Text()),
         fmt::format("{:.1f} % of the time others waited for it; {} collectives in {:.1f} s", 100 * loss_.Of(excess),
                     excess.rounds, static_cast<double>(whole_) / 1e9)});
  }

  void Add(std::vector<incident::Suspect> suspects, const incident::Price& price, size_t since,
           std::vector<std::string> evidence) {
    incident::Finding finding;
    finding.syndrome = incident::Syndrome::kDataSlow;
    finding.suspects = std::move(suspects);
    finding.certain = log_.doubt.empty();
    finding.price = price;
    finding.since = Nanos{rounds_.begin_ns + whole_ * static_cast<int64_t>(since) / static_cast<int64_t>(kSpans)};
    finding.evidence = std::move(evidence);
    findings_.push_back(std::move(finding));
  }

  const trace::CommLog& log_;
  const Rounds& rounds_;
  const JobLoss& loss_;
  const CommThresholds& thresholds_;
  const int64_t whole_;
  std::vector<incident::Finding> findings_;
};

}  // namespace

SlowRanks FindSlowRanks(const trace::CommLog& log, const Rounds& rounds, const CommThresholds& thresholds,
                        const std::vector<std::set<int>>& groups) {
  if (rounds.steps.size() < JobSteps::kFewest) return {};
  ByRank of_ranks = ExcessOfRanks(rounds);
  if (of_ranks.empty()) return {};
  const int64_t whole = rounds.length_ns();
  const JobLoss loss(log);
  AddWaits(log, rounds, of_ranks);
  const Spans common = WaitedInCommon(of_ranks);
  SlowRanks slow{DataFindings(log, rounds, loss, thresholds).Find(of_ranks, common), ""};
  TakeWaitsOut(common, of_ranks);
  TakeGroupsOut(groups, of_ranks);
  const Spread spread = SpreadOf(of_ranks, whole);
  std::optional<RankSteps> steps;  // of hardly any job are they asked for
  std::vector<std::pair<double, incident::Finding>> found;
  for (const auto& [rank, excess] : of_ranks) {
    const double share = ShareOf(excess.sum(), whole) - std::max(0.0, spread.middle);
    const double waited_for = ShareOf(excess.waited_for(), whole);
    if (share < thresholds.slow_share || waited_for < thresholds.slow_share / 2 ||
        share < thresholds.slow_deviation * spread.deviation)
      continue;
    const auto often_ns = [&](size_t span) { return excess.alone_ns[span] - excess.longest_ns[span]; };
    const size_t since = SinceSpan(often_ns, whole, thresholds);
    if (since == kSpans) {
      if (ComesAndGoes(often_ns, whole, thresholds))
        slow.unsure = fmt::format(
            "{:.1f} % of the time rank {} was by itself for longer than the others, now and then: whether it is slow "
            "can't be told",
            100 * share, rank);
      continue;
    }
    const int64_t since_ns = rounds.begin_ns + whole * static_cast<int64_t>(since) / static_cast<int64_t>(kSpans);
    if (!steps) steps.emplace(rounds);
    const std::optional<double> deviations = steps->DeviationsOf(rank, since_ns);
    if (deviations.value_or(0) < kBeyondChance) {
      slow.unsure = fmt::format(
          "{:.1f} % of the time rank {} was by itself for longer than the others, in {}", 100 * share, rank,
          deviations ? "steps that differ so much that it may be chance" : "too few steps to tell whether it is slow");
      continue;
    }
    incident::Finding finding;
    finding.syndrome = incident::Syndrome::kNonCommunicationSlow;
    finding.suspects = {incident::SuspectRank(RankId(rank))};
    finding.certain = log.doubt.empty();
    finding.probe = log.doubt;
    finding.price = PriceOf(excess, share, loss);
    finding.since = Nanos{since_ns};
    finding.evidence = {
        fmt::format("{:.1f} % of the time rank {} was by itself for longer than the others before they met",
                    100 * share, rank),
        fmt::format("{:.1f} % of the time others waited for it; {} collectives in {:.1f} s", 100 * loss.Of(excess),
                    excess.rounds, static_cast<double>(whole) / 1e9)};
    found.emplace_back(share, std::move(finding));
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (auto& [share, finding] : found) slow.findings.push_back(std::move(finding));
  return slow;
}

}  // namespace lockstep::detect
