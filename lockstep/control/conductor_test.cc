#include "lockstep/control/conductor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "lockstep/control/coordinator.h"
#include "lockstep/control/memory_journal.h"

namespace lockstep::control {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::IsSupersetOf;

constexpr EpochId kFirst{1};

// What a word is, by its name in the conversation, as far as it is looked at here.
std::string Name(const Told& told) {
  if (std::holds_alternative<HostStore>(told)) return "store";
  if (std::holds_alternative<Commit>(told)) return "commit";
  if (const auto* write = std::get_if<WritePart>(&told)) {
    std::string name = "write";
    for (const Ward& ward : write->wards) name += fmt::format(", of {} from rank {}", ward.name, ward.first_rank);
    return name;
  }
  if (const auto* part = std::get_if<PartWritten>(&told))
    return part->gone ? fmt::format("gone of {}", part->node) : part->error;
  const auto* command = std::get_if<Command>(&told);
  if (command == nullptr) return "other";
  if (const auto* spawn = std::get_if<Spawn>(command)) return "spawn by " + spawn->store_host;
  return std::holds_alternative<KillEpoch>(*command) ? "kill" : "other";
}

class SomeNodes : public testing::Test {
 protected:
  explicit SomeNodes(std::vector<NodeSpec> nodes, bool can_ask = false) {
    JobSpec job;
    job.can_ask = can_ask;
    job.ranks = static_cast<int>(nodes.size());
    job.nodes = std::move(nodes);
    job.policy.stuck_within = Seconds{5};
    const auto commands = *coordinator_.Handle(JobStarted{job});
    conductor_.Begin(commands);
    AllSay(AllSaid{});
  }

  void Say(int node, const Said& said) { conductor_.Hear(node, said); }
  void AllSay(const Said& said) {
    for (int node = 0; node < conductor_.nodes(); ++node) Say(node, said);
  }
  void Run() {
    Say(0, StoreAt{kFirst, "host", 1});
    AllSay(EventBody(EpochSpawned{kFirst}));
    AllSay(EventBody(LoopBegan{kFirst, clock_.Now(), {}}));
    EXPECT_EQ(state().mode, Mode::kRunning);
    told_.clear();
  }
  void Pass(Seconds seconds) {
    clock_.Advance(seconds);
    conductor_.Tick();
  }
  void StepFor(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      Pass(Seconds{1});
      Samples samples;
      samples.progress = {++step_, clock_.Now()};
      Say(0, samples);
    }
  }
  // This process is stopped meanwhile.
  void BeAway(Seconds seconds) {
    clock_.Advance(seconds);
    conductor_.WasAway(ToNanos(seconds));
    conductor_.Tick();
  }
  const State& state() const { return coordinator_.state(); }

  int64_t step_ = 0;
  FakeClock clock_;
  MemoryJournal journal_;
  Coordinator coordinator_{journal_, clock_};
  std::vector<std::string> told_;                            // "1: kill"
  std::optional<Command> decided_;                           // instead of what the coordinator decides
  std::function<void(int node, const Told& told)> at_once_;  // what an agent of this process does
  Conductor conductor_{state(),
                       clock_,
                       {.decide =
                            [this](const EventBody& body) {
                              if (!decided_) return *coordinator_.Handle(body);
                              return std::vector<Command>{*std::exchange(decided_, std::nullopt)};
                            },
                        .tell =
                            [this](int node, const Told& told) {
                              if (at_once_) at_once_(node, told);
                              if (Name(told) != "other") told_.push_back(fmt::format("{}: {}", node, Name(told)));
                            },
                        .carried = [](const Command&) {}}};
};

class TwoNodes : public SomeNodes {
 protected:
  TwoNodes() : SomeNodes({{"a", 1, "a's"}, {"b", 1, "b's"}}) {}
};

