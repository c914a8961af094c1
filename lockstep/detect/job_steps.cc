#include "lockstep/detect/job_steps.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "lockstep/base/median.h"
#include "lockstep/base/units.h"

namespace lockstep::detect {
namespace {

constexpr double kNearly = 0.8;

// A communicator as a whole, or its collectives of one function and size.
struct Kind {
  uint32_t communicator;
  uint32_t function = 0;
  uint64_t bytes = 0;
  auto operator<=>(const Kind&) const = default;
  template <typename H>
  friend H AbslHashValue(H hash, const Kind& kind) {
    return H::combine(std::move(hash), kind.communicator, kind.function, kind.bytes);
  }
};

struct OfKind {
  std::vector<int64_t> ends_ns;
  double bytes = 0;  // since all are told
  int64_t count = 0;
  // What lies between two, what lies before the first and after the last being a part of one: so long, or longer, in a
  // fifth of the time, as in the forward pass where gradients are reduced while others are computed; and the middle.
  int64_t rest_ns = 0, middle_rest_ns = 0;
  bool carries = true;  // more than next to nothing
};
using Kinds = absl::flat_hash_map<Kind, OfKind>;

// The longest time in which nothing at all ends. It counts as the second longest: what came up once, as a pause, sets
// no scale.
struct Pause {
  int64_t end_ns = 0, beyond_ns = 0;

  int64_t Without(int64_t from_ns, int64_t to_ns) const {
    return to_ns - from_ns - (from_ns < end_ns && end_ns <= to_ns ? beyond_ns : 0);
  }
};

// `all` by end.
Pause FindPause(const std::vector<Met>& all, int64_t from_ns) {
  Pause pause;
  int64_t longest_ns = 0, second_ns = 0, before_ns = from_ns;
  for (const Met& one : all) {
    if (one.end_ns <= from_ns) continue;
    const int64_t ns = one.end_ns - std::exchange(before_ns, one.end_ns);
    second_ns = std::max(second_ns, std::min(ns, longest_ns));
    if (ns > longest_ns) pause.end_ns = one.end_ns;
    longest_ns = std::max(longest_ns, ns);
  }
  if (second_ns > 0) pause.beyond_ns = longest_ns - second_ns;
  return pause;
}

// Of what comes rarely older ones are told live (trace::Thin): all are since one that comes often is.
int64_t AllToldFrom(const std::vector<Met>& all) {
  constexpr int64_t kRare = 16;
  absl::flat_hash_map<uint32_t, int64_t> counts;  // by communicator
  for (const Met& one : all) counts[one.communicator] += one.stands_for;
  const auto often = std::ranges::find_if(all, [&](const Met& one) { return counts.at(one.communicator) > kRare; });
  return (often == all.end() ? all.begin() : often)->end_ns;
}

// All collectives of a job, by end, in the time in which all are told.
class Told {
 public:
  explicit Told(std::vector<Met> all) : all_(std::move(all)) {
    std::ranges::sort(all_, {}, [](const Met& one) { return std::pair{one.end_ns, one.communicator}; });
    from_ns_ = AllToldFrom(all_);
    pause_ = FindPause(all_, from_ns_);
  }

  int64_t from_ns() const { return from_ns_; }
  const std::vector<Met>& all() const { return all_; }

  // `kind_of`: of a collective; none where it is of no interest.
  template <typename KindOf>
  Kinds By(const KindOf& kind_of) const {
    Kinds kinds;
    for (const Met& one : all_) {
      const std::optional<Kind> kind = kind_of(one);
      if (!kind) continue;
      OfKind& own = kinds[*kind];
      own.ends_ns.push_back(one.end_ns);
      own.count += one.stands_for;
      if (one.end_ns >= from_ns_) own.bytes += static_cast<double>(one.bytes) * static_cast<double>(one.stands_for);
    }
    constexpr double kNextToNothing = 0.001;  // of what the one carries that carries most
    double most_bytes = 0;
    for (const auto& [kind, own] : kinds) most_bytes = std::max(most_bytes, own.bytes);
    for (auto& [kind, own] : kinds) {
      own.carries = own.bytes >= kNextToNothing * most_bytes;
      FindRest(own);
    }
    return kinds;
  }

 private:
  void FindRest(OfKind& one) const {
    constexpr double kLongest = 0.2;
    std::vector<int64_t> rests;
    int64_t before_ns = from_ns_;
    for (const int64_t end_ns : one.ends_ns)
      if (end_ns > from_ns_) rests.push_back(pause_.Without(std::exchange(before_ns, end_ns), end_ns));
    if (rests.empty()) return;  // it is over, or it is long ago
    rests.push_back(pause_.Without(before_ns, all_.back().end_ns));
    std::ranges::sort(rests, std::greater());
    double left_ns = kLongest * static_cast<double>(std::accumulate(rests.begin(), rests.end(), int64_t{0}));
    one.rest_ns = *std::ranges::find_if(rests, [&](int64_t ns) { return (left_ns -= static_cast<double>(ns)) <= 0; });
    one.middle_rest_ns = rests[rests.size() / 2];
  }

