#include "lockstep/detect/comm_hang.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/detect/comm_circles.h"
#include "lockstep/detect/comm_departures.h"
#include "lockstep/detect/comm_links.h"
#include "lockstep/detect/comm_mismatches.h"
#include "lockstep/detect/comm_patience.h"
#include "lockstep/detect/comm_slow.h"
#include "lockstep/detect/comm_text.h"
#include "lockstep/detect/comm_waits.h"
#include "lockstep/incident/some.h"

namespace lockstep::detect {
namespace {

using incident::Finding;
using incident::Suspect;
using incident::Syndrome;
using trace::CommOp;
using trace::Direction;

// Ops that end on one rank without the help of all others: that some have ended them says nothing.
constexpr std::array<std::string_view, 6> kRooted = {"broadcast", "reduce",         "gather",
                                                     "scatter",   "_broadcast_oop", "_reduce_oop"};
bool IsRooted(const std::string& function) { return std::ranges::find(kRooted, function) != kRooted.end(); }

class Finder {
 public:
  // `silent`: members that told nothing.
  Finder(const trace::CommLog& log, const std::vector<int>& silent)
      : log_(log), silent_(silent), standing_(log), waits_(standing_), departures_(log) {}

  std::vector<Finding> Run() {
    std::vector<Finding> findings, mismatched;
    const bool explained = NameMismatches(mismatched);
    if (!explained) {
      const std::map<int, End> silent = NameTheEnds(findings);
      AddTo(findings, FindingsOfCircles(standing_, waits_, departures_, AllWait({})));
      const auto nobody = [&] { return findings.empty() && mismatched.empty(); };
      if (nobody()) NameStuckOps(false, findings);
      if (nobody() && !silent.empty()) AddTo(findings, FindingsOfOpenCircles(standing_, waits_, departures_));
      NameTheSilent(silent, findings);
      if (nobody()) TellOfSomebody(findings);
      if (nobody()) NameStuckOps(true, findings);
    }
    findings.insert(findings.begin(), mismatched.begin(), mismatched.end());
    if (log_.moving || log_.unseen || !log_.doubt.empty())
      for (Finding& finding : findings) {
        finding.certain = false;
        finding.probe = log_.moving   ? "a second look some seconds later: the job may have been running until this one"
                        : log_.unseen ? "stacks of the ranks: not all of their ops are seen to end"
                                      : log_.doubt;
      }
    for (Finding& finding : findings)
      for (std::vector<Suspect>* list : {&finding.suspects, &finding.ambiguous_with}) NumberRanks(*list);
    std::stable_sort(findings.begin(), findings.end(),
                     [](const Finding& a, const Finding& b) { return a.certain > b.certain; });
    return findings;
  }

 private:
  // Not to be taken for ranks of the job where they are none.
  void NumberRanks(std::vector<Suspect>& suspects) const {
    if (log_.numbered_in.empty()) return;
    for (Suspect& suspect : suspects)
      if (const std::optional<RankId> rank = incident::RankOf(suspect)) {
        const auto process = log_.processes.find(rank->value());
        suspect.name += " of " + log_.numbered_in;
        if (process != log_.processes.end()) suspect.name += ", " + process->second;
      }
  }

  // What waits elsewhere may follow from them. False: there is none, or that they are is doubtful, for who is in their
  // communicators is.
  bool NameMismatches(std::vector<Finding>& findings) const {
    bool known = false;
    for (const Mismatch& mismatch : FindMismatches(standing_)) {
      findings.push_back(FindingOf(standing_, mismatch));
      if (!findings.back().ambiguous_with.empty()) NameDepartures(log_, mismatch, departures_.all(), findings.back());
      known = known || log_.communicators[mismatch.communicator].doubt.empty();
    }
    const size_t doubtful = known ? 0 : findings.size();
    FindOtherAmounts(standing_, findings);
    return findings.size() > doubtful;
  }

