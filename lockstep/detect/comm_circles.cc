#include "lockstep/detect/comm_circles.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "lockstep/detect/comm_circle_order.h"
#include "lockstep/detect/comm_links.h"
#include "lockstep/detect/comm_text.h"

namespace lockstep::detect {
namespace {

using incident::Finding;
using incident::Suspect;

std::vector<std::string> EvidenceOf(const trace::CommLog& log, const Wait& wait) {
  if (wait.apart.empty())
    return {fmt::format("{} in {} for {}", WaitingText(wait.in), NameOf(log, *wait.op), RanksText(wait.behind))};
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(kMostLines, wait.apart.size()); ++i)
    lines.push_back(fmt::format("{} in {} for {}", WaitingText(wait.in), NameOf(log, *wait.apart[i]),
                                RanksText({wait.apart[i]->peer})));
  return lines;
}

// Who left collectives out, or added some, or launched them in another order, stands before who waits: of a circle the
// evidence alone tells it.
Finding FindingOf(const Standing& standing, const Waits& waits, const LazyDepartures& departures,
                  const std::vector<int>& ranks, const CircleOrder& order) {
  const trace::CommLog& log = standing.log();
  Finding finding;
  finding.syndrome = incident::Syndrome::kDeadlock;
  finding.suspects = {{Suspect::Kind::kSoftware, "collectives in different order on different ranks"}};
  finding.evidence = departures.TextsOf(ranks);
  bool guessed = false;
  std::string doubt;  // who is in what they wait in
  std::set<const Wait*> told;
  std::set<Link> links;  // that may not carry what is there on both sides
  for (const int rank : ranks) {
    const Wait* wait = waits.Of(rank);
    if (!told.insert(wait).second) continue;
    guessed = guessed || wait->guessed;
    if (doubt.empty()) doubt = log.communicators[wait->op->communicator].doubt;
    for (std::string& line : EvidenceOf(log, *wait)) finding.evidence.push_back(std::move(line));
    for (const trace::CommOp* op : wait->together) links.insert(LinkOf(*op));
  }
  finding.ambiguous_with = LinkSuspects(links);
  for (Suspect& suspect : Suspects(order.may_hang)) finding.ambiguous_with.push_back(std::move(suspect));
  finding.certain = !guessed && doubt.empty() && !order.as_before && !log.reported.empty();
  finding.probe = !doubt.empty()           ? doubt
                  : order.may_hang.empty() ? "the collectives that each of them launched before, in their order"
                                           : StacksText(order.may_hang);
  return finding;
}

}  // namespace

std::vector<Finding> FindingsOfCircles(const Standing& standing, const Waits& waits, const LazyDepartures& departures,
                                       bool all_wait) {
  const std::vector<std::vector<int>> circles = FindCircles(waits);
  const CircleOrders orders(standing, waits, circles);
  std::vector<Finding> findings;
  for (const std::vector<int>& ranks : circles) {
    findings.push_back(FindingOf(standing, waits, departures, ranks, orders.Of(ranks)));
    findings.back().certain = findings.back().certain && all_wait;
    if (findings.back().certain) findings.back().probe.clear();
  }
  return findings;
}

std::vector<Finding> FindingsOfOpenCircles(const Standing& standing, const Waits& waits,
                                           const LazyDepartures& departures) {
  const std::vector<std::vector<int>> circles = FindOpenCircles(waits);
  const CircleOrders orders(standing, waits, circles);
  std::vector<Finding> findings;
  for (const std::vector<int>& ranks : circles) {
    const CircleOrder order = orders.Of(ranks);
    if (order.as_before) continue;
    findings.push_back(FindingOf(standing, waits, departures, ranks, order));
    findings.back().certain = false;
  }
  return findings;
}

}  // namespace lockstep::detect
