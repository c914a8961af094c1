#include "lockstep/sampling/group.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/sampling/random.h"
#include "lockstep/sampling/rest.h"
#include "lockstep/sampling/simulate.h"

namespace lockstep::sampling {
namespace {

constexpr uint64_t kMostOrdered = uint64_t{1} << 27;    // items of a data set whose orders are held in memory
constexpr uint64_t kMostRehearsed = uint64_t{1} << 18;  // taken in one rehearsal

// Every k-th item, by chance, of sets that are too large to rehearse whole.
ItemSet Thin(const ItemSet& set, uint64_t k) {
  std::vector<ItemRange> kept;
  Rng rng(k);
  for (uint64_t index = 0; index < set.size(); index += 1 + rng.Below(2 * k - 1)) {
    const uint64_t id = set.At(index);
    kept.push_back({id, id});
  }
  return ItemSet(kept);
}

// Common orders are worth some loads: a job goes on with them exactly, from a few numbers.
Policy BestToResume(const Rehearsal& rehearsal) {
  constexpr double kWorth = 1.02;
  const Policy best = rehearsal.Best();
  const auto common = static_cast<double>(rehearsal.Of(Policy::kCommon));
  return common <= kWorth * static_cast<double>(rehearsal.Of(best)) ? Policy::kCommon : best;
}

}  // namespace

struct Group::Member {
  Stream stream;  // of a common order; where the policy is another, only its sets and identity count
  double rate = 1;
  Policy policy = Policy::kCommon;
  int64_t begun = 0;
  // Of the others: the set, as indices into the data set, and what was given of it in this epoch and the last.
  StreamPlace place{};
  std::vector<Item> items{};
  std::map<uint64_t, std::vector<Item>> given{};
};

Group::Group(GroupOptions options) : options_(std::move(options)), laps_(options_.dataset.size()) {}
Group::~Group() = default;

absl::StatusOr<std::unique_ptr<Group>> Group::Create(GroupOptions options) {
  LS_RETURN_IF_ERROR(Stream::Create({.dataset = options.dataset}).status());
  if (options.deterministic && options.policy && *options.policy != Policy::kCommon)
    return InvalidArgument("a deterministic group has common orders, not policy {}", NameOf(*options.policy));
  if (options.policy && *options.policy != Policy::kCommon && options.dataset.size() > kMostOrdered)
    return InvalidArgument("policy {} holds its orders in memory: at most {} items, here {}", NameOf(*options.policy),
                           kMostOrdered, options.dataset.size());
  if (options.deterministic) options.policy = Policy::kCommon;
  return std::unique_ptr<Group>(new Group(std::move(options)));
}

absl::StatusOr<Group::Member> Group::MakeMember(int job, GroupJob spec) const {
  if (members_.contains(job)) return MakeError(absl::StatusCode::kAlreadyExists, fmt::format("job {} is in", job));
  if (!(spec.rate > 0)) return InvalidArgument("job {}: a rate of {} items a step", job, spec.rate);
  LS_ASSIGN_OR_RETURN(
      Stream stream,
      Stream::Create({.dataset = options_.dataset, .items = std::move(spec.items), .seed = options_.seed}));
  return Member{.stream = std::move(stream), .rate = spec.rate};
}

absl::Status Group::Join(int job, GroupJob spec, int64_t now) {
  LS_ASSIGN_OR_RETURN(Member member, MakeMember(job, std::move(spec)));
  Begin(job, members_.emplace(job, std::move(member)).first->second, now);
  return absl::OkStatus();
}

absl::Status Group::Resume(int job, GroupJob spec, std::string_view state, int64_t now) {
  LS_ASSIGN_OR_RETURN(Member member, MakeMember(job, std::move(spec)));
  member.begun = now;
  if (IsRest(state)) {
    LS_RETURN_IF_ERROR(ResumeRest(job, member, state, now));
  } else {
    LS_RETURN_IF_ERROR(member.stream.Load(state));
    if (!options_.deterministic) BeginBehind(member.stream.place().last_lap);
  }
  members_.emplace(job, std::move(member));
  return absl::OkStatus();
}

absl::Status Group::ResumeRest(int job, Member& member, std::string_view state, int64_t now) {
  if (options_.deterministic)
    return FailedPrecondition("job {}: a state of a group that is not deterministic, for one that is", job);
  LS_ASSIGN_OR_RETURN(const Rest rest, LoadRest(state, member.stream.Identity(), member.stream.size()));
  member.policy = options_.policy && *options_.policy != Policy::kCommon ? *options_.policy : Policy::kAligned;
  BeginBehind(rest.lap);
  std::vector<Item> left;
  std::vector<Item>& given = member.given[rest.epoch];
  for (uint64_t i = 0; i < rest.left.size(); ++i) {
    const auto item = static_cast<Item>(*options_.dataset.IndexOf(member.stream.items().At(i)));
    (rest.left[i] ? left : given).push_back(item);
  }
  member.place = {.epoch = rest.epoch, .taken = given.size()};
  BeginOrder(job, member, left, now);
  return absl::OkStatus();
}

void Group::Leave(int job) {
  const auto found = members_.find(job);
  if (found == members_.end()) return;
  for (auto& [policy, sampler] : samplers_) sampler->Leave(job);
  laps_.Leave(job);
  members_.erase(found);
}

Sampler& Group::SamplerOf(Policy policy) {
  std::unique_ptr<Sampler>& sampler = samplers_[policy];
  if (!sampler) sampler = MakeSampler(policy, {.universe = options_.dataset.size(), .seed = options_.seed});
  return *sampler;
}

Policy Group::Choose(int job, const Member& member, int64_t now) const {
  if (options_.policy) return *options_.policy;
  if (options_.dataset.size() > kMostOrdered) return Policy::kCommon;
  uint64_t items = 0, largest = 1;
  int64_t first = now;
  for (const auto& [other, each] : members_) {
    items += each.stream.size();
    largest = std::max(largest, each.stream.size());
    if (other != job) first = std::min(first, each.begun);
  }
  const uint64_t k = items / kMostRehearsed + 1;
  SimulateOptions options{.cache_items = options_.cache_items / k, .seed = options_.seed};
  std::vector<ItemSet> sets;
  for (const auto& [other, each] : members_) {
    sets.push_back(k == 1 ? each.stream.items() : Thin(each.stream.items(), k));
    const int64_t begun = &each == &member ? now : each.begun;
    options.start.push_back(std::min(1.0, static_cast<double>(begun - first) / static_cast<double>(largest)));
    options.rates.push_back(std::clamp(each.rate, 0.001, 1000.0));
  }
  const auto rehearsal = Rehearse(sets, options);
  return rehearsal.ok() ? BestToResume(*rehearsal) : Policy::kCommon;
}

void Group::Begin(int job, Member& member, int64_t now) {
  const Policy policy = Choose(job, member, now);
  member.policy = policy;
  member.begun = now;
  if (policy == Policy::kCommon) {
    const double steps = std::max(1.0, static_cast<double>(member.stream.size()) / member.rate);
    Lap lap{.number = member.place.epoch};
    if (!options_.deterministic) lap = laps_.Begin({.job = job, .steps = steps, .now = now});
    member.stream.Begin(lap, member.place.epoch);
    return;
  }
  if (policy == Policy::kPacked) {
    for (auto& [other, each] : members_) Announce(other, each);
  }
  FindItems(member);
  member.place.taken = 0;
  BeginOrder(job, member, member.items, now);
}

void Group::FindItems(Member& member) const {
  if (!member.items.empty()) return;
  member.items.reserve(member.stream.size());
  for (uint64_t i = 0; i < member.stream.size(); ++i)
    member.items.push_back(static_cast<Item>(*options_.dataset.IndexOf(member.stream.items().At(i))));
}

void Group::Announce(int job, Member& member) {
  FindItems(member);
  SamplerOf(Policy::kPacked).Announce(job, member.items);
}

void Group::BeginOrder(int job, Member& member, std::span<const Item> items, int64_t now) {
  member.given[member.place.epoch];
  Sampler& sampler = SamplerOf(member.policy);
  if (items.empty()) return;
  sampler.Begin({.job = job,
                 .items = items,
                 .rate = member.rate,
                 .now = now,
                 .epoch = member.place.epoch,
                 .had = member.place.taken});
}

void Group::BeginEpoch(int job, int64_t now) {
  LS_CHECK(Left(job) == 0, "job {} has {} items left", job, Left(job));
  Member& member = members_.at(job);
  member.place.epoch = Epoch(job) + 1;
  std::erase_if(member.given, [&](const auto& entry) { return entry.first + 1 < member.place.epoch; });
  Begin(job, member, now);
}

Delivery Group::DrawStream(int job) {
  Stream& stream = members_.at(job).stream;
  const uint64_t id = stream.Next();
  return {.job = job, .id = id, .after = stream.place()};
}

void Group::DrawSampler(Policy policy, std::span<const int> takers, std::vector<Delivery>& deliveries) {
  std::vector<Item> picks(takers.size());
  SamplerOf(policy).Draw(takers, picks);
  for (size_t i = 0; i < takers.size(); ++i) {
    Member& member = members_.at(takers[i]);
    member.given[member.place.epoch].push_back(picks[i]);
    ++member.place.taken;
    deliveries.push_back({.job = takers[i], .id = options_.dataset.At(picks[i]), .after = member.place});
  }
}

void Group::Draw(std::span<const int> takers, std::vector<Delivery>& deliveries) {
  deliveries.clear();
  std::map<Policy, std::vector<int>> by_policy;
  for (const int job : takers) {
    LS_CHECK(Left(job) > 0, "job {} has nothing left", job);
    if (PolicyOf(job) == Policy::kCommon)
      deliveries.push_back(DrawStream(job));
    else
      by_policy[PolicyOf(job)].push_back(job);
  }
  for (const auto& [policy, jobs] : by_policy) DrawSampler(policy, jobs, deliveries);
  for (Delivery& delivery : deliveries) delivery.still_needed = StillNeeded(delivery.id);
}

uint64_t Group::Left(int job) const {
  const Member& member = members_.at(job);
  if (member.policy == Policy::kCommon) return member.stream.left();
  return samplers_.at(member.policy)->Left(job);
}

StreamPlace Group::Place(int job) const {
  const Member& member = members_.at(job);
  return member.policy == Policy::kCommon ? member.stream.place() : member.place;
}

uint64_t Group::Epoch(int job) const { return Place(job).epoch; }
Policy Group::PolicyOf(int job) const { return members_.at(job).policy; }

uint64_t Group::LastLap() const {
  uint64_t last = laps_.last();
  for (const auto& [policy, sampler] : samplers_) last = std::max(last, sampler->LastLap());
  return last;
}

void Group::BeginBehind(uint64_t lap) {
  laps_.BeginBehind(lap);
  SamplerOf(Policy::kPacked).BeginBehind(lap);
}

std::string Group::Save(int job, const StreamPlace& after) const {
  const Member& member = members_.at(job);
  const auto given = member.given.find(after.epoch);
  if (given == member.given.end()) {
    StreamPlace place = after;
    if (!options_.deterministic) place.last_lap = LastLap();
    return member.stream.SaveAt(place);
  }
  LS_CHECK(after.taken <= given->second.size(), "{} of {}", after.taken, given->second.size());
  Rest rest{.identity = member.stream.Identity(),
            .epoch = after.epoch,
            .lap = LastLap(),
            .left = std::vector<bool>(member.stream.size(), true)};
  for (uint64_t i = 0; i < after.taken; ++i)
    rest.left[*member.stream.items().IndexOf(options_.dataset.At(given->second[i]))] = false;
  return SaveRest(rest);
}

std::optional<uint64_t> Group::Ahead(int job, const Member& member, uint64_t id) const {
  if (member.policy == Policy::kCommon) return member.stream.Ahead(id);
  const auto index = options_.dataset.IndexOf(id);
  if (!index) return std::nullopt;
  return samplers_.at(member.policy)->Ahead(job, static_cast<Item>(*index));
}

bool Group::Needs(int job, const Member& member, uint64_t id) const {
  if (member.policy != Policy::kDependent) return Ahead(job, member, id).has_value();
  const auto index = options_.dataset.IndexOf(id);
  return index && samplers_.at(member.policy)->Needs(job, static_cast<Item>(*index));
}

int Group::StillNeeded(uint64_t id) const {
  return static_cast<int>(std::count_if(members_.begin(), members_.end(),
                                        [&](const auto& entry) { return Needs(entry.first, entry.second, id); }));
}

std::optional<double> Group::StepsUntilNeeded(uint64_t id) const {
  std::optional<double> steps;
  for (const auto& [job, member] : members_) {
    const auto ahead = Ahead(job, member, id);
    if (!ahead) continue;
    const double own = static_cast<double>(*ahead) / member.rate;
    steps = steps ? std::min(*steps, own) : own;
  }
  return steps;
}

}  // namespace lockstep::sampling
