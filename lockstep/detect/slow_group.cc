#include "lockstep/detect/slow_group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "lockstep/base/median.h"
#include "lockstep/detect/shared_work.h"

namespace lockstep::detect {
namespace {

// Of the newest steps, all but a tenth: by chance, where a rank is late in every second, in one look of 5,000.
constexpr size_t kTimes = 20, kNotThen = 2;

struct Meeting {
  double beyond_ns = 0, waited_ns = 0, length_ns = 0;  // since the one before
  int64_t at_ns = 0;
};

std::map<std::pair<uint32_t, int>, std::vector<Meeting>> MeetingsOf(const trace::CommLog& log, const Rounds& rounds) {
  std::map<std::pair<uint32_t, int>, std::vector<Meeting>> meetings;  // by communicator and rank, the newest last
  std::map<uint32_t, int64_t> before_ns;                              // by communicator: the round before ended
  SharedWork shared(log);
  for (const Round& round : rounds.all) {
    std::vector<int64_t> alone, came;
    for (const Part& part : round.parts) {
      alone.push_back(part.alone_ns);
      came.push_back(part.came_ns);
    }
    const bool is_known = std::ranges::all_of(alone, [](int64_t ns) { return ns >= 0; });
    const std::vector<int64_t> beyond = shared.Add(round, is_known ? LowerMedian(alone) : 0);
    const int64_t middle = LowerMedian(came);
    int64_t end_ns = round.began_ns;
    for (const Part& part : round.parts) end_ns = std::max(end_ns, part.left_ns);
    const auto [before, is_first] = before_ns.try_emplace(round.communicator, end_ns);
    const auto length = static_cast<double>(end_ns - std::exchange(before->second, end_ns));
    if (is_first || length <= 0) continue;
    for (size_t i = 0; i < round.parts.size(); ++i) {
      const int64_t waited = std::max<int64_t>(0, came[i] - middle) * round.stands_for;
      meetings[{round.communicator, round.parts[i].rank}].push_back(
          {static_cast<double>(beyond[i]), static_cast<double>(waited), length, round.began_ns});
    }
  }
  if (!shared.IsWhole()) meetings.clear();
  return meetings;
}

// Where ranks meet several times in a step, of a step: until as much time has gone by as half of it goes by in longer
// stretches of.
std::vector<Meeting> ByStep(const std::vector<Meeting>& all) {
  std::vector<double> lengths;
  for (const Meeting& one : all) lengths.push_back(one.length_ns);
  const double middle = MiddleOfSum(std::move(lengths));
  constexpr double kNearly = 0.8;  // steps differ
  std::vector<Meeting> steps;
  Meeting step;
  for (const Meeting& one : all) {
    step = {step.beyond_ns + one.beyond_ns, step.waited_ns + one.waited_ns, step.length_ns + one.length_ns, one.at_ns};
    if (step.length_ns < kNearly * middle) continue;
    steps.push_back(step);
    step = {};
  }
  return steps;
}

struct Slow {
  double share, waited;
  int64_t since_ns;
};

// By rank: who is late nearly every time.
std::map<int, Slow> SlowOf(const trace::CommLog& log, const Rounds& rounds, const CommThresholds& thresholds) {
  std::map<int, Slow> slow;
  for (const auto& [of, all] : MeetingsOf(log, rounds)) {
    const std::vector<Meeting> steps = ByStep(all);
    if (steps.size() < kTimes) continue;
    const std::span<const Meeting> newest = std::span(steps).last(kTimes);
    std::vector<double> beyond, waited;
    for (const Meeting& meeting : newest) {
      beyond.push_back(meeting.beyond_ns / meeting.length_ns);
      waited.push_back(meeting.waited_ns / meeting.length_ns);
    }
    const auto often = [&](const std::vector<double>& shares) {
      return std::ranges::count_if(shares, [&](double share) { return share >= thresholds.slow_share / 2; }) >=
             static_cast<std::ptrdiff_t>(kTimes - kNotThen);
    };
    const auto share_of = [&](double Meeting::* part) {
      double sum = 0, length = 0;
      for (const Meeting& meeting : newest) sum += meeting.*part, length += meeting.length_ns;
      return sum / length;
    };
    const double share = share_of(&Meeting::beyond_ns), waits = share_of(&Meeting::waited_ns);
    if (!often(beyond) || !often(waited) || std::min(share, waits) < thresholds.slow_share) continue;
    Slow& one = slow[of.second];
    if (share > one.share) one = {share, waits, newest.front().at_ns};
  }
  return slow;
}

// All ranks of a group, or host, that are late by about as much.
std::set<int> GroupOf(int rank, const std::map<int, Slow>& slow, const trace::CommLog& log) {
  const auto is_like = [&](int other) {
    const auto found = slow.find(other);
    constexpr double kAlike = 1.5;
    return found != slow.end() && found->second.share < kAlike * slow.at(rank).share &&
           slow.at(rank).share < kAlike * found->second.share;
  };
  std::set<int> group;
  const auto add = [&](const std::vector<int>& ranks) {
    if (ranks.size() >= 2 && std::ranges::find(ranks, rank) != ranks.end() && std::ranges::all_of(ranks, is_like))
      group.insert(ranks.begin(), ranks.end());
  };
  for (const trace::Communicator& communicator : log.communicators) add(communicator.ranks);
  const auto host = log.hosts.find(rank);
  std::vector<int> of_host;
  for (const auto& [other, name] : log.hosts)
    if (host != log.hosts.end() && name == host->second) of_host.push_back(other);
  add(of_host);
  return group;
}

std::vector<incident::Suspect> SuspectsOf(const std::set<int>& group, const trace::CommLog& log) {
  const auto host = log.hosts.find(*group.begin());
  const auto is_on_it = [&](const auto& of_rank) { return of_rank.second == host->second; };
  if (host != log.hosts.end() && std::ranges::all_of(log.hosts, [&](const auto& of_rank) {
        return is_on_it(of_rank) == group.contains(of_rank.first);
      }))
    return {{incident::Suspect::Kind::kNode, host->second}};
  std::vector<incident::Suspect> suspects;
  for (const int rank : group) suspects.push_back(incident::SuspectRank(RankId(rank)));
  return suspects;
}

}  // namespace

std::vector<SlowGroup> FindSlowGroups(const trace::CommLog& log, const Rounds& rounds,
                                      const CommThresholds& thresholds) {
  std::map<int, Slow> slow = SlowOf(log, rounds, thresholds);
  if (2 * slow.size() > log.reported.size()) return {};  // then it is the others that are fast
  std::vector<SlowGroup> groups;
  while (!slow.empty()) {
    const auto worst = std::ranges::max_element(slow, {}, [](const auto& one) { return one.second.share; });
    const auto [rank, one] = *worst;
    const std::set<int> group = GroupOf(rank, slow, log);
    slow.erase(rank);
    if (group.empty()) continue;
    for (const int member : group) slow.erase(member);
    incident::Finding finding;
    finding.syndrome = incident::Syndrome::kNonCommunicationSlow;
    finding.suspects = SuspectsOf(group, log);
    finding.certain = log.doubt.empty();
    finding.probe = log.doubt;
    finding.price = {.share = std::min(one.share, one.waited), .at_least = true};
    finding.since = Nanos{one.since_ns};
    finding.evidence = {fmt::format("{:.1f} % of the time ranks {} were all by themselves for longer than others "
                                    "before they met those",
                                    100 * one.share, fmt::join(group, ", ")),
                        fmt::format("{:.1f} % of the time the others waited for them, {} times of {} or more",
                                    100 * one.waited, kTimes - kNotThen, kTimes)};
    groups.push_back({group, std::move(finding)});
  }
  return groups;
}

}  // namespace lockstep::detect
