#include "lockstep/sampling/group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/sampling/random.h"
#include "lockstep/sampling/test_uniformity.h"

namespace lockstep::sampling {
namespace {

using testing::HasSubstr;

ItemSet Set(const std::string& text) { return *ParseItemSet(text, {.path = "test"}); }

std::unique_ptr<Group> Make(GroupOptions options) {
  auto group = Group::Create(std::move(options));
  EXPECT_TRUE(group.ok()) << group.status();
  return std::move(*group);
}

// What the job gets of this epoch from here on, one item at a time.
std::vector<uint64_t> Drain(Group& group, int job) {
  std::vector<uint64_t> ids;
  std::vector<Delivery> deliveries;
  while (group.Left(job) > 0) {
    group.Draw(std::span(&job, 1), deliveries);
    ids.push_back(deliveries.at(0).id);
  }
  return ids;
}

std::vector<uint64_t> Sorted(std::vector<uint64_t> ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

const GroupOptions kOptions[] = {
    {.dataset = ItemSet::Below(300), .deterministic = true, .seed = 5},
    {.dataset = ItemSet::Below(300), .policy = Policy::kCommon, .seed = 5},
    {.dataset = ItemSet::Below(300), .policy = Policy::kAligned, .seed = 5},
    {.dataset = ItemSet::Below(300), .policy = Policy::kPacked, .seed = 5},
    {.dataset = ItemSet::Below(300), .policy = Policy::kDependent, .seed = 5},
    {.dataset = ItemSet::Below(300), .policy = Policy::kIndependent, .seed = 5},
    {.dataset = ItemSet::Below(300), .seed = 5},
};

// Three jobs at random paces; each saves after a delivery, dies, and resumes in a new group, over three epochs.
TEST(Group, IsExactlyOnceThroughCrashesOfJobsAndService) {
  for (const GroupOptions& options : kOptions) {
    const std::vector<std::optional<ItemSet>> sets{std::nullopt, Set("0-99,150-160"), Set("50-299")};
    std::vector<std::vector<std::vector<uint64_t>>> got(3, std::vector<std::vector<uint64_t>>(3));
    std::vector<std::string> states(3);
    Rng rng(8);
    int64_t now = 0;
    for (int life = 0; life < 60; ++life) {
      const auto group = Make(options);
      for (int job = 0; job < 3; ++job) {
        const auto at = static_cast<size_t>(job);
        const absl::Status in = states[at].empty() ? group->Join(job, {.items = sets[at]}, now)
                                                   : group->Resume(job, {.items = sets[at]}, states[at], now);
        ASSERT_TRUE(in.ok()) << in;
      }
      std::vector<Delivery> deliveries;
      for (uint64_t step = 0; step < 30; ++step, ++now) {
        std::vector<int> takers;
        for (int job = 0; job < 3; ++job) {
          if (rng.Below(3) == 0 || (group->Left(job) == 0 && group->Epoch(job) == 2)) continue;
          if (group->Left(job) == 0) group->BeginEpoch(job, now);
          takers.push_back(job);
        }
        group->Draw(takers, deliveries);
        ASSERT_EQ(deliveries.size(), takers.size());
        // Of the last step, nothing arrives: the service dies with what it had prepared.
        if (step == 29) break;
        for (const Delivery& delivery : deliveries) {
          const auto job = static_cast<size_t>(delivery.job);
          got[job][delivery.after.epoch].push_back(delivery.id);
          EXPECT_EQ(got[job][delivery.after.epoch].size(), delivery.after.taken);
          states[job] = group->Save(delivery.job, delivery.after);
        }
      }
    }
    for (size_t job = 0; job < 3; ++job) {
      const ItemSet set = sets[job].value_or(options.dataset);
      for (const auto& epoch : got[job]) {
        ASSERT_EQ(epoch.size(), set.size()) << job;
        const std::vector<uint64_t> sorted = Sorted(epoch);
        for (uint64_t i = 0; i < set.size(); ++i) ASSERT_EQ(sorted[i], set.At(i));
      }
      if (options.deterministic) {
        EXPECT_LT(states[job].size(), 1024U);
      }
    }
  }
}

// A job of seven items beside one of nine; after some steps the service dies and both go on from what they saved. What
// the job gets of two epochs is as uniform as without that.
void ExpectUniformThroughRestarts(const std::string& name, GroupOptions options, uint64_t seed) {
  options.dataset = ItemSet::Below(10);
  OrderCounts counts(7);
  for (uint64_t run = 0; run < 1500; ++run) {
    options.seed = Hash(seed, run);
    Rng rng(Hash(options.seed, 99));
    const GroupJob jobs[] = {{.items = Set("1-7")}, {.items = Set("0-5,7-9")}};
    std::vector<std::vector<uint32_t>> got(2);
    std::string states[2];
    int64_t now = 0;
    while (got[1].size() < 7) {
      const auto group = Make(options);
      for (int job = 0; job < 2; ++job) {
        ASSERT_TRUE(
            (states[job].empty() ? group->Join(job, jobs[job], now) : group->Resume(job, jobs[job], states[job], now))
                .ok());
      }
      std::vector<Delivery> deliveries;
      for (uint64_t step = 3 + rng.Below(9); step > 0; --step, ++now) {
        for (int job = 0; job < 2; ++job) {
          if (group->Left(job) == 0) group->BeginEpoch(job, now);
        }
        group->Draw(std::vector<int>{0, 1}, deliveries);
        for (const Delivery& delivery : deliveries) {
          if (delivery.job == 0 && delivery.after.epoch < 2)
            got[delivery.after.epoch].push_back(static_cast<uint32_t>(delivery.id - 1));
          states[delivery.job] = group->Save(delivery.job, delivery.after);
        }
      }
    }
    ASSERT_EQ(got[0].size(), 7U);
    counts.Add(got[0], got[1]);
  }
  EXPECT_GT(counts.PlaceChance(), 0.001) << name << " " << seed;
  EXPECT_GT(counts.PairChance(), 0.001) << name << " " << seed;
  EXPECT_GT(counts.EpochChance(), 0.001) << name << " " << seed;
}

TEST(Group, IsUniformThroughRestarts) {
  for (const GroupOptions& options : kOptions) {
    const std::string name(options.policy ? NameOf(*options.policy) : options.deterministic ? "deterministic" : "auto");
    for (uint64_t seed = 0; seed < 3; ++seed) ExpectUniformThroughRestarts(name, options, seed);
  }
}

// Alone or with others that come and go, at any time and pace: the same stream, bit for bit.
TEST(Group, SharingChangesNothingOfADeterministicJob) {
  const GroupOptions options{.dataset = ItemSet::Below(500), .deterministic = true, .seed = 5};
  const GroupJob spec{.items = Set("100-399")};
  const auto alone = Make(options), shared = Make(options);
  ASSERT_TRUE(alone->Join(7, spec, 0).ok());
  ASSERT_TRUE(shared->Join(1, {}, 0).ok());
  std::vector<Delivery> deliveries;
  for (int i = 0; i < 40; ++i) shared->Draw(std::vector<int>{1}, deliveries);
  ASSERT_TRUE(shared->Join(2, spec, 40).ok());
  std::vector<uint64_t> ids;
  while (shared->Left(2) > 0) {
    if (shared->Left(1) > 0)
      shared->Draw(std::vector<int>{1, 2}, deliveries);
    else
      shared->Draw(std::vector<int>{2}, deliveries);
    ids.push_back(deliveries.back().id);
  }
  EXPECT_EQ(ids, Drain(*alone, 7));
}

TEST(Group, SaysWhoStillNeedsAnItem) {
  const auto group = Make({.dataset = ItemSet::Below(100), .policy = Policy::kCommon, .seed = 1});
  for (int job = 0; job < 3; ++job) ASSERT_TRUE(group->Join(job, {.rate = job == 2 ? 0.5 : 1}, 0).ok());
  std::vector<Delivery> deliveries;
  group->Draw(std::vector<int>{0}, deliveries);
  EXPECT_EQ(deliveries[0].still_needed, 2);
  EXPECT_EQ(group->StepsUntilNeeded(deliveries[0].id), 0.0);
  group->Draw(std::vector<int>{0}, deliveries);
  EXPECT_EQ(group->StepsUntilNeeded(deliveries[0].id), 1.0);
  group->Draw(std::vector<int>{1}, deliveries);
  group->Draw(std::vector<int>{1}, deliveries);
  EXPECT_EQ(deliveries[0].still_needed, 1);
  EXPECT_EQ(group->StepsUntilNeeded(deliveries[0].id), 2.0);
  group->Leave(2);
  EXPECT_EQ(group->StillNeeded(deliveries[0].id), 0);
}

TEST(Group, OfABillionItemsHoldsNone) {
  const auto group = Make({.dataset = ItemSet::Below(1'000'000'000), .seed = 1});
  ASSERT_TRUE(group->Join(0, {}, 0).ok());
  ASSERT_TRUE(group->Join(1, {.items = Set("0-499999999")}, 0).ok());
  std::vector<Delivery> deliveries;
  for (int i = 0; i < 1000; ++i) group->Draw(std::vector<int>{0, 1}, deliveries);
  EXPECT_EQ(group->Place(1).taken, 1000U);
}

TEST(Group, RefusesWhatCannotBe) {
  EXPECT_FALSE(Group::Create({}).ok());
  EXPECT_THAT(
      Message(
          Group::Create({.dataset = ItemSet::Below(9), .policy = Policy::kDependent, .deterministic = true}).status()),
      HasSubstr("deterministic"));
  EXPECT_THAT(Message(Group::Create({.dataset = ItemSet::Below(1'000'000'000), .policy = Policy::kDependent}).status()),
              HasSubstr("at most 134217728 items"));
  const auto group = Make({.dataset = ItemSet::Below(9)});
  ASSERT_TRUE(group->Join(0, {}, 0).ok());
  EXPECT_EQ(group->Join(0, {}, 0).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Message(group->Join(1, {.items = Set("5-10")}, 0)), HasSubstr("items 5-10 are not all in the data set"));
  EXPECT_THAT(Message(group->Join(1, {.rate = 0}, 0)), HasSubstr("a rate of 0"));
  EXPECT_FALSE(group->Resume(1, {}, "nonsense", 0).ok());
  EXPECT_FALSE(group->Resume(1, {}, "lockstep-rest-1\nshort", 0).ok());
}

}  // namespace
}  // namespace lockstep::sampling
