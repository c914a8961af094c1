#include "lockstep/trace/trails.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "lockstep/base/test_folder.h"
#include "lockstep/record/trail.h"

namespace lockstep::trace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kMs = 1'000'000;

TrailSnapshot TrailOf(uint32_t rank, uint32_t world = 4, uint32_t epoch = 1, const char* host = "a") {
  TrailSnapshot trail;
  trail.origin.rank = rank;
  trail.origin.world = world;
  trail.origin.epoch = epoch;
  std::strncpy(trail.origin.host, host, sizeof trail.origin.host - 1);
  std::strncpy(trail.origin.source, "gloo", sizeof trail.origin.source - 1);
  trail.taken_ns = 100'000 * kMs;
  trail.alive = true;
  return trail;
}

void AddCommunicator(TrailSnapshot& trail, uint64_t id, uint32_t rank, uint32_t size, int64_t created_ns = kMs) {
  ls_communicator own{};
  own.id = id;
  own.rank = rank;
  own.size = size;
  own.created_ns = created_ns;
  trail.communicators.push_back(own);
}

ls_record OpOf(uint32_t communicator, uint32_t number, int64_t end_ms, uint8_t state = LS_OP_COMPLETED,
               uint8_t function = LS_ALL_REDUCE) {
  ls_record record{};
  record.kind = LS_RECORD_OP;
  record.time_ns = end_ms * kMs;
  ls_op_body& op = record.body.op;
  op.communicator = communicator;
  op.number = number;
  op.tag = LS_NO_TAG;
  op.function = function;
  op.state = state;
  op.peer = op.waits_for = LS_NO_PEER;
  op.duration = state >= LS_OP_COMPLETED ? static_cast<uint32_t>(kMs) : 0;
  op.alone = LS_UNKNOWN;
  return record;
}

uint64_t CounterOf(const CommLog& log, const std::string& name) {
  for (const Counter& counter : log.counters)
    if (counter.name == name) return counter.count;
  return 0;
}

