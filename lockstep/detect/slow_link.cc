#include "lockstep/detect/slow_link.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/median.h"
#include "lockstep/base/select.h"
#include "lockstep/detect/slow_delays.h"
#include "lockstep/detect/slow_ways.h"

namespace lockstep::detect {
namespace {

// Whether it is above in each of the newest three quarters. `samples` are in their order.
bool Lasts(const std::vector<DelaySample>& samples, double limit) {
  constexpr size_t kSpans = 4;
  for (size_t span = 1; span < kSpans; ++span) {
    std::vector<double> times;
    for (size_t i = samples.size() * span / kSpans; i < samples.size() * (span + 1) / kSpans; ++i)
      times.push_back(samples[i].ns);
    if (times.empty() || LowerMedian(std::move(times)) <= limit) return false;
  }
  return true;
}

std::vector<double> NsOf(const std::vector<DelaySample>& samples) {
  std::vector<double> ns;
  ns.reserve(samples.size());
  for (const DelaySample& sample : samples) ns.push_back(sample.ns);
  return ns;
}

struct Usual {
  double ns, noise_ns;
};

// Of like ways: that of their faster quarter, since two ways of three may be slow.
Usual UsualOf(const std::vector<WayDelays>& ways, std::vector<double> medians) {
  std::vector<double> within;
  within.reserve(ways.size());
  for (size_t i = 0; i < ways.size(); ++i) within.push_back(RobustDeviation(NsOf(ways[i].samples), medians[i]));
  const size_t quarter = (medians.size() - 1) / 4;
  SelectNth(medians, quarter);
  return {medians[quarter], LowerMedian(std::move(within))};
}

Ways Judge(const Delays& delays, double whole_ns, const CommThresholds& thresholds) {
  Ways ways;
  for (const auto& [alike, of_ways] : delays) {
    if (of_ways.size() < 2) continue;
    std::vector<double> medians;
    medians.reserve(of_ways.size());
    for (const WayDelays& one : of_ways) medians.push_back(LowerMedian(NsOf(one.samples)));
    const Usual usual = UsualOf(of_ways, medians);
    for (size_t i = 0; i < of_ways.size(); ++i) {
      const auto& [way, samples] = of_ways[i];
      const double median = medians[i];
      double lost_ns = 0;
      for (const DelaySample& sample : samples)
        lost_ns += std::min((median - usual.ns) * sample.messages, sample.most_ns);
      const double share = lost_ns / whole_ns;
      if (median <= thresholds.link_ratio * usual.ns ||
          median - usual.ns <= thresholds.link_deviation * usual.noise_ns) {
        int& largest = ways.fine.try_emplace(way, alike.magnitude).first->second;
        largest = std::max(largest, alike.magnitude);
        continue;
      }
      // Of too few messages, or where they cost too little, nothing is said of the way.
      if (samples.size() * 3 < thresholds.window_ops || share < thresholds.link_share ||
          !Lasts(samples, thresholds.link_ratio * usual.ns))
        continue;
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
