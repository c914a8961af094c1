// Loads liblockstep-gloo.so in front of a stand-in for libgloo.so.0 (fake_gloo.c), as a preloaded library stands.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <deque>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/test_folder.h"
#include "lockstep/collect/test_trail.h"
#include "lockstep/record/trail.h"

namespace {

using lockstep::collect::MapOwnTrail;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// As far as the interposer looks at them. A gloo::rendezvous::Context:
struct Context {
  const void* vtable = nullptr;
  int32_t rank = 0, size = 2;
};
// A buffer of the TCP transport.
struct Buffer {
  const void *vtable = nullptr, *memory = nullptr;
  size_t bytes = 64;
  const void* transport = nullptr;
};

class Gloo : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    static const lockstep::TestFolder folder;
    setenv("LOCKSTEP_TRAILS", folder.path().c_str(), 1);
    setenv("RANK", "5", 1);
    setenv("WORLD_SIZE", "8", 1);
    for (const char* library : {LOCKSTEP_GLOO, LOCKSTEP_FAKE_GLOO})  // in this order: the first stands in front
      ASSERT_NE(dlopen(library, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  }

  template <typename Function>
  static Function* Find(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  }
  static void Connect(Context& context) {
    Find<void(Context*, void*, void*)>(
        "_ZN4gloo10rendezvous7Context15connectFullMeshERNS0_5StoreERSt10shared_ptrINS_"
        "9transport6DeviceEE")(&context, nullptr, nullptr);
  }
  static void AllReduce(const Context& context, uint64_t turns = 2) {
    const std::array<const void*, 2> options = {&context, &turns};
    Find<void(const void*)>("_ZN4gloo9allreduceERKNS_16AllreduceOptionsE")(options.data());
  }
  static void Collective(const char* name, const Context& context) {
    const uint64_t others = static_cast<uint64_t>(context.size) - 1;
    const std::array<const void*, 2> options = {&context, &others};
    Find<void(const void*)>(name)(options.data());
  }
  static void Launch(Context& context, Buffer& buffer) {
    Buffer* made = nullptr;
    Find<void*(Buffer**, Context*, Buffer*, size_t)>("_ZN4gloo7Context19createUnboundBufferEPvm")(&made, &context,
                                                                                                  &buffer, 64);
    ASSERT_EQ(made, &buffer);
    Find<void(Buffer*, int, uint64_t, size_t, size_t)>("_ZN4gloo9transport3tcp13UnboundBuffer4sendEimmm")(made, 1, 0, 0,
                                                                                                          64);
  }
  static void Wait(Buffer& buffer) {
    Find<bool(Buffer*, int*, int64_t)>(
        "_ZN4gloo9transport3tcp13UnboundBuffer8waitSendEPiNSt6chrono8durationIlSt5ratio"
        "ILl1ELl1000EEEE")(&buffer, nullptr, 1000);
  }
  static void Send(Context& context, Buffer& buffer) {
    Launch(context, buffer);
    Wait(buffer);
  }
  static void Delete(Buffer& buffer) { Find<void(Buffer*)>("_ZN4gloo9transport3tcp13UnboundBufferD0Ev")(&buffer); }

  // All that has ended; what is under way is none of it.
  static std::vector<ls_record> Ended(const ls_trail& trail) {
    std::vector<ls_record> records(100);
    EXPECT_EQ(ls_trail_under_way(&trail, std::vector<ls_record>(LS_TRAIL_PLACES).data()), 0u);
    uint64_t at = 0, missed = 0;
    records.resize(ls_trail_read(&trail, &at, &missed, records.data(), records.size()));
    return records;
  }
};

TEST_F(Gloo, AnOpInWhichNothingIsSentIsNotTold) {
  Context context;
  Connect(context);
  ls_trail* trail = MapOwnTrail();
  ASSERT_NE(trail, nullptr);
  AllReduce(context);
  const std::vector<ls_record> ended = Ended(*trail);
  ASSERT_EQ(ended.size(), 3u) << "the op, what it sent, what it received";
  EXPECT_EQ(ended[0].body.op.tag, 0u);
  const int64_t left = trail->left_ns;
  EXPECT_EQ(left, ended[0].time_ns);
  AllReduce(context, 0);
  EXPECT_EQ(Ended(*trail).size(), 3u);
  EXPECT_EQ(trail->left_ns, left) << "it was by itself all along";
  EXPECT_EQ(trail->communicator[0].launched, 2u);
  EXPECT_EQ(trail->communicator[0].ended, 2u);
}

TEST_F(Gloo, OfASendThatNobodyWaitedForTheLaunchIsKnown) {
  Context context;
  Connect(context);
  ls_trail* trail = MapOwnTrail();
  Buffer buffer;
  buffer.transport = &buffer;
  const size_t before = Ended(*trail).size();
  Launch(context, buffer);
  Delete(buffer);
  std::vector<ls_record> ended = Ended(*trail);
  ASSERT_EQ(ended.size(), before + 1);
  EXPECT_EQ(ended.back().body.op.state, LS_OP_LAUNCHED);
  Send(context, buffer);
  Delete(buffer);
  ended = Ended(*trail);
  ASSERT_EQ(ended.size(), before + 2);
  EXPECT_EQ(ended.back().body.op.state, LS_OP_COMPLETED);
}

// As of a rank that enters its training function again.
TEST_F(Gloo, ACommunicatorIsOfTheEpochInWhichItWasMade) {
  Context before, after;
  for (const auto& [context, epoch] : {std::pair{&before, 3U}, std::pair{&after, 4U}}) {
    setenv("LOCKSTEP_EPOCH", std::to_string(epoch).c_str(), 1);
    Connect(*context);
  }
  unsetenv("LOCKSTEP_EPOCH");
  const ls_trail* trail = MapOwnTrail();
  const auto epoch_of = [&](const Context& context) {
    return trail->communicator[ls_trail_find_communicator(trail, reinterpret_cast<uint64_t>(&context))].epoch;
  };
  EXPECT_EQ(epoch_of(before), 3U);
  EXPECT_EQ(epoch_of(after), 4U);
}

// Of what it sums, not of what it hears it in parts of.
TEST_F(Gloo, WhatARankBringsIsItsWholeBuffer) {
  Context context;
  Connect(context);
  const ls_trail* trail = MapOwnTrail();
  const size_t before = Ended(*trail).size();
  AllReduce(context);
  EXPECT_EQ(ls_op_brings(&Ended(*trail).at(before).body.op), 4000);
  const size_t after = Ended(*trail).size();
  Collective("_ZN4gloo9broadcastERNS_16BroadcastOptionsE", context);
  EXPECT_EQ(ls_op_brings(&Ended(*trail).at(after).body.op), 3000);
  const size_t others = Ended(*trail).size();
  Collective("_ZN4gloo7scatterERNS_14ScatterOptionsE", context);
  EXPECT_EQ(ls_op_brings(&Ended(*trail).at(others).body.op), -1) << "each may hear of another size";
}

constexpr char kAllToAll[] = "_ZN4gloo8alltoallERNS_15AlltoallOptionsE";
constexpr char kReduce[] = "_ZN4gloo6reduceERNS_13ReduceOptionsE";
constexpr char kScatter[] = "_ZN4gloo7scatterERNS_14ScatterOptionsE";

// What some collectives of a communicator tell of their messages.
struct Told {
  std::set<int32_t> sent_to, received_from;
  size_t sums = 0;
  uint64_t not_told = 0;  // messages
};

// In a process of its own, for there are many records.
TEST_F(Gloo, OfManyPeersEachIsToldOfInTurn) {
  const auto told_of = [](size_t count, const char* name, int32_t size, size_t others_between) {
    Context context{.size = size};
    Connect(context);
    ls_trail* trail = MapOwnTrail();
    Told told;
    const uint64_t before = trail->no_peer;
    uint64_t at = trail->head, missed = 0;
    for (size_t op = 0; op < count; ++op) {
      for (size_t i = 0; i < others_between; ++i) AllReduce(context);
      std::vector<ls_record> records(1000);
      ls_trail_read(trail, &at, &missed, records.data(), records.size());
      Collective(name, context);
      records.resize(ls_trail_read(trail, &at, &missed, records.data(), records.size()));
      EXPECT_LE(records.size(), 33u) << "the op, and its sums";
      for (const ls_record& record : records) {
        if (record.kind != LS_RECORD_TRANSFER) continue;
        ++told.sums;
        (record.body.transfer.direction == LS_SEND ? told.sent_to : told.received_from)
            .insert(record.body.transfer.peer);
      }
    }
    told.not_told = trail->no_peer - before;
    return told;
  };
  const auto in_child = [&] {
    for (const int32_t size : {16, 17, 49, 70})
      for (const size_t others_between : {0, 1, 3}) {
        const size_t others = static_cast<size_t>(size) - 1, count = others_between == 0 ? 8 : 16;
        const Told all_to_all = told_of(count, kAllToAll, size, others_between);
        EXPECT_EQ(all_to_all.sent_to.size(), others) << size << ", every " << others_between + 1;
        EXPECT_EQ(all_to_all.received_from, all_to_all.sent_to);
        EXPECT_EQ(all_to_all.not_told, count * (std::max<size_t>(2 * others, 32) - 32)) << "and counted";
        const Told root = told_of(count, kReduce, size, others_between);
        EXPECT_EQ(root.received_from.size(), others) << size << ", every " << others_between + 1;
        EXPECT_EQ(root.sums, count * std::min<size_t>(others, 32));
        const Told leaf = told_of(count, kScatter, size, others_between);
        EXPECT_EQ(leaf.sums, count) << "there is room";
        EXPECT_EQ(leaf.not_told, 0u);
      }
    _exit(HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(in_child(), testing::ExitedWithCode(0), "");
}

TEST_F(Gloo, ASendWhoseWaitThrowsHasFailed) {
  Context context;
  Connect(context);
  ls_trail* trail = MapOwnTrail();
  Buffer buffer;
  buffer.transport = &buffer;
  AllReduce(context);
  const size_t before = Ended(*trail).size();
  const int64_t left = trail->left_ns;
  auto* waits = reinterpret_cast<void (**)()>(dlsym(RTLD_DEFAULT, "fake_gloo_waits"));
  ASSERT_NE(waits, nullptr);
  *waits = [] { throw std::runtime_error("Timed out waiting 1000ms for send operation to complete"); };
  EXPECT_THROW(Send(context, buffer), std::runtime_error);
  *waits = nullptr;
  Delete(buffer);
  const std::vector<ls_record> ended = Ended(*trail);
  ASSERT_EQ(ended.size(), before + 1);
  EXPECT_EQ(ended.back().body.op.state, LS_OP_FAILED);
  EXPECT_NE(ended.back().body.op.alone, LS_UNKNOWN) << "so long it was waited for";
  EXPECT_GT(trail->left_ns, left) << "it was not by itself";
}

// In a process of its own: they stay loaded.
TEST_F(Gloo, OtherLibrariesOfTheProcessAreNoted) {
  const auto in_child = [] {
    std::array<Context, 2> contexts;
    Connect(contexts[0]);
    ls_trail* trail = MapOwnTrail();
    EXPECT_EQ(trail->libraries, 0u);
    dlopen(LOCKSTEP_FAKE_RCCL, RTLD_NOW | RTLD_LOCAL);
    Connect(contexts[1]);
    EXPECT_EQ(trail->libraries, LS_LIBRARY_OF_DEVICES);
    _exit(HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(in_child(), testing::ExitedWithCode(0), "");
}

// In a process of its own: entries are never free again.
TEST_F(Gloo, OfACommunicatorThatFindsNoRoomNothingIsTold) {
  const auto in_child = [] {
    std::deque<Context> contexts(LS_TRAIL_COMMUNICATORS + 2);
    for (Context& context : contexts) Connect(context);
    ls_trail* trail = MapOwnTrail();
    EXPECT_EQ(trail->no_communicator, 2u);
    AllReduce(contexts.front());
    Buffer buffer;
    buffer.transport = &buffer;
    Send(contexts.front(), buffer);
    const size_t before = Ended(*trail).size();
    EXPECT_EQ(before, 4u);
    const int64_t left = trail->left_ns;
    AllReduce(contexts.back());
    EXPECT_EQ(trail->no_communicator, 3u);
    EXPECT_GT(trail->left_ns, left) << "it waited for messages";
    Send(contexts.back(), buffer);  // its transport lies where that of the first was
    EXPECT_EQ(trail->no_communicator, 4u);
    EXPECT_EQ(Ended(*trail).size(), before);
    _exit(HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(in_child(), testing::ExitedWithCode(0),
              AllOf(HasSubstr("lockstep: rank 5 tells nothing of further communicators"),
                    Not(ContainsRegex("lockstep:.*\nlockstep:"))))
      << "once";
}

}  // namespace
