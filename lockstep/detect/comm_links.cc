#include "lockstep/detect/comm_links.h"

#include <fmt/format.h>

#include <cstddef>
#include <string>

#include "lockstep/detect/comm_text.h"
#include "lockstep/incident/some.h"

namespace lockstep::detect {
namespace {

using incident::Suspect;
using trace::CommOp;
using trace::Direction;

void TellOfTransfers(const Standing& standing, const Wait& wait, int rank, std::vector<std::string>& evidence) {
  size_t lines = 0;
  for (const CommOp* op : wait.together) {
    if (op->direction == Direction::kSend && standing.IsInOtherEnd(*op)) continue;  // told by the receiver
    if (++lines > kMostLines) break;
    evidence.push_back(fmt::format("rank {} is in {}, {}", rank, NameOf(standing.log(), *op),
                                   standing.Counterpart(*op) != nullptr
                                       ? "both ends of it are launched"
                                       : fmt::format("rank {} has ended its end", op->peer)));
  }
}

}  // namespace

Link LinkOf(const CommOp& op) {
  return op.direction == Direction::kSend ? Link(op.rank, op.peer) : Link(op.peer, op.rank);
}

std::vector<Suspect> LinkSuspects(const std::set<Link>& links) {
  std::vector<Suspect> suspects;
  suspects.reserve(links.size());
  for (const auto& [from, to] : links) suspects.push_back({Suspect::Kind::kLink, fmt::format("{}->{}", from, to)});
  return suspects;
}

void TellOfLinks(const Standing& standing, const Waits& waits, int first, std::set<int>& told,
                 incident::Finding& finding) {
  std::set<int> ranks, ends;
  std::set<Link> links;
  std::vector<int> next = {first};
  while (!next.empty()) {
    const int rank = next.back();
    next.pop_back();
    if (!ranks.insert(rank).second) continue;
    for (const CommOp* op : waits.Of(rank)->together) {
      ends.insert({rank, op->peer});
      links.insert(LinkOf(*op));
      if (standing.IsInOtherEnd(*op)) next.push_back(op->peer);
    }
  }
  incident::TellSome(ranks, "ranks", finding.evidence,
                     [&](int rank) { TellOfTransfers(standing, *waits.Of(rank), rank, finding.evidence); });
  finding.suspects = LinkSuspects(links);
  finding.ambiguous_with = Suspects({ends.begin(), ends.end()});
  told.insert(ranks.begin(), ranks.end());
}

}  // namespace lockstep::detect