  // Why a rank is an end: it did not launch what others wait in, or launched it and did not end what others ended.
  struct End {
    bool launched = false;  // it is in an op of its own
    bool counted = false;   // by its own counters, or by what others ended: lost records can't have made it up
    bool rooted = false;    // others may end such an op before it
    bool told = false;      // of a communicator
    std::string doubt;      // of all communicators that tell of it: whether it is a member
    // Half of its communicator or more, and more than are in it, are such ends that are in nothing: those few may have
    // launched one too many.
    const Wait* of_few = nullptr;
    std::vector<std::string> evidence;
    int64_t since_ns = std::numeric_limits<int64_t>::max();
  };

  // Returns those that told nothing and are to be named, for nobody else explains the waiting for them.
  std::map<int, End> NameTheEnds(std::vector<Finding>& findings) const {
    std::map<int, End> ends, missing;
    std::set<int> explained;
    for (const Wait& wait : waits_.all())
      if (IsLeft(wait) && NameTheLeft(wait, findings)) explained.insert(wait.in.begin(), wait.in.end());
    for (const Wait& wait : waits_.all()) {
      const int64_t since = Since(wait);
      for (const int rank : wait.behind)
        if (waits_.IsEnd(rank) && !waits_.IsStuckTogether(rank) && !explained.contains(rank))
          Tell(wait.in, ToRank(wait, rank), since, rank, standing_.HasReported(rank) ? ends[rank] : missing[rank]);
      if (IsOfFew(wait))
        for (const int rank : wait.behind)
          if (const auto end = ends.find(rank); end != ends.end() && !end->second.launched) end->second.of_few = &wait;
      if (waits_.IsHeld(wait)) TellOfSends(wait, ends, missing);
      if (IsLeft(wait) && !explained.contains(wait.in.front())) TellOfOwn(wait, since, ends);
    }
    // Whoever says nothing may be the one that nobody knows.
    const std::vector<std::string> blind = WaitForSomebody();
    if (!blind.empty())
      for (const int rank : silent_) missing.emplace(rank, End{});
    if (!missing.empty()) std::erase_if(ends, [&](const auto& end) { return log_.may_wait.contains(end.first); });
    if (ends.empty()) return findings.empty() ? missing : std::map<int, End>{};
    for (const bool launched : {true, false}) {
      std::map<int, End> alike;
      for (const auto& [rank, end] : ends)
        if (end.launched == launched) alike.emplace(rank, end);
      Name(alike, launched ? Syndrome::kCommunicationHang : Syndrome::kNonCommunicationHang,
           missing.empty() && blind.empty() && AllWait(ends), findings);
    }
    AddTo(findings.back().evidence, blind);
    for (const auto& [rank, end] : missing)
      findings.back().ambiguous_with.push_back(incident::SuspectRank(RankId(rank)));
    return {};
  }

  bool IsOfFew(const Wait& wait) const {
    const auto count = static_cast<size_t>(std::ranges::count_if(
        wait.behind, [&](int rank) { return standing_.HasReported(rank) && waits_.Of(rank) == nullptr; }));
    return wait.op->direction == Direction::kCollective && 2 * count >= standing_.SizeOf(wait.op->communicator) &&
           count > wait.in.size();
  }

  void NameTheSilent(const std::map<int, End>& silent, std::vector<Finding>& findings) const {
    if (silent.empty()) return;
    Name(silent, Syndrome::kNonCommunicationHang, false, findings);
    AddTo(findings.back().evidence, WaitForSomebody());
    std::map<int, End> late;
    for (const Wait& wait : waits_.all())
      for (const int rank : wait.behind)
        if (log_.may_wait.contains(rank)) Tell(wait.in, *wait.op, Since(wait), rank, late[rank]);
    incident::TellSome(Keys(late), "ranks", findings.back().evidence,
                       [&](int rank) { AddTo(findings.back().evidence, late.at(rank).evidence); });
    std::set<int> as_good = AsGood(silent);
    for (const auto& [rank, end] : late) as_good.insert(rank);
    const std::vector<int> departed = departures_.Open();
    as_good.insert(departed.begin(), departed.end());
    AddTo(findings.back().evidence, departures_.TextsOf(departed));
    findings.back().ambiguous_with = Suspects({as_good.begin(), as_good.end()});
  }

