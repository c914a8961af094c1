#include "lockstep/control/judge.h"

#include <gmock/gmock.h>
#include <string.h>

#include <cmath>

#include "lockstep/control/scenario.h"

namespace lockstep::control {
namespace {

using testing::_;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::VariantWith;

constexpr EpochId kOne{1};

// Four ranks of steps of 0.1 s; `halted` stands still from the tenth step on, and the others wait.
class JudgeTest : public testing::Test {
 protected:
  JudgeTest() {
    judge_.Begin(kOne);
    state_.spec.ranks = 4;
    state_.epoch = kOne;
  }
  Samples Look(double at, detect::ProcState state, int halted) {
    const int64_t step = std::min<int64_t>(std::llround(at * 10), 10);
    Samples samples{kOne, {}, {}, Step(step, 0.1 * static_cast<double>(step))};
    for (int rank = 0; rank < 4; ++rank) {
      detect::RankSample sample;
      sample.rank = RankId(rank);
      sample.at = At(at);
      sample.step = step;
      sample.step_end = At(0.1 * static_cast<double>(step));
      sample.in_loop = true;
      const bool stands = step == 10 && (rank == halted || halted < 0);
      sample.state = stands ? state : detect::ProcState::kSleeping;
      samples.ranks.push_back(sample);
    }
    return samples;
  }
  std::vector<std::string> Until(double end, detect::ProcState state, int halted) {
    std::vector<std::string> names;
    for (; at_ < end; at_ += 0.1) {
      const Samples samples = Look(at_, state, halted);
      judge_.Add(samples);
      for (const EventBody& event : judge_.At(state_, samples.progress, At(at_))) {
        if (const auto* suspected = std::get_if<Suspected>(&event))
          names.push_back("rank " + suspected->finding.suspects.at(0).name);
        else if (!std::holds_alternative<ProgressSeen>(event))
          names.push_back(TypeName(event));
      }
    }
    return names;
  }