TEST(Trails, TheWorldIsTheOneThatAllTellOf) {
  EXPECT_THAT(JoinTrails({TrailOf(0), TrailOf(3)}).world, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(JoinTrails({TrailOf(0), TrailOf(3), TrailOf(1, 2)}).world, IsEmpty());
}

TEST(Trails, MembersAreJoinedByTheirCommunicatorsIdentity) {
  std::vector<TrailSnapshot> trails = {TrailOf(0), TrailOf(3)};
  AddCommunicator(trails[0], 7, 0, 4);
  AddCommunicator(trails[0], 8, 1, 2, 2 * kMs);
  AddCommunicator(trails[1], 8, 0, 2, 2 * kMs);  // the other way round, and not the world's
  trails[0].ended = {OpOf(1, 1, 10), OpOf(0, 1, 20)};
  trails[1].ended = {OpOf(0, 1, 11)};
  const CommLog log = JoinTrails(trails);
  ASSERT_EQ(log.communicators.size(), 2u);
  EXPECT_THAT(log.communicators[0].ranks, ElementsAre(0, 1, 2, 3)) << "all ranks, though two have not reported";
  EXPECT_THAT(log.communicators[1].ranks, ElementsAre(3, 0));
  EXPECT_THAT(log.reported, ElementsAre(0, 3));
  ASSERT_EQ(log.ops.size(), 3u);
  EXPECT_EQ(log.ops[0].communicator, log.ops[2].communicator);
  EXPECT_EQ(log.ops[0].duration_ns, kMs);
  EXPECT_EQ(log.ops[0].created_ns, 9 * kMs);
}

TEST(Trails, TellWhatIsNotKnown) {
  std::vector<TrailSnapshot> trails = {TrailOf(0, 6), TrailOf(1, 6), TrailOf(2, 6)};
  for (TrailSnapshot& trail : trails) AddCommunicator(trail, 8, trail.origin.rank, 4);
  trails[0].under_way = {OpOf(0, 0, 10, LS_OP_STARTED, LS_RECEIVE)};
  trails[0].under_way[0].body.op.peer = 3;
  trails[1].missed = 1;
  trails[2].told_one_of = {2};
  const CommLog log = JoinTrails(trails);
  EXPECT_EQ(log.communicators.at(0).size, 4U);
  EXPECT_EQ(log.communicators[0].unknown(), 1U);
  EXPECT_EQ(CounterOf(log, "members_not_known"), 1U);
  EXPECT_THAT(log.blind_spot, HasSubstr("of 1 members of communicators the ranks are not known"));
  EXPECT_EQ(log.ops.at(0).peer, -1);
  EXPECT_EQ(log.ops.at(0).batch, CommOp::kUnderWay);
  EXPECT_THAT(log.whole, ElementsAre(0)) << "of the others records were overwritten or left out";
}

TEST(Trails, WhatRanksBringToACollectiveIsItsShapeWhileItIsUnderWay) {
  std::vector<TrailSnapshot> trails = {TrailOf(0), TrailOf(1), TrailOf(2), TrailOf(3)};
  for (TrailSnapshot& trail : trails) {
    AddCommunicator(trail, 7, trail.origin.rank, 4);
    trail.under_way = {OpOf(0, 2, 10, LS_OP_STARTED)};
    trail.under_way[0].body.op.peer = trail.origin.rank == 2 ? 4000 : 1'000'000;
  }
  trails[0].ended = {OpOf(0, 1, 5)};
  trails[0].ended[0].body.op.peer = 8;
  trails[3].under_way[0].body.op.function = LS_ALL_GATHER;
  const CommLog log = JoinTrails(trails);
  ASSERT_EQ(log.ops.size(), 5u);
  EXPECT_EQ(log.ops[0].shape, 0u) << "it has ended";
  EXPECT_EQ(log.shapes[log.ops[1].shape], "of 1000000 bytes");
  EXPECT_EQ(log.ops[1].shape, log.ops[2].shape);
  EXPECT_EQ(log.shapes[log.ops[3].shape], "of 4000 bytes");
  EXPECT_EQ(log.ops[4].shape, 0u) << "where each may bring another size";
}

TEST(Trails, UnderWayHasAnAgeUnlessItsProcessIsGone) {
  TrailSnapshot trail = TrailOf(0);
  AddCommunicator(trail, 7, 0, 4);
  trail.under_way = {OpOf(0, 5, 99'000, LS_OP_STARTED)};
  CommLog log = JoinTrails({trail});
  ASSERT_EQ(log.ops.size(), 1u);
  EXPECT_EQ(log.ops[0].state, OpState::kStarted);
  EXPECT_EQ(log.ops[0].age_ns, 1'000 * kMs);
  EXPECT_FALSE(log.moving);
  ASSERT_EQ(log.counts.size(), 1u);
  EXPECT_EQ(log.counts[0].completed, 4);

  trail.alive = false;
  log = JoinTrails({trail});
  EXPECT_EQ(log.ops[0].age_ns, -1);
  EXPECT_TRUE(log.moving);
}

TEST(Trails, WhoIsStoppedOrGoneLaunchesNothingMore) {
  std::vector<TrailSnapshot> trails = {TrailOf(0), TrailOf(1), TrailOf(2)};
  trails[1].stopped = true;
  trails[2].alive = false;
  using Map = std::map<int, std::string>;
  EXPECT_EQ(JoinTrails(trails).at_rest, (Map{{1, "its process is stopped (state T)"}, {2, "its process is gone"}}));
  trails[2].elsewhere = true;
  EXPECT_EQ(JoinTrails(trails).at_rest, (Map{{1, "its process is stopped (state T)"}})) << "nobody here knows";
  trails[0].stopped = trails[2].stopped = true;
  EXPECT_EQ(JoinTrails(trails).at_rest, Map{}) << "somebody paused the job";
  for (TrailSnapshot& trail : trails) trail.alive = trail.stopped = trail.elsewhere = false;
  EXPECT_EQ(JoinTrails(trails).at_rest, Map{}) << "it is over, and nobody knows who was gone first";
}

// An evaluation's, say, that has ended.
TEST(Trails, WhoRunsIsNotGoneBecauseAnotherProcessOfItIs) {
  std::vector<TrailSnapshot> trails = {TrailOf(0), TrailOf(1), TrailOf(2), TrailOf(1), TrailOf(2)};
  std::strcpy(trails[3].origin.source, "feed");
  std::strcpy(trails[4].origin.source, "nccl");  // started again, it has used gloo alone so far
  trails[3].alive = trails[4].alive = false;
  using Map = std::map<int, std::string>;
  EXPECT_EQ(JoinTrails(trails).at_rest, Map{});
  trails[2].stopped = true;
  EXPECT_EQ(JoinTrails(trails).at_rest, (Map{{2, "its process is stopped (state T)"}}));
  trails[2].alive = trails[2].stopped = false;
  EXPECT_EQ(JoinTrails(trails).at_rest, (Map{{2, "its process is gone"}}));
}

// A feed's trail tells nothing of when its process began.
TEST(Trails, OfTwoWithoutCommunicatorsTheLivingOneTells) {
  std::vector<TrailSnapshot> trails = {TrailOf(0), TrailOf(0), TrailOf(0)};
  for (TrailSnapshot& trail : trails) {
    std::strcpy(trail.origin.source, "feed");
    trail.alive = false;
    ls_record& wait = trail.ended.emplace_back();
    wait.kind = LS_RECORD_DATA;
    trail.origin.pid = static_cast<uint32_t>(4711 + (&trail - trails.data()));
    wait.time_ns = (10 + (&trail - trails.data())) * kMs;
  }
  const auto told_at_ms = [&] { return JoinTrails(trails).data_waits.at(0).end_ns / kMs; };
  EXPECT_EQ(told_at_ms(), 12) << "the newest";
  trails[1].alive = true;
  EXPECT_EQ(told_at_ms(), 11);
}

TEST(Trails, SinceWhenARankIsQuietItsNewestOpTells) {
  std::vector<TrailSnapshot> trails = {TrailOf(0), TrailOf(1), TrailOf(2), TrailOf(3)};
  for (TrailSnapshot& trail : trails) AddCommunicator(trail, 7, trail.origin.rank, 4, 20'000 * kMs);
  trails[0].ended = {OpOf(0, 1, 40'000)};
  trails[0].under_way = {OpOf(0, 2, 70'000, LS_OP_STARTED)};
  trails[1].ended = {OpOf(0, 1, 60'000)};
  trails[2].alive = false;
  EXPECT_EQ(JoinTrails(trails).quiet_ns,
            (std::map<int, int64_t>{{0, 30'000 * kMs}, {1, 40'000 * kMs}, {3, 80'000 * kMs}}));
}

TEST(Trails, OfAProcessTheStateIsRead) {
  const pid_t child = fork();
  if (child == 0)
    while (true) pause();
  const TestFolder folder;
  ls_origin origin{};
  origin.pid = static_cast<uint32_t>(child);
  gethostname(origin.host, sizeof origin.host - 1);
  ls_trail* trail = ls_trail_create((folder / "0.trail").c_str(), &origin, 16);
  const TrailFile file = TrailFile::Open(folder / "0.trail").value();
  munmap(trail, ls_trail_bytes(16));
  const auto state = [&] {
    const TrailSnapshot snapshot = TakeSnapshot(file);
    return std::pair(snapshot.alive, snapshot.stopped);
  };
  EXPECT_EQ(state(), std::pair(true, false));
  kill(child, SIGSTOP);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WSTOPPED), 0);
  EXPECT_EQ(state(), std::pair(true, true));
  kill(child, SIGKILL);
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(state(), std::pair(false, false)) << "nobody has asked how it ended";
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(state(), std::pair(false, false));
}

// Of files that were brought together from several nodes, or from containers.
TEST(Trails, WhatIsUnderWayElsewhereIsAsOldAsItsHostHasToldSince) {
  std::vector<TrailSnapshot> trails = {TrailOf(0), TrailOf(1), TrailOf(2, 4, 1, "b")};
  for (TrailSnapshot& trail : trails) {
    AddCommunicator(trail, 7, trail.origin.rank, 4);
    trail.alive = false;
    trail.elsewhere = true;
  }
  trails[0].under_way = {OpOf(0, 5, 50'000, LS_OP_STARTED)};
  trails[1].ended = {OpOf(0, 4, 57'000)};
  trails[2].ended = {OpOf(0, 4, 99'000)};
  CommLog log = JoinTrails(trails);
  ASSERT_EQ(log.ops.size(), 3u);
  EXPECT_EQ(log.ops[0].age_ns, 7'000 * kMs);
  EXPECT_TRUE(log.moving);
  EXPECT_THAT(log.blind_spot, HasSubstr("whether the processes of 1 rank(s), 0 the first of them, still run"));

  trails[0].under_way.clear();
  log = JoinTrails(trails);
  EXPECT_FALSE(log.moving);
  EXPECT_THAT(log.blind_spot, IsEmpty()) << "the job is over";
}

TEST(Trails, WhatEndsWhileItIsReadHasEnded) {
  TrailSnapshot trail = TrailOf(0);
  AddCommunicator(trail, 7, 0, 4);
  trail.under_way = {OpOf(0, 5, 99, LS_OP_STARTED)};
  trail.ended = {OpOf(0, 5, 100)};
  const CommLog log = JoinTrails({trail});
  ASSERT_EQ(log.ops.size(), 1u);
  EXPECT_EQ(log.ops[0].state, OpState::kCompleted);
}

TEST(Trails, AFailedOpIsWaitedInUntilItsProcessGoesOn) {
  TrailSnapshot trail = TrailOf(0);
  AddCommunicator(trail, 7, 0, 4);
  trail.ended = {OpOf(0, 1, 10, LS_OP_FAILED)};
  EXPECT_EQ(JoinTrails({trail}).ops.at(0).state, OpState::kStarted);
  AddCommunicator(trail, 8, 0, 4, 20 * kMs);
  EXPECT_THAT(JoinTrails({trail}).ops, IsEmpty());
}

// Most go on with communicators that they have.
TEST(Trails, WhoLaunchesAnythingAfterAFailureHasGoneOn) {
  TrailSnapshot failed = TrailOf(0);
  AddCommunicator(failed, 7, 0, 4);
  AddCommunicator(failed, 8, 0, 4);
  failed.ended = {OpOf(0, 1, 10, LS_OP_FAILED)};
  TrailSnapshot trail = failed;
  trail.ended.push_back(OpOf(1, 1, 10));  // launched before
  EXPECT_EQ(JoinTrails({trail}).ops.size(), 2u);
  trail.ended.back() = OpOf(1, 1, 12);
  ASSERT_EQ(JoinTrails({trail}).ops.size(), 1u);
  EXPECT_EQ(JoinTrails({trail}).ops[0].state, OpState::kCompleted);
  trail = failed;
  trail.under_way = {OpOf(1, 1, 12, LS_OP_STARTED)};
  ASSERT_EQ(JoinTrails({trail}).ops.size(), 1u);
  EXPECT_EQ(JoinTrails({trail}).ops[0].communicator, 1u);
}

TEST(Trails, ATransferOfWhichOnlyTheLaunchIsKnownIsTheSameOnceItsBufferIsGone) {
  TrailSnapshot trail = TrailOf(0);
  AddCommunicator(trail, 7, 0, 4);
  trail.under_way = {OpOf(0, 0, 9, LS_OP_STARTED, LS_SEND)};
  trail.ended = {OpOf(0, 0, 10, LS_OP_LAUNCHED, LS_SEND)};
  trail.ended[0].body.op.duration = static_cast<uint32_t>(kMs);
  const CommLog log = JoinTrails({trail});
  ASSERT_EQ(log.ops.size(), 1u);
  EXPECT_EQ(log.ops[0].state, OpState::kCompleted);
  EXPECT_EQ(log.ops[0].order, 9 * kMs);
  EXPECT_FALSE(log.unseen);
}

TEST(Trails, TransfersThatAreLaunchedAtOnceAreTheirOwn) {
  TrailSnapshot trail = TrailOf(0);
  AddCommunicator(trail, 7, 0, 4);
  for (const uint8_t function : {LS_SEND, LS_RECEIVE})
    for (const int32_t peer : {1, 2, 2}) {
      trail.ended.push_back(OpOf(0, 0, 10, LS_OP_COMPLETED, function));
      trail.ended.back().body.op.peer = peer;
    }
  EXPECT_EQ(JoinTrails({trail}).ops.size(), 4u) << "one with each peer in each direction: the others are told twice";
}

TEST(Trails, TagsNumberCollectivesWhereTheLibraryGivesThem) {
  TrailSnapshot trail = TrailOf(0);
  AddCommunicator(trail, 7, 0, 4);
  trail.communicators[0].tags = 9;
  trail.ended = {OpOf(0, 1, 10)};
  trail.ended[0].body.op.tag = 8;
  const CommLog log = JoinTrails({trail});
  EXPECT_EQ(log.ops.at(0).sequence, 8);
  EXPECT_EQ(log.counts.at(0).enqueued, 8);
}

// As older collectors wrote of those without elements; and what has sent nothing yet.
TEST(Trails, WhereTheLibraryNumbersCollectivesOneWithoutANumberIsNone) {
  TrailSnapshot trail = TrailOf(0);
  AddCommunicator(trail, 7, 0, 4);
  trail.communicators[0].tags = 9;
  trail.ended = {OpOf(0, 1, 10), OpOf(0, 2, 20)};
  trail.ended[0].body.op.tag = 8;
  trail.under_way = {OpOf(0, 3, 30, LS_OP_STARTED)};
  const CommLog log = JoinTrails({trail});
  ASSERT_EQ(log.ops.size(), 1u);
  EXPECT_EQ(log.ops[0].sequence, 8);
  EXPECT_EQ(log.counts.at(0).completed, 8);
  EXPECT_THAT(log.counters, IsEmpty());
}

TEST(Trails, WhoHasCommunicatorsOfWhichNothingIsToldMayBeInThem) {
  std::vector<TrailSnapshot> trails = {TrailOf(0), TrailOf(1), TrailOf(2)};
  for (TrailSnapshot& trail : trails) AddCommunicator(trail, 7, trail.origin.rank, 4);
  CommLog log = JoinTrails(trails);
  EXPECT_FALSE(log.unseen);
  EXPECT_THAT(log.doubt + log.blind_spot, IsEmpty());
  trails[1].no_communicator = trails[2].no_communicator = 1;
  log = JoinTrails(trails);
  EXPECT_FALSE(log.unseen) << "ops of one whose connecting was not seen: there is room for more";
  EXPECT_THAT(log.doubt + log.blind_spot, IsEmpty());
  for (const size_t full : {1, 2})
    while (trails[full].communicators.size() < LS_TRAIL_COMMUNICATORS) AddCommunicator(trails[full], 0, 0, 0);
  log = JoinTrails(trails);
  EXPECT_TRUE(log.unseen);
  EXPECT_THAT(log.doubt, HasSubstr("communicators of which nothing is told"));
  EXPECT_EQ(log.blind_spot, "of some communicators of 2 rank(s), 1 the first of them, nothing is told");
}

TEST(Trails, RanksMayWaitForEachOtherByOtherLibraries) {
  std::vector<TrailSnapshot> trails = {TrailOf(0), TrailOf(1), TrailOf(2)};
  for (TrailSnapshot& trail : trails) AddCommunicator(trail, 7, trail.origin.rank, 4);
  trails[1].libraries = trails[2].libraries = LS_LIBRARY_OF_DEVICES;
  CommLog log = JoinTrails(trails);
  EXPECT_THAT(log.doubt, HasSubstr("NCCL"));
  EXPECT_THAT(log.blind_spot, HasSubstr("2 rank(s), 1 the first of them, may wait in libraries of its devices"));
  for (const size_t rank : {1, 2}) {
    trails.push_back(trails[rank]);
    std::strncpy(trails.back().origin.source, "nccl", sizeof trails.back().origin.source);
  }
  log = JoinTrails(trails);
  EXPECT_THAT(log.doubt + log.blind_spot, IsEmpty()) << "its own trail tells of it";
}

TEST(Trails, WhatCameOfAnOpCountsBeforeItsLaunch) {
  TrailSnapshot trail = TrailOf(0);
  AddCommunicator(trail, 7, 0, 4);
  std::strncpy(trail.origin.source, "nccl", sizeof trail.origin.source);
  trail.ended = {OpOf(0, 1, 100), OpOf(0, 2, 110), OpOf(0, 1, 150)};
  for (const size_t launched : {0, 1}) trail.ended[launched].body.op.state = LS_OP_LAUNCHED;
  const CommLog log = JoinTrails(std::vector{trail});
  ASSERT_EQ(log.ops.size(), 2U);
  EXPECT_EQ(log.ops[0].sequence, 1);
  EXPECT_GT(log.ops[0].duration_ns, 0);
  EXPECT_EQ(log.ops[1].sequence, 2);
  EXPECT_THAT(log.blind_spot + log.doubt, Not(HasSubstr("2 op")));
}

// As where the plugin watches some collectives only, or none is a ring.
TEST(Trails, WhereNoDeviceTellsHowLongItWasAloneWhoComesLateIsNotKnown) {
  TrailSnapshot trail = TrailOf(0);
  AddCommunicator(trail, 7, 0, 4);
  trail.ended = {OpOf(0, 1, 100), OpOf(0, 2, 150)};
  EXPECT_THAT(JoinTrails({trail}).blind_spot, IsEmpty()) << "gloo's first collective has none before it";
  std::strncpy(trail.origin.source, "nccl", sizeof trail.origin.source);
  EXPECT_THAT(JoinTrails({trail}).blind_spot, HasSubstr("who comes late can't be told"));
  ls_op_set_alone(&trail.ended[1], kMs);
  EXPECT_THAT(JoinTrails({trail}).blind_spot, IsEmpty());
}

TEST(Trails, AnOpUnderWayTellsThatItsDeviceHasNotCome) {
  TrailSnapshot trail = TrailOf(0);
  AddCommunicator(trail, 7, 0, 4);
  trail.under_way = {OpOf(0, 1, 10, LS_OP_STARTED), OpOf(0, 2, 10, LS_OP_STARTED)};
  trail.under_way[0].body.op.awaits = LS_OWN_DEVICE;
  const CommLog log = JoinTrails({trail});
  EXPECT_TRUE(log.ops.at(0).awaits_device);
  EXPECT_FALSE(log.ops.at(1).awaits_device);
}

TEST(Trails, WaitsForDataLimitNothing) {
  std::vector<TrailSnapshot> trails = {TrailOf(0), TrailOf(0)};
  AddCommunicator(trails[0], 7, 0, 4);
  std::strncpy(trails[1].origin.source, "feed", sizeof trails[1].origin.source);
  trails[0].ended = {OpOf(0, 1, 101)};
  trails[0].ended[0].body.op.alone = 80 * kMs;
  trails[1].missed = 5;  // of what was waited for before, nothing is kept
  const CommLog log = JoinTrails(trails);
  ASSERT_EQ(log.ops.size(), 1U);
  EXPECT_EQ(log.ops[0].alone_ns, 80 * kMs);
}

TEST(Trails, WhatARankDidByItselfBeginsBehindItsOpsOfAllLibraries) {
  std::vector<TrailSnapshot> trails = {TrailOf(0), TrailOf(0)};
  for (TrailSnapshot& trail : trails) AddCommunicator(trail, 7, 0, 4);
  std::strncpy(trails[1].origin.source, "nccl", sizeof trails[1].origin.source);
  trails[0].ended = {OpOf(0, 1, 101)};
  trails[0].ended[0].body.op.alone = 80 * kMs;
  trails[1].ended = {OpOf(0, 1, 70)};
  const CommLog log = JoinTrails(trails);
  ASSERT_EQ(log.ops.size(), 2U);
  EXPECT_EQ(log.ops[0].alone_ns, 30 * kMs);
}

TEST(Trails, OfWhatIsOnlyLaunchedNobodySaysThatItHangs) {
  TrailSnapshot trail = TrailOf(0);
  AddCommunicator(trail, 7, 0, 4);
  trail.under_way = {OpOf(0, 1, 10, LS_OP_LAUNCHED)};
  const CommLog log = JoinTrails({trail});
  EXPECT_EQ(log.ops.at(0).state, OpState::kCompleted);
  EXPECT_TRUE(log.unseen);
  EXPECT_THAT(log.blind_spot, HasSubstr("only the launch"));
}

TEST(Trails, WhatFoundNoPlaceHasNotEnded) {
  TrailSnapshot trail = TrailOf(0);
  AddCommunicator(trail, 7, 0, 4);
  trail.communicators[0].launched = 9;
  trail.communicators[0].ended = 6;  // one end was not seen
  trail.ended = {OpOf(0, 7, 10)};
  EXPECT_EQ(JoinTrails({trail}).counts.at(0).completed, 9);
  trail.no_place = 1;
  EXPECT_EQ(JoinTrails({trail}).counts.at(0).completed, 7);
  trail.ended.clear();
  EXPECT_EQ(JoinTrails({trail}).counts.at(0).completed, 6);
}

TEST(Trails, OlderEpochsAndSecondTrailsAreLeftOutAndCounted) {
  std::vector<TrailSnapshot> trails = {TrailOf(0, 4, 2), TrailOf(0, 4, 2), TrailOf(1, 4, 1), TrailOf(2, 4, 1)};
  AddCommunicator(trails[0], 7, 0, 4, 5 * kMs);
  AddCommunicator(trails[1], 8, 0, 4, 6 * kMs);
  AddCommunicator(trails[2], 9, 1, 4, 7 * kMs);
  AddCommunicator(trails[3], 8, 2, 4, 8 * kMs);
  trails[2].alive = false;
  const CommLog log = JoinTrails(trails);
  EXPECT_THAT(log.reported, ElementsAre(0, 2)) << "a worker that lives on may enter the next epoch";
  ASSERT_EQ(log.communicators.size(), 1u);
  EXPECT_EQ(CounterOf(log, "trails_of_older_epochs"), 1u);
  EXPECT_EQ(CounterOf(log, "trails_of_ranks_told_twice"), 1u);
  EXPECT_THAT(log.blind_spot, HasSubstr("1 trail(s) are of a rank that another process says to be at the same time"));
  EXPECT_THAT(log.doubt, HasSubstr("which process is which rank"));
}

// As a launcher does.
TEST(Trails, AProcessThatWasStartedAgainIsNoRiddle) {
  std::vector<TrailSnapshot> trails = {TrailOf(0), TrailOf(0)};
  AddCommunicator(trails[0], 7, 0, 4, 5 * kMs);
  AddCommunicator(trails[1], 8, 0, 4, 60 * kMs);
  trails[0].ended = {OpOf(0, 1, 50)};
  trails[0].alive = false;
  const CommLog log = JoinTrails(trails);
  EXPECT_EQ(CounterOf(log, "trails_of_ranks_told_twice"), 1u);
  EXPECT_THAT(log.doubt + log.blind_spot, IsEmpty());
}

// As after a restart in place: its process went on, and what it had said before was kept.
TEST(Trails, AProcessIsTheSameInItsNextEpoch) {
  std::vector<TrailSnapshot> trails = {TrailOf(0, 4, 1), TrailOf(0, 4, 2)};
  for (TrailSnapshot& trail : trails) {
    trail.origin.pid = 4711;
    AddCommunicator(trail, 7, 0, 4);
  }
  trails[0].ended = {OpOf(0, 1, 10)};
  trails[1].ended = {OpOf(0, 2, 20)};
  const CommLog log = JoinTrails(trails);
  EXPECT_EQ(log.ops.size(), 2u);
  EXPECT_EQ(CounterOf(log, "trails_of_ranks_told_twice"), 0u);
}

// As after a restart in place: rank 3 was started anew, and of those that went on the group of 2 and 3 lacks a member.
TEST(Trails, WhatEndedWithItsEpochIsLeftOutOfWorkersThatWentOn) {
  std::vector<TrailSnapshot> trails;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    TrailSnapshot& trail = trails.emplace_back(TrailOf(rank, 4, 2));
    for (uint32_t epoch = rank == 3 ? 2 : 1; epoch <= 2; ++epoch) {
      AddCommunicator(trail, 10 * epoch + rank / 2, rank % 2, 2, epoch * 1'000 * kMs);
      trail.communicators.back().epoch = epoch;
      trail.communicators.back().launched = 1;
      trail.ended.push_back(OpOf(epoch - 1, 1, epoch * 1'000 + 1));
    }
  }
  trails[3].ended[0].body.op.communicator = 0;
  trails[2].under_way = {OpOf(0, 2, 1'500, LS_OP_STARTED), OpOf(0, 0, 1'500, LS_OP_LAUNCHED, LS_SEND)};
  const CommLog log = JoinTrails(trails);
  ASSERT_EQ(log.communicators.size(), 2U);
  EXPECT_THAT(log.communicators[0].ranks, ElementsAre(0, 1));
  EXPECT_THAT(log.communicators[1].ranks, ElementsAre(2, 3));
  EXPECT_EQ(log.ops.size(), 4U);
  EXPECT_EQ(log.counts.size(), 4U);
  EXPECT_THAT(log.blind_spot + log.doubt, IsEmpty());
  EXPECT_EQ(CounterOf(log, "communicators_of_older_epochs"), 3U);
  EXPECT_EQ(CounterOf(log, "unreadable_records"), 0U);
}

TEST(Trails, EachLibraryOfAProcessHasItsOwn) {
  std::vector<TrailSnapshot> trails = {TrailOf(0), TrailOf(0)};
  std::strcpy(trails[1].origin.source, "nccl");
  AddCommunicator(trails[0], 7, 0, 4);
  AddCommunicator(trails[1], 8, 0, 4);
  const CommLog log = JoinTrails(trails);
  EXPECT_EQ(log.communicators.size(), 2u);
  EXPECT_THAT(log.reported, ElementsAre(0));
}

TEST(Trails, WhatMakesNoSenseIsCounted) {
  std::vector<TrailSnapshot> trails = {TrailOf(0), TrailOf(4), TrailOf(1, 1u << 30)};
  AddCommunicator(trails[0], 7, 0, 4);
  trails[0].ended = {OpOf(0, 1, 10), OpOf(3, 1, 10), OpOf(0, 2, 10, 3, 99), OpOf(0, 3, -10), OpOf(0, 4, 10)};
  trails[0].ended[4].delta_shift = 77;
  const CommLog log = JoinTrails(trails);
  EXPECT_EQ(log.ops.size(), 1u);
  EXPECT_EQ(CounterOf(log, "trails_without_sense"), 2u);
  EXPECT_EQ(CounterOf(log, "unreadable_records"), 4u);
  EXPECT_THAT(log.blind_spot, HasSubstr("part of the trails makes no sense"));
}

TEST(Trails, ClocksOfHostsAreFittedByTheEndsOfCollectives) {
  std::vector<TrailSnapshot> trails = {TrailOf(0, 2, 1, "a"), TrailOf(1, 2, 1, "b")};
  trails[1].wall_minus_boot_ns = 5'000 * kMs;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    AddCommunicator(trails[rank], 7, rank, 2);
    for (uint32_t i = 1; i <= 20; ++i) trails[rank].ended.push_back(OpOf(0, i, int64_t{10} * i));
  }
  const CommLog log = JoinTrails(trails);
  EXPECT_NEAR(static_cast<double>(log.ops.front().created_ns), static_cast<double>(log.ops[20].created_ns), 1e3);
}

// All ranks keep the same ones, whatever they have of them.
TEST(Trails, ThinnedRanksStillMeet) {
  std::vector<std::set<uint32_t>> kept;
  for (const uint32_t count : {900u, 1000u, 1100u}) {
    TrailSnapshot trail = TrailOf(0);
    AddCommunicator(trail, 7, 0, 4);
    for (uint32_t i = 1; i <= count; ++i) {
      trail.ended.push_back(OpOf(0, i, i));
      ls_record transfer{};
      transfer.kind = LS_RECORD_TRANSFER;
      transfer.body.transfer.number = i;
      transfer.body.transfer.direction = i % 2 == 0 ? LS_RECEIVE : LS_SEND;
      transfer.body.transfer.credit = LS_UNKNOWN;
      trail.ended.push_back(transfer);
    }
    Thin(trail, 100 * kMs, 100);
    size_t ops = 0;
    std::set<uint32_t> numbers;
    for (const ls_record& record : trail.ended)
      if (record.kind == LS_RECORD_OP) {
        ++ops;
        numbers.insert(record.body.op.number);
        EXPECT_GE(record.time_ns, 100 * kMs);
      } else {
        EXPECT_EQ(record.body.transfer.direction, LS_RECEIVE);
        EXPECT_TRUE(numbers.contains(record.body.transfer.number));
      }
    EXPECT_LE(ops, 125u);
    EXPECT_GT(ops, 25u);
    EXPECT_NEAR(static_cast<double>(ops * trail.told_one_of.at(0)), count - 100.0, 250);
    EXPECT_EQ(JoinTrails({trail}).communicators.at(0).told_one_of, trail.told_one_of.at(0));
    kept.push_back(numbers);
  }
  for (const uint32_t number : kept[2])
    if (number <= 900) {
      EXPECT_TRUE(kept[0].contains(number));
    }
}

// Of each so many in a row one, at different places; and those that one of more picks.
TEST(Trails, PicksAsManyOfEachStretch) {
  for (const uint32_t one_of : {1u, 2u, 8u, 32u}) {
    std::set<uint32_t> places;
    for (uint32_t begin = 0; begin < 64 * one_of; begin += one_of) {
      std::vector<uint32_t> picked;
      for (uint32_t number = begin; number < begin + one_of; ++number)
        if (IsPicked(OpOf(0, number, 0), one_of)) picked.push_back(number);
      ASSERT_EQ(picked.size(), 1u) << one_of << " from " << begin;
      EXPECT_TRUE(one_of == 1 || IsPicked(OpOf(0, picked[0], 0), one_of / 2));
      places.insert(picked[0] - begin);
    }
    EXPECT_GE(2 * places.size(), one_of);
  }
}

// A member that has fewer of them tells of more: what others left out stands for nothing.
TEST(Trails, ThinnedRanksTellTogetherWhatAllTell) {
  std::vector<TrailSnapshot> trails;
  for (const uint32_t count : {380u, 1000u}) {
    TrailSnapshot trail = TrailOf(static_cast<uint32_t>(trails.size()));
    AddCommunicator(trail, 7, trail.origin.rank, 2);
    for (uint32_t i = 1; i <= count; ++i) trail.ended.push_back(OpOf(0, i, i));
    Thin(trail, 0, 100);
    trails.push_back(trail);
  }
  ASSERT_LT(trails[0].told_one_of[0], trails[1].told_one_of[0]);
  const CommLog log = JoinTrails(trails);
  std::set<int64_t> one, other;
  for (const CommOp& op : log.ops)
    if (op.sequence <= 380) (op.rank == 0 ? one : other).insert(op.sequence);
  EXPECT_FALSE(one.empty());
  EXPECT_EQ(one, other);
}

TEST(Trails, ThinnedRanksKeepWhatIsRare) {
  TrailSnapshot trail = TrailOf(0);
  AddCommunicator(trail, 7, 0, 4);
  AddCommunicator(trail, 8, 0, 4);
  for (uint32_t i = 1; i <= 1000; ++i) {
    trail.ended.push_back(OpOf(0, i, 100 + i));
    if (i % 50 == 0) trail.ended.push_back(OpOf(1, i / 50, 100 + i));
  }
  Thin(trail, 100 * kMs, 100);
  EXPECT_EQ(trail.told_one_of[1], 1u);
  EXPECT_GT(trail.told_one_of[0], 8u);
  EXPECT_EQ(std::ranges::count(trail.ended, 1u, [](const ls_record& record) { return record.body.op.communicator; }),
            20);
}

// It is not judged by the newest minute alone.
TEST(Trails, ThinnedRanksKeepTheNewestOfWhatIsRare) {
  TrailSnapshot trail = TrailOf(0);
  for (const uint64_t id : {7, 8, 9}) AddCommunicator(trail, id, 0, 4);
  constexpr int64_t kSecond = 1000;
  for (uint32_t i = 1; i <= 1200; ++i) {
    trail.ended.push_back(OpOf(0, i, i * kSecond));
    if (i % 20 == 0) trail.ended.push_back(OpOf(1, i / 20, i * kSecond));
    if (i < 10) trail.ended.push_back(OpOf(2, i, i * kSecond));  // no more since
    if (i % 10 != 0) continue;
    ls_record send = OpOf(0, 0, i * kSecond, LS_OP_COMPLETED, LS_SEND);
    ls_op_set_alone(&send, kMs / 2);
    trail.ended.push_back(send);
  }
  Thin(trail, 1140 * kSecond * kMs, 100);
  std::vector<std::vector<int64_t>> seconds(3);
  std::vector<int64_t> sends;
  for (const ls_record& record : trail.ended)
    (record.body.op.number == 0 ? sends : seconds.at(record.body.op.communicator))
        .push_back(record.time_ns / kMs / kSecond);
  EXPECT_EQ(seconds[0].size(), 61u);
  EXPECT_EQ(seconds[0].front(), 1140);
  EXPECT_EQ(seconds[1].size(), 16u);
  EXPECT_EQ(seconds[1].front(), 900);
  EXPECT_TRUE(seconds[2].empty());
  EXPECT_EQ(sends.size(), 25u);
  EXPECT_EQ(sends.front(), 960);
}

// Of sends and receives outside of collectives the newest stay that tell how long they took.
TEST(Trails, ThinnedRanksKeepTheirNewestSends) {
  TrailSnapshot trail = TrailOf(0);
  AddCommunicator(trail, 7, 0, 4);
  for (int i = 0; i < 100; ++i) {
    ls_record send = OpOf(0, 0, 200 + i, LS_OP_COMPLETED, LS_SEND);
    trail.ended.push_back(send);  // it tells nothing
    ls_op_set_alone(&send, kMs / 2);
    trail.ended.push_back(send);
  }
  Thin(trail, 100 * kMs, 100);
  ASSERT_EQ(trail.ended.size(), 25u);
  EXPECT_EQ(trail.ended.front().time_ns, 275 * kMs);
  const CommLog log = JoinTrails({trail});
  ASSERT_EQ(log.ops.size(), 25u);
  EXPECT_EQ(log.ops[0].held_up_ns, kMs / 2);
  EXPECT_EQ(log.ops[0].alone_ns, -1);
}

TEST(Trails, FilesThatAreNone) {
  const TestFolder folder;
  const std::string path = folder.Write("no.trail", "LSTRIL01 and no more");
  EXPECT_TRUE(HasTrails(path));
  EXPECT_THAT(Message(ReadTrails({path}).status()), HasSubstr("no trail of this version, or one cut short"));
  EXPECT_FALSE(HasTrails("/no/such/place"));
  EXPECT_FALSE(ReadTrails({"/no/such/place"}).ok());
}

// As dumps of a Flight Recorder are: given as two paths they would be refused.
TEST(Trails, WhatIsBesideThemInTheirDirectoryIsCounted) {
  const TestFolder folder;
  ls_origin origin{};
  origin.world = 1;
  ls_trail* trail = ls_trail_create((folder / "0.trail").c_str(), &origin, 512);
  munmap(trail, ls_trail_bytes(512));
  EXPECT_EQ(CounterOf(ReadTrails({folder.path()}).value(), "other_files"), 0u);
  for (const char* dump : {"rank_0.json", "rank_1.json"}) folder.Write(dump, "{}");
  EXPECT_EQ(CounterOf(ReadTrails({folder.path()}).value(), "other_files"), 2u);
  folder.Write("run.json", "{}");
  EXPECT_EQ(CounterOf(ReadTrails({folder.path()}).value(), "other_files"), 0u) << "a run's own";
}

}  // namespace
}  // namespace lockstep::trace