  // Those that told nothing may be in what others wait in with them. Where all others are, the way between them may be
  // at fault then, or one of their devices: one that is known not to have come, where some have. So may be who sends to
  // one.
  std::set<int> AsGood(const std::map<int, End>& silent) const {
    std::set<int> ranks;
    const auto may_be_in = [&](int rank) { return silent.contains(rank) && !log_.remarks.contains(rank); };
    const auto is_absent = [&](int rank) {
      const CommOp* op = standing_.InOf(rank);
      return op != nullptr && op->awaits_device;
    };
    for (const Wait& wait : waits_.all()) {
      for (const int rank : waits_.IsHeld(wait) ? wait.in : std::vector<int>{})
        if (std::ranges::any_of(standing_.SendsBefore(rank),
                                [&](const CommOp* send) { return may_be_in(send->peer) && waits_.IsNotThere(*send); }))
          ranks.insert(rank);
      if (wait.behind.empty() || wait.somebody || !std::ranges::all_of(wait.behind, may_be_in)) continue;
      const bool some_absent = std::ranges::any_of(wait.in, is_absent);
      std::ranges::copy_if(wait.in, std::inserter(ranks, ranks.end()),
                           [&](int rank) { return !some_absent || is_absent(rank); });
    }
    return ranks;
  }

  // What those say who wait for ranks that are not known.
  std::vector<std::string> WaitForSomebody() const {
    std::vector<std::string> lines;
    for (const Wait& wait : waits_.all())
      if (wait.somebody && lines.size() < kMostLines)
        lines.push_back(
            fmt::format("{} in {}{}", WaitingText(wait.in), NameOf(log_, *wait.op),
                        wait.op->direction != Direction::kCollective ? "" : ", of which not all members are known"));
    return lines;
  }

  template <typename T>
  static void AddTo(std::vector<T>& all, const std::vector<T>& more) {
    all.insert(all.end(), more.begin(), more.end());
  }

  // What of it waits for the rank.
  static const CommOp& ToRank(const Wait& wait, int rank) {
    for (const int peer : {rank, -1})
      for (const CommOp* op : wait.apart)
        if (op->peer == peer) return *op;
    return *wait.op;
  }

  // Its ranks may be held by those that are not there, to which they sent before.
  void TellOfSends(const Wait& wait, std::map<int, End>& ends, std::map<int, End>& missing) const {
    for (const int rank : wait.in)
      for (const CommOp* send : standing_.SendsBefore(rank))
        if (waits_.IsNotThere(*send))
          Tell({rank}, *send, Since(wait), send->peer,
               (standing_.HasReported(send->peer) ? ends : missing)[send->peer]);
  }

  // `rank` is behind in what others, `in`, wait in.
  void Tell(const std::vector<int>& in, const CommOp& op, int64_t since_ns, int rank, End& end) const {
    end.since_ns = std::min(end.since_ns, since_ns);
    end.launched = waits_.Of(rank) != nullptr;
    TakeDoubt(op.communicator, end);
    const Place place = standing_.PlaceOf(op.communicator, rank);
    std::string what = "has told nothing";
    if (standing_.HasReported(rank) && op.direction != Direction::kCollective) {
      what = standing_.Counterpart(op) != nullptr ? "launched its end behind an op that has not ended"
             : !standing_.PeerHasLaunched(op)     ? "has no end of it under way"
                                                  : "has not launched its end";
    } else if (standing_.HasReported(rank)) {
      end.counted = end.counted || place.counted || place.front != Place::kNone;
      what = place.enqueued == Place::kNone ? "has launched none"
             : place.enqueued < op.sequence ? fmt::format("has launched up to {}", place.enqueued)
                                            : fmt::format("has not ended {}", place.front);
    }
    const auto process = log_.processes.find(rank);
    if (process != log_.processes.end()) what += fmt::format(" ({})", process->second);
    if (end.evidence.size() < kMostLines)
      end.evidence.push_back(
          fmt::format("rank {}: {} in {}; rank {} {}", rank, WaitingText(in), NameOf(log_, op), rank, what));
  }