TEST_F(TwoNodes, TheStoreOfAnEpochIsAskedForBeforeItsSpawn) {
  EXPECT_THAT(told_, ElementsAre("0: store", "0: commit", "0: store", "1: commit"));
  told_.clear();
  Say(0, StoreAt{EpochId(7), "late", 1});
  EXPECT_THAT(told_, IsEmpty()) << "of another epoch";
  Say(0, StoreAt{kFirst, "host", 1});
  EXPECT_THAT(told_, ElementsAre("0: spawn by host", "1: spawn by host"));
  told_.clear();
  Say(0, StoreAt{kFirst, "again", 2});
  EXPECT_THAT(told_, IsEmpty());
}

// A standby was to have the place of node b, and the journal did not take that in time.
TEST_F(TwoNodes, AStopWaitsForNobodyWhosePlaceWasToBeGivenAway) {
  Run();
  conductor_.Handle(StandbyCame{{"s", 1, "s's"}});
  conductor_.Lost(1, "its connection was lost");
  journal_.full = true;
  Pass(Seconds{11});
  EXPECT_TRUE(coordinator_.holds());
  conductor_.Handle(StopAsked{SIGTERM});
  for (int tick = 0; tick < 2; ++tick) Pass(Seconds{0.1});
  EXPECT_EQ(state().mode, Mode::kFinishing);
  Say(0, EventBody(EpochStopped{kFirst}));
  EXPECT_EQ(state().mode, Mode::kFinished);
}

// An agent is away, and its ranks train on.
TEST_F(TwoNodes, OfAJobOfLongStepsNobodyIsEvictedBetweenTwoOfThem) {
  Run();
  conductor_.Handle(StandbyCame{{"s", 1, "s's"}});
  Observed observed;
  observed.ranks = {{RankId(0), 7, "running", 3, Seconds{20}}};
  Say(0, observed);
  Samples samples;
  samples.progress = {3, clock_.Now()};
  AllSay(samples);
  conductor_.Lost(1, "its connection was lost");
  for (int i = 0; i < 35; ++i) Pass(Seconds{1});
  EXPECT_TRUE(state().evictions.empty()) << "a step takes 20 s";
  for (int i = 0; i < 6; ++i) Pass(Seconds{1});
  ASSERT_EQ(state().evictions.size(), 1u) << "two have not come";
  EXPECT_EQ(state().evictions[0].node.name, "b");
}

// The agent of the node that leads hands its socket to its tests as soon as it is told, and says where it listens next.
TEST_F(TwoNodes, AreToldTheSameRingThoughOneBeginsAtOnce) {
  Run();
  for (const int node : {0, 1}) Say(node, KeepsAt{"host", 7, 10 + node});
  std::vector<std::vector<std::string>> rings;
  at_once_ = [&](int node, const Told& told) {
    const auto* command = std::get_if<Command>(&told);
    const auto* probe = command != nullptr ? std::get_if<Probe>(command) : nullptr;
    if (probe == nullptr) return;
    rings.push_back(probe->ring);
    if (node == 0) Say(0, KeepsAt{"host", 7, 20});
  };
  decided_ = Probe{kFirst, Rung::kDiagnose, 1, Seconds{5}};
  conductor_.Handle(StopAsked{SIGTERM});
  EXPECT_THAT(rings, ElementsAre(ElementsAre("host:10", "host:11"), ElementsAre("host:10", "host:11")));
}

class CountsOfTwoNodes : public TwoNodes {
 protected:
  CountsOfTwoNodes() {
    Run();
    Say(0, Counted(60, 100, 7, 3));
    Say(1, Counted(50, 90, 5, 2));
  }
  static Observed Counted(int64_t taken, int64_t records, uint64_t kept, int64_t uploads) {
    Observed observed;
    observed.checkpoints = taken;
    observed.checkpoint_blocked = Seconds{0.5};
    observed.records = records;
    observed.peers.emplace().kept = Bytes{kept};
    observed.disk.emplace().upload.emplace().uploads = uploads;
    return observed;
  }
  Observed Sum() const {
    std::vector<Observed> all;
    for (int node = 0; node < conductor_.nodes(); ++node) all.push_back(conductor_.observed(node));
    return Together(all, conductor_.counted_before());
  }
};

