#include "lockstep/detect/slow_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "lockstep/base/lower_median.h"

namespace lockstep::detect {
namespace {

using trace::CommTransfer;
using trace::Direction;

// From one rank to another.
using Way = std::pair<int, int>;

// What is alike can be compared: function, magnitude of bytes, members.
using Class = std::tuple<uint32_t, int, size_t>;

const Part* PartOf(const Round& round, int rank) {
  const auto found = std::lower_bound(round.parts.begin(), round.parts.end(), rank,
                                      [](const Part& part, int wanted) { return part.rank < wanted; });
  return found != round.parts.end() && found->rank == rank ? &*found : nullptr;
}

// How long the first message of each way and round was under way once both ends had come, ns; by class and way.
using Delays = std::map<Class, std::map<Way, std::vector<double>>>;

// Only where each member hears from one other: there the first message depends on nothing but its two ends. In a tree,
// say, the second sender may itself have waited.
Delays DelaysOf(const trace::CommLog& log, const Rounds& rounds) {
  std::map<std::pair<uint32_t, int64_t>, std::vector<const CommTransfer*>> heard;
  for (const CommTransfer& transfer : log.transfers)
    if (transfer.direction == Direction::kReceive && transfer.count > 0)
      heard[{transfer.communicator, transfer.sequence}].push_back(&transfer);
  Delays delays;
  for (const Round& round : rounds.all) {
    const auto found = heard.find({round.communicator, round.sequence});
    if (found == heard.end()) continue;
    std::map<int, const CommTransfer*> of_rank;
    bool ring = true;
    for (const CommTransfer* transfer : found->second)
      ring = of_rank.emplace(transfer->rank, transfer).first->second->peer == transfer->peer && ring;
    if (!ring || of_rank.size() != round.parts.size()) continue;
    const Class alike{round.function, std::bit_width(round.bytes), round.parts.size()};
    for (const auto& [rank, transfer] : of_rank) {
      const Part *receiver = PartOf(round, rank), *sender = PartOf(round, transfer->peer);
      if (receiver == nullptr || sender == nullptr) continue;
      const int64_t there = receiver->came_ns + transfer->first_ns;
      const int64_t both = std::max(receiver->came_ns, sender->came_ns);
      delays[alike][{transfer->peer, rank}].push_back(static_cast<double>(std::max<int64_t>(0, there - both)));
    }
  }
  return delays;
}

struct Slowness {
  double usual_ns = 0, ns = 0;  // of a first message, of like ways and of this one
  double share = 0;             // of the time, over all its rounds
};

struct Ways {
  std::map<Way, Slowness> slow;
  std::set<Way> fine;
};

// Whether it is above in each of the newest three quarters. `times` are in their order.
bool Lasts(const std::vector<double>& times, double limit) {
  constexpr size_t kSpans = 4;
  for (size_t span = 1; span < kSpans; ++span) {
    const auto begin = times.begin() + static_cast<std::ptrdiff_t>(times.size() * span / kSpans);
    const auto end = times.begin() + static_cast<std::ptrdiff_t>(times.size() * (span + 1) / kSpans);
    if (begin == end || LowerMedian<double>({begin, end}) <= limit) return false;
  }
  return true;
}

// The usual is that of the faster quarter of like ways: two ways of three may be slow.
Ways Judge(const Delays& delays, double whole_ns, const CommThresholds& thresholds) {
  Ways ways;
  for (const auto& [alike, by_way] : delays) {
    std::map<Way, double> medians;
    std::vector<double> all, within;
    for (const auto& [way, times] : by_way) {
      const double median = LowerMedian(times);
      medians[way] = median;
      all.push_back(median);
      std::vector<double> apart;
      for (const double time : times) apart.push_back(std::abs(time - median));
      within.push_back(LowerMedian(std::move(apart)));
    }
    if (all.size() < 2) continue;
    std::sort(all.begin(), all.end());
    const double usual = all[(all.size() - 1) / 4], noise = 1.4826 * LowerMedian(within);
    for (const auto& [way, median] : medians) {
      const std::vector<double>& times = by_way.at(way);
      const double share = (median - usual) * static_cast<double>(times.size()) / whole_ns;
      const bool slow = times.size() * 3 >= thresholds.window_ops && share >= thresholds.link_share &&
                        median - usual > thresholds.link_deviation * noise &&
                        Lasts(times, thresholds.link_ratio * usual);
      if (!slow) {
        ways.fine.insert(way);
        continue;
      }
      Slowness& slowness = ways.slow[way];
      if (share > slowness.share) slowness = {usual, median, slowness.share + share};
    }
  }
  for (const auto& [way, slowness] : ways.slow) ways.fine.erase(way);
  return ways;
}

// What would make some ways slow. Messages need credit, or a word that they come, which goes the other way: what is
// slow in one direction is so, if less, in the other.
struct Explanation {
  enum class Kind { kLink, kTransmit, kReceive };
  Kind kind;
  int rank, other = -1;  // the other end of a link, which has no direction

