// All versions of the profiler that NCCL may ask for.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/test_folder.h"
#include "lockstep/collect/fake_nccl.h"
#include "lockstep/collect/test_trail.h"
#include "lockstep/record/trail.h"

namespace lockstep::collect {
namespace {

// What the process has left so far: one trail for all tests.
class Trail {
 public:
  static ls_trail& Get() {
    static ls_trail* trail = MapOwnTrail();
    return *trail;
  }
  // What has ended since the last look.
  static std::vector<ls_record> News() {
    static uint64_t at = 0, missed = 0;
    std::vector<ls_record> records(20'000);
    records.resize(ls_trail_read(&Get(), &at, &missed, records.data(), records.size()));
    return records;
  }
  static std::vector<ls_record> UnderWay() {
    std::vector<ls_record> records(LS_TRAIL_PLACES);
    records.resize(ls_trail_under_way(&Get(), records.data()));
    return records;
  }
};

class EachVersion : public testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() {
    if (getenv("LOCKSTEP_TRAILS") != nullptr) return;
    static const TestFolder folder;
    setenv("LOCKSTEP_TRAILS", folder.path().c_str(), 1);
    setenv("RANK", "5", 1);
    setenv("WORLD_SIZE", "8", 1);
  }
  void SetUp() override {
    ASSERT_EQ(nccl.Init(), 0);
    Trail::News();
  }
  void TearDown() override { nccl.Finalize(); }

