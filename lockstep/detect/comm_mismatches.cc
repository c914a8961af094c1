#include "lockstep/detect/comm_mismatches.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "lockstep/base/number.h"
#include "lockstep/base/split.h"
#include "lockstep/detect/comm_text.h"

namespace lockstep::detect {
namespace {

using incident::Finding;
using incident::Syndrome;
using trace::CommOp;
using trace::Direction;

// Ops to which every rank brings the same amount.
constexpr std::array<std::string_view, 7> kEven = {
    "all_reduce",           "allreduce",           "broadcast", "reduce", "_all_gather_base",
    "_reduce_scatter_base", "all_reduce_coalesced"};

// What others must call it, too. `shapes`: all of them tell theirs.
std::string CallOf(const trace::CommLog& log, const CommOp& op, bool shapes) {
  const std::string& function = log.functions[op.function];
  return shapes && std::ranges::find(kEven, function) != kEven.end() ? function + " " + log.shapes[op.shape] : function;
}

std::vector<int> RanksOf(const std::vector<const CommOp*>& ops) {
  std::vector<int> ranks;
  ranks.reserve(ops.size());
  for (const CommOp* op : ops) ranks.push_back(op->rank);
  return ranks;
}

// "[4,2] Float": how many elements come, and of what type. What it is cut into does not matter.
std::string AmountOf(const std::string& shape) {
  const size_t end = shape.find(']');
  if (shape.empty() || shape.front() != '[' || end == std::string::npos) return shape;
  uint64_t count = 1;
  for (const std::string& size : Split(shape.substr(1, end - 1), ','))
    count *= WholeNumber<uint64_t>(Trim(size)).value_or(1);
  return fmt::format("{}{}", count, shape.substr(end + 1));
}

// Whether the rank is at another op than others that had been like it because it departed there.
class Explainer {
 public:
  explicit Explainer(const Mismatch& mismatch) : mismatch_(mismatch) {
    for (const auto& [text, ops] : mismatch.sides)
      for (const CommOp* op : ops) of_rank_.emplace(op->rank, op);
  }

  // Of a rank, whose op it is. Null: none of them explains it.
  const Departure* FirstOf(const std::vector<Departure>& departures, const CommOp& mine) const {
    const auto one =
        std::ranges::find_if(departures, [&](const Departure& departure) { return Explains(departure, mine); });
    return one == departures.end() ? nullptr : &*one;
  }

 private:
  bool Explains(const Departure& departure, const CommOp& mine) const {
    if (departure.made_good || !std::ranges::any_of(departure.more, [&](const auto& one) { return IsIn(one); }))
      return false;
    // Where it launched something of another communicator there, that may be all that it did otherwise.
    if (departure.from->communicator == mismatch_.communicator)
      return departure.to == &mine && std::ranges::all_of(departure.more, [&](const auto& one) { return IsIn(one); });
    // By what it left out or added it is behind `to` already, or not yet, and who had been like it is not.
    return SidesOf(*departure.others)[IsBefore(departure.to, mine) ? 0 : 1];
  }
  // Whether some of them are at their op before `to`, and whether some are behind. One list is of many departures.
  std::array<bool, 2> SidesOf(const Departure::Others& others) const {
    const auto [found, is_new] = sides_.try_emplace(&others);
    if (!is_new) return found->second;
    for (const auto& [rank, op] : of_rank_)
      if (const auto to = others.to.find(rank); to != others.to.end())
        found->second[IsBefore(to->second, *op) ? 1 : 0] = true;
    return found->second;
  }
  bool IsIn(const std::pair<const CommOp*, int>& one) const {
    return one.first->communicator == mismatch_.communicator;
  }
  // Both of one rank.
  static bool IsBefore(const CommOp* to, const CommOp& op) { return to != nullptr && to->order < op.order; }