  std::vector<Met> all_;
  int64_t from_ns_ = 0;
  Pause pause_;
};

// Those that rest for nearly as long as the one that does for longest; the first of them is the rarest: it ends steps
// at the same place in each. There is one at least, as of all kinds one carries most.
std::vector<const Kinds::value_type*> LongestResting(const Kinds& kinds) {
  int64_t longest_ns = 0;
  for (const auto& [kind, own] : kinds)
    if (own.carries) longest_ns = std::max(longest_ns, own.rest_ns);
  std::vector<const Kinds::value_type*> found;
  for (const auto& one : kinds)
    if (one.second.carries && static_cast<double>(one.second.rest_ns) >= kNearly * static_cast<double>(longest_ns))
      found.push_back(&one);
  std::ranges::sort(found, {}, [](const auto* one) { return std::pair{one->second.count, one->first}; });
  return found;
}

// By function and size; where hardly any size comes again, as where tokens go to experts, by function. `within`: of
// these communicators; null: all.
Kinds KindsOf(const Told& told, const absl::flat_hash_set<uint32_t>* within) {
  struct Sizes {
    absl::flat_hash_set<uint64_t> different;
    size_t count = 0;
  };
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, Sizes> sizes;  // by communicator and function
  for (const Met& one : told.all()) {
    if (within != nullptr && !within->contains(one.communicator)) continue;
    Sizes& own = sizes[{one.communicator, one.function}];
    own.different.insert(one.bytes);
    ++own.count;
  }
  return told.By([&](const Met& one) -> std::optional<Kind> {
    const auto own = sizes.find({one.communicator, one.function});
    if (own == sizes.end()) return std::nullopt;
    const bool come_again = own->second.count >= JobSteps::kFewest * own->second.different.size();
    return Kind{one.communicator, one.function, come_again ? one.bytes : 0};
  });
}

// One ends with the first collective after a rest. `from_ns` begins one, or is within one.
JobSteps StepsEndedBy(const OfKind& one, int64_t from_ns) {
  constexpr double kRest = 0.5;  // steps differ
  JobSteps steps{.ends_ns = {std::min(from_ns, one.ends_ns.front())}};
  std::vector<int64_t> ends, lengths;
  int64_t before_ns = steps.ends_ns.front();
  for (const int64_t end_ns : one.ends_ns) {
    const int64_t rest_ns = end_ns - std::exchange(before_ns, end_ns);
    if (static_cast<double>(rest_ns) < kRest * static_cast<double>(one.rest_ns)) continue;
    if (!ends.empty()) lengths.push_back(end_ns - ends.back());
    ends.push_back(end_ns);
  }
  steps.usual_ns = lengths.empty() ? one.rest_ns : LowerMedian(std::move(lengths));
  const auto is_part = [&](int64_t end_ns) {
    return static_cast<double>(end_ns - steps.ends_ns.front()) < kNearly * static_cast<double>(steps.usual_ns);
  };
  if (!ends.empty() && is_part(ends.front())) ends.erase(ends.begin());
  steps.ends_ns.insert(steps.ends_ns.end(), ends.begin(), ends.end());
  return steps;
}

// It comes evenly, and nothing that carries anything comes much more often: whether there is one in a step, or there
// are many, can't be told of it.
bool IsEven(const OfKind& one, const Kinds& communicators) {
  constexpr int64_t kMore = 4;
  return one.rest_ns <= kMore * one.middle_rest_ns && std::ranges::none_of(communicators, [&](const auto& other) {
           return other.second.carries && other.second.count > kMore * one.count;
         });
}

// Of what carries next to nothing that which comes most often, if that is less often than `even`. Null: there is none,
// or none that comes within what a step may take.
const OfKind* SmallOf(const Kinds& kinds, const OfKind& even) {
  constexpr Seconds kLongStep{60};
  const Kinds::value_type* found = nullptr;
  const auto order = [](const Kinds::value_type& one) { return std::pair{one.second.rest_ns, one.first}; };
  for (const auto& one : kinds)
    if (!one.second.carries && one.second.count >= static_cast<int64_t>(JobSteps::kFewest) &&
        one.second.rest_ns <= ToNanos(kLongStep).value && (found == nullptr || order(one) < order(*found)))
      found = &one;
  return found != nullptr && found->second.rest_ns >= 2 * even.rest_ns ? &found->second : nullptr;
}

}  // namespace

JobSteps FindJobSteps(std::vector<Met> all) {
  if (all.empty()) return {};
  const Told told(std::move(all));
  const Kinds communicators = told.By([](const Met& one) { return std::optional(Kind{one.communicator}); });
  const std::vector<const Kinds::value_type*> longest = LongestResting(communicators);
  absl::flat_hash_set<uint32_t> within;
  for (const auto* one : longest) within.insert(one->first.communicator);
  const Kinds kinds = KindsOf(told, &within);
  const OfKind* ends_step = &longest.front()->second;
  if (const OfKind& kind = LongestResting(kinds).front()->second;
      kNearly * static_cast<double>(kind.rest_ns) > static_cast<double>(ends_step->rest_ns))
    ends_step = &kind;
  Kinds of_all;
  if (IsEven(*ends_step, communicators)) {
    of_all = KindsOf(told, nullptr);
    if (const OfKind* small = SmallOf(of_all, *ends_step)) ends_step = small;
  }
  if (ends_step->rest_ns == 0) return {.ends_ns = {told.from_ns()}};
  return StepsEndedBy(*ends_step, told.from_ns());
}

}  // namespace lockstep::detect
