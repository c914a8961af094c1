#include "lockstep/detect/comm_rounds.h"

#include <algorithm>
#include <limits>
#include <ranges>
#include <unordered_map>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "lockstep/detect/look_back.h"
#include "lockstep/trace/collectives.h"

namespace lockstep::detect {
namespace {

using trace::Collectives;
using trace::CommLog;
using trace::CommOp;

bool AreNearlyAll(size_t parts, size_t members) { return parts >= 2 && 4 * parts >= 3 * members; }

// With the parts of those of which enough ops are there.
std::vector<Round> Collect(const CommLog& log, const Collectives& collectives) {
  std::vector<Round> rounds(collectives.size());
  std::vector<size_t> after_long(rounds.size());
  for (uint32_t one = 0; one < rounds.size(); ++one) {
    const auto [communicator, sequence] = collectives.KeyOf(one);
    rounds[one].communicator = communicator;
    rounds[one].sequence = sequence;
    rounds[one].members = log.communicators[communicator].ranks.size();
    const size_t ops = collectives.OpsOf(one);
    if (AreNearlyAll(ops, rounds[one].members)) rounds[one].parts.reserve(ops);
  }
  for (size_t i = 0; i < log.ops.size(); ++i) {
    const CommOp& op = log.ops[i];
    if (collectives.of(i) == Collectives::kNone || op.created_ns < 0) continue;
    Round& round = rounds[collectives.of(i)];
    if (round.began_ns < 0) {
      round.function = op.function;
      round.began_ns = op.created_ns;
    }
    round.began_ns = std::min(round.began_ns, op.created_ns);
    round.bytes = std::max(round.bytes, op.bytes);
    if (round.parts.capacity() == 0) continue;
    round.ring = round.ring || op.ring;
    after_long[collectives.of(i)] += op.after_long;
    round.parts.push_back({op.rank, op.created_ns, op.created_ns + op.duration_ns, op.alone_ns});
  }
  for (size_t one = 0; one < rounds.size(); ++one)
    rounds[one].stands_for =
        log.communicators[rounds[one].communicator].StandsFor(2 * after_long[one] > rounds[one].parts.size());
  return rounds;
}

// By rank, each once.
void Order(std::vector<Part>& parts) {
  if (!std::is_sorted(parts.begin(), parts.end())) std::sort(parts.begin(), parts.end());
  const auto twice =
      std::unique(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.rank == b.rank; });
  parts.erase(twice, parts.end());  // what was told twice
}

// Those before all members have told of any: records of some begin later, so that more than a few are not known.
// `in_order`: by communicator and sequence; or the other way round, where records of some end sooner.
template <typename InOrder>
void LeaveOutBefore(const InOrder& in_order, std::vector<Round>& rounds) {
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  uint32_t communicator = kNone;
  absl::flat_hash_set<int> seen;
  for (const uint32_t one : in_order) {
    Round& round = rounds[one];
    if (std::exchange(communicator, round.communicator) != round.communicator) seen.clear();
    if (seen.size() >= round.members) continue;
    for (const Part& part : round.parts) seen.insert(part.rank);
    if (seen.size() < round.members) round.parts.clear();
  }
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

// Of a collective too few of whose records are left to judge it, when it began tells as well.
Met MetIn(const Round& round, const std::vector<Moves>& moves) {
  int64_t end_ns = round.began_ns;
  for (const Part& part : round.parts) end_ns = std::max(end_ns, part.left_ns);
  return {round.communicator, round.sequence,  round.function, moves[round.function], end_ns,
          round.bytes,        round.stands_for};
}

// In the time in which rounds can be judged. `end_ns` of these is known.
JobSteps StepsOf(const CommLog& log, std::vector<Met> met, const Rounds& rounds) {
  if (!log.step_ends_ns.empty()) return {.ends_ns = log.step_ends_ns, .usual_ns = log.step_ns};
  if (rounds.all.empty()) return {};
  std::erase_if(met,
                [&](const Met& one) { return one.end_ns < rounds.all.front().began_ns || one.end_ns > rounds.end_ns; });
  return FindJobSteps(std::move(met));
}

// By communicator: from the first of the newest rounds to the last. Of one that has none, all since they began.
std::vector<int64_t> ToldOf(const Rounds& rounds, const std::vector<Round>& of_collectives, size_t communicators) {
  constexpr int64_t kNone = -1;
  std::vector<int64_t> first(communicators, kNone), told(communicators);
  for (const Round& round : rounds.newest()) {
    int64_t& from = first[round.communicator];
    from = from == kNone ? round.place : std::min(from, round.place);
    told[round.communicator] = std::max(told[round.communicator], round.place + 1);
  }
  for (size_t i = 0; i < communicators; ++i) told[i] -= std::max<int64_t>(0, first[i]);
  for (const Round& round : of_collectives)
    if (round.members >= 2 && first[round.communicator] == kNone && round.began_ns >= rounds.begin_ns)
      ++told[round.communicator];
  return told;
}

}  // namespace

Rounds RoundsOf(const trace::CommLog& log, const CommThresholds& thresholds) {
  const Collectives collectives(log.ops);
  std::vector<Round> of_collectives = Collect(log, collectives);
  const std::vector<uint32_t> in_order = collectives.InOrder();
  std::vector<int64_t> places(log.communicators.size());
  for (const uint32_t one : in_order) {
    Round& round = of_collectives[one];
    // Of those that follow a long time of a few members alone, these tell.
    const bool is_told = log.communicators[round.communicator].long_told_one_of == 0 ||
                         AreNearlyAll(collectives.OpsOf(one), round.members);
    round.place = is_told ? places[round.communicator]++ : places[round.communicator];
    Order(round.parts);
    if (!AreNearlyAll(round.parts.size(), round.members)) round.parts.clear();
  }
  LeaveOutBefore(in_order, of_collectives);
  LeaveOutBefore(std::views::reverse(in_order), of_collectives);
  Rounds rounds;
  const std::vector<Moves> moves = MovesOf(log.functions);
  std::vector<Met> met;
  for (const uint32_t one : in_order) {
    if (of_collectives[one].began_ns >= 0) met.push_back(MetIn(of_collectives[one], moves));
    if (!of_collectives[one].parts.empty()) rounds.all.push_back(std::move(of_collectives[one]));
  }
  std::stable_sort(rounds.all.begin(), rounds.all.end(),
                   [](const Round& a, const Round& b) { return a.began_ns < b.began_ns; });
  for (const Round& round : rounds.all)
    for (const Part& part : round.parts) rounds.end_ns = std::max(rounds.end_ns, part.left_ns);
  rounds.steps = StepsOf(log, std::move(met), rounds);
  const LookBack back = LookBackTo(StretchesOf(rounds.all), log.reported.size());
  rounds.share =
      std::min(back.share, static_cast<double>(rounds.steps.size()) / static_cast<double>(JobSteps::kWanted));
  const int64_t begin = rounds.end_ns - ToNanos(thresholds.window).value;
  const int64_t since = std::min(begin, rounds.steps.SinceNs(JobSteps::kWanted));
  const auto in_window = std::ranges::find_if(rounds.all, [&](const Round& round) { return round.began_ns >= since; });
  const size_t enough = rounds.all.size() - std::min(thresholds.window_ops, rounds.all.size());
  rounds.first = std::min({static_cast<size_t>(in_window - rounds.all.begin()), back.first, enough});
  if (!rounds.all.empty()) rounds.begin_ns = rounds.newest().front().began_ns;
  if (!rounds.all.empty()) rounds.oldest_ns = rounds.all.front().began_ns;
  rounds.told = ToldOf(rounds, of_collectives, log.communicators.size());
  return rounds;
}

Rounds WithoutCollectives(const trace::CommLog& log, const CommThresholds& thresholds) {
  Rounds rounds;
  rounds.told.resize(log.communicators.size());
  rounds.oldest_ns = std::numeric_limits<int64_t>::max();
  for (const CommOp& op : log.ops) {
    if (op.direction == trace::Direction::kCollective || op.created_ns < 0 || op.duration_ns < 0) continue;
    rounds.oldest_ns = std::min(rounds.oldest_ns, op.created_ns);
    rounds.end_ns = std::max(rounds.end_ns, op.created_ns + op.duration_ns);
  }
  rounds.oldest_ns = std::min(rounds.oldest_ns, rounds.end_ns);
  rounds.begin_ns = std::max(rounds.oldest_ns, rounds.end_ns - ToNanos(thresholds.window).value);
  return rounds;
}

}  // namespace lockstep::detect