  const Mismatch& mismatch_;
  std::map<int, const CommOp*> of_rank_;
  mutable std::map<const Departure::Others*, std::array<bool, 2>> sides_;
};

bool IsOfShapeAlone(const Mismatch& mismatch) {
  const uint32_t function = mismatch.sides.begin()->second.front()->function;
  return std::ranges::all_of(mismatch.sides,
                             [&](const auto& side) { return side.second.front()->function == function; });
}

}  // namespace

std::vector<Mismatch> FindMismatches(const Standing& standing) {
  std::map<std::pair<uint32_t, int64_t>, std::vector<const CommOp*>> calls;
  for (const auto& [rank, ops] : standing.open())
    for (const CommOp* op : ops)
      if (op->direction == Direction::kCollective) calls[{op->communicator, op->sequence}].push_back(op);
  std::vector<Mismatch> mismatches;
  for (const auto& [op, of_ranks] : calls) {
    if (!mismatches.empty() && mismatches.back().communicator == op.first) continue;
    // Calls come rank by rank: what one makes several of is a batch whose end is not told.
    if (std::ranges::adjacent_find(of_ranks, {}, &CommOp::rank) != of_ranks.end()) continue;
    Mismatch mismatch{op.first, op.second, {}};
    const bool shapes = std::ranges::none_of(of_ranks, [](const CommOp* call) { return call->shape == 0; });
    for (const CommOp* call : of_ranks) mismatch.sides[CallOf(standing.log(), *call, shapes)].push_back(call);
    // Some have launched all of a batch, others a part.
    if (mismatch.sides.size() < 2 || mismatch.sides.contains("coalesced")) continue;
    mismatches.push_back(std::move(mismatch));
  }
  return mismatches;
}

Finding FindingOf(const Standing& standing, const Mismatch& mismatch) {
  const auto& sides = mismatch.sides;
  const auto most = std::max_element(sides.begin(), sides.end(),
                                     [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  Finding finding;
  finding.syndrome = Syndrome::kMismatched;
  std::vector<int> others;
  size_t all = 0;
  for (const auto& [text, ops] : sides) {
    const std::vector<int> ranks = RanksOf(ops);
    finding.evidence.push_back(fmt::format("op {} of {} is {} on {}", mismatch.number,
                                           NameOf(standing.log().communicators[mismatch.communicator]), text,
                                           RanksText(ranks)));
    if (text != most->first) others.insert(others.end(), ranks.begin(), ranks.end());
    all += ranks.size();
  }
  std::sort(others.begin(), others.end());
  const bool majority = 2 * most->second.size() > all;
  finding.suspects = Suspects(others);
  if (!majority) finding.ambiguous_with = Suspects(RanksOf(most->second));
  const std::string& doubt = standing.log().communicators[mismatch.communicator].doubt;
  finding.certain = majority && all == standing.SizeOf(mismatch.communicator) && doubt.empty();
  finding.probe = doubt;
  if (!finding.certain && doubt.empty())
    finding.probe = "the collectives that each rank launched before, in their order";
  return finding;
}

void NameDepartures(const trace::CommLog& log, const Mismatch& mismatch, const Departures& departures,
                    Finding& finding) {
  if (IsOfShapeAlone(mismatch)) return;
  const Explainer explainer(mismatch);
  std::set<int> departed, others;
  std::vector<std::string> lines;
  size_t without = 0;  // sides
  for (const auto& [text, ops] : mismatch.sides) {
    const size_t before = departed.size();
    for (const CommOp* op : ops) {
      const auto found = departures.find(op->rank);
      const auto* one = found == departures.end() ? nullptr : explainer.FirstOf(found->second, *op);
      (one == nullptr ? others : departed).insert(op->rank);
      if (one != nullptr && lines.size() < kMostLines) lines.push_back(TextOf(log, *one));
    }
    without += departed.size() == before ? 1 : 0;
  }
  finding.evidence.insert(finding.evidence.begin(), lines.begin(), lines.end());
  // Else somebody else is wrong too, or both sides may be.
  if (departed.empty() || without != 1) return;
  finding.suspects = Suspects({departed.begin(), departed.end()});
  finding.ambiguous_with = Suspects({others.begin(), others.end()});
}

void FindOtherAmounts(const Standing& standing, std::vector<Finding>& findings) {
  const trace::CommLog& log = standing.log();
  std::set<std::tuple<uint32_t, int, int>> told;  // what comes behind the first follows from it
  for (const auto& [rank, ops] : standing.open())
    for (const CommOp* op : ops) {
      if (op->direction == Direction::kCollective || op->peer < 0) continue;
      const CommOp* other = standing.OtherEnd(*op);
      if (other == nullptr || op->shape == 0 || other->shape == 0) continue;
      const std::string &shape = log.shapes[op->shape], &theirs = log.shapes[other->shape];
      if (AmountOf(shape) == AmountOf(theirs)) continue;
      if (!told.emplace(op->communicator, std::min(rank, op->peer), std::max(rank, op->peer)).second) continue;
      Finding finding;
      finding.syndrome = Syndrome::kMismatched;
      finding.suspects = Suspects({std::min(rank, op->peer), std::max(rank, op->peer)});
      finding.evidence = {fmt::format("rank {} is in {}, of {}; it is of {} on rank {}", rank, NameOf(log, *op), shape,
                                      theirs, op->peer)};
      finding.probe = "the sends and receives that both launched before, in their order";
      findings.push_back(std::move(finding));
    }
}

}  // namespace lockstep::detect