  FakeNccl nccl{GetParam()};
};

constexpr uint32_t kPause = 10'000'000;  // ns; what comes at once takes less, on a loaded machine too
void Pause() { std::this_thread::sleep_for(std::chrono::nanoseconds(kPause)); }

TEST_P(EachVersion, ACollectiveEndsWithItsProxiesAndTellsWhatTheyWaitedFor) {
  EXPECT_NE(nccl.mask() & kProxyStep, 0);
  void* coll = nccl.Coll();
  nccl.Stop(coll);  // enqueued
  ASSERT_FALSE(Trail::UnderWay().empty());
  EXPECT_EQ(Trail::UnderWay().back().body.op.state, LS_OP_LAUNCHED);
  void* send = nccl.Proxy(coll, 2, true);
  void* receive = nccl.Proxy(coll, 0, false);
  EXPECT_EQ(Trail::UnderWay().back().body.op.state, LS_OP_STARTED);
  void* step = nccl.Step(send);
  nccl.State(step, 8);
  Pause();  // for the own device
  const auto device_came = std::chrono::steady_clock::now();
  nccl.State(step, 20);
  Pause();  // for the receiver
  nccl.State(step, 9, 4096);
  nccl.Stop(step);
  nccl.Stop(send);
  ASSERT_EQ(Trail::News().size(), 1u);  // the transfer; the other proxy op still works
  step = nccl.Step(receive);
  nccl.State(step, 10);
  Pause();  // for the data
  nccl.State(step, 11);
  nccl.State(step, 12);
  nccl.Stop(step);
  nccl.Stop(receive);
  const std::chrono::nanoseconds since_device_came = std::chrono::steady_clock::now() - device_came;
  const std::vector<ls_record> news = Trail::News();
  ASSERT_EQ(news.size(), 2u);
  EXPECT_EQ(news[1].body.op.algorithm, GetParam() >= 4 ? LS_ALGORITHM_RING : LS_ALGORITHM_UNKNOWN);
  const ls_transfer_body& heard = news[0].body.transfer;
  EXPECT_EQ(heard.direction, LS_RECEIVE);
  EXPECT_EQ(heard.peer, 0);
  EXPECT_EQ(heard.count, 1u);
  EXPECT_GE(heard.waited, kPause);
  EXPECT_EQ(heard.first, heard.waited);
  EXPECT_EQ(heard.credit, LS_UNKNOWN);
  EXPECT_LT(heard.own, kPause);
  const ls_op_body& op = news[1].body.op;
  EXPECT_EQ(op.function, LS_ALL_REDUCE);
  EXPECT_EQ(op.state, LS_OP_COMPLETED);
  EXPECT_EQ(op.number, heard.number);
  EXPECT_EQ(op.rank, 5u);
  // Since its device came, where that is known; else since it was launched.
  EXPECT_GE(op.duration, GetParam() < 4 ? 3 * kPause : 2 * kPause);
  if (GetParam() >= 4) {
    EXPECT_LE(op.duration, since_device_came.count());
  }
  const ls_communicator& own = Trail::Get().communicator[op.communicator];
  EXPECT_EQ(own.id, kHash);
  EXPECT_EQ(own.rank, 1u);
  EXPECT_EQ(own.size, GetParam() < 4 ? 0u : 4u);
}

// The host launches ahead: what counts is when the device had the first data of its own.
TEST_P(EachVersion, WhatTheDeviceDidByItselfIsKnownBetweenTwoRings) {
  const auto finish = [&](void* coll, bool pause) {
    void* send = nccl.Proxy(coll, 2, true);
    void* step = nccl.Step(send);
    nccl.State(step, 8);
    if (pause) Pause();  // the device computes
    nccl.State(step, 20);
    nccl.State(step, 9, 4096);
    nccl.Stop(step);
    nccl.Stop(send);
  };
  const auto alone = [] { return Trail::News().back().body.op.alone; };
  void* first = nccl.Coll();
  nccl.Stop(first);
  void* second = nccl.Coll();  // launched before the first has ended
  nccl.Stop(second);
  finish(first, false);
  Trail::News();
  finish(second, true);
  const ls_record op = Trail::News().back();
  if (GetParam() < 4) {  // which algorithm it is they don't say
    EXPECT_EQ(op.body.op.alone, LS_UNKNOWN);
    return;
  }
  EXPECT_GE(op.body.op.alone, kPause);
  EXPECT_LT(op.body.op.duration, kPause);
  // One in between in which no network had a part: what the device waited in it nobody knows.
  nccl.Stop(nccl.Coll());
  void* third = nccl.Coll();
  nccl.Stop(third);
  finish(third, true);
  EXPECT_EQ(alone(), LS_UNKNOWN);
  const auto ring = [&](bool pause) {
    void* coll = nccl.Coll();
    nccl.Stop(coll);
    finish(coll, pause);
  };
  for (int i = 0; i < 32; ++i) ring(false);  // so far back, it is over
  ring(true);
  EXPECT_GE(alone(), kPause);
  // Of two that end the other way round, the later end counts.
  void* early = nccl.Coll();
  void* late = nccl.Coll();
  nccl.Stop(early);
  nccl.Stop(late);
  finish(late, false);
  Pause();
  finish(early, false);
  ring(false);
  EXPECT_LT(alone(), kPause);
}

// Of every second one: what is before it is not seen to end.
TEST_P(EachVersion, WhereSomeAreWatchedWhatTheDeviceDidBetweenTwoIsNotKnown) {
  setenv("LOCKSTEP_NCCL_EVERY", "2", 1);
  nccl.Finalize();
  nccl.Init();
  int watched = 0;
  for (int i = 0; i < 80; ++i) {
    void* coll = nccl.Coll();
    nccl.Stop(coll);
    if ((nccl.mask() & kProxyStep) == 0) continue;
    ++watched;
    void* send = nccl.Proxy(coll, 2, true);
    void* step = nccl.Step(send);
    nccl.State(step, 8);
    nccl.State(step, 20);
    nccl.State(step, 9, 4096);
    nccl.Stop(step);
    nccl.Stop(send);
  }
  unsetenv("LOCKSTEP_NCCL_EVERY");
  nccl.Finalize();
  nccl.Init();
  EXPECT_EQ(watched, 40);
  int completed = 0;
  for (const ls_record& record : Trail::News()) {
    if (record.kind != LS_RECORD_OP) continue;
    completed += record.body.op.state == LS_OP_COMPLETED;
    EXPECT_EQ(record.body.op.alone, LS_UNKNOWN);
  }
  EXPECT_EQ(completed, watched);
}

TEST_P(EachVersion, AnOpUnderWayTellsThatItsDeviceHasNotCome) {
  const auto awaits = [] { return Trail::UnderWay().back().body.op.awaits; };
  void* coll = nccl.Coll();
  nccl.Stop(coll);
  void* send = nccl.Proxy(coll, 2, true);
  void* receive = nccl.Proxy(coll, 0, false);
  EXPECT_EQ(awaits(), 0);
  void* steps[] = {nccl.Step(send), nccl.Step(send)};  // both are posted at once
  for (void* step : steps) nccl.State(step, 8);
  ASSERT_EQ(Trail::UnderWay().size(), 1u);
  EXPECT_EQ(awaits(), GetParam() >= 4 ? LS_OWN_DEVICE : 0) << "which algorithm it is versions 1 to 3 don't say";
  EXPECT_EQ(Trail::UnderWay().back().body.op.state, LS_OP_STARTED);
  nccl.State(steps[0], 20);
  EXPECT_EQ(awaits(), 0);
  void* later = nccl.Step(send);  // of it the device waits for what others send
  nccl.State(later, 8);
  EXPECT_EQ(awaits(), 0);
  for (void* step : {steps[0], steps[1], later}) nccl.Stop(step);
  nccl.Stop(send);
  nccl.Stop(receive);
  EXPECT_TRUE(Trail::UnderWay().empty());
  const std::vector<ls_record> news = Trail::News();
  EXPECT_EQ(news.back().body.op.awaits, 0);
  EXPECT_EQ(news.back().body.op.state, LS_OP_COMPLETED);
}

TEST_P(EachVersion, WhatASenderWaitedForIsToldApart) {
  void* coll = nccl.Coll();
  void* send = nccl.Proxy(coll, 2, true);
  void* step = nccl.Step(send);
  nccl.State(step, 8);
  Pause();
  nccl.State(step, 20);
  Pause();
  Pause();
  nccl.State(step, 9, 4096);
  nccl.Stop(step);
  nccl.Stop(send);
  nccl.Stop(coll);
  const std::vector<ls_record> news = Trail::News();
  ASSERT_EQ(news.size(), 2u);
  const ls_transfer_body& sent = news[0].body.transfer;
  EXPECT_EQ(sent.direction, LS_SEND);
  EXPECT_EQ(sent.peer, 2);
  EXPECT_GE(sent.own, kPause);
  EXPECT_GE(sent.credit, 2 * kPause);
  EXPECT_LT(sent.waited, kPause);
  EXPECT_EQ(sent.bytes, GetParam() >= 4 ? 4096u : 0u);
}

TEST_P(EachVersion, ASendIsOneToItsPeer) {
  void* send = nccl.Send(3);
  nccl.Stop(nccl.Proxy(send, 3, true));
  nccl.Stop(send);
  const std::vector<ls_record> news = Trail::News();
  ASSERT_EQ(news.size(), 1u);  // no step: nothing to tell of the message
  EXPECT_EQ(news[0].body.op.function, LS_SEND);
  EXPECT_EQ(news[0].body.op.peer, 3);
  EXPECT_EQ(news[0].body.op.number, 0u);
}

TEST_P(EachVersion, TheMessagesOfASendAreTold) {
  void* send = nccl.Send(3);
  void* proxy = nccl.Proxy(send, 3, true);
  void* step = nccl.Step(proxy);
  nccl.State(step, 9, 4096);
  Pause();
  nccl.Stop(step);
  nccl.Stop(proxy);
  nccl.Stop(send);
  const std::vector<ls_record> news = Trail::News();
  ASSERT_EQ(news.size(), 2u);
  const ls_transfer_body& sent = news[0].body.transfer;
  EXPECT_EQ(sent.number, 0u);
  EXPECT_EQ(sent.peer, 3);
  EXPECT_EQ(sent.count, 1u);
  EXPECT_GE(sent.waited, kPause);
}

// Inside of a machine there are no proxies.
TEST_P(EachVersion, OfACollectiveWithoutProxiesTheLaunchIsKnown) {
  for (int i = 0; i < 40; ++i) nccl.Stop(nccl.Coll());
  const std::vector<ls_record> news = Trail::News();
  ASSERT_EQ(news.size(), 40u - 32u);
  for (const ls_record& record : news) EXPECT_EQ(record.body.op.state, LS_OP_LAUNCHED);
}

// The places of the trail are few: what was launched and has given its place up is told of by a record.
TEST_P(EachVersion, AnOpWithoutProxiesIsAlwaysToldOf) {
  void* first = nccl.Coll();
  nccl.Stop(first);
  nccl.Stop(nccl.Proxy(first, 2, true));
  Trail::News();
  std::vector<void*> sends(1000);
  for (void*& send : sends) nccl.Stop(send = nccl.Send(3));
  std::vector<ls_record> told = Trail::News();
  const std::vector<ls_record> under_way = Trail::UnderWay();
  EXPECT_EQ(told.size() + under_way.size(), sends.size());
  for (const ls_record& record : told) EXPECT_EQ(record.body.op.state, LS_OP_LAUNCHED);
  // Of the oldest something comes after all.
  nccl.Stop(nccl.Proxy(sends.front(), 3, true));
  told = Trail::News();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told.front().body.op.state, LS_OP_COMPLETED);
  nccl.Finalize();  // what was told is not told again
  EXPECT_EQ(Trail::News().size(), under_way.size());
}

// The host runs ahead of the device: once a proxy has worked for the communicator, its ops are kept for theirs.
TEST_P(EachVersion, AProxyThatComesLongAfterTheLaunchFindsItsOp) {
  const auto work_for = [&](void* coll) { nccl.Stop(nccl.Proxy(coll, 2, true)); };
  void* first = nccl.Coll();
  nccl.Stop(first);
  work_for(first);
  EXPECT_EQ(Trail::News().size(), 1u);
  std::vector<void*> launched(1000);
  for (void*& coll : launched) nccl.Stop(coll = nccl.Coll());
  for (const ls_record& record : Trail::News()) EXPECT_EQ(record.body.op.state, LS_OP_LAUNCHED);
  for (void* coll : launched) work_for(coll);
  const std::vector<ls_record> news = Trail::News();
  ASSERT_EQ(news.size(), launched.size());
  for (const ls_record& record : news) EXPECT_EQ(record.body.op.state, LS_OP_COMPLETED);
}

// They are many where there are many communicators.
TEST_P(EachVersion, OpsWithoutProxiesLeavePlacesToOthers) {
  const uint64_t before = Trail::Get().no_place;
  const auto started = [](const ls_record& record) { return record.body.op.state == LS_OP_STARTED; };
  const auto count_started = [&] {
    const std::vector<ls_record> all = Trail::UnderWay();
    return std::count_if(all.begin(), all.end(), started);
  };
  ASSERT_EQ(count_started(), 0);
  void* first = nccl.Coll();
  nccl.Stop(first);
  std::deque<FakeNccl> others;
  for (int i = 0; i < 12; ++i) {
    ASSERT_EQ(others.emplace_back(GetParam()).Init(kHash + 1 + static_cast<uint64_t>(i)), 0);
    for (int op = 0; op < 32; ++op) others.back().Stop(others.back().Coll());
  }
  void* last = nccl.Coll();
  nccl.Stop(last);
  void* proxies[] = {nccl.Proxy(first, 2, true), nccl.Proxy(last, 2, true)};
  EXPECT_EQ(Trail::Get().no_place, before);
  EXPECT_EQ(count_started(), 2);
  for (void* proxy : proxies) nccl.Stop(proxy);
  EXPECT_EQ(count_started(), 0);
  const auto completed = [](const ls_record& record) { return record.body.op.state == LS_OP_COMPLETED; };
  EXPECT_EQ(std::ranges::count_if(Trail::News(), completed), 2);
  for (FakeNccl& other : others) other.Finalize();
}

class WithKernels : public EachVersion {
 protected:
  void SetUp() override {
    setenv("LOCKSTEP_NCCL_KERNELS", "1", 1);
    EachVersion::SetUp();
    unsetenv("LOCKSTEP_NCCL_KERNELS");
  }
};

TEST_P(WithKernels, TheyTellWhatTheDeviceDidInsideOfAMachine) {
  ASSERT_NE(nccl.mask() & kKernel, 0);
  for (int i = 0; i < 33; ++i) {  // after which the clocks are known, and what was before is over
    void* coll = nccl.Coll();
    nccl.Stop(coll);
    void* kernels[] = {nccl.KernelOn(coll, 0, FakeNccl::DeviceTime()), nccl.KernelOn(coll, 1, FakeNccl::DeviceTime())};
    for (void* kernel : kernels) nccl.Ended(kernel, FakeNccl::DeviceTime());
  }
  EXPECT_EQ(Trail::News().size(), 33u);
  const uint64_t began = FakeNccl::DeviceTime();
  void* first = nccl.Coll();
  nccl.Stop(first);
  void* second = nccl.Coll();  // the host runs ahead
  nccl.Stop(second);
  const auto run = [&](void* coll, uint64_t from, uint64_t to) {
    void* one = nccl.KernelOn(coll, 0, from);
    nccl.Ended(one, to - 1000);
    EXPECT_TRUE(Trail::News().empty()) << "the other channel's kernel has not even begun";
    void* other = nccl.KernelOn(coll, 1, from + 500);
    nccl.Ended(other, to);
    const std::vector<ls_record> news = Trail::News();
    EXPECT_EQ(news.size(), 1u);
    return news.empty() ? ls_record{} : news.front();
  };
  while (FakeNccl::DeviceTime() < began + 3 * uint64_t{kPause}) Pause();
  EXPECT_EQ(run(first, began, began + 1000).body.op.state, LS_OP_COMPLETED);
  const ls_record op = run(second, began + 2 * uint64_t{kPause}, began + 3 * uint64_t{kPause});
  EXPECT_EQ(op.body.op.state, LS_OP_COMPLETED);
  // By the device's times alone, however late they are told.
  EXPECT_NEAR(op.body.op.alone, 2.0 * kPause, kPause / 10.0);
}

TEST_P(WithKernels, OneThatIsNeverToldOfKeepsNothing) {
  void* coll = nccl.Coll();
  nccl.Stop(coll);
  void* only = nccl.KernelOn(coll, 0, FakeNccl::DeviceTime());
  nccl.Ended(only, 0);  // NCCL does not always know when
  EXPECT_TRUE(Trail::News().empty());
  ASSERT_EQ(Trail::UnderWay().size(), 1u);
  const uint32_t number = Trail::UnderWay().front().body.op.number;
  for (int i = 0; i < 32 + 2048; ++i) nccl.Stop(nccl.Coll());
  std::vector<ls_record> news = Trail::News();
  std::erase_if(news, [&](const ls_record& op) { return op.body.op.number != number; });
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news.front().body.op.state, LS_OP_LAUNCHED);
  nccl.Stop(nccl.KernelOn(coll, 1, 0));  // late: the op is over
  EXPECT_TRUE(Trail::News().empty());
}

