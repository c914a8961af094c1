#include "lockstep/control/fleet.h"

#include <gmock/gmock.h>

#include <set>

#include "lockstep/control/scenario.h"

namespace lockstep::control {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr EpochId kOne{1};

class FleetTest : public testing::Test {
 protected:
  FleetTest() { fleet_.Begin(kOne); }
  std::vector<std::string> Hear(int node, const EventBody& said) {
    std::vector<std::string> names;
    for (const EventBody& event : fleet_.Hear(node, said)) names.push_back(TypeName(event));
    return names;
  }
  // What follows from an answer: "none" if nothing can be restored.
  std::string Answer(int node, const RestoreFound& found) {
    const auto events = fleet_.Hear(node, found);
    if (!events.empty()) {
      rejected_ = std::get<RestoreChosen>(events.front()).rejected;
      return PointText(std::get<RestoreChosen>(events.front()).point);
    }
    std::string asked;
    for (const auto& [whom, question] : fleet_.TakeQuestions()) {
      if (const auto* fetch = std::get_if<FetchKept>(&question)) {
        asked += fmt::format("{}node {} fetches {} from {}", asked.empty() ? "" : ", ", whom, PointText(fetch->point),
                             fetch->host);
        continue;
      }
      const CheckpointId bound = std::get<ChooseOnDisk>(question).not_above;
      asked = on_disk_ ? "on disk, not above " + PointText(bound) : "on disk";
      if (whom == 2) on_disk_ = bound;
    }
    return asked.empty() ? "undecided" : asked;
  }
  // An answer to the newest question, if that was about memory or the disk.
  std::string Find(int node, std::vector<CheckpointId> points, std::vector<std::string> rejected = {}) {
    RestoreFound found{EpochId(2), std::move(points), std::move(rejected)};
    found.not_above = on_disk_;
    return Answer(node, found);
  }
  std::string FindKept(int node, std::vector<CheckpointId> points, std::vector<KeptFor> kept) {
    return Answer(node, {.epoch = EpochId(2), .points = std::move(points), .rejected = {}, .kept = std::move(kept)});
  }
  std::string Fetched(int node, const CheckpointId& point, std::vector<std::string> rejected = {}) {
    const bool worked = rejected.empty();
    RestoreFound found{.epoch = EpochId(2), .points = {}, .rejected = std::move(rejected), .fetched = point};
    if (worked) found.points = {point};
    return Answer(node, found);
  }
  void AllKeepSomewhere() {
    for (const int node : {0, 1, 2}) fleet_.Hear(node, KeepsAt{fmt::format("host{}", node), 7});
  }

  std::string Hold(int node, const std::vector<int64_t>& steps, int64_t passed,
                   const std::vector<int64_t>& coming = {}) {
    Holding holding{kOne, {}, {}, passed};
    for (const int64_t step : steps) holding.points.push_back({kOne, step});
    for (const int64_t step : coming) holding.coming.push_back({kOne, step});
    fleet_.Hear(node, holding);
    const std::optional<Commit> news = fleet_.CommitNews();
    if (!news) return "no news";
    return fmt::format("step {}{}", news->point.step,
                       news->dead_step < 0 ? "" : fmt::format(", dead to {}", news->dead_step));
  }

