#include "lockstep/trace/kineto_places.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "lockstep/base/median.h"

namespace lockstep::trace {
namespace {

constexpr size_t kNever = RoleForm::kNever;
constexpr int64_t kMicro = 1000;  // ns

constexpr int64_t kTogether = 2 * kMicro;  // clocks of one device agree to this
constexpr int64_t kIdle = 5 * kMicro;      // compute that pauses for longer waits for something
constexpr int64_t kSoon = 50 * kMicro;     // what begins so soon behind a communication waited for it

constexpr int64_t kRest = 20 * kMicro;    // a shorter pause of a thread is its own
constexpr int64_t kNear = 2000 * kMicro;  // so near to the communication's end goes on who waited for it
constexpr size_t kNearby = 4, kPart = 8;  // ops, and one in so many of those between: how far off a wait may be

int64_t BeginOf(const KinetoRank& rank, const RankStep& step, size_t compute) {
  return rank.ops[step.computes[compute]].begin_ns;
}

size_t FirstFrom(const KinetoRank& rank, const RankStep& step, int64_t time) {
  const auto first = std::lower_bound(step.computes.begin(), step.computes.end(), time,
                                      [&](uint32_t op, int64_t when) { return rank.ops[op].begin_ns < when; });
  return static_cast<size_t>(first - step.computes.begin());
}

// When the computes up to each have ended.
std::vector<int64_t> LastEnds(const KinetoRank& rank, const RankStep& step) {
  std::vector<int64_t> ends;
  ends.reserve(step.computes.size());
  for (const uint32_t op : step.computes)
    ends.push_back(std::max(ends.empty() ? INT64_MIN : ends.back(), rank.ops[op].end_ns()));
  return ends;
}

// Behind the last compute that was launched, and ended, before the communication began.
size_t InputOnDevice(const KinetoRank& rank, const RankStep& step, const DeviceOp& collective) {
  size_t place = FirstFrom(rank, step, collective.begin_ns);
  for (; place > 0; --place) {
    const DeviceOp& before = rank.ops[step.computes[place - 1]];
    const bool both_told = before.launch_ns != kNoTime && collective.launch_ns != kNoTime;
    if (before.end_ns() <= collective.begin_ns + kTogether && (!both_told || before.launch_ns <= collective.launch_ns))
      break;
  }
  return place;
}

// The first compute behind the communication, if it waited for it: nothing ran before, and it began at once.
size_t AwaitedOnDevice(const KinetoRank& rank, const RankStep& step, const std::vector<int64_t>& last_end,
                       const DeviceOp& collective) {
  const int64_t end = collective.end_ns();
  const size_t first = FirstFrom(rank, step, end - kTogether);
  if (first == step.computes.size() || BeginOf(rank, step, first) > end + kSoon) return kNever;
  return first > 0 && last_end[first - 1] + kIdle > end ? kNever : first;
}

// Of the communications of a step, (end, index), by end.
using Ends = std::vector<std::pair<int64_t, size_t>>;

Ends EndsOf(const KinetoRank& rank, const RankStep& step) {
  Ends ends;
  for (size_t i = 0; i < step.collectives.size(); ++i) ends.emplace_back(rank.ops[step.collectives[i]].end_ns(), i);
  std::sort(ends.begin(), ends.end());
  return ends;
}

// The communication that was launched before this one and ended just before it began, if its input was there and its
// stream free (`ready`) long before that: the host had the device wait for it.
size_t BehindOnDevice(const Ends& ends, int64_t begin, int64_t ready, size_t communication) {
  if (ready == INT64_MIN || begin <= ready + kSoon) return kNever;
  size_t found = kNever;
  const std::pair from(std::max(begin - kSoon, ready + kIdle), size_t{0});
  for (auto one = std::lower_bound(ends.begin(), ends.end(), from);
       one != ends.end() && one->first <= begin + kTogether; ++one)
    if (one->second < communication) found = one->second;
  return found;
}

// Behind the last compute that had ended when the communication was handed over.
size_t InputOnHost(const KinetoRank& rank, const RankStep& step, const DeviceOp& collective) {
  const int64_t handed = collective.launch_ns == kNoTime ? collective.begin_ns : collective.launch_ns;
  size_t place = FirstFrom(rank, step, handed);
  while (place > 0 && rank.ops[step.computes[place - 1]].end_ns() > handed) --place;
  return place;
}

// How long nothing ran before a compute.
int64_t RestBefore(const KinetoRank& rank, const RankStep& step, const std::vector<int64_t>& last_end, size_t compute) {
  return compute == 0 ? 0 : BeginOf(rank, step, compute) - last_end[compute - 1];
}

// What went on behind the rest whose end is nearest to the communication's.
size_t AwaitedOnHost(const KinetoRank& rank, const RankStep& step, const std::vector<int64_t>& last_end, size_t input,
                     const DeviceOp& collective) {
  const int64_t end = collective.end_ns();
  size_t found = kNever;
  int64_t nearest = kNear;
  for (size_t at = std::max(input, FirstFrom(rank, step, end - kNear)); at < step.computes.size(); ++at) {
    const int64_t begin = BeginOf(rank, step, at);
    if (begin > end + kNear) break;
    if (std::abs(begin - end) >= nearest || RestBefore(rank, step, last_end, at) < kRest) continue;
    nearest = std::abs(begin - end);
    found = at;
  }
  return found;
}

// Of `at`, so many before and so many behind it; `at`, if none rests for longer than a thread does by itself.
size_t AtLongestRest(const KinetoRank& rank, const RankStep& step, const std::vector<int64_t>& last_end, size_t at,
                     size_t before, size_t behind) {
  size_t longest = at;
  int64_t rest = at < step.computes.size() ? std::max(kRest, RestBefore(rank, step, last_end, at)) : kRest;
  for (size_t other = at - std::min(at, before); other < std::min(at + behind + 1, step.computes.size()); ++other)
    if (const int64_t own = RestBefore(rank, step, last_end, other); own > rest) rest = own, longest = other;
  return longest;
}

std::vector<size_t> InputsOnHost(const KinetoRank& rank, const RankStep& step) {
  std::vector<size_t> inputs;
  inputs.reserve(step.collectives.size());
  for (const uint32_t op : step.collectives)
    inputs.push_back(std::max(inputs.empty() ? 0 : inputs.back(), InputOnHost(rank, step, rank.ops[op])));
  return inputs;
}

}  // namespace

Places DevicePlaces(const KinetoRank& rank, const RankStep& step) {
  const std::vector<int64_t> last_end = LastEnds(rank, step);
  const Ends ends = EndsOf(rank, step);
  std::map<uint32_t, int64_t> free_at;  // of each stream
  Places places;
  for (const uint32_t index : step.collectives) {
    const DeviceOp& op = rank.ops[index];
    const size_t input = InputOnDevice(rank, step, op);
    int64_t& free = free_at.emplace(op.stream, INT64_MIN).first->second;
    const int64_t ready = std::max(free, input == 0 ? INT64_MIN : last_end[input - 1]);
    places.behind.push_back(BehindOnDevice(ends, op.begin_ns, ready, places.inputs.size()));
    places.inputs.push_back(input);
    places.awaited.push_back(AwaitedOnDevice(rank, step, last_end, op));
    free = std::max(free, op.end_ns());
  }
  return places;
}

HostPlaces::HostPlaces(const std::vector<StepOfRank>& steps) {
  struct Seen {
    size_t steps = 0;
    std::vector<std::vector<size_t>> distances;  // [communication]
  };
  const size_t communications = steps.front().step->collectives.size();
  Seen all{0, std::vector<std::vector<size_t>>(communications)};
  std::map<const KinetoRank*, Seen> of_ranks;
  for (const auto& [rank, step] : steps) {
    Seen& own = of_ranks.try_emplace(rank, Seen{0, std::vector<std::vector<size_t>>(communications)}).first->second;
    ++own.steps, ++all.steps;
    const std::vector<size_t> inputs = InputsOnHost(*rank, *step);
    const std::vector<int64_t> last_end = LastEnds(*rank, *step);
    for (size_t i = 0; i < communications; ++i) {
      const size_t at = AwaitedOnHost(*rank, *step, last_end, inputs[i], rank->ops[step->collectives[i]]);
      if (at == kNever) continue;
      own.distances[i].push_back(at - inputs[i]);
      all.distances[i].push_back(at - inputs[i]);
    }
  }
  const auto often = [](const Seen& seen, size_t i) { return IsAwaited(seen.distances[i].size(), seen.steps); };
  for (const auto& [rank, own] : of_ranks) {
    std::vector<size_t>& distances = distances_[rank];
    for (size_t i = 0; i < communications; ++i)
      distances.push_back(!often(all, i) ? kNever : LowerMedian((often(own, i) ? own : all).distances[i]));
  }
}

Places HostPlaces::In(const KinetoRank& rank, const RankStep& step) const {
  const std::vector<size_t>& distances = distances_.at(&rank);
  const std::vector<int64_t> last_end = LastEnds(rank, step);
  Places places{InputsOnHost(rank, step), distances, std::vector<size_t>(distances.size(), kNever)};
  std::map<size_t, size_t> waits;  // by where they are looked for: how far around
  for (size_t i = 0; i < distances.size(); ++i)
    if (distances[i] != kNever) {
      places.awaited[i] = std::min(places.inputs[i] + distances[i], step.computes.size());
      waits[places.awaited[i]] = kNearby + distances[i] / kPart;
    }
  std::map<size_t, size_t> found;
  for (auto one = waits.begin(); one != waits.end(); ++one) {
    const auto [at, around] = *one;
    const size_t before = one == waits.begin() ? around : std::min(around, (at - std::prev(one)->first) / 2);
    const size_t behind = std::next(one) == waits.end() ? around : std::min(around, (std::next(one)->first - at) / 2);
    found[at] = AtLongestRest(rank, step, last_end, at, before, behind);
  }
  for (size_t i = 0; i < distances.size(); ++i)
    if (distances[i] != kNever) places.awaited[i] = std::max(places.inputs[i], found.at(places.awaited[i]));
  return places;
}

}  // namespace lockstep::trace
