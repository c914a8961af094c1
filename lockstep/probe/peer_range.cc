#include "lockstep/probe/peer_range.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "lockstep/base/median.h"
#include "lockstep/incident/some.h"

namespace lockstep::probe {
namespace {

constexpr int kFewest = 3, kLearnable = 30;
constexpr double kAssumedSigmas = 6, kLearntSigmas = 5, kUpperBound = 4.5;
constexpr double kAssumed = 0.05, kAssumedOfDisks = 0.085;
constexpr double kLeast = 0.10, kMost = 0.40, kMostOfDisks = 0.60;
constexpr double kMostAssumedConfidence = 0.9, kMajorityConfidence = 0.99;

struct Value {
  std::string node;
  double value;
};

// What was measured in one test, by nodes that can be compared.
struct Group {
  std::string unit;
  std::vector<Value> now;
  std::map<std::string, std::vector<double>> before;  // by node
};
using Groups = std::map<std::pair<std::string, std::string>, Group>;  // by test and type

bool IsDisk(const std::string& test) { return test.starts_with("disk."); }

Groups GroupsOf(std::span<const NodeReport> nodes, std::span<const NodeReport> history, bool bits) {
  Groups groups;
  const auto add = [&](const NodeReport& report, bool now) {
    for (const Measurement& one : report.measurements) {
      const Kind kind = KindOf(one.unit);
      if (kind == Kind::kNotCompared || !std::isfinite(one.value) || bits != (kind == Kind::kEqual)) continue;
      Group& group = groups[{one.name, bits ? report.isa : report.type}];
      group.unit = one.unit;
      if (now) group.now.push_back({report.node, one.value});
      if (!now && one.ok) group.before[report.node].push_back(one.value);
    }
  };
  for (const NodeReport& report : nodes) add(report, true);
  for (const NodeReport& report : history) add(report, false);
  for (auto& [key, group] : groups) std::ranges::sort(group.now, {}, &Value::node);
  return groups;
}

// Of two in the middle the better one: if half of the nodes are bad, the others stay the measure.
double BetterMedian(std::vector<double> values, Kind kind) {
  if (kind == Kind::kLessIsBetter) return LowerMedian(std::move(values));
  for (double& value : values) value = -value;
  return -LowerMedian(std::move(values));
}

// By how much of the median a value is worse than it.
double WorseBy(const Range& range, double value) {
  const double worse = KindOf(range.unit) == Kind::kLessIsBetter ? value - range.median : range.median - value;
  return range.median > 0 ? worse / range.median : 0;
}

double Confidence(const Range& range, double worse_by) {
  const double k = worse_by / range.deviation;
  const double confidence = 1 - 1 / (1 + k * k);
  return range.learnt ? confidence : std::min(confidence, kMostAssumedConfidence);
}

std::string RangeText(const Range& range) {
  return fmt::format(
      "peers of type \"{}\": median {:.4g} {} of {} nodes and {} earlier values, tolerance {:.0f} % ({})", range.type,
      range.median, range.unit, range.nodes, range.history, range.tolerance * 100, range.learnt ? "learnt" : "assumed");
}

void JudgeRates(const std::string& test, const std::string& type, const Group& group, Judgement& judgement) {
  if (group.now.empty()) return;
  std::vector<double> values;
  std::set<std::string> nodes;
  for (const auto& [node, own] : group.before) {
    values.push_back(BetterMedian(own, KindOf(group.unit)));
    nodes.insert(node);
  }
  for (const Value& one : group.now) {
    values.push_back(one.value);
    nodes.insert(one.node);
  }
  const bool few = nodes.size() < kFewest;  // then each report of before says what is usual
  size_t reports = 0;
  for (const auto& [node, own] : group.before) {
    reports += own.size();
    if (few) values.insert(values.end(), own.begin(), own.end());
  }
  Range range = RangeOf(values, nodes.size(), test, group.unit);
  range.type = type;
  range.nodes = static_cast<int>(group.now.size());
  range.history = static_cast<int>(group.before.size());
  std::vector<Finding> outside;
  for (const Value& one : group.now) {
    const double worse_by = WorseBy(range, one.value);
    if (worse_by <= range.tolerance) continue;
    outside.push_back({{one.node},
                       test,
                       Confidence(range, worse_by),
                       fmt::format("{:.4g} {}, {:.0f} % worse than its {}", one.value, group.unit, worse_by * 100,
                                   RangeText(range))});
  }
  if (values.size() < kFewest) {
    const auto [least, most] = std::ranges::minmax(values);
    judgement.unknown.push_back(fmt::format(
        "{}: {} of type \"{}\" have {} values, {:.4g} to {:.4g} {}: too few to tell a slow one from a fast one", test,
        group.now.size() == 1 ? "one node" : "two nodes", type, values.size(), least, most, group.unit));
    return;
  }
  judgement.ranges.push_back(range);
  const size_t half = reports < kFewest ? group.now.size() - 1 : group.now.size();
  if (outside.size() * 2 > half && group.now.size() > 1) {
    judgement.unknown.push_back(
        fmt::format("{}: {} of {} nodes are worse than their range, which is no fault of one node: {}", test,
                    outside.size(), group.now.size(), RangeText(range)));
    return;
  }
  judgement.findings.insert(judgement.findings.end(), outside.begin(), outside.end());
}

std::string SideText(double bits, const std::vector<std::string>& nodes) {
  std::vector<std::string> names;
  incident::TellSome(nodes, "nodes", names, [&](const std::string& node) { names.push_back(node); });
  return fmt::format("{:08x} on {}", static_cast<uint32_t>(bits), fmt::join(names, ", "));
}

void JudgeBits(const std::string& test, const Group& group, Judgement& judgement) {
  std::map<double, std::vector<std::string>> holders;
  for (const Value& one : group.now) holders[one.value].push_back(one.node);
  if (holders.size() < 2) return;
  size_t most = 0, with_most = 0;
  for (const auto& [bits, nodes] : holders) {
    with_most = nodes.size() == most ? with_most + 1 : nodes.size() > most ? 1 : with_most;
    most = std::max(most, nodes.size());
  }
  if (with_most > 1) {
    std::vector<std::string> all, sides;
    for (const Value& one : group.now) all.push_back(one.node);
    incident::TellSome(holders, "checksums", sides,
                       [&](const auto& side) { sides.push_back(SideText(side.first, side.second)); });
    const double each = 1.0 / static_cast<double>(holders.size());
    judgement.findings.push_back({all, test, each, fmt::format("no majority: {}", fmt::join(sides, "; "))});
    return;
  }
  const auto majority = std::ranges::find_if(holders, [&](const auto& side) { return side.second.size() == most; });
  for (const auto& [bits, nodes] : holders) {
    if (nodes.size() == most) continue;
    const std::string text = SideText(majority->first, majority->second) + "; " + SideText(bits, nodes);
    for (const std::string& node : nodes) judgement.findings.push_back({{node}, test, kMajorityConfidence, text});
  }
}

// What each node said of itself, links apart.
void TakeOwnFindings(const NodeReport& report, Judgement& judgement) {
  for (const Measurement& one : report.measurements) {
    if (!one.ok && one.with.empty()) judgement.findings.push_back({{report.node}, one.name, 1, one.text});
  }
}

struct Link {
  std::string from, to, test, text;
};

// In a ring, who is gone is the end of two links.
void JudgeLinks(std::span<const NodeReport> nodes, Judgement& judgement) {
  std::map<std::string, std::string> names;
  for (const NodeReport& report : nodes) names[report.address] = report.node;
  std::vector<Link> bad;
  std::map<std::string, std::set<std::string>> others;  // with whom a node has a bad link
  for (const NodeReport& report : nodes) {
    for (const Measurement& one : report.measurements) {
      if (one.ok || one.with.empty()) continue;
      const std::string other = names.contains(one.with) ? names[one.with] : one.with;
      const bool outwards = one.name == "neighbours.send";
      bad.push_back({outwards ? report.node : other, outwards ? other : report.node, one.name,
                     fmt::format("{} says of {}: {}", report.node, other, one.text)});
      others[report.node].insert(other);
      others[other].insert(report.node);
    }
  }
  std::map<std::vector<std::string>, Finding> found;  // by suspects
  for (const Link& link : bad) {
    const bool from = others[link.from].size() > 1, to = others[link.to].size() > 1;
    std::vector<std::string> suspects{link.from, link.to};
    if (from != to) suspects = {from ? link.from : link.to};
    std::ranges::sort(suspects);
    Finding& finding = found[suspects];
    finding.evidence += (finding.evidence.empty() ? "" : "; ") + link.text;
    finding.test = "neighbours";
    finding.suspects = suspects;
    finding.confidence = suspects.size() == 1 ? kMostAssumedConfidence : 0.5;
  }
  for (const auto& [suspects, finding] : found) judgement.findings.push_back(finding);
}

}  // namespace

Range RangeOf(std::vector<double> values, size_t n, const std::string& test, const std::string& unit) {
  Range range{.test = test, .unit = unit, .nodes = static_cast<int>(n), .learnt = n >= kLearnable};
  range.median = BetterMedian(values, KindOf(unit));
  const bool disk = IsDisk(test);
  if (!range.learnt) {
    range.deviation = disk ? kAssumedOfDisks : kAssumed;
    range.tolerance = kAssumedSigmas * range.deviation;
    return range;
  }
  const double measured = range.median > 0 ? RobustDeviation(std::move(values), range.median) / range.median : 0;
  range.tolerance = std::clamp(kLearntSigmas * (1 + kUpperBound / std::sqrt(static_cast<double>(n))) * measured, kLeast,
                               disk ? kMostOfDisks : kMost);
  range.deviation = range.tolerance / kLearntSigmas;
  return range;
}

Judgement JudgePeers(std::span<const NodeReport> given, std::span<const NodeReport> history) {
  std::vector<NodeReport> nodes(given.begin(), given.end());
  std::ranges::sort(nodes, {}, &NodeReport::node);  // nothing depends on the order in which they came
  Judgement judgement;
  for (const NodeReport& report : nodes) TakeOwnFindings(report, judgement);
  JudgeLinks(nodes, judgement);
  for (const auto& [key, group] : GroupsOf(nodes, history, false)) JudgeRates(key.first, key.second, group, judgement);
  for (const auto& [key, group] : GroupsOf(nodes, {}, true)) JudgeBits(key.first, group, judgement);
  std::ranges::sort(judgement.findings, {},
                    [](const Finding& one) { return std::tie(one.test, one.suspects, one.evidence); });
  return judgement;
}

Json JudgementJson(const Judgement& judgement, std::span<const NodeReport> nodes) {
  Json findings = Json::array(), ranges = Json::array();
  for (const Finding& one : judgement.findings) {
    findings.push_back({{"suspects", one.suspects},
                        {"ambiguous", one.ambiguous()},
                        {"test", one.test},
                        {"confidence", one.confidence},
                        {"evidence", one.evidence}});
  }
  for (const Range& one : judgement.ranges) {
    const bool less = KindOf(one.unit) == Kind::kLessIsBetter;
    ranges.push_back({{"test", one.test},
                      {"type", one.type},
                      {"unit", one.unit},
                      {"nodes", one.nodes},
                      {"earlier_values", one.history},
                      {"median", one.median},
                      {less ? "most" : "least", one.median * (less ? 1 + one.tolerance : 1 - one.tolerance)},
                      {"learnt", one.learnt}});
  }
  // Where nobody is named, what can't be compared is not known to be well.
  const bool unknown = judgement.findings.empty() && !judgement.unknown.empty();
  return {{"healthy", unknown ? Json() : Json(judgement.findings.empty())},
          {"nodes", nodes.size()},
          {"findings", findings},
          {"ranges", ranges},
          {"unknown", judgement.unknown}};
}

}  // namespace lockstep::probe