TEST_F(CountsOfTwoNodes, GoOnWhereAnAgentBeginsAnew) {
  Say(1, Counted(51, 3, 0, 0));  // what the board knows goes on by itself
  EXPECT_EQ(Sum().checkpoints, 60 + 51);
  EXPECT_EQ(Sum().records, 100 + 90 + 3);
  EXPECT_EQ(Sum().peers->kept, Bytes{7 + 5});
  EXPECT_EQ(Sum().disk->upload->uploads, 2 + 0);
  Say(1, Counted(52, 4, 1, 1));
  EXPECT_EQ(Sum().records, 100 + 90 + 4);
  EXPECT_EQ(Sum().peers->kept, Bytes{7 + 5 + 1});
  EXPECT_EQ(Sum().disk->upload->uploads, 2 + 1);
}

TEST_F(CountsOfTwoNodes, GoOnWhereAStandbyTakesAPlace) {
  conductor_.Handle(StandbyCame{{"s", 1, "s's"}});
  conductor_.Handle(AgentGone{1, "its agent is silent"});
  ASSERT_EQ(state().spec.nodes.at(1).name, "s");
  EXPECT_EQ(Sum().checkpoints, 60 + 50);
  Say(1, Counted(4, 8, 2, 0));
  EXPECT_EQ(Sum().checkpoints, 60 + 50 + 4);
  EXPECT_EQ(Sum().checkpoint_blocked, Seconds{1.5});
  EXPECT_EQ(Sum().records, 100 + 90 + 8);
  EXPECT_EQ(Sum().peers->kept, Bytes{7 + 5 + 2});
}

class TwoNodesThatAreToEnd : public TwoNodes {
 protected:
  TwoNodesThatAreToEnd() {
    Run();
    for (int asked = 0; asked < 2; ++asked) conductor_.Handle(StopAsked{SIGTERM});  // at once, then
    Pass(Seconds{1});
    conductor_.Lost(1, "its connection was lost");
    Pass(Seconds{2});
  }
};

TEST_F(TwoNodesThatAreToEnd, AreWaitedForAnewIfOneIsBackWhoseProcessesRunOn) {
  Say(1, AllSaid{kFirst});
  EXPECT_EQ(told_.back(), "1: commit");
  Pass(Seconds{4.9});
  EXPECT_EQ(state().mode, Mode::kFinishing) << "it has its order since 4.9 s";
  Pass(Seconds{0.1});
  EXPECT_EQ(state().mode, Mode::kFinished);
}

TEST_F(TwoNodesThatAreToEnd, AreNotWaitedForAnewIfOneIsBackWhoseProcessesHaveEnded) {
  Say(1, EventBody(EpochStopped{kFirst}));
  Say(1, AllSaid{kFirst});
  Pass(Seconds{1.9});
  EXPECT_EQ(state().mode, Mode::kFinishing);
  Pass(Seconds{0.1});
  EXPECT_EQ(state().mode, Mode::kFinished) << "5 s after the order";
}

TEST_F(TwoNodesThatAreToEnd, WaitForWhoIsLostUntilItCountsAsGone) {
  Say(0, EventBody(EpochStopped{kFirst}));
  Pass(Seconds{7.9});
  EXPECT_EQ(state().mode, Mode::kFinishing) << "9.9 s, and nobody knows of node b";
  Pass(Seconds{0.2});
  EXPECT_TRUE(conductor_.IsGone(1));
  EXPECT_EQ(state().mode, Mode::kFinished);
}

// Whoever asked for the stop kills what has not ended within the grace, and the last checkpoint is to be on disk then.
TEST_F(TwoNodes, AStopLeavesWithinItsGraceThoughANodeIsLost) {
  Run();
  Say(0, Samples{kFirst, {}, {}, {5, clock_.Now()}});
  conductor_.Lost(1, "its connection was lost");
  Pass(Seconds{0.3});
  Say(0, Samples{kFirst, {}, {}, {6, clock_.Now()}});
  conductor_.Handle(StopAsked{SIGTERM});
  Say(0, EventBody(EpochStopped{kFirst}));
  Pass(Seconds{9.6});
  EXPECT_EQ(state().mode, Mode::kFinishing) << "it may be back in a moment";
  Pass(Seconds{0.2});
  EXPECT_EQ(state().mode, Mode::kFinished);
  EXPECT_EQ(state().verdict, "stopped by SIGTERM");
}