TEST_P(WithKernels, ATimeOfZeroLeavesTheClocksAlone) {
  const auto run = [&](uint64_t began) {
    void* coll = nccl.Coll();
    nccl.Stop(coll);
    void* kernels[] = {nccl.KernelOn(coll, 0, began), nccl.KernelOn(coll, 1, FakeNccl::DeviceTime())};
    for (void* kernel : kernels) nccl.Ended(kernel, FakeNccl::DeviceTime());
    const std::vector<ls_record> news = Trail::News();
    EXPECT_EQ(news.size(), 1u);
    return news.empty() ? ls_record{} : news.front();
  };
  run(FakeNccl::DeviceTime());
  run(0);
  const uint64_t now = FakeNccl::DeviceTime() + FakeNccl::kBehind;
  const ls_record next = run(FakeNccl::DeviceTime());
  const int64_t arrived = next.time_ns - ls_delta_ns(next.body.op.duration, next.delta_shift);
  EXPECT_LT(arrived - static_cast<int64_t>(now), int64_t{kPause}) << "the device came when its kernel began";
}

// They begin together: what tells them apart is their launch.
TEST_P(WithKernels, TransfersOfOneKernelKeepTheOrderOfTheirLaunches) {
  void* first = nccl.Send(2);
  Pause();
  void* second = nccl.Send(3);
  for (void* send : {first, second}) nccl.Stop(send);
  const uint64_t began = FakeNccl::DeviceTime();
  std::vector<void*> kernels;
  for (void* send : {second, first}) kernels.push_back(nccl.KernelOn(send, 0, began));
  for (void* kernel : kernels) nccl.Ended(kernel, FakeNccl::DeviceTime());
  const std::vector<ls_record> news = Trail::News();
  ASSERT_EQ(news.size(), 2u);
  const auto launched = [](const ls_record& op) {
    return op.time_ns - ls_delta_ns(op.body.op.duration, op.delta_shift);
  };
  EXPECT_EQ(news[0].body.op.peer, 3);
  EXPECT_GE(launched(news[0]) - launched(news[1]), int64_t{kPause} / 2);
  for (const ls_record& op : news) EXPECT_EQ(op.body.op.alone, LS_UNKNOWN);
}