  // One of which there is none is enough.
  void TakeDoubt(uint32_t communicator, End& end) const {
    if (!end.told || !end.doubt.empty()) end.doubt = log_.communicators[communicator].doubt;
    end.told = true;
  }

  // Also where others surely wait for it: it may wait itself in what it is in, for members that are not known.
  std::string DoubtOf(int rank, const End& end) const {
    const Wait* wait = waits_.Of(rank);
    const std::string own = wait == nullptr ? "" : log_.communicators[wait->op->communicator].doubt;
    return own.empty() ? end.doubt : own;
  }

  // All who are not in it have ended it, and there are such.
  static bool IsLeft(const Wait& wait) { return wait.behind.empty() && wait.ended > 0; }

  // Of several that are left in an op the way to one of them may be at fault: where messages were counted, they tell.
  // False: they do not.
  bool NameTheLeft(const Wait& wait, std::vector<Finding>& findings) const {
    Finding finding;
    if (wait.in.size() < 2 || !NameTheLeastHeard(wait, finding)) return false;
    finding.evidence.insert(finding.evidence.begin(), LeftIn(wait));
    NameTheWay(wait, std::move(finding), findings);
    return true;
  }

  // Between those that are in it.
  void NameTheWay(const Wait& wait, Finding finding, std::vector<Finding>& findings) const {
    finding.syndrome = Syndrome::kCommunicationHang;
    finding.probe = "bytes sent and received on each connection of it";
    if (const int64_t since = Since(wait); since != std::numeric_limits<int64_t>::max()) finding.since = Nanos{since};
    findings.push_back(std::move(finding));
  }

  std::string LeftIn(const Wait& wait) const {
    return fmt::format("{} {} in {}, which {} of {} members have ended", RanksText(wait.in),
                       wait.in.size() == 1 ? "is" : "are", NameOf(log_, *wait.op), wait.ended,
                       standing_.SizeOf(wait.op->communicator));
  }

  // The others have ended the op that the ranks in it are in.
  void TellOfOwn(const Wait& wait, int64_t since_ns, std::map<int, End>& ends) const {
    const CommOp& op = *wait.op;
    const bool rooted = IsRooted(log_.functions[op.function]);
    const std::string text = LeftIn(wait);
    for (const int rank : wait.in) {
      End& end = ends[rank];
      end.launched = end.counted = true;
      end.rooted = rooted;
      TakeDoubt(op.communicator, end);
      end.since_ns = std::min(end.since_ns, since_ns);
      end.evidence.insert(end.evidence.begin(), text);
    }
  }

  int64_t Since(const Wait& wait) const {
    int64_t since = std::numeric_limits<int64_t>::max();
    for (const int rank : wait.in)
      if (const CommOp* op = standing_.InOf(rank); op != nullptr && op->created_ns >= 0)
        since = std::min(since, op->created_ns);
    return since;
  }

  // Whether every rank that has told something is an end, or waits.
  bool AllWait(const std::map<int, End>& ends) const {
    return std::all_of(log_.reported.begin(), log_.reported.end(),
                       [&](int rank) { return ends.contains(rank) || waits_.Of(rank) != nullptr; });
  }