// All ranks have left and all is in memory: what node b held, its keeper has.
TEST_F(TwoNodes, AtTheEndAKeeperWritesWhatALostNodeHad) {
  Run();
  AllSay(KeepsAt{"host", 7});
  conductor_.Lost(1, "its connection was lost");
  told_.clear();
  Say(0, FlushWanted{{kFirst, 3}});
  EXPECT_THAT(told_, IsEmpty()) << "it may come back, and the job goes on";
  conductor_.Handle(StopAsked{SIGTERM});
  Say(0, EventBody(EpochStopped{kFirst}));
  told_.clear();
  Pass(Seconds{10});
  ASSERT_EQ(state().mode, Mode::kFinished);
  EXPECT_THAT(told_, ElementsAre("0: write, of b from rank 1"));
}

// It has the place of one that was lost, and was to fetch its part when the job was stopped.
TEST_F(TwoNodes, AtTheEndAKeeperWritesWhatANodeLacks) {
  Run();
  AllSay(KeepsAt{"host", 7});
  conductor_.Handle(StopAsked{SIGTERM});
  AllSay(EventBody(EpochStopped{kFirst}));
  ASSERT_EQ(state().mode, Mode::kFinished);
  told_.clear();
  Say(0, FlushWanted{{kFirst, 3}});
  EXPECT_THAT(told_, ElementsAre("0: write", "1: write"));
  told_.clear();
  Say(1, PartWritten{{kFirst, 3}, 1, "", true, ""});
  Say(0, FlushWanted{{kFirst, 3}});
  EXPECT_THAT(told_, ElementsAre("0: gone of 1", "0: write, of b from rank 1"));
}

// Nor is it asked for again.
TEST_F(TwoNodes, WhatANodeLacksAndNobodyKeepsNamesIt) {
  Run();
  conductor_.Handle(StopAsked{SIGTERM});
  AllSay(EventBody(EpochStopped{kFirst}));
  ASSERT_EQ(state().mode, Mode::kFinished);
  Say(0, FlushWanted{{kFirst, 3}});
  told_.clear();
  Say(1, PartWritten{{kFirst, 3}, 1, "", true, ""});
  EXPECT_THAT(told_, ElementsAre("0: node b has no part of step 3, and no node in reach keeps it for it"));
}

// What is not kept, or by an agent of the release before, which would write its own part alone and say nothing of the
// other.
TEST_F(TwoNodes, WhatNobodyKeepsWhoWritesForOthersIsNotWritten) {
  Run();
  conductor_.Lost(1, "its connection was lost");
  conductor_.Handle(StopAsked{SIGTERM});
  Say(0, EventBody(EpochStopped{kFirst}));
  Pass(Seconds{10});
  ASSERT_EQ(state().mode, Mode::kFinished);
  told_.clear();
  Say(0, FlushWanted{{kFirst, 3}});
  EXPECT_THAT(told_, IsEmpty()) << "nobody keeps it";
  for (const bool writes_parts : {false, true}) {
    for (const int node : {0, 1}) Say(node, KeepsAt{"host", 7, 0, writes_parts});
    told_.clear();
    Say(0, FlushWanted{{kFirst, 3}});
    EXPECT_EQ(told_.empty(), !writes_parts);
  }
}

