#include "lockstep/detect/slow_group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/median.h"
#include "lockstep/detect/late_ranks.h"
#include "lockstep/detect/shared_work.h"

namespace lockstep::detect {
namespace {

// All ranks of a group, or host, that are late by about as much; stages of one pipeline are so for each other's sake.
std::set<int> GroupOf(int rank, const std::map<int, Late>& slow, const trace::CommLog& log,
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

// What a group takes alike is the middle of what its members take, and those are late whom it holds up: who is faster
// among themselves by half as much as all are late is well.
std::set<int> WithoutFaster(const std::set<int>& group, double late_share, const Rounds& rounds) {
  std::map<int, int64_t> faster_ns;
  for (const Round& round : rounds.newest()) {
    std::vector<int64_t> alone;
    for (const Part& part : round.parts)
      if (part.alone_ns >= 0 && group.contains(part.rank)) alone.push_back(part.alone_ns);
    if (alone.size() < round.parts.size()) continue;  // others are in it, or it is not known
    const int64_t usual = LowerMedian(std::move(alone));
    for (const Part& part : round.parts) faster_ns[part.rank] += (usual - part.alone_ns) * round.stands_for;
  }
  std::set<int> slow = group;
  for (const auto& [rank, ns] : faster_ns)
    if (2 * static_cast<double>(ns) > late_share * static_cast<double>(rounds.length_ns())) slow.erase(rank);
  return slow;
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
  auto [slow, is_whole, are_groups, most_steps] = FindLateRanks(log, rounds, alike, thresholds);
  if (!is_whole && !has_hosts) return {};
  if (!is_whole)
    return {{}, "more than one collective of a thousand is lost: whether all ranks of a host are slow can't be told"};
  if (are_groups && most_steps < LateRanks::kFewest && has_hosts)
    return {{},
            fmt::format("{} steps known: whether all ranks of a host are slow can't be told of fewer than {}",
                        most_steps, LateRanks::kFewest)};
  if (2 * slow.size() > log.reported.size()) return {};  // then it is the others that are fast
  std::vector<SlowGroup> groups;
  NamedPipelines named(pipelines);
  while (!slow.empty()) {
    const auto worst = std::ranges::max_element(slow, {}, [](const auto& one) { return one.second.share; });
    const auto [rank, one] = *worst;
    const std::set<int> late = GroupOf(rank, slow, log, alike);
    slow.erase(rank);
    for (const int member : late) slow.erase(member);
    const std::set<int> group = WithoutFaster(late, one.share, rounds);
    if (group.empty() || !named.Add(group)) continue;
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
                        fmt::format("{:.1f} % of the time the others waited for them, in nearly all of {} steps",
                                    100 * one.waited, one.times)};
    groups.push_back({group, std::move(finding)});
  }
  return {std::move(groups), ""};
}

}  // namespace lockstep::detect