  detect::HangLimits limits_;
  Judge judge_{limits_, 4};
  State state_;
  double at_ = 0.1;
};

TEST_F(JudgeTest, NamesTheOneThatStoppedWhileOthersWait) {
  EXPECT_THAT(Until(1.0, detect::ProcState::kStopped, 2), IsEmpty());
  EXPECT_THAT(Until(3.5, detect::ProcState::kStopped, 2), ElementsAre("rank 2"));
}

// One of 64 ranks after the other stops, every 0.1 s.
TEST_F(JudgeTest, WhoJoinsTheSuspectsIsToldEverLessOften) {
  constexpr int kRanks = 64;
  Judge judge{limits_, kRanks};
  judge.Begin(kOne);
  state_.spec.ranks = kRanks;
  std::vector<size_t> told;
  for (int tick = 1; tick < 200; ++tick) {
    const double at = 0.1 * tick;
    Samples samples = Look(at, detect::ProcState::kSleeping, -1);
    const detect::RankSample like = samples.ranks[0];
    samples.ranks.assign(kRanks, like);
    for (int rank = 0; rank < kRanks; ++rank) {
      samples.ranks[static_cast<size_t>(rank)].rank = RankId(rank);
      if (rank < std::min(tick - 10, kRanks / 2))
        samples.ranks[static_cast<size_t>(rank)].state = detect::ProcState::kStopped;
    }
    judge.Add(samples);
    for (const EventBody& event : judge.At(state_, samples.progress, At(at)))
      if (const auto* suspected = std::get_if<Suspected>(&event))
        if (suspected->finding.certain) told.push_back(suspected->finding.suspects.size());
  }
  EXPECT_EQ(told.front(), 1u) << "at once";
  EXPECT_EQ(told.back(), kRanks / 2u) << "in the end all";
  EXPECT_LE(told.size(), 8u);
}

// It may be at work there: an evaluation at the same step in each epoch, which the job must live through.
TEST_F(JudgeTest, ALoopAtOneSpotIsCertainOnlyIfTheEpochHasBroughtAStep) {
  limits_ = {.hang_limit = Seconds{40}, .spin_limit = Seconds{10}};
  const auto certain_after = [&](int restarts) {
    Judge judge{limits_, 4};
    judge.Begin(kOne);
    state_.restarts = restarts;
    state_.frontier = state_.frontier_at_restart = 10;
    for (double at = 0.1; at < 100; at += 0.1) {
      Samples samples = Look(at, detect::ProcState::kSleeping, -1);
      for (detect::RankSample& sample : samples.ranks) sample.faults = 1;
      samples.ranks[2].cpu = At(at);
      for (int rank = 0; at > 1 && rank < 4; ++rank)
        samples.stacks.push_back({RankId(rank), At(at),
                                  rank == 2 ? detect::InCollective::kNo : detect::InCollective::kYes, rank != 2,
                                  "train.py:7 in f", 1, "f (python)", detect::CodeKind::kInterpreter});
      judge.Add(samples);
      for (const EventBody& event : judge.At(state_, samples.progress, At(at)))
        if (const auto* suspected = std::get_if<Suspected>(&event); suspected != nullptr && suspected->finding.certain)
          return at;
    }
    return 0.0;
  };
  EXPECT_NEAR(certain_after(0), 11, 2);
  EXPECT_NEAR(certain_after(1), 41, 2);
}

TEST_F(JudgeTest, AJobOfWhichEveryProcessIsStoppedIsPaused) {
  EXPECT_THAT(Until(2.0, detect::ProcState::kStopped, -1), testing::Contains("job_paused"));
}

TEST_F(JudgeTest, StacksOfAMomentNameWhoIsOutside) {
  const auto rank = [](int number, const std::string& frame) {
    return fmt::format("rank {} (pid 7)\n Python\n  main thread\n    {}\n native\n  not readable: no right\n\n", number,
                       frame);
  };
  std::string text = "node a\n" + rank(0, "/home/me/job.py:9 in load");
  for (int number = 1; number < 4; ++number)
    text += rank(number, "/lib/torch/distributed/distributed_c10d.py:15 in all_reduce");
  judge_.Add(0, {EpochId(7), text});
  EXPECT_THAT(judge_.AtStacks(state_.spec, {}, At(2)), IsEmpty()) << "they are of another epoch";
  judge_.Add(0, {kOne, text});
  const std::vector<EventBody> events = judge_.AtStacks(state_.spec, {}, At(2));
  ASSERT_EQ(events.size(), 1u);
  const auto& finding = std::get<Suspected>(events[0]).finding;
  EXPECT_EQ(finding.suspects.at(0).name, "0");
  EXPECT_EQ(finding.since, At(2));
  EXPECT_THAT(judge_.AtStacks(state_.spec, {}, At(3)), IsEmpty()) << "told once";
}

TEST_F(JudgeTest, SomeNodesAreNotTheJob) {
  Samples half = Look(1.2, detect::ProcState::kStopped, -1);
  half.ranks.resize(2);
  judge_.Add(half);
  EXPECT_THAT(judge_.At(state_, {}, At(1.2)), IsEmpty()) << "nothing is known of the others";
}

TEST_F(JudgeTest, CatchingUpIsToldOncePerStep) {
  state_.open = 0;
  state_.fault.close_at_step = 7;
  EXPECT_THAT(Until(0.65, detect::ProcState::kRunning, 9), IsEmpty());
  EXPECT_THAT(Until(0.85, detect::ProcState::kRunning, 9), ElementsAre("caught_up", "caught_up"));
}

// Forty all-reduces of four ranks, to which `late` comes 50 ms after the others, as it is longer by itself.
CommunicationSeen Communication(EpochId epoch, int late) {
  CommunicationSeen seen{epoch, {}};
  for (int rank = 0; rank < 4; ++rank) {
    trace::TrailSnapshot trail;
    trail.origin.rank = static_cast<uint32_t>(rank);
    trail.origin.world = 4;
    trail.alive = true;
    ls_communicator world{};
    world.id = 9;
    world.rank = static_cast<uint32_t>(rank);
    world.size = 4;
    world.launched = 40;
    trail.communicators = {world};
    for (int i = 0; i < 40; ++i) {
      const int64_t alone = rank == late ? 150'000'000 : 100'000'000;
      ls_record record{};
      record.kind = LS_RECORD_OP;
      record.time_ns = int64_t{160'000'000} * (i + 1);
      ls_op_body& op = record.body.op;
      op.number = static_cast<uint32_t>(i + 1);
      op.tag = LS_NO_TAG;
      op.function = LS_ALL_REDUCE;
      op.state = LS_OP_COMPLETED;
      op.alone = static_cast<uint32_t>(alone);
      op.duration = static_cast<uint32_t>(160'000'000 - alone);
      trail.ended.push_back(record);
    }
    seen.trails.push_back(trail);
  }
  return seen;
}

TEST_F(JudgeTest, WhoSlowsTheOthersIsNamedOnce) {
  judge_.Add(Look(0.5, detect::ProcState::kSleeping, 9));
  const auto names = [&](double at) {
    std::vector<std::string> ranks;
    for (const EventBody& event : judge_.At(state_, Step(5, 0.5), At(at)))
      if (const auto* suspected = std::get_if<Suspected>(&event))
        ranks.push_back("rank " + suspected->finding.suspects.at(0).name);
    return ranks;
  };
  judge_.Add(Communication(EpochId(7), 2));
  EXPECT_THAT(names(0.6), IsEmpty()) << "of another epoch";
  judge_.Add(Communication(kOne, 2));
  EXPECT_THAT(names(0.7), ElementsAre("rank 2"));
  judge_.Add(Communication(kOne, 1));
  EXPECT_THAT(names(0.8), IsEmpty()) << "so soon, nobody looks again";
}

// A process that uses NCCL and gloo has a trail of each.
TEST_F(JudgeTest, TrailsOfTwoLibrariesStandBesideEachOther) {
  judge_.Add(Look(0.5, detect::ProcState::kSleeping, 9));
  CommunicationSeen seen = Communication(kOne, 2);
  for (trace::TrailSnapshot& trail : seen.trails) strcpy(trail.origin.source, "nccl");
  judge_.Add(seen);
  for (trace::TrailSnapshot& trail : seen.trails) {
    strcpy(trail.origin.source, "gloo");
    trail.ended.clear();
  }
  judge_.Add(seen);
  EXPECT_THAT(judge_.At(state_, Step(5, 0.5), At(0.7)), Contains(VariantWith<Suspected>(_)));
}

// Suspected when no look over three steps found a finite loss; once.
TEST_F(JudgeTest, ALossThatIsNoNumberIsNobodysFault) {
  Samples samples = Look(0.5, detect::ProcState::kSleeping, 9);
  const auto found = [&](std::vector<BadLoss> losses) {
    samples.losses = std::move(losses);
    judge_.Add(samples);
    std::vector<CheckpointId> from;
    for (const EventBody& event : judge_.At(state_, Step(5, 0.5), At(0.5)))
      if (const auto* suspected = std::get_if<Suspected>(&event)) {
        EXPECT_EQ(suspected->finding.syndrome, incident::Syndrome::kNan);
        EXPECT_THAT(suspected->finding.suspects, IsEmpty());
        EXPECT_THAT(suspected->finding.evidence[0],
                    HasSubstr("of rank 2 was finite up to step 7, and at no look from step 9 on"));
        from.push_back({suspected->bad_epoch, suspected->bad_from});
      }
    return from;
  };
  EXPECT_THAT(found({{RankId(1), 3, 4, 5, kOne}}), IsEmpty());
  EXPECT_THAT(found({{RankId(1), -1, -1, 6}}), IsEmpty()) << "it is well again";
  EXPECT_THAT(found({{RankId(1), 8, 8, 9, kOne}, {RankId(2), 7, 9, 9, kOne}}), IsEmpty());
  EXPECT_THAT(found({{RankId(1), 8, 8, 10, kOne}}), ElementsAre(Checkpoint(1, 7)));
  EXPECT_THAT(found({{RankId(1), 8, 8, 11, kOne}}), IsEmpty());
}

TEST_F(JudgeTest, ABadLossIsCaughtUpWhenItIsFiniteOnAllRanks) {
  state_.mode = Mode::kRunning;
  state_.in_loop = true;
  state_.incidents.resize(1);
  state_.bad_loss = 0;
  Samples samples = Look(0.5, detect::ProcState::kSleeping, 9);
  const auto told = [&](int64_t step, std::vector<BadLoss> losses) {
    samples.losses = std::move(losses);
    judge_.Add(samples);
    return judge_.At(state_, Step(step, 0.5), At(0.5));
  };
  EXPECT_THAT(told(9, {{RankId(0), 2, 3, 9, kOne}, {RankId(1), 2, 3, 9, kOne}}),
              AllOf(Not(Contains(VariantWith<CaughtUp>(_))), Not(Contains(VariantWith<Suspected>(_)))))
      << "it was told, by this coordinator or by the one before it";
  EXPECT_THAT(told(10, {{RankId(0), -1, -1, 10}}), Not(Contains(VariantWith<CaughtUp>(_))));
  EXPECT_THAT(told(11, {{RankId(1), -1, -1, 11}}), Contains(VariantWith<CaughtUp>(Field(&CaughtUp::finite, true))));
  state_.bad_loss.reset();
  EXPECT_THAT(told(15, {{RankId(0), 12, 13, 15, kOne}}), Contains(VariantWith<Suspected>(_))) << "it is back";
}

TEST_F(JudgeTest, ALossThatIsNoNumberMayBeFromBeforeTheEpoch) {
  judge_.Begin(EpochId(2));
  state_.epoch = EpochId(2);
  Samples samples = Look(0.5, detect::ProcState::kSleeping, 9);
  samples.epoch = EpochId(2);
  samples.losses = {{RankId(0), 4, 6, 8, EpochId(2)}, {RankId(1), 19, 6, 8, kOne}};
  judge_.Add(samples);
  const std::vector<EventBody> events = judge_.At(state_, Step(8, 0.5), At(0.5));
  const auto suspected =
      std::ranges::find_if(events, [](const EventBody& event) { return std::holds_alternative<Suspected>(event); });
  ASSERT_NE(suspected, events.end());
  EXPECT_EQ(std::get<Suspected>(*suspected).bad_from, 19);
  EXPECT_EQ(std::get<Suspected>(*suspected).bad_epoch, kOne);
  EXPECT_THAT(std::get<Suspected>(*suspected).finding.evidence[0],
              HasSubstr("rank 1 was finite up to step 19 of epoch 1"));
}

// Workers that ran from 1 s on, of which `joined` says how many use the client.
class UnseenTest : public JudgeTest {
 protected:
  UnseenTest() {
    state_.mode = Mode::kStarting;
    state_.spawned = At(1);
  }
  std::vector<EventBody> LookAt(double at, size_t joined, size_t ranks = 4) {
    Samples samples{kOne, {}, {}, {}};
    for (size_t rank = 0; rank < ranks; ++rank) {
      samples.ranks.emplace_back().rank = RankId(static_cast<int>(rank));
      samples.ranks.back().at = At(at);
      samples.ranks.back().joined = rank < joined;
      if (static_cast<int>(rank) == stopped_) samples.ranks.back().state = detect::ProcState::kStopped;
    }
    judge_.Add(samples);
    return judge_.At(state_, {}, At(at));
  }
  int stopped_ = -1;
};

TEST_F(UnseenTest, AJobOfWhichNoRankJoinsTrains) {
  EXPECT_THAT(LookAt(60.9, 0), IsEmpty());
  const std::vector<EventBody> events = LookAt(61, 0);
  EXPECT_EQ(judge_.TakeAbsent(), "");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(std::get<LoopBegan>(events[0]).unseen);
  EXPECT_EQ(std::get<LoopBegan>(events[0]).begin, At(61));
}

TEST_F(UnseenTest, AJobThatLoadsForLongDoesNot) {
  LookAt(2, 4);
  EXPECT_THAT(LookAt(600, 4), IsEmpty());
  judge_.Begin(EpochId(2));
  Samples next{EpochId(2), {}, {}, {}};
  for (int rank = 0; rank < 4; ++rank) next.ranks.emplace_back().rank = RankId(rank);
  judge_.Add(next);
  state_.epoch = EpochId(2);
  EXPECT_THAT(judge_.At(state_, {}, At(900)), IsEmpty()) << "it did in the epoch before";
}

TEST_F(UnseenTest, WaitsForTheWordOfAllNodes) {
  EXPECT_THAT(LookAt(100, 0, 2), IsEmpty());
  EXPECT_EQ(LookAt(101, 0).size(), 1u);
}

TEST_F(UnseenTest, AJobOfWhichOnlySomeRanksJoinTrainsAndTheOthersAreNamedOnce) {
  LookAt(2, 0);
  EXPECT_THAT(LookAt(30, 1), IsEmpty());
  EXPECT_THAT(LookAt(89.9, 1), IsEmpty()) << "they may load for longer than the first";
  EXPECT_THAT(LookAt(90, 1), ElementsAre(VariantWith<LoopBegan>(_)));
  EXPECT_EQ(judge_.TakeAbsent(),
            "ranks 1-3 have not joined: Checkpoint must be made on all ranks; until then no step counts");
  LookAt(91, 1);
  EXPECT_EQ(judge_.TakeAbsent(), "");
}

// Told by what is seen now, for whoever told the suspicion may have been a coordinator before this one.
TEST_F(UnseenTest, WhatKeptAJobThatIsOnlyWatchedIsToldWhenItHasGone) {
  state_.mode = Mode::kRunning;
  state_.in_loop = state_.unseen = true;
  state_.open = 0;
  const auto look = [&](double at, detect::ProcState second) {
    Samples samples{kOne, {}, {}, {}};
    for (int rank = 0; rank < 4; ++rank) {
      samples.ranks.emplace_back().rank = RankId(rank);
      samples.ranks.back().at = At(at);
      samples.ranks.back().state = rank == 1 ? second : detect::ProcState::kSleeping;
    }
    judge_.Add(samples);
    return judge_.At(state_, {}, At(at));
  };
  std::vector<std::string> evidence;
  for (double at = 100; at < 190; at += 0.5)
    for (const EventBody& event : look(at, detect::ProcState::kStopped))
      evidence = std::get<Suspected>(event).finding.evidence;
  EXPECT_THAT(evidence, Contains("the job tells no steps"));
  EXPECT_THAT(look(190, detect::ProcState::kSleeping), ElementsAre(VariantWith<CaughtUp>(_)));
  state_.exits[RankId(3)] = {{0, SIGKILL}, At(191)};
  EXPECT_THAT(look(191, detect::ProcState::kSleeping), IsEmpty());
  state_.exits.clear();
  state_.open.reset();
  EXPECT_THAT(look(192, detect::ProcState::kSleeping), IsEmpty());
}

// Trails of a job that hangs: rank 1 has not launched the collective in which the others have been since `since`.
CommunicationSeen Hanging(double since, double now) {
  CommunicationSeen seen = Communication(kOne, -1);
  for (trace::TrailSnapshot& trail : seen.trails) {
    trail.taken_ns = At(now).value;
    if (trail.origin.rank == 1) continue;
    ls_record op = trail.ended.back();
    op.time_ns = At(since).value;
    op.body.op.number = 41;
    op.body.op.state = LS_OP_STARTED;
    op.body.op.duration = 0;
    op.body.op.waits_for = LS_NO_PEER;
    trail.under_way = {op};
    trail.communicators[0].launched = 41;
  }
  return seen;
}

// A job that tells no steps, and hangs from 100 s on.
class UnseenHangTest : public UnseenTest {
 protected:
  UnseenHangTest() {
    state_.mode = Mode::kRunning;
    state_.in_loop = state_.unseen = true;
  }
  // The first that pleases, and when.
  std::optional<std::pair<double, incident::Finding>> Until(double end, bool certain) {
    for (double at = 100; at < end; at += 0.5) {
      if (std::fmod(at, 5) == 0) judge_.Add(Hanging(100, at));
      for (const EventBody& event : LookAt(at, 0))
        if (const auto* told = std::get_if<Suspected>(&event); told != nullptr && told->finding.certain == certain)
          return std::pair(at, told->finding);
    }
    return std::nullopt;
  }
};

// 30 s, and two looks at trails of 5 s.
TEST_F(UnseenHangTest, WhoHasNotComeIsNamedByWhatTheOthersWaitIn) {
  const auto named = Until(200, false);
  ASSERT_TRUE(named.has_value());
  EXPECT_LE(named->first, 135);
  EXPECT_EQ(named->second.syndrome, incident::Syndrome::kNonCommunicationHang);
  EXPECT_EQ(named->second.suspects.at(0).name, "1");
}

// Two looks at trails, 5 s apart, and how long the job is quiet otherwise.
TEST_F(UnseenHangTest, AStoppedRankIsCertainByTheNextLook) {
  stopped_ = 1;
  const auto named = Until(200, true);
  ASSERT_TRUE(named.has_value());
  EXPECT_LE(named->first, 106);
  EXPECT_EQ(named->second.syndrome, incident::Syndrome::kStopped);
  EXPECT_EQ(named->second.suspects.at(0).name, "1");
}

TEST_F(UnseenHangTest, NothingIsCertainBeforeTheHangLimit) {
  const auto certain = Until(1000, true);
  ASSERT_TRUE(certain.has_value());
  EXPECT_NEAR(certain->first, 700, 1);
}

TEST_F(UnseenHangTest, WhereStepsTellWhoIsOutsideIsLeftToThem) {
  state_.unseen = false;
  EXPECT_FALSE(Until(1000, false).has_value());
}

TEST_F(JudgeTest, SamplesOfAnotherEpochAreLeftAside) {
  Samples samples = Look(1.0, detect::ProcState::kRunning, 9);
  samples.epoch = EpochId(2);
  judge_.Add(samples);
  EXPECT_THAT(judge_.At(state_, Step(9, 1), At(9)), IsEmpty());
}

}  // namespace
}  // namespace lockstep::control