// Its workers may run on where an agent that comes back finds them: nobody is in a hurry.
TEST_F(TwoNodes, AnEndThatNobodyAskedForWaitsForWhoIsLost) {
  Run();
  conductor_.Lost(1, "its connection was lost");
  conductor_.Handle(AgentGone{0, "its starter was killed"});
  ASSERT_EQ(state().mode, Mode::kFinishing);
  Say(0, EventBody(EpochStopped{kFirst}));
  Pass(Seconds{30});
  EXPECT_EQ(state().mode, Mode::kFinishing);
  Say(0, EventBody(StopAsked{SIGTERM}));
  Pass(Seconds{0.1});
  EXPECT_EQ(state().mode, Mode::kFinished) << "now somebody is";
}

class TwoNodesOfWhichOneIsAwaited : public SomeNodes {
 protected:
  TwoNodesOfWhichOneIsAwaited() : SomeNodes({{"a", 1, "a's"}, {"b", 1, "b's"}}, /*can_ask=*/true) {
    Run();
    conductor_.Lost(1, "its connection was lost");
    Pass(Seconds{11});
    EXPECT_EQ(state().awaited.count(1), 1U);
  }
};

TEST_F(TwoNodesOfWhichOneIsAwaited, TheWaitIsForTimeInWhichSomebodyCouldCome) {
  Pass(Seconds{500});
  const size_t incidents = state().incidents.size();
  BeAway(Seconds{200});
  EXPECT_EQ(state().incidents.size(), incidents) << "nobody had left it";
  Pass(Seconds{99});
  EXPECT_EQ(state().awaited.count(1), 1U) << "for 599 s";
  Pass(Seconds{2});
  EXPECT_EQ(state().mode, Mode::kFinishing);
  EXPECT_EQ(state().exit_code, kExitLost);
}

// This process is stopped for long, and all ranks end meanwhile.
class ThreeNodesOfAStoppedCoordinator : public SomeNodes {
 protected:
  ThreeNodesOfAStoppedCoordinator() : SomeNodes({{"a", 1, "a's"}, {"b", 1, "b's"}, {"c", 1, "c's"}}) { Run(); }
  void Crash() {
    RankExited exited;
    exited.epoch = kFirst;
    exited.rank = RankId(1);
    exited.status.signal = SIGKILL;
    Say(1, EventBody(exited));
    for (int i = 0; i < 20; ++i) Pass(Seconds{0.1});
    ASSERT_EQ(state().mode, Mode::kStopping);
  }
  void Stop() {
    for (int asked = 0; asked < 2; ++asked) conductor_.Handle(StopAsked{SIGTERM});
    ASSERT_EQ(state().mode, Mode::kFinishing);
  }
};

TEST_F(ThreeNodesOfAStoppedCoordinator, NobodyIsEvictedWhoseRanksEndedMeanwhile) {
  conductor_.Handle(StandbyCame{{"s", 1, "s's"}});
  Crash();
  BeAway(Seconds{130});
  AllSay(EventBody(EpochStopped{kFirst}));
  EXPECT_THAT(state().evictions, IsEmpty());
  EXPECT_EQ(state().mode, Mode::kChoosing);
}

// Node b is lost, and then its keeper, while it writes for both: what they had is written by whoever is back.
TEST_F(ThreeNodesOfAStoppedCoordinator, AKeeperThatIsLostIsNotWaitedForEither) {
  AllSay(KeepsAt{"host", 7});
  conductor_.Lost(1, "its connection was lost");
  conductor_.Handle(StopAsked{SIGTERM});
  for (const int node : {0, 2}) Say(node, EventBody(EpochStopped{kFirst}));
  Pass(Seconds{10});
  ASSERT_EQ(state().mode, Mode::kFinished);
  told_.clear();
  Say(0, FlushWanted{{kFirst, 3}});
  EXPECT_THAT(told_, ElementsAre("0: write", "2: write, of b from rank 1"));
  told_.clear();
  conductor_.Lost(2, "its connection was lost");
  EXPECT_THAT(told_, ElementsAre("0: gone of 2", "0: gone of 1"));
  told_.clear();
  Say(0, FlushWanted{{kFirst, 3}});
  EXPECT_THAT(told_, IsEmpty());
  Say(2, AllSaid{kFirst});
  EXPECT_THAT(told_, IsSupersetOf({"0: write", "2: write, of b from rank 1"}));
}