  // Who is outside of what others wait in may be at work there, an evaluation say, and come to it.
  bool MayCome(int rank, Syndrome syndrome) const {
    return syndrome == Syndrome::kNonCommunicationHang && log_.at_rest && !log_.at_rest->contains(rank);
  }

  void Name(const std::map<int, End>& ends, Syndrome syndrome, bool certain, std::vector<Finding>& findings) const {
    if (ends.empty()) return;
    Finding finding;
    finding.syndrome = syndrome;
    finding.certain = certain;
    int64_t since = std::numeric_limits<int64_t>::max();
    std::set<int> few;
    std::set<const Wait*> seen;
    for (const auto& [rank, end] : ends) {
      finding.suspects.push_back(incident::SuspectRank(RankId(rank)));
      const std::string doubt = DoubtOf(rank, end);
      finding.certain = finding.certain && end.counted && !end.rooted && doubt.empty() && end.of_few == nullptr &&
                        !MayCome(rank, syndrome);
      since = std::min(since, end.since_ns);
      if (end.of_few != nullptr && seen.insert(end.of_few).second)
        few.insert(end.of_few->in.begin(), end.of_few->in.end());
      if (finding.probe.empty()) finding.probe = doubt;
    }
    finding.ambiguous_with = Suspects({few.begin(), few.end()});
    incident::TellSome(WithEvidence(ends), "ranks", finding.evidence, [&](int rank) {
      AddTo(finding.evidence, ends.at(rank).evidence);
      for (const auto* told : {&log_.remarks, log_.at_rest ? &*log_.at_rest : nullptr})
        if (told != nullptr && told->contains(rank))
          finding.evidence.push_back(fmt::format("rank {}: {}", rank, told->at(rank)));
    });
    if (since != std::numeric_limits<int64_t>::max()) finding.since = Nanos{since};
    if (!finding.certain && finding.probe.empty()) finding.probe = StacksText(Keys(ends));
    findings.push_back(std::move(finding));
  }

  // Of one that told nothing, and may be whom others wait for, there is none.
  std::vector<int> WithEvidence(const std::map<int, End>& ends) const {
    std::vector<int> ranks;
    for (const auto& [rank, end] : ends)
      if (!end.evidence.empty() || log_.remarks.contains(rank)) ranks.push_back(rank);
    return ranks;
  }

  static std::vector<int> Keys(const std::map<int, End>& ends) {
    std::vector<int> keys;
    keys.reserve(ends.size());
    for (const auto& [rank, end] : ends) keys.push_back(rank);
    return keys;
  }

  // Everybody is where they should be, and yet it does not end: the way between them, or a device. `held`: also where
  // somebody may be held up by others.
  void NameStuckOps(bool held, std::vector<Finding>& findings) const {
    std::set<int> told;
    for (const Wait& wait : waits_.all()) {
      const int rank = wait.in.front();
      if (!waits_.IsStuckTogether(rank) || waits_.IsHeld(wait) != held || told.contains(rank)) continue;
      const CommOp& op = *wait.op;
      Finding finding;
      const std::vector<int> beside = Beside(op);
      if (op.direction == Direction::kCollective && NameTheDevices(wait, findings)) {
        NameThoseBeside(beside, findings.back());
        continue;
      }
      if (op.direction == Direction::kCollective) {
        finding.suspects = Suspects(standing_.MembersOf(op.communicator));
        finding.evidence = {fmt::format("all {} members {}are in {}, and none has ended it",
                                        standing_.SizeOf(op.communicator), beside.empty() ? "" : "that are known ",
                                        NameOf(log_, op))};
        NameTheLeastHeard(wait, finding);
      } else {
        TellOfLinks(standing_, waits_, rank, told, finding);
      }
      NameTheWay(wait, std::move(finding), findings);
      NameThoseBeside(beside, findings.back());
    }
  }

