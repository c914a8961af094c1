#include "lockstep/detect/slow_link.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "lockstep/base/lower_median.h"
#include "lockstep/detect/slow_ways.h"

namespace lockstep::detect {
namespace {

using trace::CommTransfer;
using trace::Direction;
using Transfers = std::vector<const CommTransfer*>;

// What is alike can be compared. By size of what is under way (magnitude), and by what was measured.
struct Class {
  int magnitude;
  enum class Measure : uint8_t { kWire, kFirst } measure;
  uint32_t function = 0;
  size_t members = 0;
  auto operator<=>(const Class&) const = default;
};

// Since the last member came.
double LengthOf(const Round& round) {
  int64_t came = 0, left = 0;
  for (const Part& part : round.parts) {
    came = std::max(came, part.came_ns);
    left = std::max(left, part.left_ns);
  }
  return static_cast<double>(left - came);
}

int MagnitudeOf(uint64_t bytes) { return static_cast<int>(std::bit_width(bytes)); }

struct Sample {
  double ns;        // of a message, once both ends had come
  double messages;  // that took so long, partly beside each other:
  double most_ns;   // for all of them the collective did not take longer than this
};
using Delays = std::map<Class, std::map<Way, std::vector<Sample>>>;

const Part* PartOf(const Round& round, int rank) {
  const auto found = std::lower_bound(round.parts.begin(), round.parts.end(), rank,
                                      [](const Part& part, int wanted) { return part.rank < wanted; });
  return found != round.parts.end() && found->rank == rank ? &*found : nullptr;
}

// What the network took for messages to a receiver that was ready. It tells of the way between the two and of nothing
// else, whatever the collective.
bool AddWire(const Transfers& transfers, const Round& round, Delays& delays) {
  bool any = false;
  for (const CommTransfer* transfer : transfers) {
    if (transfer->direction != Direction::kSend || transfer->wire_ns < 0) continue;
    any = true;
    const Class alike{MagnitudeOf(transfer->bytes / transfer->count), Class::Measure::kWire, round.function,
                      round.parts.size()};
    const double messages = transfer->count;
    delays[alike][{transfer->rank, transfer->peer, transfer->port}].push_back(
        {static_cast<double>(transfer->wire_ns) / messages, messages, LengthOf(round)});
  }
  return any;
}

// How many pieces each member of a ring hears: n - 1, and what they came to once more. Of fewer elements than members
// some pieces are empty, and left out.
size_t PiecesOf(const trace::CommLog& log, const Round& round) {
  const bool twice = round.function < log.functions.size() && log.functions[round.function] == "all_reduce";
  return (twice ? 2 : 1) * (round.parts.size() - 1);
}

// How long the first message of each way was under way. Only where each member hears from one other, and sends it
// something before that: there it depends on nothing but its two ends. In a tree, say, or where a few elements go
// round, the sender may itself have waited.
void AddFirst(const trace::CommLog& log, const Transfers& transfers, const Round& round, Delays& delays) {
  std::map<int, const CommTransfer*> of_rank;
  for (const CommTransfer* transfer : transfers) {
    if (transfer->direction != Direction::kReceive) continue;
    const CommTransfer* known = of_rank.emplace(transfer->rank, transfer).first->second;
    if (known->peer != transfer->peer) return;
    if (!round.ring && transfer->count < PiecesOf(log, round)) return;
  }
  if (!round.ring && of_rank.size() != round.parts.size()) return;
  const Class alike{MagnitudeOf(round.bytes), Class::Measure::kFirst, round.function, round.parts.size()};
  for (const auto& [rank, transfer] : of_rank) {
    if (transfer->first_ns < 0) continue;
    const Part *receiver = PartOf(round, rank), *sender = PartOf(round, transfer->peer);
    // Without it the collector did not see when they came, but when they were launched.
    if (receiver == nullptr || sender == nullptr || receiver->alone_ns < 0 || sender->alone_ns < 0) continue;
    const int64_t there = receiver->came_ns + transfer->first_ns;
    const int64_t both = std::max(receiver->came_ns, sender->came_ns);
    delays[alike][{transfer->peer, rank, transfer->port}].push_back(
        {static_cast<double>(std::max<int64_t>(0, there - both)), 1, LengthOf(round)});
  }
}

// By class and way, in the order of the rounds.
Delays DelaysOf(const trace::CommLog& log, const Rounds& rounds) {
  std::map<std::pair<uint32_t, int64_t>, Transfers> by_round;
  for (const CommTransfer& transfer : log.transfers)
    if (transfer.count > 0) by_round[{transfer.communicator, transfer.sequence}].push_back(&transfer);
  Delays delays;
  for (const Round& round : rounds.all) {
    const auto found = by_round.find({round.communicator, round.sequence});
    if (found != by_round.end() && !AddWire(found->second, round, delays)) AddFirst(log, found->second, round, delays);
  }
  return delays;
}

// Whether it is above in each of the newest three quarters. `samples` are in their order.
bool Lasts(const std::vector<Sample>& samples, double limit) {
  constexpr size_t kSpans = 4;
  for (size_t span = 1; span < kSpans; ++span) {
    std::vector<double> times;
    for (size_t i = samples.size() * span / kSpans; i < samples.size() * (span + 1) / kSpans; ++i)
      times.push_back(samples[i].ns);
    if (times.empty() || LowerMedian(std::move(times)) <= limit) return false;
  }
  return true;
}

std::vector<double> NsOf(const std::vector<Sample>& samples) {
  std::vector<double> ns;
  ns.reserve(samples.size());
  for (const Sample& sample : samples) ns.push_back(sample.ns);
  return ns;
}

struct Usual {
  double ns, noise_ns;
};

// Of like ways: that of their faster quarter, since two ways of three may be slow.
Usual UsualOf(const std::map<Way, double>& medians, const std::map<Way, std::vector<Sample>>& by_way) {
  std::vector<double> all, within;
  for (const auto& [way, median] : medians) {
    all.push_back(median);
    within.push_back(RobustDeviation(NsOf(by_way.at(way)), median));
  }
  std::sort(all.begin(), all.end());
  return {all[(all.size() - 1) / 4], LowerMedian(std::move(within))};
}

Ways Judge(const Delays& delays, double whole_ns, const CommThresholds& thresholds) {
  Ways ways;
  for (const auto& [alike, by_way] : delays) {
    if (by_way.size() < 2) continue;
    std::map<Way, double> medians;
    for (const auto& [way, samples] : by_way) medians[way] = LowerMedian(NsOf(samples));
    const Usual usual = UsualOf(medians, by_way);
    for (const auto& [way, median] : medians) {
      const std::vector<Sample>& samples = by_way.at(way);
      double lost_ns = 0;
      for (const Sample& sample : samples) lost_ns += std::min((median - usual.ns) * sample.messages, sample.most_ns);
      const double share = lost_ns / whole_ns;
      const bool slow = samples.size() * 3 >= thresholds.window_ops && share >= thresholds.link_share &&
                        median - usual.ns > thresholds.link_deviation * usual.noise_ns &&
                        Lasts(samples, thresholds.link_ratio * usual.ns);
      if (!slow) {
        int& largest = ways.fine.try_emplace(way, alike.magnitude).first->second;
        largest = std::max(largest, alike.magnitude);
        continue;
      }
      Slowness& slowness = ways.slow.try_emplace(way, Slowness{usual.ns, median, 0, alike.magnitude}).first->second;
      slowness.share = std::min(1.0, slowness.share + share);
    }
  }
  for (const auto& [way, slowness] : ways.slow) ways.fine.erase(way);
  return ways;
}

}  // namespace

std::vector<incident::Finding> FindSlowLinks(const trace::CommLog& log, const Rounds& rounds,
                                             const CommThresholds& thresholds) {
  const Ways ways = Judge(DelaysOf(log, rounds), static_cast<double>(rounds.length_ns()), thresholds);
  std::vector<incident::Finding> findings = ExplainSlowWays(ways, log.hosts);
  for (incident::Finding& finding : findings) finding.since = Nanos{rounds.begin_ns};
  return findings;
}

}  // namespace lockstep::detect