// Likewise of one that is in reach and has no part of its own.
TEST_F(ThreeNodesOfAStoppedCoordinator, AKeeperThatIsLostIsNotWaitedForByWhomItWroteFor) {
  AllSay(KeepsAt{"host", 7});
  conductor_.Handle(StopAsked{SIGTERM});
  AllSay(EventBody(EpochStopped{kFirst}));
  ASSERT_EQ(state().mode, Mode::kFinished);
  Say(0, FlushWanted{{kFirst, 3}});
  Say(1, PartWritten{{kFirst, 3}, 1, "", true, ""});
  told_.clear();
  Say(0, FlushWanted{{kFirst, 3}});
  EXPECT_THAT(told_, ElementsAre("0: write", "2: write, of b from rank 1"));
  told_.clear();
  conductor_.Lost(2, "its connection was lost");
  EXPECT_THAT(told_, ElementsAre("0: gone of 2", "0: gone of 1"));
}

TEST_F(ThreeNodesOfAStoppedCoordinator, TheJobEndsAsItWasAskedTo) {
  Stop();
  BeAway(Seconds{200});
  AllSay(EventBody(EpochStopped{kFirst}));
  EXPECT_EQ(state().mode, Mode::kFinished);
  EXPECT_EQ(state().verdict, "stopped by SIGTERM");
}

TEST_F(ThreeNodesOfAStoppedCoordinator, WhoHadHisTimeBeforeIsStillGivenTheTimeToSayWhatHappened) {
  Stop();
  Pass(Seconds{4.9});
  BeAway(Seconds{200});
  Pass(Seconds{3.9});
  EXPECT_EQ(state().mode, Mode::kFinishing);
  Pass(Seconds{0.2});
  EXPECT_EQ(state().mode, Mode::kFinished) << "none came anew";
}

// The death behind it is one that is only heard of now.
TEST_F(ThreeNodesOfAStoppedCoordinator, NobodyIsNamedForALostConnectionBeforeAllCouldComeAnew) {
  BeAway(Seconds{4.7});
  RankExited lost;
  lost.epoch = kFirst;
  lost.rank = RankId(0);
  lost.status.code = 1;
  lost.exception = ExceptionInfo{"RuntimeError", "Connection closed by peer", "train.py:1 in main", true};
  Say(0, EventBody(lost));
  Pass(Seconds{3.9});
  EXPECT_EQ(state().mode, Mode::kConfirming);
  Pass(Seconds{0.2});
  EXPECT_EQ(state().mode, Mode::kStopping);
}

// The agent of node b alone was killed, and its ranks trained on; then all of node c stops, which is noticed 4 s later.
TEST_F(ThreeNodesOfAStoppedCoordinator, OfSeveralThatAreLostTheOneGoesThatTheJobStoodFor) {
  conductor_.Handle(StandbyCame{{"s", 1, "s's"}});
  conductor_.Lost(1, "its connection was lost");
  StepFor(15);
  Pass(Seconds{4});
  conductor_.Lost(2, "nothing was heard for 4 s", Seconds{4});
  Pass(Seconds{9.9});
  EXPECT_THAT(state().evictions, IsEmpty());
  Pass(Seconds{0.2});
  ASSERT_EQ(state().evictions.size(), 1u);
  EXPECT_EQ(state().evictions.front().node.name, "c");
  EXPECT_THAT(state().evictions.front().why, testing::HasSubstr("out of reach (c, b) it was lost nearest to when"));
}

// The one that is lost before the last step was heard of is as near as one that was silent since then, or nearer.
TEST_F(ThreeNodesOfAStoppedCoordinator, WhoseRanksWentOnWithoutItsAgentIsNotNearest) {
  conductor_.Handle(StandbyCame{{"s", 1, "s's"}});
  conductor_.Lost(1, "its connection was lost");
  Pass(Seconds{3});
  Samples samples;
  samples.progress = {1, clock_.Now()};
  Say(0, samples);
  Pass(Seconds{4});
  conductor_.Lost(2, "nothing was heard for 4 s", Seconds{4});
  for (int i = 0; i < 11; ++i) Pass(Seconds{1});
  ASSERT_EQ(state().evictions.size(), 1u);
  EXPECT_EQ(state().evictions.front().node.name, "c");
}

