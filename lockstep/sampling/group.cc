#include "lockstep/sampling/group.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/base/mix.h"
#include "lockstep/sampling/simulate.h"

namespace lockstep::sampling {
namespace {

constexpr uint64_t kMostPaced = uint64_t{1} << 22;      // items of a data set: a window may be walked under a lock
constexpr uint64_t kMostRehearsed = uint64_t{1} << 14;  // taken in one rehearsal
constexpr Policy kServed[] = {Policy::kCommon, Policy::kPaced};

// Every k-th item, by chance, of sets that are too large to rehearse whole: the same ones of each, so that they overlap
// as much as before.
ItemSet Thin(const ItemSet& set, uint64_t k) {
  if (k == 1) return set;
  std::vector<ItemRange> kept;
  for (uint64_t index = 0; index < set.size(); ++index) {
    const uint64_t id = set.At(index);
    if (Mix(id ^ kGoldenGamma) % k == 0) kept.push_back({id, id});
  }
  if (kept.empty() && set.size() > 0) kept.push_back({set.At(0), set.At(0)});
  return ItemSet(kept);
}

// Items a step of each job, where the fastest takes one. A job that nobody has timed is as fast as that.
std::vector<double> RatesOf(const std::vector<double>& item_ns, double fastest) {
  constexpr double kSlowest = 0.05;  // a slower one shares as little
  std::vector<double> rates;
  for (const double ns : item_ns) rates.push_back(ns > 0 ? std::clamp(fastest / ns, kSlowest, 1.0) : 1.0);
  return rates;
}

double Fastest(const std::vector<double>& item_ns) {
  double fastest = 0;
  for (const double ns : item_ns) {
    if (ns > 0 && (fastest == 0 || ns < fastest)) fastest = ns;
  }
  return fastest;
}

}  // namespace

GroupChoice Choose(const GroupQuestion& question, const std::stop_token& stop) {
  GroupChoice choice{.version = question.version};
  if (question.sets.size() < 2) return choice;
  uint64_t items = 0, largest = 1;
  for (const auto& set : question.sets) {
    items += set->size();
    largest = std::max(largest, set->size());
  }
  const uint64_t k = items / kMostRehearsed + 1;
  const double fastest = Fastest(question.item_ns);
  SimulateOptions options{.cache_items = question.cache_items / k,
                          .seed = question.seed,
                          .rates = RatesOf(question.item_ns, fastest),
                          .again = true,
                          .stop = stop};
  std::vector<ItemSet> sets;
  const int64_t first = *std::min_element(question.begun.begin(), question.begun.end());
  for (size_t i = 0; i < question.sets.size(); ++i) {
    if (stop.stop_requested()) return choice;
    sets.push_back(Thin(*question.sets[i], k));
    const double late = fastest > 0 ? static_cast<double>(question.begun[i] - first) / fastest : 0;
    options.start.push_back(std::min(1.0, late / static_cast<double>(largest)));
  }
  const auto rehearsal = Rehearse(sets, options, kServed);
  if (!rehearsal.ok()) return choice;
  for (const auto& [policy, loads] : rehearsal->loads) choice.loads.emplace_back(policy, loads * k);
  const auto common = static_cast<double>(rehearsal->Of(Policy::kCommon)),
             paced = static_cast<double>(rehearsal->Of(Policy::kPaced));
  if (paced < common * (1 - kWorth)) choice.policy = Policy::kPaced;
  return choice;
}

// A quarter of the cache is held back, as in rehearsals: for what is in rings, and for bad luck.
Group::Group(const GroupOptions& options)
    : options_(options), laps_(options.items, options.cache_items - options.cache_items / 4) {
  if (options_.items > kMostPaced) options_.policy = Policy::kCommon;
  if (options_.policy) Decide({.policy = *options_.policy});
}

void Group::Join(uint64_t job, std::shared_ptr<const ItemSet> items) {
  const auto [entry, is_new] = members_.try_emplace(job, Member{.items = std::move(items)});
  LS_CHECK(is_new, "job {:x} is in", job);
  laps_.Forget(job);
  laps_.Announce(job, StepsOf(entry->second));
  ++version_;
}

// It is not known when its epoch began, so that is not timed; and nobody begins at its place of the lap, for it would
// be one of progress.
void Group::GoOn(uint64_t job, uint64_t lap, int64_t now) {
  Member& member = members_.at(job);
  member.begun = now;
  member.in_epoch = true;
  laps_.GoOn(job, lap + 1);
}

// Of an epoch; 0: unknown. A job that nobody has timed is thought as fast as the others are.
double Group::StepsOf(const Member& member) const {
  double sum = member.item_ns;
  int known = sum > 0 ? 1 : 0;
  if (known == 0) {
    for (const auto& [job, other] : members_) {
      sum += other.item_ns;
      known += other.item_ns > 0 ? 1 : 0;
    }
  }
  return known == 0 ? 0 : sum / known * static_cast<double>(member.items->size());
}

Lap Group::Begin(uint64_t job, int64_t now) {
  Member& member = members_.at(job);
  if (member.whole_epoch && now > member.begun)
    SetPace(job, member, static_cast<double>(now - member.begun) / static_cast<double>(member.items->size()));
  member.begun = now;
  member.in_epoch = member.whole_epoch = true;
  Lap lap = laps_.Begin({.job = job, .steps = StepsOf(member), .items = member.items->size(), .now = now});
  --lap.number;  // from 0: a job whose group has no other has the laps of one that is alone
  return lap;
}

void Group::Pace(uint64_t job, double item_ns) {
  Member& member = members_.at(job);
  if (member.item_ns > 0) return;
  SetPace(job, member, item_ns);
  laps_.Pace(job, StepsOf(member));
}

// A choice is made anew where a pace has become another one, not for each breath of it.
void Group::SetPace(uint64_t job, Member& member, double item_ns) {
  constexpr double kSame = 1.2;
  if (item_ns > member.item_ns * kSame || item_ns * kSame < member.item_ns) ++version_;
  member.item_ns = item_ns;
  laps_.Announce(job, StepsOf(member));
}

void Group::Leave(uint64_t job) {
  if (members_.erase(job) == 0) return;
  laps_.Leave(job);
  ++version_;
}

GroupQuestion Group::Ask() const {
  GroupQuestion question{.version = version_, .seed = options_.seed, .cache_items = options_.cache_items};
  int64_t latest = 0;
  for (const auto& [job, member] : members_) latest = std::max(latest, member.begun);
  for (const auto& [job, member] : members_) {
    question.sets.push_back(member.items);
    question.item_ns.push_back(member.item_ns);
    question.begun.push_back(member.in_epoch ? member.begun : latest);
  }
  return question;
}

void Group::Decide(GroupChoice choice) {
  laps_.SetPaced(choice.policy == Policy::kPaced);
  choice_ = std::move(choice);
}

std::vector<uint64_t> Group::jobs() const {
  std::vector<uint64_t> jobs;
  for (const auto& [job, member] : members_) jobs.push_back(job);
  return jobs;
}

}  // namespace lockstep::sampling