  // Of a collective whose members nobody told: who is in nothing, and told nothing of it, may have yet to launch it.
  std::vector<int> Beside(const CommOp& op) const {
    std::vector<int> ranks;
    if (op.direction == Direction::kCollective)
      std::ranges::copy_if(log_.communicators[op.communicator].perhaps, std::back_inserter(ranks),
                           [&](int rank) { return standing_.InOf(rank) == nullptr; });
    return ranks;
  }

  static void NameThoseBeside(const std::vector<int>& ranks, Finding& finding) {
    if (ranks.empty()) return;
    AddTo(finding.ambiguous_with, Suspects(ranks));
    finding.evidence.push_back(
        fmt::format("{} told nothing of it, and may be in it: nobody told its members", RanksText(ranks)));
    finding.probe = StacksText(ranks);
  }

  // All have launched it, but of some the device has not come, as far as their hosts saw. False: of none, or of all,
  // whom something else holds. Never certain: what holds a device may be another rank's, in an op that no host sees.
  bool NameTheDevices(const Wait& wait, std::vector<Finding>& findings) const {
    std::map<int, End> absent;
    for (const int rank : wait.in) {
      const CommOp* op = standing_.InOf(rank);
      if (op == nullptr || !op->awaits_device) continue;
      End& end = absent[rank];
      end.since_ns = Since(wait);
      end.evidence = {fmt::format("all {} members have launched {}, and the device of rank {} has not come to it",
                                  standing_.SizeOf(wait.op->communicator), NameOf(log_, *wait.op), rank)};
    }
    if (absent.empty() || absent.size() == wait.in.size()) return false;
    Name(absent, Syndrome::kNonCommunicationHang, false, findings);
    findings.back().probe = "what runs on the devices of " + RanksText(Keys(absent));
    return true;
  }

  // Nobody can be named, and yet the job does not go on.
  void TellOfSomebody(std::vector<Finding>& findings) const {
    Finding finding;
    finding.syndrome = Syndrome::kStalled;
    finding.evidence = WaitForSomebody();
    finding.probe = "stacks of all ranks, and whether they change";
    if (!finding.evidence.empty()) findings.push_back(std::move(finding));
  }

  // Each sends on what it heard: who has heard least of all is where it began, or whom it waits for.
  // False: that is not known.
  bool NameTheLeastHeard(const Wait& wait, Finding& finding) const {
    const CommOp* least = nullptr;
    bool alone = true;
    for (const int rank : wait.in) {
      const CommOp* op = standing_.InOf(rank);
      if (op == nullptr || op->messages < 0) return false;
      if (least != nullptr && op->messages == least->messages) alone = false;
      if (least != nullptr && op->messages >= least->messages) continue;
      least = op;
      alone = true;
    }
    if (least == nullptr || !alone || least->waits_for < 0) return false;
    finding.suspects = {{Suspect::Kind::kLink, fmt::format("{}->{}", least->waits_for, least->rank)}};
    finding.ambiguous_with = Suspects({least->waits_for, least->rank});
    finding.evidence.push_back(
        fmt::format("rank {} has heard {} messages in it, fewer than all others, and waits for rank {}", least->rank,
                    least->messages, least->waits_for));
    return true;
  }

