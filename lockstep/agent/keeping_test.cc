// Whether checkpoints count, by what their keeper answers: a peer of the test's own, over a real connection.
#include "lockstep/agent/keeping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "lockstep/checkpoint/test_slot.h"
#include "lockstep/client/commit.h"
#include "lockstep/keep/wire.h"

namespace lockstep::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class KeptBySomebody : public testing::Test {
 protected:
  KeptBySomebody() : board_(BoardMap::Create(1).value()), socket_(keep::ListenOnFreePort(true, port_).value()) {
    spec_.address = "127.0.0.1";
    spec_.run_token = "token";
    buffers_[0] = MakeBuffers(8192).value();
    __atomic_store_n(&board_->rank[0].epoch, 1, __ATOMIC_RELEASE);
  }
  ~KeptBySomebody() override { mailbox_.Close(); }

  // The first who comes, greeted.
  keep::Connection Guest(const std::stop_token& stop) {
    pollfd one{socket_.get(), POLLIN, 0};
    poll(&one, 1, -1);
    keep::Connection connection(Fd(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)), stop);
    keep::Greeting greeting;
    EXPECT_EQ(absl::OkStatus(), connection.Read(greeting));
    return connection;
  }
  // Wants nothing of it, and says so of the checkpoint, the step of which is the value.
  int64_t Answer(keep::Connection& connection, const absl::Status& status) {
    const auto outline = keep::ReadOutline(connection);
    EXPECT_EQ(absl::OkStatus(), outline.status());
    EXPECT_EQ(absl::OkStatus(), keep::WriteAnswer(connection, absl::OkStatus()));
    EXPECT_EQ(absl::OkStatus(), keep::WriteWanted(connection, 1, {}));
    EXPECT_EQ(absl::OkStatus(), keep::WriteAnswer(connection, status));
    return outline.ok() ? outline->point.step.value() : -1;
  }
  void Offer(Keeping& keeping, int64_t step) {
    const checkpoint::TestSlot content = checkpoint::MakeTestSlot(1);
    ls_slot& slot = board_->rank[0].slot[step % LS_SLOTS];
    ls_slot_open(&slot, 1, step, 1);
    const Fd& file = buffers_[0].slot[static_cast<size_t>(step % LS_SLOTS)];
    ASSERT_EQ(pwrite(file.get(), content.content.data(), content.content.size(), 0),
              static_cast<ssize_t>(content.content.size()));
    ls_slot_done(&slot, content.content.size(), content.meta_bytes, content.image().crc32c, 0);
    keeping.Offer(At(step), *board_, std::make_shared<MappedBuffers>(1, buffers_));
  }
  static control::CheckpointId At(int64_t step) { return {EpochId(1), step}; }

  // The keeper answers so of step 1, and yes of step 2, which is offered then. Whether step 1 ever counted.
  bool CountsAfter(const absl::Status& answer) {
    bool counted = false;
    std::function<void()> look;
    Keeping keeping(spec_, poller_, clock_,
                    {.note = [this](const std::string& text) { notes_.push_back(text); }, .kept = [&] { look(); }});
    look = [&] {
      counted = counted || keeping.IsKept(At(1));
      if (keeping.Observe().newest == At(2)) poller_.Stop();
    };
    EXPECT_EQ(absl::OkStatus(), keeping.Open());
    keeping.SendTo({"b", "127.0.0.1", port_});
    const std::jthread keeper([&](const std::stop_token& stop) {
      keep::Connection connection = Guest(stop);
      Answer(connection, answer);
      mailbox_.Post([&] { Offer(keeping, 2); });
      Answer(connection, absl::OkStatus());
    });
    Offer(keeping, 1);
    poller_.Run(Seconds{1}, [] {});
    return counted;
  }

  RunSpec spec_;
  Poller poller_;
  Mailbox mailbox_{poller_};
  FakeClock clock_;
  BoardMap board_;
  int port_ = 0;
  Fd socket_;
  std::map<int, RankBuffers> buffers_;
  std::vector<std::string> notes_;
};

TEST_F(KeptBySomebody, WhoHasNoRoomIsNotWaitedFor) {
  EXPECT_TRUE(CountsAfter(FailedPrecondition("no room")));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("node b keeps no copy"), "checkpoints are kept by node b again"));
}

// An agent that is just back finds both slots of its ranks whole, and whatever the order, the newer one must be kept:
// the older one is committed everywhere, and ranks wait for the newer one to be so.
TEST_F(KeptBySomebody, OfWhatIsFoundAtOnceTheNewestIsKept) {
  std::vector<int64_t> came;
  Keeping keeping(spec_, poller_, clock_, {.note = [](const std::string&) {}, .kept = [] {}});
  EXPECT_EQ(absl::OkStatus(), keeping.Open());
  const std::jthread keeper([&](const std::stop_token& stop) {
    keep::Connection connection = Guest(stop);
    came.push_back(Answer(connection, absl::OkStatus()));
    mailbox_.Post([&] { Offer(keeping, 4); });
    came.push_back(Answer(connection, absl::OkStatus()));
    mailbox_.Post([&] { poller_.Stop(); });
  });
  Offer(keeping, 3);
  Offer(keeping, 2);
  keeping.SendTo({"b", "127.0.0.1", port_});
  poller_.Run(Seconds{1}, [] {});
  EXPECT_THAT(came, ElementsAre(3, 4));
}

// A checkpoint that can't become whole is written over while it is sent: the one before it is kept still, and if this
// one counted without a copy, nobody would have one.
TEST_F(KeptBySomebody, WhatWasWrittenOverMeanwhileCountsForNothing) {
  EXPECT_FALSE(CountsAfter(MakeError(absl::StatusCode::kAborted, "1 chunks were written over while they were sent")));
  EXPECT_THAT(notes_, IsEmpty());
}

}  // namespace
}  // namespace lockstep::agent