INSTANTIATE_TEST_SUITE_P(Nccl, WithKernels, testing::Values(4, 5, 6));

TEST_P(EachVersion, KernelsAreNotWatchedUnlessAsked) {
  EXPECT_EQ(nccl.mask() & kKernel, 0);
  void* coll = nccl.Coll();
  nccl.Stop(nccl.KernelOn(coll, 0, FakeNccl::DeviceTime()));
  nccl.Stop(coll);
  EXPECT_TRUE(Trail::News().empty());
}

TEST_P(EachVersion, WhatComesLateTwiceOrFromNowhereChangesNothing) {
  const uint64_t counted = Trail::Get().no_op;
  void* coll = nccl.Coll();
  void* proxy = nccl.Proxy(coll, 2, true);
  void* step = nccl.Step(proxy);
  EXPECT_EQ(nccl.Proxy(coll, 2, true, getpid() + 1), nullptr) << "of another process";
  nccl.Stop(proxy);
  nccl.Stop(coll);
  EXPECT_EQ(Trail::News().size(), 1u);
  const auto made_up = [](uintptr_t number) {
    return reinterpret_cast<void*>(number);  // NOLINT(performance-no-int-to-ptr): handles are numbers
  };
  for (void* handle : {coll, proxy, made_up(8), made_up(~uintptr_t{0})}) {
    nccl.State(handle, 9, 1);
    nccl.Stop(handle);
    EXPECT_EQ(nccl.Proxy(handle, 1, true), nullptr);
    EXPECT_EQ(nccl.Step(handle), nullptr);
  }
  nccl.State(step, 9, 1);  // of a proxy op that is no more
  nccl.State(step, 12345, 1);
  nccl.Stop(step);
  nccl.Stop(step);
  EXPECT_EQ(Trail::Get().no_op - counted, 10u) << "the other process's, two of each handle, the second stop";
  for (const int type : {0, 3, 32, 64, 128, 256, 1 << 14}) EXPECT_EQ(nccl.Other(type), nullptr);
  nccl.Stop(nullptr);
  nccl.State(nullptr, 9);
  nccl.Finalize();
  nccl.Stop(coll);
  EXPECT_TRUE(Trail::News().empty());
}

