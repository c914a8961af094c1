#include "lockstep/detect/job_steps.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "lockstep/base/median.h"
#include "lockstep/trace/trail_file.h"

namespace lockstep::detect {
namespace {

constexpr double kNearly = 0.8;
constexpr double kNextToNothing = 0.001;  // of what the one carries that carries most
constexpr size_t kOften = JobSteps::kFewest + 1;
// So many microbatches in a step, at the most: what comes once in more is something else.
constexpr size_t kMicrobatches = 32;

double BytesOf(const Met& one) { return static_cast<double>(one.bytes) * static_cast<double>(one.stands_for); }

// Collectives, by end, that end steps, or may.
struct Marks {
  std::vector<int64_t> ends_ns;
  int64_t period_ns = 0;   // 0: none is known
  bool is_proven = false;  // by what comes again
};

struct OfKind {
  std::vector<const Met*> all;
  double bytes = 0;
  int64_t rested_ns = 0;  // since the collective of the communicator before each
  bool carries = false;   // something
};

struct OfCommunicator {
  std::vector<const Met*> all;
  std::map<std::pair<uint32_t, uint64_t>, OfKind> kinds;  // by function and bytes; since all are told
  double bytes = 0;                                       // so
  int64_t count = 0;
  bool carries = false;  // as one, and each of its kinds that does

  void Weigh() {
    double most = 0;
    for (const auto& [key, kind] : kinds) most = std::max(most, kind.bytes);
    for (auto& [key, kind] : kinds) kind.carries = kind.bytes >= kNextToNothing * most;
  }
  // Whether its kind does; of what came before all are told too.
  bool Carries(const Met& one) const {
    const auto kind = kinds.find({one.function, one.bytes});
    return kind == kinds.end() || kind->second.carries;
  }
};

using Communicators = absl::btree_map<uint32_t, OfCommunicator>;

// Of what comes rarely older ones are told live (trace::Thin): all are since one that comes often is.
int64_t AllToldFrom(const std::vector<Met>& all, const Communicators& communicators) {
  constexpr int64_t kRare = 16;
  const auto often =
      std::ranges::find_if(all, [&](const Met& one) { return communicators.at(one.communicator).count > kRare; });
  return (often == all.end() ? all.begin() : often)->end_ns;
}

Communicators CommunicatorsOf(const std::vector<Met>& all, int64_t& from_ns) {
  Communicators communicators;
  for (const Met& one : all) {
    OfCommunicator& own = communicators[one.communicator];
    own.all.push_back(&one);
    own.count += one.stands_for;
  }
  from_ns = AllToldFrom(all, communicators);
  double most_bytes = 0;
  for (auto& [communicator, own] : communicators) {
    int64_t before_ns = from_ns;
    for (const Met* one : own.all) {
      if (one->end_ns < from_ns) continue;
      OfKind& kind = own.kinds[{one->function, one->bytes}];
      kind.all.push_back(one);
      kind.rested_ns += one->end_ns - std::exchange(before_ns, one->end_ns);
      kind.bytes += BytesOf(*one);
      own.bytes += BytesOf(*one);
    }
    most_bytes = std::max(most_bytes, own.bytes);
  }
  for (auto& [communicator, own] : communicators)
    if ((own.carries = own.bytes >= kNextToNothing * most_bytes)) own.Weigh();
  return communicators;
}

// Times in which nothing at all ends, and that set no scale: beyond what they count as.
class Pauses {
 public:
  // `all` by end. Longer ones than `longest_ns`; 0: than the second longest, for what came up once is a pause.
  Pauses(const std::vector<Met>& all, int64_t from_ns, int64_t longest_ns) {
    std::vector<std::pair<int64_t, int64_t>> silences;  // length and end
    int64_t before_ns = from_ns;
    for (const Met& one : all)
      if (one.end_ns > from_ns) silences.emplace_back(one.end_ns - std::exchange(before_ns, one.end_ns), one.end_ns);
    if (longest_ns == 0 && silences.size() > 1) {
      std::vector<std::pair<int64_t, int64_t>> two(2);
      std::ranges::partial_sort_copy(silences, two, std::greater{});
      longest_ns = two[1].first;
    }
    ends_ns_.push_back(from_ns);
    beyond_ns_.push_back(0);
    for (const auto& [ns, end_ns] : silences) {
      if (longest_ns == 0 || ns <= longest_ns) continue;
      ends_ns_.push_back(end_ns);
      beyond_ns_.push_back(beyond_ns_.back() + ns - longest_ns);
    }
  }