  // Ways that can't be fine if this is so.
  bool Concerns(const Way& way) const {
    return kind == Kind::kTransmit ? way.first == rank : kind == Kind::kReceive && way.second == rank;
  }
  // Ways that are slow by it.
  bool Covers(const Way& way) const {
    if (kind == Kind::kLink) return way == Way(rank, other) || way == Way(other, rank);
    return way.first == rank || way.second == rank;
  }
  incident::Suspect suspect() const {
    if (kind == Kind::kLink) return {incident::Suspect::Kind::kLink, fmt::format("{}<->{}", rank, other)};
    return incident::SuspectRank(RankId(rank));
  }
  std::string text() const {
    if (kind == Kind::kLink) return fmt::format("the link between ranks {} and {}", rank, other);
    return fmt::format("the {} side of rank {}", kind == Kind::kTransmit ? "transmit" : "receive", rank);
  }
  auto operator<=>(const Explanation&) const = default;
};

std::vector<Explanation> PossibleExplanations(const Ways& ways) {
  using Kind = Explanation::Kind;
  std::set<Explanation> all;
  for (const auto& [way, slowness] : ways.slow)
    all.insert({{Kind::kLink, std::min(way.first, way.second), std::max(way.first, way.second)},
                {Kind::kTransmit, way.first},
                {Kind::kReceive, way.second}});
  std::vector<Explanation> possible;
  for (const Explanation& one : all)
    if (std::none_of(ways.fine.begin(), ways.fine.end(), [&](const Way& fine) { return one.Concerns(fine); }))
      possible.push_back(one);
  return possible;
}

incident::Finding Explain(const std::vector<Explanation>& equal, const std::vector<Way>& covered, const Ways& ways) {
  incident::Finding finding;
  finding.syndrome = incident::Syndrome::kCommunicationSlow;
  finding.suspects = {equal.front().suspect()};
  std::string names = equal.front().text();
  for (size_t i = 1; i < equal.size(); ++i) {
    const incident::Suspect other = equal[i].suspect();
    const auto& known = finding.ambiguous_with;
    if (other != finding.suspects.front() && std::find(known.begin(), known.end(), other) == known.end())
      finding.ambiguous_with.push_back(other);
    names += (i + 1 == equal.size() ? " or " : ", ") + equal[i].text();
  }
  finding.certain = finding.ambiguous_with.empty();
  for (const Way& way : covered) {
    const Slowness& slowness = ways.slow.at(way);
    finding.evidence.push_back(fmt::format(
        "rank {} to rank {}: a first message takes {:.2f} ms, those of like ways {:.2f} ms; {:.1f} % of the time",
        way.first, way.second, slowness.ns / 1e6, slowness.usual_ns / 1e6, 100 * slowness.share));
  }
  finding.evidence.push_back("which " + names + " would explain");
  if (!finding.certain)
    finding.probe =
        fmt::format("messages between rank {0} and another rank than {1}, and between rank {1} and another than {0}",
                    covered.front().first, covered.front().second);
  return finding;
}

}  // namespace

std::vector<incident::Finding> FindSlowLinks(const trace::CommLog& log, const Rounds& rounds,
                                             const CommThresholds& thresholds) {
  const Ways ways = Judge(DelaysOf(log, rounds), static_cast<double>(rounds.length_ns()), thresholds);
  const std::vector<Explanation> possible = PossibleExplanations(ways);
  std::set<Way> left;
  for (const auto& [way, slowness] : ways.slow) left.insert(way);
  std::vector<incident::Finding> findings;
  // The fewest that explain all: each time those that explain most of what is left, and equally good ones together.
  while (!left.empty()) {
    std::map<std::vector<Way>, std::vector<Explanation>> by_covered;
    for (const Explanation& one : possible) {
      std::vector<Way> covered;
      std::copy_if(left.begin(), left.end(), std::back_inserter(covered),
                   [&](const Way& way) { return one.Covers(way); });
      if (!covered.empty()) by_covered[covered].push_back(one);
    }
    const auto most = std::max_element(by_covered.begin(), by_covered.end(),
                                       [](const auto& a, const auto& b) { return a.first.size() < b.first.size(); });
    findings.push_back(Explain(most->second, most->first, ways));
    findings.back().since = Nanos{rounds.begin_ns};
    for (const Way& way : most->first) left.erase(way);
  }
  return findings;
}

}  // namespace lockstep::detect