// NCCL up to 2.27 tells of what is in a group only where that has a handle.
TEST_P(EachVersion, AGroupHasAHandleAndIsNothingElse) {
  const uint64_t counted = Trail::Get().no_op;
  void* group = nccl.Other(kGroup);
  EXPECT_NE(group, nullptr);
  nccl.State(group, 9, 1);
  EXPECT_EQ(nccl.Step(group), nullptr);
  nccl.Stop(group);
  nccl.Stop(group);
  EXPECT_EQ(Trail::Get().no_op, counted);
  EXPECT_TRUE(Trail::UnderWay().empty());
  EXPECT_TRUE(Trail::News().empty());
}

// It was aborted; or its proxies are another's, which go on, and tell of its last ops just after.
TEST_P(EachVersion, OfWhatACommunicatorLeavesTheLaunchIsKnown) {
  FakeNccl other(GetParam());
  ASSERT_EQ(other.Init(kHash + 1), 0);
  void* goes_on = other.Coll();
  void* works = other.Proxy(goes_on, 2, true);
  nccl.Stop(nccl.Coll());  // only its launch is known
  void* coll = nccl.Coll();
  nccl.Stop(coll);
  void* proxy = nccl.Proxy(coll, 2, true);
  void* step = nccl.Step(proxy);
  nccl.State(step, 9, 64);
  void* send = nccl.Send(3);  // not even enqueued
  nccl.Finalize();
  std::vector<ls_record> news = Trail::News();
  ASSERT_EQ(news.size(), 3u);
  EXPECT_EQ(news[0].body.op.state, LS_OP_LAUNCHED);
  EXPECT_EQ(news[1].body.op.state, LS_OP_LAUNCHED);
  EXPECT_EQ(news[1].body.op.function, LS_ALL_REDUCE);
  EXPECT_EQ(news[2].body.op.state, LS_OP_LAUNCHED);
  EXPECT_EQ(news[2].body.op.function, LS_SEND);
  EXPECT_EQ(Trail::UnderWay().size(), 1u) << "the other communicator's";
  const uint64_t counted = Trail::Get().no_op;
  void* next = other.Coll();  // in the room of what was given back
  void* works_for_next = other.Proxy(next, 2, true);
  for (void* late : {step, proxy, coll, send}) {
    nccl.State(late, 10, 64);
    nccl.Stop(late);
    EXPECT_EQ(nccl.Proxy(late, 2, true), nullptr);
  }
  EXPECT_EQ(Trail::Get().no_op - counted, 8u);
  EXPECT_TRUE(Trail::News().empty());
  for (void* event : {goes_on, works, next, works_for_next}) other.Stop(event);
  news = Trail::News();
  ASSERT_EQ(news.size(), 2u);
  for (const ls_record& record : news) EXPECT_EQ(record.body.op.state, LS_OP_COMPLETED);
  other.Finalize();
}

