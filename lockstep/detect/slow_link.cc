#include "lockstep/detect/slow_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "lockstep/base/median.h"
#include "lockstep/base/select.h"
#include "lockstep/detect/slow_delays.h"
#include "lockstep/detect/slow_ways.h"

namespace lockstep::detect {
namespace {

constexpr size_t kSpans = 4;
using Samples = std::span<const DelaySample>;  // in their order

// Whether it is above in each of the newest three quarters.
bool Lasts(Samples samples, double limit) {
  for (size_t span = 1; span < kSpans; ++span) {
    std::vector<double> times;
    for (size_t i = samples.size() * span / kSpans; i < samples.size() * (span + 1) / kSpans; ++i)
      times.push_back(samples[i].ns);
    if (times.empty() || LowerMedian(std::move(times)) <= limit) return false;
  }
  return true;
}

std::vector<double> NsOf(Samples samples) {
  std::vector<double> ns;
  ns.reserve(samples.size());
  for (const DelaySample& sample : samples) ns.push_back(sample.ns);
  return ns;
}

// The time over which ways of a class are looked at.
struct Window {
  int64_t begin_ns, end_ns;

  double length_ns() const { return static_cast<double>(end_ns - begin_ns); }
  Samples Of(const std::vector<DelaySample>& samples) const {
    return {std::ranges::lower_bound(samples, begin_ns, {}, &DelaySample::at_ns), samples.end()};
  }
  // In each of its newest three quarters: what came up at its beginning alone is over.
  bool IsFilledBy(Samples samples) const {
    for (size_t span = 1; span < kSpans; ++span) {
      const auto edge = [&](size_t i) {
        return begin_ns + (end_ns - begin_ns) * static_cast<int64_t>(i) / static_cast<int64_t>(kSpans);
      };
      const auto found = std::ranges::lower_bound(samples, edge(span), {}, &DelaySample::at_ns);
      if (found == samples.end() || found->at_ns > edge(span + 1)) return false;
    }
    return true;
  }
};

struct OfWay {
  Way way;
  Samples samples;
  double median_ns;
};

struct Usual {
  double ns, noise_ns;
};

// Of like ways: that of their faster quarter, since two ways of three may be slow.
Usual UsualOf(const std::vector<OfWay>& ways) {
  std::vector<double> medians, within;
  medians.reserve(ways.size());
  within.reserve(ways.size());
  for (const OfWay& one : ways) {
    medians.push_back(one.median_ns);
    within.push_back(RobustDeviation(NsOf(one.samples), one.median_ns));
  }
  const size_t quarter = (medians.size() - 1) / 4;
  SelectNth(medians, quarter);
  return {medians[quarter], LowerMedian(std::move(within))};
}

double LostNs(const OfWay& one, const Usual& usual) {
  return std::accumulate(one.samples.begin(), one.samples.end(), 0.0, [&](double lost, const DelaySample& sample) {
    return lost + std::min((one.median_ns - usual.ns) * sample.messages, sample.most_ns);
  });
}

// Like ways.
struct JudgedClass {
  std::vector<std::pair<Way, Slowness>> slow;
  std::vector<std::pair<Way, Slowness>> too_few;  // look slow, by too few messages to say so
  std::vector<Way> fine;
  size_t most = 0;  // messages of a way
};

JudgedClass JudgeClass(const MessageClass& alike, const std::vector<WayDelays>& delays, const Window& window,
                       bool is_newest, const CommThresholds& thresholds) {
  JudgedClass judged;
  std::vector<OfWay> ways;
  for (const auto& [way, all] : delays)
    if (const Samples samples = window.Of(all); !samples.empty()) {
      ways.push_back({way, samples, LowerMedian(NsOf(samples))});
      judged.most = std::max(judged.most, samples.size());
    }
  if (ways.size() < 2) return judged;
  const Usual usual = UsualOf(ways);
  // Of a way's messages in a collective only the first was measured. Where the way has little bandwidth the later ones
  // take as long, one after the other; where each comes late, beside each other.
  const bool at_least = alike.measure == MessageClass::Measure::kFirst;
  for (const OfWay& one : ways) {
    const double share = LostNs(one, usual) / window.length_ns();
    if (one.median_ns <= thresholds.link_ratio * usual.ns ||
        one.median_ns - usual.ns <= thresholds.link_deviation * usual.noise_ns) {
      judged.fine.push_back(one.way);
      continue;
    }
    if (share < thresholds.link_share) continue;
    const std::pair<Way, Slowness> found{one.way, {usual.ns, one.median_ns, share, alike.magnitude, at_least}};
    if (3 * one.samples.size() < thresholds.window_ops || !(is_newest || window.IsFilledBy(one.samples)))
      judged.too_few.push_back(found);
    else if (Lasts(one.samples, thresholds.link_ratio * usual.ns))
      judged.slow.push_back(found);
  }
  return judged;
}

struct Judged {
  Ways ways;
  std::map<Way, Slowness> too_few;
};

// Of what comes up too rarely in the time of the newest rounds to judge it by, twice the time is looked through, and so
// on: the slower a way, the longer a step takes, and the fewer messages there are.
Judged Judge(const Delays& delays, const Rounds& rounds, const CommThresholds& thresholds) {
  Judged judged;
  for (const auto& [alike, of_ways] : delays) {
    Window window{rounds.begin_ns, rounds.end_ns};
    JudgedClass one = JudgeClass(alike, of_ways, window, true, thresholds);
    const int64_t oldest = rounds.oldest_ns;
    while ((!one.too_few.empty() || 3 * one.most < thresholds.window_ops) && window.begin_ns > oldest) {
      window.begin_ns = std::max(oldest, window.end_ns - 2 * (window.end_ns - window.begin_ns));
      one = JudgeClass(alike, of_ways, window, false, thresholds);
    }
    for (const Way& way : one.fine) {
      int& largest = judged.ways.fine.try_emplace(way, alike.magnitude).first->second;
      largest = std::max(largest, alike.magnitude);
    }
    for (const auto& [way, found] : one.slow) {
      Slowness& slowness =
          judged.ways.slow.try_emplace(way, Slowness{found.usual_ns, found.ns, 0, alike.magnitude}).first->second;
      slowness.share = std::min(1.0, slowness.share + found.share);
      slowness.at_least = slowness.at_least || found.at_least;
    }
    judged.too_few.insert(one.too_few.begin(), one.too_few.end());
  }
  for (const auto& [way, slowness] : judged.ways.slow) {
    judged.ways.fine.erase(way);
    judged.too_few.erase(way);
  }
  return judged;
}

std::string TextOf(const std::map<Way, Slowness>& too_few) {
  if (too_few.empty()) return "";
  const auto& [way, slowness] = *too_few.begin();
  return fmt::format(
      "{} way(s) between ranks look slow, that from rank {} to rank {} the first of them ({:.2f} ms a message, like "
      "ways {:.2f}), by too few messages to tell: a longer log would",
      too_few.size(), way.from, way.to, slowness.ns / 1e6, slowness.usual_ns / 1e6);
}

}  // namespace

SlowLinks FindSlowLinks(const trace::CommLog& log, const Rounds& rounds, const CommThresholds& thresholds) {
  const Judged judged = Judge(DelaysOf(log, rounds), rounds, thresholds);
  SlowLinks links{ExplainSlowWays(judged.ways, log.hosts), TextOf(judged.too_few)};
  for (incident::Finding& finding : links.findings) finding.since = Nanos{rounds.begin_ns};
  return links;
}

}  // namespace lockstep::detect