  const trace::CommLog& log_;
  const std::vector<int>& silent_;
  const Standing standing_;
  const Waits waits_;
  const LazyDepartures departures_;
};

// Of a job that may have been running: who is slow is behind at most moments.
bool IsExplained(const Finding& hang, const std::vector<Finding>& slow) {
  return !hang.suspects.empty() && std::ranges::all_of(hang.suspects, [&](const Suspect& suspect) {
    return std::ranges::any_of(slow, [&](const Finding& finding) {
      return std::ranges::find(finding.suspects, suspect) != finding.suspects.end();
    });
  });
}

// Nothing but how long it has been says that who is waited for does not come.
bool IsByTimeAlone(const trace::CommLog& log, const Finding& finding) {
  const bool outside = finding.syndrome == Syndrome::kNonCommunicationHang || finding.syndrome == Syndrome::kStalled;
  return outside && !finding.certain && log.at_rest &&
         std::ranges::none_of(finding.suspects, [&](const Suspect& suspect) {
           const std::optional<RankId> rank = incident::RankOf(suspect);
           return rank && log.at_rest->contains(rank->value());
         });
}

std::string TooSoonText(const Finding& finding, Seconds waited, Seconds before, Seconds limit) {
  return fmt::format(
      "{}: for {:.3g} s, and in this job waits of {:.3g} s have ended, so whether it hangs can't be told of less than "
      "{:.3g} s",
      finding.evidence.empty() ? "ranks wait" : finding.evidence.front(), waited.value, before.value, limit.value);
}

// Ranks have waited for about as long before, and gone on: nobody is named yet, nor is all known to be well.
void LeaveOutTooSoon(const trace::CommLog& log, const CommThresholds& thresholds, Seconds waited, Seconds usual,
                     CommDiagnosis& diagnosis) {
  if (diagnosis.findings.empty()) return;
  const Seconds limit = std::max(thresholds.hang, usual * thresholds.hang_of_usual);
  const Seconds repeated = RepeatedWait(log), limit_alone = repeated * thresholds.hang_of_longest;
  std::erase_if(diagnosis.findings, [&](const Finding& finding) {
    const bool by_repeated = limit_alone > limit && IsByTimeAlone(log, finding);
    const Seconds own = by_repeated ? limit_alone : limit;
    if (waited >= own) return false;
    if (diagnosis.too_short.empty())
      diagnosis.too_short = TooSoonText(finding, waited, by_repeated ? repeated : usual, own);
    return true;
  });
}

// A collective or transfer, by itself or by a rank's counters.
bool IsAnyTold(const trace::CommLog& log) {
  return !log.ops.empty() ||
         std::ranges::any_of(log.counts, [](const trace::CommCount& count) { return count.enqueued > 0; });
}

}  // namespace

CommDiagnosis FindHangs(const trace::CommLog& log, const CommThresholds& thresholds) {
  CommDiagnosis diagnosis;
  diagnosis.no_report = NoReport(log);
  const std::optional<Seconds> waited = LongestWait(log);
  const Seconds usual = waited ? UsualWait(log) : Seconds{0};
  if (waited && *waited < std::max(thresholds.hang, usual)) return diagnosis;
  diagnosis.findings = Finder(log, diagnosis.no_report).Run();
  if (waited) LeaveOutTooSoon(log, thresholds, *waited, usual, diagnosis);
  return diagnosis;
}

CommDiagnosis DiagnoseCommunication(const trace::CommLog& log, const CommThresholds& thresholds) {
  CommDiagnosis diagnosis = FindHangs(log, thresholds);
  if (!diagnosis.findings.empty() && !log.moving) return diagnosis;
  auto [findings, too_short] = JudgeSlowness(log, thresholds);
  if (findings.empty()) {
    findings = FindTrend(log, thresholds);
    if (!findings.empty() && !too_short.empty()) findings.front().evidence.push_back(too_short);
  }
  std::erase_if(diagnosis.findings, [&](const Finding& hang) { return IsExplained(hang, findings); });
  diagnosis.findings.insert(diagnosis.findings.begin(), findings.begin(), findings.end());
  std::string waits = std::exchange(diagnosis.too_short, "");
  if (!diagnosis.findings.empty()) return diagnosis;
  if (!IsAnyTold(log))
    too_short =
        "no rank has told of a collective, send or receive: whether they have met, or still wait to meet, can't be "
        "told";
  const std::string why = waits.empty() ? QuietText(log, thresholds) : std::move(waits);
  diagnosis.too_short = why + (why.empty() || too_short.empty() ? "" : "; ") + too_short;
  return diagnosis;
}

}  // namespace lockstep::detect