TEST_P(EachVersion, WhatIsNeverStoppedKeepsItsRoomNoLongerThanItsCommunicator) {
  void* last = nullptr;
  do {
    last = nccl.Coll();
    nccl.Stop(last);
    nccl.Step(nccl.Proxy(last, 2, true));
  } while (last != nullptr);
  nccl.Finalize();
  FakeNccl next(GetParam());
  ASSERT_EQ(next.Init(kHash + 1), 0);
  Trail::News();
  EXPECT_TRUE(Trail::UnderWay().empty());
  const uint64_t before = Trail::Get().no_place;
  std::vector<void*> all(8000);
  for (void*& coll : all) coll = next.Coll();
  EXPECT_EQ(std::count(all.begin(), all.end(), nullptr), 0);
  for (void* coll : all) next.Stop(coll);
  next.Finalize();
  EXPECT_EQ(Trail::Get().no_place, before);
  Trail::News();
}

// As where a watchdog aborts one communicator while the others are at work.
TEST_P(EachVersion, OneThreadAbortsWhileAnotherWorks) {
  FakeNccl other(GetParam());
  ASSERT_EQ(other.Init(kHash + 1), 0);
  std::atomic<bool> done{false};
  uint64_t ops = 0;
  std::thread works([&] {
    for (; !done || ops < 100; ++ops) {
      void* coll = other.Coll();
      other.Stop(coll);
      void* send = other.Proxy(coll, 2, true);
      void* step = other.Step(send);
      other.State(step, 9, 64);
      other.Stop(step);
      other.Stop(send);
    }
  });
  for (int i = 0; i < 5; ++i) {
    std::vector<void*> left;
    for (int op = 0; op < 20; ++op) {
      left.push_back(nccl.Coll());
      nccl.Stop(left.back());
      left.push_back(nccl.Proxy(left.back(), 2, true));
    }
    nccl.Finalize();
    for (void* late : left) nccl.Stop(late);
    ASSERT_EQ(nccl.Init(kHash + 2), 0);
  }
  done = true;
  works.join();
  EXPECT_TRUE(Trail::UnderWay().empty());
  const ls_communicator* const own = Trail::Get().communicator;
  const ls_communicator* one = own;
  while (one->launched != ops || one->id != kHash + 1) ASSERT_LT(one++, own + LS_TRAIL_COMMUNICATORS);
  EXPECT_EQ(one->ended, ops);
  other.Finalize();
  Trail::News();
}