  Fleet fleet_{{1, 2, 0}};
  std::vector<std::string> rejected_;
  std::optional<CheckpointId> on_disk_;  // what was asked last
};

// Of the code that the run began with.
TEST_F(FleetTest, AllHaveTheSameCopyOrItIsToldThatTheyHaveNot) {
  const auto hear = [&](int node, const CodeKept& said) {
    std::string text;
    for (const EventBody& event : fleet_.Hear(node, said)) {
      const auto& kept = std::get<CodeKept>(event);
      text += fmt::format("{} of {}", kept.error, kept.hash.empty() ? "none" : kept.hash);
    }
    return text;
  };
  EXPECT_EQ(hear(0, {0, "a: no room", ""}), "a: no room of none");
  EXPECT_EQ(hear(0, {0, "a: no room", ""}), "") << "it says it to a coordinator that comes back";
  EXPECT_EQ(hear(1, {0, "", "old"}), "");
  EXPECT_EQ(hear(0, {0, "a: tool is linked", "old"}), "");
  EXPECT_EQ(hear(2, {0, "", "old"}), "a: tool is linked of old");
  fleet_.Gone(2);
  EXPECT_EQ(
      hear(2, {0, "", "edited"}),
      "nodes 0 and 2 have different copies of it: their directories are not the same, or one was changed before its "
      "copy was taken of none");
  fleet_.Gone(2);
  EXPECT_EQ(hear(2, {0, "", "old"}), "a: tool is linked of old");
}

TEST_F(FleetTest, AnAlertIsOfWhoeverSaysIt) {
  const Alerted under_its_old_number{2, "gpu_xid", AlertClass::kMachine, "", "it says so", Nanos{1}};
  EXPECT_EQ(std::get<Alerted>(fleet_.Hear(1, EventBody(under_its_old_number)).at(0)).node, 1);
}

TEST_F(FleetTest, WhatIsOnDiskMayBeOfNoUseToThisWorld) {
  for (const int node : {0, 1, 2}) Find(node, {});
  ASSERT_TRUE(on_disk_);
  for (const int node : {0, 1}) EXPECT_EQ(Find(node, {}), "undecided");
  RestoreFound found{EpochId(2), {}, {}, on_disk_};
  found.unfit = "it was written by 4 ranks";
  EXPECT_EQ(std::get<RestoreChosen>(fleet_.Hear(2, found).at(0)).unfit, found.unfit);
}

TEST_F(FleetTest, ANodeMayBeUnfitToBeginAnew) {
  for (const int node : {0, 1}) EXPECT_EQ(Find(node, {Checkpoint(1, 9)}), "undecided");
  RestoreFound found{EpochId(2), {}, {}};
  found.unfit = "its run directory was removed";
  EXPECT_EQ(std::get<RestoreChosen>(fleet_.Hear(2, found).at(0)).unfit, found.unfit);
  EXPECT_FALSE(on_disk_);
}

TEST_F(FleetTest, NobodyWaitsForANodeThatNobodyHas) {
  fleet_.Vacate(1);
  fleet_.Begin(EpochId(2));  // the journal did not know of it
  EXPECT_THAT(Hear(0, EpochStopped{EpochId(2)}), IsEmpty());
  EXPECT_THAT(Hear(2, EpochStopped{EpochId(2)}), ElementsAre("epoch_stopped"));
  for (const int node : {0, 2}) fleet_.Hear(node, Samples{EpochId(2), {}, {}, {7 + node, Nanos{1}}, {}});
  EXPECT_EQ(fleet_.progress().step, 7);
}

TEST_F(FleetTest, WhatWasTrueOfANodeIsNotOfTheOneInItsPlace) {
  for (const int node : {0, 1, 2}) Hear(node, StacksKept{kOne, "stacks"});
  EXPECT_THAT(Hear(0, StacksKept{kOne, "stacks"}), ElementsAre("stacks_kept")) << "for a coordinator that took over";
  fleet_.Gone(1);
  EXPECT_THAT(Hear(0, StacksKept{kOne, "stacks"}), IsEmpty());
  EXPECT_THAT(Hear(1, StacksKept{kOne, "stacks"}), ElementsAre("stacks_kept"));
}

TEST_F(FleetTest, AnEpochRunsAndStopsWhenItDoesOnAllNodes) {
  EXPECT_THAT(Hear(0, EpochSpawned{kOne}), IsEmpty());
  EXPECT_THAT(Hear(0, EpochSpawned{kOne}), IsEmpty());
  EXPECT_THAT(Hear(1, EpochSpawned{kOne}), IsEmpty());
  EXPECT_THAT(Hear(2, EpochSpawned{kOne}), ElementsAre("epoch_spawned"));
  EXPECT_THAT(Hear(2, EpochSpawned{kOne}), IsEmpty());
  for (const int node : {2, 0}) EXPECT_THAT(Hear(node, EpochStopped{kOne}), IsEmpty());
  EXPECT_THAT(Hear(1, EpochStopped{kOne}), ElementsAre("epoch_stopped"));
}

// A coordinator whose journal is behind hears the answers before it comes to ask.
TEST_F(FleetTest, WhatIsBadIsSoFromWhereItWasFirst) {
  fleet_.Hear(0, EpochStopped{kOne, Checkpoint(1, 7)});
  fleet_.Hear(1, EpochStopped{kOne});
  const auto all = fleet_.Hear(2, EpochStopped{kOne, Checkpoint(1, 5)});
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_EQ(std::get<EpochStopped>(all[0]).bad_from, Checkpoint(1, 5));
}

TEST_F(FleetTest, AnAnswerThatIsGivenAgainIsToldAgain) {
  for (const int node : {0, 1, 2}) Hear(node, StacksKept{kOne, "a"});
  EXPECT_THAT(Hear(0, StacksKept{kOne, "b"}), ElementsAre("stacks_kept"));
  for (const int node : {0, 1, 2}) Hear(node, EpochStopped{kOne});
  EXPECT_THAT(Hear(0, EpochStopped{kOne}), ElementsAre("epoch_stopped"));
  for (const int node : {0, 1, 2}) Find(node, {Checkpoint(1, 9)}, {"rank 5: wrong CRC"});
  EXPECT_EQ(Find(0, {Checkpoint(1, 9)}, {"rank 5: wrong CRC"}), "1/9");
  EXPECT_THAT(rejected_, SizeIs(3)) << "as at first";
}

TEST_F(FleetTest, TheLoopBeginsWithTheLastNode) {
  Hear(0, LoopBegan{kOne, At(5), {}});
  Hear(1, LoopBegan{kOne, At(9), {}});
  const auto events = fleet_.Hear(2, LoopBegan{kOne, At(7), {}});
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(std::get<LoopBegan>(events.front()).begin, At(9));
}

TEST_F(FleetTest, SamplesCarryProgress) {
  const auto samples = [](EpochId epoch, int64_t step) { return Samples{epoch, {}, {}, Step(step, 10)}; };
  for (const int node : {0, 1}) fleet_.Hear(node, samples(kOne, 5));
  EXPECT_EQ(fleet_.progress().step, -1) << "one has not said";
  fleet_.Hear(2, samples(EpochId(2), 9));
  EXPECT_EQ(fleet_.progress().step, -1) << "of another epoch";
  fleet_.Hear(2, samples(kOne, 3));
  EXPECT_EQ(fleet_.progress().step, 3);
}

TEST_F(FleetTest, WhoIsAwayHoldsTheStepOfTheJobBackNoMore) {
  const auto at = [&](int node, int step) { fleet_.Hear(node, Samples{kOne, {}, {}, Step(step, step)}); };
  at(0, 7);
  fleet_.Away(1);
  EXPECT_EQ(fleet_.progress().step, -1) << "nobody knows whether it ever began";
  for (const int node : {0, 1, 2}) at(node, 7);
  fleet_.Away(1);
  for (const int node : {0, 2}) at(node, 20);
  EXPECT_EQ(fleet_.progress().step, 20);
  EXPECT_EQ(std::get<RankExited>(fleet_.Hear(2, Killed(1, 4, 9, Step(20, 20))).front()).progress.step, 20);
  at(1, 19);
  EXPECT_EQ(fleet_.progress().step, 19) << "it is back";
  for (const int node : {0, 1, 2}) fleet_.Away(node);
  EXPECT_EQ(fleet_.progress().step, 19) << "nobody knows anything newer";
}

// Ranks of a job that hangs stand a step apart: that the one behind is not heard of any more is no progress.
TEST_F(FleetTest, ThatSomebodyIsAwayIsNoProgress) {
  const auto at = [&](int node, int step) { fleet_.Hear(node, Samples{kOne, {}, {}, Step(step, step)}); };
  at(0, 41);
  at(1, 40);
  at(2, 41);
  fleet_.Away(1);
  EXPECT_EQ(fleet_.progress().step, 40);
  for (const int node : {0, 2}) at(node, 41);
  EXPECT_EQ(fleet_.progress().step, 40) << "nobody said anything newer";
  at(0, 42);
  EXPECT_EQ(fleet_.progress().step, 41) << "the job goes on";
  fleet_.Away(2);
  at(1, 40);
  EXPECT_EQ(fleet_.progress().step, 40) << "it is back, and stands there";
  at(1, 41);
  EXPECT_EQ(fleet_.progress().step, 41);
}

TEST_F(FleetTest, AfterATakeOverWhoHasSaidNothingHoldsTheStepOfTheJobBackNoMore) {
  Fleet fleet({1, 2, 0});
  fleet.Begin(kOne, true);
  EXPECT_EQ(fleet.progress().step, -1) << "nobody has said";
  const auto events = fleet.Hear(2, Killed(2, 4, 9, Step(20, 20)));
  EXPECT_EQ(std::get<RankExited>(events.front()).progress.step, 20);
  fleet.Hear(0, Samples{kOne, {}, {}, Step(19, 19)});
  EXPECT_EQ(fleet.progress().step, 19);
  fleet.Begin(EpochId(2));
  fleet.Hear(0, Samples{EpochId(2), {}, {}, Step(30, 30)});
  EXPECT_EQ(fleet.progress().step, -1) << "of an epoch whose nodes may not have begun";
}

TEST_F(FleetTest, WhatIsGoneRunsNoMore) {
  for (const int node : {0, 2}) EXPECT_THAT(Hear(node, EpochStopped{kOne}), IsEmpty());
  const auto events = fleet_.Gone(1);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(TypeName(events.front()), "epoch_stopped");
}

TEST_F(FleetTest, WhatIsGoneHoldsNothing) {
  Hear(1, ProgressSeen{kOne, Step(3, 30)});
  for (const int node : {0, 2}) Hear(node, ProgressSeen{kOne, Step(7, 70)});
  EXPECT_EQ(fleet_.progress().step, 3);
  fleet_.Gone(1);
  EXPECT_EQ(fleet_.progress().step, 7) << "whoever is there in its place has not stepped yet";
}

TEST_F(FleetTest, TheJobStandsWhereTheSlowestNodeStands) {
  Hear(0, ProgressSeen{kOne, Step(7, 70)});
  Hear(1, ProgressSeen{kOne, Step(5, 50)});
  EXPECT_EQ(std::get<ProgressSeen>(fleet_.Hear(1, ProgressSeen{kOne, Step(5, 50)}).front()).progress.step, -1);
  const auto events = fleet_.Hear(2, Killed(1, 4, 9, Step(5, 55)));
  EXPECT_EQ(std::get<RankExited>(events.front()).progress.step, 5);
  EXPECT_EQ(std::get<RankExited>(events.front()).progress.step_end, At(55));
  Hear(1, ProgressSeen{kOne, Step(4, 40)});  // late news
  EXPECT_EQ(std::get<ProgressSeen>(fleet_.Hear(1, ProgressSeen{kOne, Step(6, 60)}).front()).progress.step, 5);
}

TEST_F(FleetTest, NewsOfAnotherEpochPassesThroughAndChangesNothing) {
  fleet_.Begin(EpochId(2));
  for (const int node : {0, 1, 2}) EXPECT_THAT(Hear(node, EpochStopped{kOne}), ElementsAre("epoch_stopped"));
  EXPECT_THAT(Hear(0, EpochStopped{EpochId(2)}), IsEmpty());
}

TEST_F(FleetTest, RestoresTheNewestThatAllHave) {
  EXPECT_EQ(Find(0, {Checkpoint(1, 9), Checkpoint(1, 8)}), "undecided");
  EXPECT_EQ(Find(1, {Checkpoint(1, 8), Checkpoint(1, 9)}), "undecided");
  EXPECT_EQ(Find(1, {}), "undecided");  // a second answer is none
  EXPECT_EQ(Find(2, {Checkpoint(1, 7), Checkpoint(1, 8)}), "1/8");
}

TEST_F(FleetTest, RestoresNothingWhenNothingIsCommon) {
  Find(0, {Checkpoint(1, 9)});
  Find(1, {Checkpoint(1, 9)});
  EXPECT_EQ(Find(2, {Checkpoint(1, 8)}, {"rank 5: wrong CRC"}), "on disk");
  for (const int node : {0, 1}) EXPECT_EQ(Find(node, {}), "undecided");
  EXPECT_EQ(Find(2, {}), "none");
  EXPECT_THAT(rejected_, ElementsAre("rank 5: wrong CRC"));
}

TEST_F(FleetTest, FromDiskTheNewestThatIsWholeForAll) {
  for (const int node : {0, 1}) EXPECT_EQ(Find(node, {}), "undecided");
  EXPECT_EQ(Find(2, {Checkpoint(1, 90)}), "on disk") << "in one node's memory alone";
  Find(0, {Checkpoint(1, 50)});
  Find(1, {Checkpoint(1, 40)}, {"rank 2: damaged"});
  EXPECT_EQ(Find(2, {Checkpoint(1, 50)}), "on disk, not above 1/40");
  Find(0, {Checkpoint(1, 30)}, {"rank 0: damaged"});
  Find(1, {Checkpoint(1, 40)});
  EXPECT_EQ(Find(2, {Checkpoint(1, 40)}), "on disk, not above 1/30");
  for (const int node : {0, 1}) EXPECT_EQ(Find(node, {Checkpoint(1, 30)}), "undecided");
  EXPECT_EQ(Find(2, {Checkpoint(1, 30)}), "1/30");
  EXPECT_THAT(rejected_, ElementsAre("rank 2: damaged", "rank 0: damaged"));
}

TEST_F(FleetTest, ALateAnswerToAnotherQuestionIsNone) {
  for (const int node : {0, 1, 2}) Find(node, {});
  EXPECT_THAT(fleet_.Hear(0, RestoreFound{EpochId(2), {Checkpoint(1, 9)}, {}}), IsEmpty());
  for (const int node : {1, 2}) EXPECT_EQ(Find(node, {Checkpoint(1, 9)}), "undecided");
  EXPECT_EQ(Find(0, {Checkpoint(1, 9)}), "1/9");
}

TEST_F(FleetTest, WhatAMachineTookWithItComesFromItsKeeper) {
  AllKeepSomewhere();
  EXPECT_EQ(FindKept(0, {Checkpoint(1, 9), Checkpoint(1, 8)}, {{2, Checkpoint(1, 8)}}), "undecided");
  EXPECT_EQ(FindKept(2, {Checkpoint(1, 9), Checkpoint(1, 8)}, {{1, Checkpoint(1, 8)}, {1, Checkpoint(1, 7)}}),
            "undecided");
  EXPECT_EQ(FindKept(1, {}, {}), "node 1 fetches 1/8 from host2");
  EXPECT_EQ(std::get<FetchKept>(fleet_.Asked(1, ChooseRestore{EpochId(2)})).point, Checkpoint(1, 8)) << "asked again";
  EXPECT_TRUE(std::holds_alternative<Command>(fleet_.Asked(0, ChooseRestore{EpochId(2)})));
  EXPECT_EQ(Fetched(1, Checkpoint(1, 7)), "undecided") << "not what was asked for";
  EXPECT_EQ(Fetched(1, Checkpoint(1, 8)), "1/8");
}

TEST_F(FleetTest, ACopyThatIsNotToBeHadIsNotAskedForAgain) {
  AllKeepSomewhere();
  FindKept(0, {Checkpoint(1, 9), Checkpoint(1, 8)}, {});
  FindKept(2, {Checkpoint(1, 9), Checkpoint(1, 8)}, {{1, Checkpoint(1, 8)}, {1, Checkpoint(1, 9)}});
  EXPECT_EQ(FindKept(1, {}, {}), "node 1 fetches 1/9 from host2");
  EXPECT_EQ(Fetched(1, Checkpoint(1, 9), {"the copy: damaged"}), "node 1 fetches 1/8 from host2");
  EXPECT_EQ(Fetched(1, Checkpoint(1, 8), {"the copy: gone"}), "on disk");
  EXPECT_EQ(Fetched(1, Checkpoint(1, 8)), "undecided") << "too late";
}

TEST_F(FleetTest, WhoseKeeperIsLostTooGoesToDisk) {
  AllKeepSomewhere();
  FindKept(0, {Checkpoint(1, 9)}, {{2, Checkpoint(1, 9)}});
  FindKept(1, {}, {});
  EXPECT_EQ(FindKept(2, {}, {}), "on disk") << "node 2 kept what was node 1's";
}

TEST_F(FleetTest, TheOwnerAndAnUnrelatedMachineLostTogether) {
  Fleet four({1, 2, 3, 0});
  for (int node = 0; node < 4; ++node) four.Hear(node, KeepsAt{std::to_string(node), 7});
  four.Begin(kOne);
  const auto found = [&](int node, std::vector<CheckpointId> points, std::vector<KeptFor> kept) {
    return four.Hear(node, {.epoch = EpochId(2), .points = std::move(points), .rejected = {}, .kept = std::move(kept)});
  };
  found(0, {}, {});
  found(1, {Checkpoint(1, 9)}, {{0, Checkpoint(1, 9)}});
  found(2, {}, {});
  EXPECT_THAT(found(3, {Checkpoint(1, 9)}, {{2, Checkpoint(1, 9)}}), IsEmpty());
  EXPECT_THAT(four.TakeQuestions(), SizeIs(2));
  const auto fetched = [&](int node) {
    return four.Hear(node,
                     {.epoch = EpochId(2), .points = {Checkpoint(1, 9)}, .rejected = {}, .fetched = Checkpoint(1, 9)});
  };
  EXPECT_THAT(fetched(2), IsEmpty());
  EXPECT_EQ(std::get<RestoreChosen>(fetched(0).front()).point, Checkpoint(1, 9));
}

// The new occupant answers, and is lost in turn while it fetches.
TEST_F(FleetTest, WhoTakesThePlaceOfOneThatFetchedIsAskedAnew) {
  AllKeepSomewhere();
  FindKept(0, {Checkpoint(1, 8)}, {});
  FindKept(2, {Checkpoint(1, 8)}, {{1, Checkpoint(1, 8)}});
  EXPECT_EQ(FindKept(1, {}, {}), "node 1 fetches 1/8 from host2");
  fleet_.Gone(1);
  EXPECT_TRUE(std::holds_alternative<Command>(fleet_.Asked(1, ChooseRestore{EpochId(2)})));
  EXPECT_EQ(Fetched(1, Checkpoint(1, 8)), "undecided") << "of the one before";
  EXPECT_EQ(FindKept(1, {}, {}), "node 1 fetches 1/8 from host2");
  EXPECT_EQ(Fetched(1, Checkpoint(1, 8)), "1/8");
}

TEST_F(FleetTest, KeepersAreKnownOnceTheySaySo) {
  EXPECT_EQ(fleet_.KeeperOf(0), std::nullopt);
  fleet_.Hear(1, KeepsAt{"b", 7});
  EXPECT_EQ(fleet_.KeeperOf(0)->second.host, "b");
  EXPECT_THAT(fleet_.WardsOf(1), ElementsAre(0));
  fleet_.Gone(1);
  EXPECT_EQ(fleet_.KeeperOf(0), std::nullopt) << "another machine has its place";
}

TEST_F(FleetTest, AnAnswerForAnotherEpochIsNone) {
  fleet_.Begin(EpochId(4));
  for (const int node : {0, 1, 2}) EXPECT_EQ(Find(node, {}), "undecided");
}

TEST_F(FleetTest, SaysAtOnceThatSomethingBecameWhole) {
  const auto holds = [](int64_t step) { return Holding{kOne, {{kOne, step}}, {}, step}; };
  EXPECT_FALSE(fleet_.Hear(0, holds(3)));
  EXPECT_FALSE(fleet_.Hear(0, holds(3))) << "the same again";
  EXPECT_FALSE(fleet_.Hear(1, holds(2)));
  EXPECT_FALSE(fleet_.Hear(1, holds(3)));
  EXPECT_TRUE(fleet_.Hear(2, holds(3)));
  fleet_.CommitNews();
  EXPECT_FALSE(fleet_.Hear(2, holds(3))) << "known";
}

TEST_F(FleetTest, WhatAllHoldIsCommittedOnce) {
  EXPECT_EQ(Hold(0, {3, 4}, 4), "step -1, dead to 2");
  EXPECT_EQ(Hold(1, {3}, 3), "no news");
  EXPECT_EQ(Hold(2, {3, 4}, 4), "step 3, dead to 3");
  EXPECT_EQ(Hold(2, {3, 4}, 4), "no news");
  fleet_.Hear(1, Holding{EpochId(2), {Checkpoint(2, 4)}});  // of another epoch
  EXPECT_EQ(fleet_.CommitNews(), std::nullopt);
  EXPECT_EQ(Hold(1, {3, 4}, 4), "step 4, dead to 4");
}

// The nodes hear of a commit at different steps, and save different ones after it.
TEST_F(FleetTest, WhatSomebodyHasPassedWithoutIsDead) {
  for (const int node : {0, 1}) Hold(node, {1, 2}, 2);
  EXPECT_EQ(Hold(2, {1, 2}, 2), "step 2, dead to 2");
  EXPECT_EQ(Hold(0, {2, 5}, 5), "step 2, dead to 4");
  EXPECT_EQ(Hold(1, {2, 6}, 6), "step 2, dead to 5") << "node 1 has passed 5 and does not have it";
  EXPECT_EQ(Hold(0, {2, 5}, 6), "step 2, dead to 6");
  EXPECT_EQ(Hold(2, {2}, 4, {7}), "no news");
  EXPECT_EQ(Hold(0, {2}, 6, {7}), "no news");
  EXPECT_EQ(Hold(1, {2}, 6, {7}), "no news") << "all may yet have 7";
  EXPECT_EQ(Hold(1, {2}, 7), "step 2, dead to 7");
}

TEST_F(FleetTest, WhatIsPoisonedIsNoChoice) {
  fleet_.Poison({Checkpoint(1, 8)});
  for (const int node : {0, 1}) Find(node, {Checkpoint(1, 7), Checkpoint(1, 9)});
  EXPECT_EQ(Find(2, {Checkpoint(1, 7), Checkpoint(1, 9)}), "1/7");
}

TEST_F(FleetTest, WhatIsPoisonedOnDiskIsNoChoiceEither) {
  fleet_.Poison({Checkpoint(1, 8)});
  for (const int node : {0, 1, 2}) Find(node, {Checkpoint(1, 8), Checkpoint(1, 9)});
  for (const int node : {0, 1}) EXPECT_EQ(Find(node, {Checkpoint(1, 8)}), "undecided");
  EXPECT_EQ(Find(2, {Checkpoint(1, 8)}), "on disk, not above 1/7");
  for (const int node : {0, 1}) EXPECT_EQ(Find(node, {Checkpoint(1, 3)}), "undecided");
  EXPECT_EQ(Find(2, {Checkpoint(1, 3)}), "1/3");
}

TEST_F(FleetTest, OfAnEpochOfWhichAllIsPoisonedNothingOnDiskIsAChoice) {
  fleet_.Poison({Checkpoint(1, 8), Checkpoint(2, 0)});
  for (const int node : {0, 1, 2}) Find(node, {Checkpoint(2, 9)});
  for (const int node : {0, 1}) Find(node, {Checkpoint(2, 5)});
  EXPECT_EQ(Find(2, {Checkpoint(2, 5)}), "on disk, not above 2/-1");
  for (const int node : {0, 1}) Find(node, {Checkpoint(1, 9)});
  EXPECT_EQ(Find(2, {Checkpoint(1, 9)}), "on disk, not above 1/7");
}

TEST_F(FleetTest, AProbeIsOverWhenAllHaveAnsweredOrNobodyWaits) {
  Probed found{kOne, Rung::kDiagnose, {incident::Finding{}}, {}};
  EXPECT_THAT(Hear(0, found), IsEmpty());
  EXPECT_THAT(Hear(1, Probed{kOne, Rung::kReplay}), IsEmpty()) << "another question";
  std::vector<int> unanswered;
  EXPECT_THAT(fleet_.Overdue(Rung::kDiagnose, unanswered).findings, SizeIs(1));
  EXPECT_THAT(unanswered, ElementsAre(1, 2));
  EXPECT_THAT(Hear(1, found), IsEmpty());
  const auto all = fleet_.Hear(2, Probed{kOne, Rung::kDiagnose});
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_THAT(std::get<Probed>(all[0]).findings, SizeIs(2));
  EXPECT_THAT(Hear(2, found), ElementsAre("probed")) << "for a coordinator that took over";
  EXPECT_THAT(Hear(0, Probed{kOne, Rung::kReplay}), IsEmpty()) << "to the other question there is no answer of node 2";
  EXPECT_THAT(Hear(2, Probed{kOne, Rung::kReplay}), ElementsAre("probed"));
}

TEST_F(FleetTest, PausedWhenAllAre) {
  for (const int node : {0, 1}) EXPECT_THAT(Hear(node, JobPaused{}), IsEmpty());
  EXPECT_THAT(Hear(2, JobPaused{}), ElementsAre("job_paused"));
  EXPECT_THAT(Hear(1, JobContinued{}), ElementsAre("job_continued"));
  EXPECT_THAT(Hear(2, JobContinued{}), IsEmpty());
  EXPECT_THAT(Hear(1, JobPaused{}), IsEmpty());
  EXPECT_THAT(Hear(2, JobPaused{}), ElementsAre("job_paused"));
}

TEST_F(FleetTest, WhoTestsTheWaysToItsNeighboursIsToldOfThem) {
  AllKeepSomewhere();
  EXPECT_THAT(fleet_.RingOf(0), IsEmpty()) << "nobody listens for that";
  for (const int node : {0, 1, 2}) fleet_.Hear(node, KeepsAt{fmt::format("host{}", node), 7, 10 + node});
  EXPECT_THAT(fleet_.RingOf(0), ElementsAre("host0:10", "host1:11", "host2:12"));
  EXPECT_EQ(fleet_.RingOf(2), fleet_.RingOf(0));
  const Told again = fleet_.Asked(0, Probe{EpochId(2), Rung::kDiagnose, 1, Seconds{5}});
  EXPECT_THAT(std::get<Probe>(std::get<Command>(again)).ring, IsEmpty()) << "the others have begun";
  fleet_.Hear(1, KeepsAt{"::1", 7, 21});
  EXPECT_EQ(fleet_.RingOf(0)[1], "[::1]:21") << "after each test it listens elsewhere";
}

TEST(FleetOfMany, RingsAreShort) {
  std::vector<int> ranks(65, 1);
  Fleet fleet(ranks);
  for (int node = 0; node < 65; ++node) fleet.Hear(node, KeepsAt{std::to_string(node), 7, 8});
  std::set<std::vector<std::string>> rings;
  for (int node = 0; node < 65; ++node) {
    const std::vector<std::string> ring = fleet.RingOf(node);
    EXPECT_THAT(ring, Contains(std::to_string(node) + ":8"));
    EXPECT_LE(ring.size(), 32u);
    rings.insert(ring);
  }
  EXPECT_EQ(rings.size(), 3u);
}

}  // namespace
}  // namespace lockstep::control