// Agent b was killed, and then agent c; 60 s after the first its starter ends its ranks, and all stand. That holds from
// when it was lost, whoever led then.
TEST_F(ThreeNodesOfAStoppedCoordinator, WhoseRanksWereEndedByTheirStarterGoesFirst) {
  conductor_.Handle(StandbyCame{{"s", 1, "s's"}});
  conductor_.Lost(1, "its connection was lost");
  StepFor(40);
  conductor_.Lost(2, "its connection was lost");
  BeAway(Seconds{4});
  StepFor(16);
  for (int i = 0; i < 12; ++i) Pass(Seconds{1});
  ASSERT_EQ(state().evictions.size(), 1u);
  EXPECT_EQ(state().evictions.front().node.name, "b");
  EXPECT_THAT(state().evictions.front().why,
              testing::HasSubstr("out of reach (b, c) its ranks were to be ended nearest to when the job stood"));
}

// Where another machine can be asked for.
// Agent b is cut off, and its ranks train on; then the machine of c goes down.
TEST_F(ThreeNodesOfAStoppedCoordinator, AnAgentThatIsOnlyCutOffLosesNoStarter) {
  conductor_.Handle(StandbyCame{{"s", 1, "s's"}});
  conductor_.Lost(1, "nothing heard for 4 s", Seconds{4});
  StepFor(59);
  Pass(Seconds{4});
  conductor_.Lost(2, "nothing heard for 4 s", Seconds{4});
  for (int i = 0; i < 12; ++i) Pass(Seconds{1});
  ASSERT_EQ(state().evictions.size(), 1u);
  EXPECT_EQ(state().evictions.front().node.name, "c");
  EXPECT_THAT(incident::Lead(state().incidents.back()).ambiguous_with, IsEmpty()) << "the ranks of b stepped on";
}

class ThreeNodesOfAScheduler : public SomeNodes {
 protected:
  ThreeNodesOfAScheduler() : SomeNodes({{"a", 1, "a's"}, {"b", 1, "b's"}, {"c", 1, "c's"}}, /*can_ask=*/true) { Run(); }
  void PassFor(int seconds) {
    for (int i = 0; i < seconds; ++i) Pass(Seconds{1});
  }
  void Lose(int node) { conductor_.Lost(node, "nothing was heard for 4 s", Seconds{4}); }
  std::vector<int> Awaited() const {
    std::vector<int> nodes;
    for (const auto& [node, awaited] : state().awaited) nodes.push_back(node);
    return nodes;
  }
};

TEST_F(ThreeNodesOfAScheduler, WhoseRanksWentOnWithoutItsAgentGoesForNoStandbyThatWasAskedForAnother) {
  Lose(1);
  StepFor(15);
  PassFor(4);
  Lose(2);
  PassFor(100);
  EXPECT_THAT(Awaited(), ElementsAre(2));
  conductor_.Handle(StandbyCame{{"s", 1, "s's"}});
  Pass(Seconds{1});
  ASSERT_EQ(state().evictions.size(), 1u);
  EXPECT_EQ(state().evictions.front().node.name, "c");
  EXPECT_THAT(state().evictions.front().why, testing::HasSubstr("out of reach (c, b) it was lost nearest to when"));
}

TEST_F(ThreeNodesOfAScheduler, WhoseRanksWereEndedByTheirStarterIsAwaited) {
  conductor_.Lost(1, "its connection was lost");
  StepFor(40);
  Lose(2);
  StepFor(20);
  PassFor(12);
  EXPECT_THAT(Awaited(), ElementsAre(1));
  conductor_.Handle(StandbyCame{{"s", 1, "s's"}});
  Pass(Seconds{1});
  ASSERT_EQ(state().evictions.size(), 1u);
  EXPECT_EQ(state().evictions.front().node.name, "b");
}