TEST_P(EachVersion, TwoThreadsAsNcclHasThem) {
  constexpr int kOps = 2000;
  std::mutex mutex;
  std::deque<void*> ops;
  std::atomic<bool> done{false};
  std::thread proxy([&] {
    for (;;) {
      const bool last = done;  // before the look: nothing comes after it
      void* op = nullptr;
      {
        const std::lock_guard lock(mutex);
        if (!ops.empty()) {
          op = ops.front();
          ops.pop_front();
        }
      }
      if (op == nullptr && last) return;
      if (op == nullptr) continue;
      void* send = nccl.Proxy(op, 2, true);
      void* step = nccl.Step(send);
      nccl.State(step, 8);
      nccl.State(step, 9, 64);
      nccl.Stop(step);
      nccl.Stop(send);
    }
  });
  const uint64_t head = Trail::Get().head;
  for (int i = 0; i < kOps; ++i) {
    void* coll = nccl.Coll();
    nccl.Stop(coll);
    for (bool full = true; full;) {  // no further ahead than the plugin waits for
      const std::lock_guard lock(mutex);
      full = ops.size() > 16;
      if (!full) ops.push_back(coll);
    }
  }
  done = true;
  proxy.join();
  EXPECT_EQ(Trail::Get().head - head, 2u * kOps);
  EXPECT_EQ(Trail::Get().no_cell, 0u);
}

