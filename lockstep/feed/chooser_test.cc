#include "lockstep/feed/chooser.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "lockstep/feed/test_job.h"

namespace lockstep::feed {
namespace {

using sampling::Group;
using sampling::GroupChoice;
using sampling::GroupQuestion;
using sampling::Policy;

class ChooserTest : public testing::Test {
 protected:
  ChooserTest() {
    std::vector<std::unique_ptr<Maker>> makers;
    makers.push_back(std::make_unique<CountingMaker>(works_));
    dispatcher_ = std::make_unique<Dispatcher>(
        Dispatcher::Settings{}, std::move(makers), [](uint64_t) { return int64_t{0}; }, clock_);
  }
  static std::shared_ptr<Group> NewGroup(uint64_t seed) {
    return std::make_shared<Group>(sampling::GroupOptions{.items = kTestItems, .seed = seed, .cache_items = 20});
  }
  void Join(const std::shared_ptr<Group>& group, uint64_t key) {
    const auto set = std::make_shared<const sampling::ItemSet>(sampling::ItemSet::Below(kTestItems));
    dispatcher_->Look([&](const Dispatcher&) { group->Join(key, set); });
    const auto job = std::make_shared<Job>(Job{.name = std::to_string(key),
                                               .terms = "0-599",
                                               .cut = {kTestItems, 10, 1},
                                               .recipe = {},
                                               .seed = group->options().seed,
                                               .key = key,
                                               .epochs = Epochs(key, 1, group)});
    ranks_.push_back(std::make_unique<TestRank>(*dispatcher_, job, 0, 2));
  }
  Policy PolicyOf(const Group& group) const {
    Policy policy{};
    dispatcher_->Look([&](const Dispatcher&) { policy = group.choice().policy; });
    return policy;
  }
  // What was asked, when so many questions have come; the test's time limit is the limit.
  std::vector<GroupQuestion> Asked(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return asked_.size() >= count; });
    return asked_;
  }
  void Note(const GroupQuestion& question) {
    const std::scoped_lock lock(mutex_);
    asked_.push_back(question);
    changed_.notify_all();
  }

  Works works_;
  TestClock clock_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::vector<std::unique_ptr<TestRank>> ranks_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<GroupQuestion> asked_;
};

// The version that is answered is never the group's: both are always due.
TEST_F(ChooserTest, GroupsHaveTheirTurn) {
  const auto first = NewGroup(3), second = NewGroup(8);
  Join(first, 1);
  Join(second, 2);
  const Chooser chooser(*dispatcher_, [&](const GroupQuestion& question, const std::stop_token&) {
    Note(question);
    return GroupChoice{};
  });
  const std::vector<GroupQuestion> asked = Asked(6);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(asked[i].seed, i % 2 == 0 ? 3U : 8U) << i;
}

TEST_F(ChooserTest, AChoiceCountsUntilWhatChangedMeanwhileIsChosenFor) {
  const auto group = NewGroup(3);
  Join(group, 1);
  Join(group, 2);
  bool go_on = false;
  const Chooser chooser(*dispatcher_, [&](const GroupQuestion& question, const std::stop_token& stop) {
    Note(question);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, stop, [&] { return go_on || question.sets.size() == 3; });
    return GroupChoice{.version = question.version,
                       .policy = question.sets.size() == 2 ? Policy::kPaced : Policy::kCommon};
  });
  Asked(1);
  Join(group, 3);
  EXPECT_EQ(PolicyOf(*group), Policy::kCommon);  // nothing was chosen yet
  {
    const std::scoped_lock lock(mutex_);
    go_on = true;
    changed_.notify_all();
  }
  const std::vector<GroupQuestion> asked = Asked(2);
  EXPECT_EQ(asked[0].sets.size(), 2U);
  EXPECT_EQ(asked[1].sets.size(), 3U);
  while (PolicyOf(*group) != Policy::kCommon) std::this_thread::yield();
}

TEST_F(ChooserTest, AStopEndsAChoiceAndItIsNotTaken) {
  const auto group = NewGroup(3);
  Join(group, 1);
  {
    const Chooser chooser(*dispatcher_, [&](const GroupQuestion& question, const std::stop_token& stop) {
      Note(question);
      std::unique_lock lock(mutex_);
      changed_.wait(lock, stop, [] { return false; });
      return GroupChoice{.version = question.version, .policy = Policy::kPaced};
    });
    Asked(1);
  }
  EXPECT_EQ(PolicyOf(*group), Policy::kCommon);
  EXPECT_TRUE(group->IsStale());
}

}  // namespace
}  // namespace lockstep::feed