TEST_F(ThreeNodesOfAScheduler, OfTwoThatWereLostWhileTheJobStoodBothAreAwaitedAndTheNearestGoesFirst) {
  Samples samples;
  samples.progress = {1, clock_.Now()};
  Say(0, samples);
  PassFor(4);
  Lose(2);
  PassFor(1);
  Lose(1);
  PassFor(20);
  EXPECT_THAT(Awaited(), ElementsAre(1, 2));
  conductor_.Handle(StandbyCame{{"s", 1, "s's"}});
  Pass(Seconds{1});
  ASSERT_EQ(state().evictions.size(), 1u);
  EXPECT_EQ(state().evictions.front().node.name, "c");
}

// Another process leads on, and not all agents have come to it yet.
class ThreeNodesOfAnotherCoordinator : public SomeNodes {
 protected:
  ThreeNodesOfAnotherCoordinator() : SomeNodes({{"a", 1, "a's"}, {"b", 1, "b's"}, {"c", 1, "c's"}}) {
    Run();
    conductor_.Handle(WatcherGone{clock_.Now()});
    conductor_.Handle(StandbyCame{{"s", 1, "s's"}});
    conductor_.Begin(PendingCommands(state()));
  }
  void LoseConnection(int rank) {
    RankExited lost;
    lost.epoch = kFirst;
    lost.rank = RankId(rank);
    lost.status.code = 1;
    lost.exception = ExceptionInfo{"RuntimeError", "Connection closed by peer", "train.py:1 in main", true};
    Say(rank, EventBody(lost));
  }
};

TEST_F(ThreeNodesOfAnotherCoordinator, WhoDiedWhileNobodyLedIsNamedForTheConnectionsThatOthersLost) {
  for (const int node : {0, 2}) {
    LoseConnection(node);
    Say(node, AllSaid{kFirst});
  }
  Pass(Seconds{1.9});
  EXPECT_EQ(state().mode, Mode::kConfirming) << "node b may come yet";
  EXPECT_THAT(state().lost_agents, IsEmpty());
  Pass(Seconds{0.1});
  EXPECT_EQ(incident::Headline(state().incidents[*state().open]),
            "node b is lost, and its ranks with it: it has not come to this coordinator, others have lost their "
            "connections to its ranks, and nobody in reach died");
  EXPECT_EQ(state().spec.nodes[1].name, "s");
}

TEST_F(ThreeNodesOfAnotherCoordinator, NobodyIsWaitedForWhenAllHaveCome) {
  for (const int node : {0, 1, 2}) Say(node, AllSaid{kFirst});
  LoseConnection(0);
  Pass(Seconds{0.9});
  EXPECT_EQ(state().mode, Mode::kConfirming);
  Pass(Seconds{0.1});
  EXPECT_EQ(state().mode, Mode::kStopping);
  Pass(Seconds{3});
  EXPECT_THAT(state().lost_agents, IsEmpty());
}

TEST_F(ThreeNodesOfAStoppedCoordinator, NoPartIsAskedOfWhoHasYetToComeAnew) {
  conductor_.LeftUs(2);
  Say(0, FlushWanted{{kFirst, 3}});
  EXPECT_THAT(told_, IsEmpty());
  Say(2, AllSaid{kFirst});
  EXPECT_THAT(told_, IsSupersetOf({"0: write", "1: write", "2: write"}));
  EXPECT_THAT(state().lost_agents, IsEmpty());
}

TEST_F(ThreeNodesOfAStoppedCoordinator, WhoDoesNotComeAnewIsLost) {
  conductor_.LeftUs(2);
  EXPECT_THAT(state().lost_agents, IsEmpty());
  conductor_.Lost(2, "its connection was lost");
  EXPECT_EQ(state().lost_agents.count(2), 1U);
}

}  // namespace
}  // namespace lockstep::control