TEST_P(EachVersion, MoreThanThereIsRoomForIsCounted) {
  const uint64_t before = Trail::Get().no_place;
  std::vector<void*> all(20'000);
  for (void*& coll : all) coll = nccl.Coll();
  EXPECT_GT(Trail::Get().no_place, before);
  EXPECT_TRUE(std::count(all.begin(), all.end(), nullptr) > 0);
  for (void* coll : all) {
    nccl.Stop(nccl.Proxy(coll, 1, true));
    nccl.Stop(coll);
  }
  Trail::News();
  void* coll = nccl.Coll();
  nccl.Stop(nccl.Proxy(coll, 1, true));
  nccl.Stop(coll);
  EXPECT_EQ(Trail::News().size(), 1u);
}

TEST_P(EachVersion, AChildBeginsWithoutATrail) {
  void* coll = nccl.Coll();
  const pid_t child = fork();
  if (child == 0) {
    unsetenv("LOCKSTEP_TRAILS");
    nccl.Stop(coll);
    const bool silent = nccl.Coll() == nullptr;
    FakeNccl other(GetParam());
    const bool refused = freopen("/dev/null", "w", stderr) != nullptr && other.Init() != 0;
    _exit(silent && refused && !testing::Test::HasFailure() ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  nccl.Stop(nccl.Proxy(coll, 1, true));
  nccl.Stop(coll);
  EXPECT_EQ(Trail::News().size(), 1u);
}

TEST(Nccl, SaysWhyItKeepsNoTrail) {
  for (const auto& [trails, why] : {std::pair{"/dev/null/x", "Not a directory"}, {"", "LOCKSTEP_TRAILS is not set"}}) {
    std::array<int, 2> ends{};
    ASSERT_EQ(pipe(ends.data()), 0);
    const pid_t child = fork();
    if (child == 0) {
      dup2(ends[1], STDERR_FILENO);
      setenv("LOCKSTEP_TRAILS", trails, 1);
      FakeNccl nccl(4);
      _exit(nccl.Init() != 0 && nccl.Init() != 0 ? 0 : 1);
    }
    close(ends[1]);
    std::string said(4096, '\0');
    said.resize(static_cast<size_t>(std::max<ssize_t>(read(ends[0], said.data(), said.size()), 0)));
    close(ends[0]);
    int status = 1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_NE(said.find(why), std::string::npos) << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  }
}

INSTANTIATE_TEST_SUITE_P(Nccl, EachVersion, testing::Range(1, 7));

}  // namespace
}  // namespace lockstep::collect