  int64_t Without(int64_t from_ns, int64_t to_ns) const { return to_ns - from_ns - UpTo(to_ns) + UpTo(from_ns); }

 private:
  int64_t UpTo(int64_t ns) const {
    const auto after = std::ranges::upper_bound(ends_ns_, ns);
    return after == ends_ns_.begin() ? 0 : beyond_ns_[static_cast<size_t>(after - ends_ns_.begin()) - 1];
  }

  std::vector<int64_t> ends_ns_, beyond_ns_;  // the latter: of all up to there
};

struct Rest {
  int64_t distance, ns;  // by number, and by time
};

std::vector<Rest> RestsOf(const std::vector<const Met*>& kind) {
  std::vector<Rest> rests;
  for (size_t i = 1; i < kind.size(); ++i)
    rests.push_back({kind[i]->number - kind[i - 1]->number, kind[i]->end_ns - kind[i - 1]->end_ns});
  return rests;
}

int64_t MiddleNs(const std::vector<Rest>& rests) {
  std::vector<int64_t> lengths;
  lengths.reserve(rests.size());
  for (const Rest& rest : rests) lengths.push_back(rest.ns);
  return LowerMedian(std::move(lengths));
}

// By how many collectives of its communicator two are apart for most of the time.
int64_t UsualDistance(const std::vector<Rest>& rests) {
  std::map<int64_t, int64_t> lengths_ns;
  for (const Rest& rest : rests) lengths_ns[rest.distance] += rest.ns;
  const auto usual =
      std::ranges::max_element(lengths_ns, {}, [](const auto& one) { return std::pair{one.second, one.first}; });
  return usual == lengths_ns.end() ? 0 : usual->first;
}

// As usual, or where some are lost twice or three times as much.
bool IsRegular(const Rest& rest, int64_t usual) {
  constexpr int64_t kMostTimes = 3;
  return usual > 0 && rest.distance % usual == 0 && rest.distance <= kMostTimes * usual;
}

// Whether of the time from `from_ns` to `to_ns` this part is regular. What lies before the first and after the last is
// a part of a period.
bool Covers(double part, const std::vector<const Met*>& kind, int64_t regular_ns, int64_t period_ns, int64_t from_ns,
            int64_t to_ns) {
  const int64_t ends_ns =
      std::min(kind.front()->end_ns - from_ns, period_ns) + std::min(to_ns - kind.back()->end_ns, period_ns);
  return static_cast<double>(regular_ns + ends_ns) >= part * static_cast<double>(to_ns - from_ns);
}

Marks Proven(const std::vector<const Met*>& kind, int64_t period_ns) {
  Marks marks{{}, period_ns, true};
  for (const Met* one : kind) marks.ends_ns.push_back(one->end_ns);
  return marks;
}

// A kind that comes again after the same number, with others in between.
Marks ByNumber(const std::vector<const Met*>& kind, int64_t from_ns, int64_t to_ns) {
  constexpr double kNearlyAll = 0.85;
  if (kind.size() < kOften) return {};
  const std::vector<Rest> rests = RestsOf(kind);
  const int64_t usual = UsualDistance(rests);
  if (usual < 2) return {};
  int64_t regular_ns = 0;
  std::vector<int64_t> usual_ns;
  for (const Rest& rest : rests) {
    if (IsRegular(rest, usual)) regular_ns += rest.ns;
    if (rest.distance == usual) usual_ns.push_back(rest.ns);
  }
  if (usual_ns.size() < JobSteps::kFewest) return {};
  const int64_t period_ns = LowerMedian(std::move(usual_ns));
  if (!Covers(kNearlyAll, kind, regular_ns, period_ns, from_ns, to_ns)) return {};
  return Proven(kind, period_ns);
}

// A kind that comes again after about the same time, or number: it may stand still for a while.
Marks ByTimeOrNumber(const std::vector<const Met*>& kind, int64_t to_ns) {
  constexpr double kMost = 0.6;
  if (kind.size() < kOften) return {};
  const std::vector<Rest> rests = RestsOf(kind);
  const int64_t usual = UsualDistance(rests), middle_ns = MiddleNs(rests);
  int64_t regular_ns = 0;
  for (const Rest& rest : rests)
    if ((usual > 1 && IsRegular(rest, usual)) || (2 * rest.ns >= middle_ns && rest.ns <= 2 * middle_ns))
      regular_ns += rest.ns;
  if (!Covers(kMost, kind, regular_ns, middle_ns, kind.front()->end_ns, to_ns)) return {};
  return Proven(kind, middle_ns);
}

// The kind that comes again soonest: what all do in a step, not what they do in each tenth. Of those that come again
// as soon, the one before which ranks compute for longest.
Marks Soonest(const OfCommunicator& own, int64_t from_ns, int64_t to_ns) {
  Marks soonest;
  int64_t rested_ns = 0;
  for (const auto& [key, kind] : own.kinds) {
    if (!kind.carries) continue;
    Marks marks = ByNumber(kind.all, from_ns, to_ns);
    if (marks.period_ns == 0) continue;
    const auto period_ns = static_cast<double>(marks.period_ns), least_ns = static_cast<double>(soonest.period_ns);
    if (soonest.period_ns > 0 &&
        (kNearly * period_ns > least_ns || (period_ns > kNearly * least_ns && kind.rested_ns <= rested_ns)))
      continue;
    rested_ns = kind.rested_ns;
    soonest = std::move(marks);
  }
  return soonest;
}

// Bursts of the same number of collectives, as buckets of gradients of one size: by the rests between them, which are
// twice as long as any within. Of several kinds of rests those that take most of the time, a fifth at least: others are
// pauses.
Marks Bursts(const OfCommunicator& own, int64_t from_ns, int64_t to_ns, const Pauses& pauses) {
  constexpr double kLonger = 2, kLeast = 0.2;
  std::vector<const Met*> all;
  for (const Met* one : own.all)
    if (one->end_ns >= from_ns && own.Carries(*one)) all.push_back(one);
  if (all.size() < kOften) return {};
  std::vector<int64_t> sorted;
  const auto rest_ns = [&](size_t one) { return pauses.Without(all[one - 1]->end_ns, all[one]->end_ns); };
  for (size_t one = 1; one < all.size(); ++one) sorted.push_back(rest_ns(one));
  std::ranges::sort(sorted, std::greater{});
  Marks best;
  int64_t most_ns = 0, of_level_ns = 0;
  for (size_t i = 0; i + 1 < sorted.size(); ++i) {
    of_level_ns += sorted[i];
    if (static_cast<double>(sorted[i]) < kLonger * static_cast<double>(sorted[i + 1])) continue;
    const int64_t ns = std::exchange(of_level_ns, 0);
    if (ns <= most_ns || static_cast<double>(ns) < kLeast * static_cast<double>(to_ns - from_ns)) continue;
    std::vector<const Met*> firsts = {all.front()};
    for (size_t one = 1; one < all.size(); ++one)
      if (rest_ns(one) >= sorted[i]) firsts.push_back(all[one]);
    if (Marks marks = ByNumber(firsts, from_ns, to_ns); marks.period_ns > 0) {
      best = std::move(marks);
      most_ns = ns;
    }
  }
  return best;
}

// By rests: a fifth of the time lies in stretches at least so long, as the forward passes are where gradients are
// reduced while others are computed.
Marks Resting(const OfCommunicator& own, int64_t from_ns, int64_t to_ns, const Pauses& pauses) {
  constexpr double kLongest = 0.2;
  Marks marks;
  for (const Met* one : own.all)
    if (own.Carries(*one)) marks.ends_ns.push_back(one->end_ns);
  std::vector<int64_t> rests;
  int64_t before_ns = from_ns;
  for (const int64_t end_ns : marks.ends_ns)
    if (end_ns > from_ns) rests.push_back(pauses.Without(std::exchange(before_ns, end_ns), end_ns));
  if (rests.empty()) return marks;  // it is over, or it is long ago
  rests.push_back(pauses.Without(before_ns, to_ns));
  marks.period_ns = LargeByShareOfSum(std::move(rests), kLongest);
  return marks;
}

// Parameters are gathered for each layer forward and backward, and gradients scattered once.
bool IsSharded(const OfCommunicator& own) {
  constexpr double kSome = 0.05, kOftener = 1.5;
  double gathers = 0, scatters = 0, all = 0;
  for (const auto& [key, kind] : own.kinds) {
    if (!kind.carries) continue;
    const auto count = static_cast<double>(kind.all.size());
    const Moves moves = kind.all.front()->moves;
    gathers += moves == Moves::kGathers ? count : 0;
    scatters += moves == Moves::kScatters ? count : 0;
    all += count;
  }
  return scatters >= kSome * all && gathers >= kOftener * scatters;
}

// It may come again as the ends of steps do: so far it hasn't often enough to be told.
bool MayComeAgain(const OfKind& kind, int64_t from_ns, int64_t to_ns) {
  int64_t longest_ns = 0, before_ns = from_ns;
  for (const Met* one : kind.all)
    longest_ns = std::max(longest_ns, one->end_ns - std::exchange(before_ns, one->end_ns));
  return kind.all.size() < kOften && to_ns - before_ns <= 2 * longest_ns;
}

// Kinds that carry next to nothing, in whichever communicator, and come again.
struct LightOnes {
  std::vector<Marks> known;
  bool may_be_more = false;
};

LightOnes LightOnesOf(const Communicators& communicators, int64_t from_ns, int64_t to_ns) {
  LightOnes light;
  for (const auto& [communicator, own] : communicators)
    for (const auto& [key, kind] : own.kinds) {
      if (kind.carries) continue;
      Marks marks = ByTimeOrNumber(kind.all, to_ns);
      if (marks.period_ns > 0)
        light.known.push_back(std::move(marks));
      else
        light.may_be_more = light.may_be_more || MayComeAgain(kind, from_ns, to_ns);
    }
  return light;
}

// Where parameters are sharded, `soonest` comes again with each step or microbatch; none: all may with each layer. None
// is returned where steps aren't known.
std::optional<Marks> StepsOfSharded(Marks soonest, const LightOnes& light) {
  constexpr double kApart = 1.5;
  const auto own_ns = static_cast<double>(soonest.period_ns);
  const Marks* rarer = nullptr;
  for (const Marks& marks : light.known) {
    const auto period_ns = static_cast<double>(marks.period_ns);
    if (soonest.is_proven && period_ns > own_ns * double{kMicrobatches}) continue;
    if (soonest.is_proven && period_ns < own_ns * kApart) {
      if (period_ns > own_ns / kApart) return soonest;
      continue;
    }
    if (rarer == nullptr || marks.period_ns < rarer->period_ns) rarer = &marks;
  }
  if (rarer != nullptr) return *rarer;
  if (!soonest.is_proven || soonest.ends_ns.size() < kMicrobatches || light.may_be_more) return std::nullopt;
  return soonest;
}

// One ends with the first collective after a rest. `from_ns` begins one, or is within one.
JobSteps StepsEndedBy(const Marks& marks, int64_t from_ns) {
  constexpr double kRest = 0.5;  // steps differ
  JobSteps steps{.ends_ns = {std::min(from_ns, marks.ends_ns.front())}};
  std::vector<int64_t> ends, lengths;
  int64_t before_ns = steps.ends_ns.front();
  for (const int64_t end_ns : marks.ends_ns) {
    const int64_t rest_ns = end_ns - std::exchange(before_ns, end_ns);
    if (static_cast<double>(rest_ns) < kRest * static_cast<double>(marks.period_ns)) continue;
    if (!ends.empty()) lengths.push_back(end_ns - ends.back());
    ends.push_back(end_ns);
  }
  steps.usual_ns = lengths.empty() ? marks.period_ns : LowerMedian(std::move(lengths));
  const auto is_part = [&](int64_t end_ns) {
    return static_cast<double>(end_ns - steps.ends_ns.front()) < kNearly * static_cast<double>(steps.usual_ns);
  };
  if (!ends.empty() && is_part(ends.front())) ends.erase(ends.begin());
  steps.ends_ns.insert(steps.ends_ns.end(), ends.begin(), ends.end());
  return steps;
}

struct OfOne {
  const OfCommunicator* communicator;
  Marks marks;
};

// Takes longer; or about as long, and is told better, or is rarer, so that it ends steps at the same place in each.
bool IsBetter(const OfOne& one, const OfOne& other) {
  const auto nearly = [](const OfOne& a, const OfOne& b) {
    return static_cast<double>(a.marks.period_ns) >= kNearly * static_cast<double>(b.marks.period_ns);
  };
  if (!nearly(one, other)) return false;
  if (!nearly(other, one)) return true;
  const auto rank = [](const OfOne& of) { return std::tuple{!of.marks.is_proven, of.communicator->count}; };
  return rank(one) < rank(other);
}

}  // namespace

std::vector<Moves> MovesOf(const std::vector<std::string>& functions) {
  std::vector<Moves> moves;
  for (const std::string& function : functions) {
    const std::string letters = absl::StrReplaceAll(absl::AsciiStrToLower(function), {{"_", ""}});
    moves.push_back(absl::StrContains(letters, "reducescatter") ? Moves::kScatters
                    : absl::StrContains(letters, "allgather")   ? Moves::kGathers
                                                                : Moves::kOther);
  }
  return moves;
}

Moves MovesOf(uint8_t function) {
  return function == LS_REDUCE_SCATTER ? Moves::kScatters : function == LS_ALL_GATHER ? Moves::kGathers : Moves::kOther;
}

JobSteps FindJobSteps(std::vector<Met> all) {
  if (all.empty()) return {};
  std::ranges::sort(all, {}, [](const Met& one) { return std::tuple{one.end_ns, one.communicator, one.number}; });
  const int64_t to_ns = all.back().end_ns;
  int64_t from_ns = 0;
  const Communicators communicators = CommunicatorsOf(all, from_ns);
  std::vector<OfOne> carrying;
  int64_t proven_ns = 0;
  for (const auto& [communicator, own] : communicators) {
    if (!own.carries) continue;
    carrying.push_back({&own, Soonest(own, from_ns, to_ns)});
    proven_ns = std::max(proven_ns, carrying.back().marks.period_ns);
  }
  const Pauses pauses(all, from_ns, proven_ns);
  std::optional<LightOnes> light;         // only where parameters are sharded
  const OfOne* best = &carrying.front();  // there is one, as one carries most
  for (OfOne& one : carrying) {
    Marks& marks = one.marks;
    if (IsSharded(*one.communicator)) {
      if (!light) light = LightOnesOf(communicators, from_ns, to_ns);
      const bool by_count = marks.is_proven && !light->may_be_more;
      const int64_t wanted_ns = by_count ? marks.period_ns * int64_t{kMicrobatches} : 0;
      std::optional<Marks> steps = StepsOfSharded(std::move(marks), *light);
      if (!steps) return {.ends_ns = {from_ns}, .wanted_ns = wanted_ns};
      marks = *std::move(steps);
    }
    if (!marks.is_proven) marks = Bursts(*one.communicator, from_ns, to_ns, pauses);
    if (!marks.is_proven) marks = Resting(*one.communicator, from_ns, to_ns, pauses);
    if (IsBetter(one, *best)) best = &one;
  }
  if (best->marks.period_ns == 0) return {.ends_ns = {from_ns}};
  return StepsEndedBy(best->marks, from_ns);
}

}  // namespace lockstep::detect
