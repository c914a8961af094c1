#include "lockstep/detect/slow_group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/median.h"
#include "lockstep/detect/round_order.h"
#include "lockstep/detect/shared_work.h"

namespace lockstep::detect {
namespace {

// Of the newest steps, all but a tenth: by chance, where a rank is late in every second, in one look of 5,000.
constexpr size_t kTimes = 20, kNotThen = 2;

struct Meeting {
  double beyond_ns = 0, waited_ns = 0, length_ns = 0;  // since the one before
  int64_t at_ns = 0;
};

using Meetings = std::map<std::pair<uint32_t, int>, std::vector<Meeting>>;  // by communicator and rank, the newest last

// None: too much is lost of what groups would be compared by.
std::optional<Meetings> MeetingsOf(const Rounds& rounds, const std::vector<bool>& alike) {
  Meetings meetings;
  std::map<uint32_t, int64_t> before_ns;  // by communicator: the round before ended
  SharedWork shared(alike);
  for (const uint32_t one : OrderOfRanks(rounds.all)) {
    const Round& round = rounds.all[one];
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
  if (!shared.IsWhole()) return std::nullopt;
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

struct Judged {
  std::map<int, Slow> slow;  // by rank: who is late nearly every time
  size_t most_steps = 0;     // of a communicator in which hosts meet
};

Judged SlowOf(const Meetings& meetings, const trace::CommLog& log, const CommThresholds& thresholds) {
  std::vector<bool> several_hosts;  // by communicator: whether hosts meet in it
  for (const trace::Communicator& one : log.communicators) several_hosts.push_back(CountHosts(one, log) > 1);
  Judged judged;
  for (const auto& [of, all] : meetings) {
    const std::vector<Meeting> steps = ByStep(all);
    if (several_hosts[of.first]) judged.most_steps = std::max(judged.most_steps, steps.size());
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
    Slow& one = judged.slow[of.second];
    if (share > one.share) one = {share, waits, newest.front().at_ns};
  }
  return judged;
}

// All ranks of a group, or host, that are late by about as much; stages of one pipeline are so for each other's sake.
std::set<int> GroupOf(int rank, const std::map<int, Slow>& slow, const trace::CommLog& log,
                      const std::vector<bool>& alike) {
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
  for (size_t i = 0; i < alike.size(); ++i)
    if (alike[i]) add(log.communicators[i].ranks);
  const auto host = log.hosts.find(rank);
  std::vector<int> of_host;
  for (const auto& [other, name] : log.hosts)
    if (host != log.hosts.end() && name == host->second) of_host.push_back(other);
  add(of_host);
  return group;
}

// Whether ranks share hosts, of which none has more than half of the job.
bool HasHosts(const trace::CommLog& log) {
  std::map<std::string_view, size_t> of_hosts;
  for (const auto& [rank, host] : log.hosts) ++of_hosts[host];
  return std::ranges::any_of(of_hosts,
                             [&](const auto& one) { return one.second >= 2 && 2 * one.second <= log.reported.size(); });
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

// Whose stages wait for each other in pipelines, all of them, may be late by one's doing: that of the one that is late
// for longest.
class NamedPipelines {
 public:
  explicit NamedPipelines(const std::map<int, int>& pipelines) : pipelines_(pipelines) {}

  // Whether no group before has a rank of a pipeline of these.
  bool Add(const std::set<int>& group) {
    std::set<int> own;
    for (const int rank : group)
      if (const auto of = pipelines_.find(rank); of != pipelines_.end()) own.insert(of->second);
    const bool is_new = std::ranges::none_of(own, [&](int pipeline) { return named_.contains(pipeline); });
    named_.insert(own.begin(), own.end());
    return is_new;
  }

 private:
  const std::map<int, int>& pipelines_;
  std::set<int> named_;
};

}  // namespace

SlowGroups FindSlowGroups(const trace::CommLog& log, const Rounds& rounds, const CommThresholds& thresholds) {
  const std::map<int, int> pipelines = PipelinesOf(log);
  const std::vector<bool> alike = AreAlike(log, pipelines);
  const bool has_hosts = HasHosts(log);
  const std::optional<Meetings> meetings = MeetingsOf(rounds, alike);
  if (!meetings && !has_hosts) return {};
  if (!meetings)
    return {{}, "more than one collective of a thousand is lost: whether all ranks of a host are slow can't be told"};
  auto [slow, most_steps] = SlowOf(*meetings, log, thresholds);
  if (most_steps < kTimes && has_hosts)
    return {{},
            fmt::format("{} steps known: whether all ranks of a host are slow can't be told of fewer than {}",
                        most_steps, kTimes)};
  if (2 * slow.size() > log.reported.size()) return {};  // then it is the others that are fast
  std::vector<SlowGroup> groups;
  NamedPipelines named(pipelines);
  while (!slow.empty()) {
    const auto worst = std::ranges::max_element(slow, {}, [](const auto& one) { return one.second.share; });
    const auto [rank, one] = *worst;
    const std::set<int> group = GroupOf(rank, slow, log, alike);
    slow.erase(rank);
    if (group.empty()) continue;
    for (const int member : group) slow.erase(member);
    if (!named.Add(group)) continue;
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
  return {std::move(groups), ""};
}

}  // namespace lockstep::detect
