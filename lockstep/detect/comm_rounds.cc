#include "lockstep/detect/comm_rounds.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "lockstep/detect/look_back.h"
#include "lockstep/trace/collectives.h"

namespace lockstep::detect {
namespace {

using trace::Collectives;
using trace::CommLog;
using trace::CommOp;

// Of the collectives of which enough ops are there that all members may have ended them.
std::vector<Round> RoundsOf(const CommLog& log, const Collectives& collectives) {
  std::vector<Round> rounds(collectives.size());
  for (uint32_t one = 0; one < rounds.size(); ++one) {
    const auto [communicator, sequence] = collectives.KeyOf(one);
    rounds[one].communicator = communicator;
    rounds[one].sequence = sequence;
    rounds[one].stands_for = log.communicators[communicator].told_one_of;
    const size_t ops = collectives.OpsOf(one);
    if (ops >= std::max<size_t>(2, log.communicators[communicator].ranks.size())) rounds[one].parts.reserve(ops);
  }
  for (size_t i = 0; i < log.ops.size(); ++i) {
    const CommOp& op = log.ops[i];
    if (collectives.of(i) == Collectives::kNone || op.created_ns < 0) continue;
    Round& round = rounds[collectives.of(i)];
    if (round.parts.capacity() == 0) continue;
    if (round.parts.empty()) {
      round.function = op.function;
      round.began_ns = op.created_ns;
    }
    round.bytes = std::max(round.bytes, op.bytes);
    round.ring = round.ring || op.ring;
    round.began_ns = std::min(round.began_ns, op.created_ns);
    round.parts.push_back({op.rank, op.created_ns, op.created_ns + op.duration_ns, op.alone_ns});
  }
  return rounds;
}

// By rank, each once.
void Order(std::vector<Part>& parts) {
  if (!std::is_sorted(parts.begin(), parts.end())) std::sort(parts.begin(), parts.end());
  const auto twice =
      std::unique(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.rank == b.rank; });
  parts.erase(twice, parts.end());  // what was told twice
}

// What the members of each did by themselves before it, at the least. A library knows of its own collectives alone:
// those of another one in between count too.
std::vector<Stretch> StretchesOf(const std::vector<Round>& rounds) {
  std::vector<Stretch> stretches;
  stretches.reserve(rounds.size());
  std::unordered_map<int, int64_t> left_ns;  // by rank, the newest
  for (const Round& round : rounds) {
    int64_t least_ns = std::numeric_limits<int64_t>::max();
    for (const Part& part : round.parts) {
      const auto [before, is_first] = left_ns.try_emplace(part.rank, part.left_ns);
      int64_t alone_ns = part.alone_ns;
      if (!is_first && part.came_ns > before->second) alone_ns = std::min(alone_ns, part.came_ns - before->second);
      least_ns = std::min(least_ns, alone_ns);
      before->second = std::max(before->second, part.left_ns);
    }
    stretches.push_back({std::max<int64_t>(0, least_ns), round.parts.size()});
  }
  return stretches;
}

}  // namespace

Rounds NewestRounds(const trace::CommLog& log, const CommThresholds& thresholds) {
  const Collectives collectives(log.ops);
  std::vector<Round> of_collectives = RoundsOf(log, collectives);
  Rounds rounds;
  for (const uint32_t one : collectives.InOrder()) {
    Round& round = of_collectives[one];
    Order(round.parts);
    if (round.parts.size() >= 2 && round.parts.size() == log.communicators[round.communicator].ranks.size())
      rounds.all.push_back(std::move(round));
  }
  std::stable_sort(rounds.all.begin(), rounds.all.end(),
                   [](const Round& a, const Round& b) { return a.began_ns < b.began_ns; });
  for (const Round& round : rounds.all)
    for (const Part& part : round.parts) rounds.end_ns = std::max(rounds.end_ns, part.left_ns);
  const LookBack back = LookBackTo(StretchesOf(rounds.all), log.reported.size());
  rounds.share = back.share;
  const int64_t begin = rounds.end_ns - ToNanos(thresholds.window).value;
  auto first =
      std::find_if(rounds.all.begin(), rounds.all.end(), [&](const Round& round) { return round.began_ns >= begin; });
  first = std::min(first, rounds.all.begin() + static_cast<std::ptrdiff_t>(back.first));
  const auto enough = static_cast<std::ptrdiff_t>(std::min(thresholds.window_ops, rounds.all.size()));
  first = std::min(first, rounds.all.end() - enough);
  rounds.all.erase(rounds.all.begin(), first);
  if (!rounds.all.empty()) rounds.begin_ns = rounds.all.front().began_ns;
  return rounds;
}

}  // namespace lockstep::detect
