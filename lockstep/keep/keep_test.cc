// Sender, keeper and fetch over real sockets of loopback.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "lockstep/base/test_connect.h"
#include "lockstep/base/test_limit.h"
#include "lockstep/keep/fetch.h"
#include "lockstep/keep/keeper.h"
#include "lockstep/keep/sender.h"
#include "lockstep/keep/test_part.h"
#include "lockstep/keep/wire.h"

namespace lockstep::keep {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMeta = 1000;
constexpr Bytes kPlenty{uint64_t{1} << 40};
constexpr char kToken[] = "0123456789abcdef0123456789abcdef";

checkpoint::Point At(int64_t step) { return {EpochId(1), StepId(step)}; }

// What a sender tells, to be waited for.
class Told {
 public:
  Sender::Listener listener() {
    return {.kept = [this](const checkpoint::Point& point) { Tell(fmt::format("kept {}", point.step.value())); },
            .trouble = [this](const absl::Status& why) { Tell(Message(why)); }};
  }
  std::string Next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !told_.empty(); });
    return std::exchange(told_, "");
  }

 private:
  void Tell(std::string text) {
    const std::lock_guard lock(mutex_);
    told_ = std::move(text);
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string told_;
};

absl::StatusOr<std::vector<Content>> FetchAll(int port, int node, const checkpoint::Point& point,
                                              const std::string& token = kToken, Seconds patience = Seconds{0}) {
  std::vector<Content> slots;
  const auto make = [&](size_t, const SlotHeader& header) {
    slots.emplace_back(header.bytes);
    return absl::StatusOr<std::span<std::byte>>(slots.back());
  };
  LS_ASSIGN_OR_RETURN(const Outline outline, Fetch({"127.0.0.1", port}, token, node, point, {}, make, patience));
  EXPECT_EQ(slots.size(), outline.slots.size());
  return slots;
}

// Gives one part out, and counts who comes for it. If told so, it hangs up on the first, the third, ... of them.
class CountingKeeper {
 public:
  explicit CountingKeeper(OwnPart part, bool hangs_up = false)
      : part_(Hashed(std::move(part))), places_(PlacesOf(part_->outline.slots)) {
    socket_ = ListenOnFreePort(true, port_).value();
    fcntl(socket_.get(), F_SETFL, 0);  // it blocks
    listener_ = std::jthread([this, hangs_up] {
      for (Fd guest; (guest = Fd(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK))).valid();) {
        if (guests_++ % 2 == 0 && hangs_up) {
          guest.Close();
          continue;
        }
        threads_.emplace_back([this, fd = guest.Release()] { Serve(Connection(Fd(fd), {})); });
      }
    });
  }
  ~CountingKeeper() {
    shutdown(socket_.get(), SHUT_RDWR);
    listener_.join();
  }
  int port() const { return port_; }
  int guests() const { return guests_; }

 private:
  void Serve(Connection connection) {
    Greeting greeting;
    Head head;
    EXPECT_TRUE(connection.Read(greeting).ok());
    while (connection.Read(head).ok()) {
      EXPECT_TRUE(WriteAnswer(connection, absl::OkStatus()).ok());
      if (head.slots == kOutlineOnly && !WriteOutline(connection, part_->outline).ok()) return;
      for (const Place& place : places_) {
        if (place.slot != head.slots) continue;
        EXPECT_TRUE(WriteAnswer(connection, absl::OkStatus()).ok());
        EXPECT_TRUE(connection.Write(part_->contents[place.slot].subspan(place.offset, place.bytes)).ok());
      }
    }
  }

  const std::shared_ptr<const OwnPart> part_;
  const std::vector<Place> places_;
  Fd socket_;
  int port_ = 0;
  std::atomic<int> guests_ = 0;
  std::vector<std::jthread> threads_;
  std::jthread listener_;
};

class Keeping : public testing::Test {
 protected:
  Keeping() { EXPECT_TRUE(keeper_.Open(true).ok()); }
  Keeper keeper_{kToken, kPlenty};
  Store own_{kPlenty};
  Told told_;
};

TEST_F(Keeping, WhatIsOfferedIsKeptAndGivenBack) {
  const std::vector<Content> slots = {SlotOf(kMeta, 1, RandomBytes(5'000'000, 2)), SlotOf(kMeta, 3, RandomBytes(70, 4)),
                                      SlotOf(kMeta, 5, {})};
  Sender sender(kToken, own_, told_.listener());
  sender.SendTo(Address{"127.0.0.1", keeper_.port()});
  for (const int64_t step : {1, 2, 3}) {
    sender.Offer(OfferOf(1, At(step), slots, kMeta));
    EXPECT_EQ(fmt::format("kept {}", step), told_.Next());
    const auto fetched = FetchAll(keeper_.port(), 1, At(step));
    ASSERT_TRUE(fetched.ok()) << fetched.status();
    EXPECT_EQ(slots, *fetched);
  }
  const uint64_t whole = slots[0].size() + slots[1].size() + slots[2].size();
  EXPECT_EQ(3 * whole, sender.bytes_kept());
  EXPECT_EQ(whole, sender.bytes_sent());  // nothing had changed
  EXPECT_THAT(Message(FetchAll(keeper_.port(), 1, At(4)).status()), HasSubstr("step 4 is not kept here"));
  EXPECT_THAT(Message(FetchAll(keeper_.port(), 0, At(3)).status()), HasSubstr("node 0's checkpoint"));
}

// A keeper has 64 guests at a time.
TEST_F(Keeping, ANodeOfManyRanksIsFetchedByFewConnections) {
  std::vector<Content> slots;
  for (uint32_t rank = 0; rank < 100; ++rank) slots.push_back(SlotOf(kMeta, rank, RandomBytes(100 * rank, rank)));
  CountingKeeper keeper(OfferOf(1, At(1), slots, kMeta));
  const auto fetched = FetchAll(keeper.port(), 1, At(1));
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(slots, *fetched);
  EXPECT_LE(keeper.guests(), 16);
}

TEST_F(Keeping, WhereAConnectionFailsItIsFetchedOverAnother) {
  const std::vector<Content> slots = {SlotOf(kMeta, 1, RandomBytes(3'000'000, 2)), SlotOf(kMeta, 3, {}),
                                      SlotOf(kMeta, 5, RandomBytes(70, 4))};
  CountingKeeper keeper(OfferOf(1, At(1), slots, kMeta), /*hangs_up=*/true);
  EXPECT_TRUE(absl::IsUnavailable(FetchAll(keeper.port(), 1, At(1)).status()));
  const auto fetched = FetchAll(keeper.port(), 1, At(1), kToken, kFetchPatience);
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(slots, *fetched);
}

// They leave no place for those who greet, otherwise.
TEST_F(Keeping, OfThoseWhoSayNothingTheOldestGoes) {
  const std::vector<Content> slots = {SlotOf(kMeta, 1, RandomBytes(70, 2))};
  Sender sender(kToken, own_, told_.listener());
  std::vector<Fd> silent;
  for (int i = 0; i < 80; ++i) ASSERT_TRUE(silent.emplace_back(ConnectTo(keeper_.port())).valid()) << i;
  sender.SendTo(Address{"127.0.0.1", keeper_.port()});
  sender.Offer(OfferOf(1, At(1), slots, kMeta));
  EXPECT_EQ("kept 1", told_.Next());
  EXPECT_EQ(slots, FetchAll(keeper_.port(), 1, At(1)).value());
  char nothing = 0;
  EXPECT_EQ(0, recv(silent[0].get(), &nothing, 1, 0)) << "it was cut off";
  EXPECT_EQ(-1, recv(silent[79].get(), &nothing, 1, MSG_DONTWAIT)) << "it may still greet";
  // In two pieces, even.
  Greeting greeting;
  greeting.purpose = Purpose::kGet;
  greeting.token = TokenField(kToken);
  const Head unknown{1, 2, 1, 0, kOutlineOnly, 0};
  ASSERT_EQ(50, send(silent[79].get(), &greeting, 50, 0));
  ASSERT_EQ(30, send(silent[79].get(), reinterpret_cast<const char*>(&greeting) + 50, 30, 0));
  ASSERT_EQ(ssize_t{sizeof unknown}, send(silent[79].get(), &unknown, sizeof unknown, 0));
  Connection last(std::move(silent[79]), {});
  EXPECT_THAT(Message(ReadAnswer(last)), HasSubstr("step 2 is not kept here"));
}

TEST_F(Keeping, ReplicasOfEachOtherSendOnlyWhatIsTheirOwn) {
  Keeper other(kToken, kPlenty);
  ASSERT_TRUE(other.Open(true).ok());
  Told told_other;
  Sender a(kToken, keeper_.store(), told_.listener()), b(kToken, other.store(), told_other.listener());
  a.SendTo(Address{"127.0.0.1", other.port()});
  b.SendTo(Address{"127.0.0.1", keeper_.port()});
  const Content tensors = RandomBytes(5'000'000, 2);
  const std::vector<Content> of_a = {SlotOf(kMeta, 1, tensors)}, of_b = {SlotOf(kMeta, 2, tensors)};
  a.Offer(OfferOf(0, At(1), of_a, kMeta));
  b.Offer(OfferOf(1, At(1), of_b, kMeta));
  EXPECT_EQ("kept 1", told_.Next());
  EXPECT_EQ("kept 1", told_other.Next());
  EXPECT_EQ(of_a, FetchAll(other.port(), 0, At(1)).value());
  EXPECT_EQ(of_b, FetchAll(keeper_.port(), 1, At(1)).value());
}

TEST_F(Keeping, AKeeperThatIsNotThereYetIsTriedAgain) {
  int port = 0;
  {
    const Fd free = ListenOnFreePort(true, port).value();
  }
  Sender sender(kToken, own_, told_.listener());
  sender.Offer(OfferOf(0, At(1), {RandomBytes(5000, 1)}, kMeta));
  sender.SendTo(Address{"127.0.0.1", port});
  EXPECT_THAT(told_.Next(), HasSubstr("Connection refused"));
  sender.SendTo(Address{"127.0.0.1", keeper_.port()});
  for (std::string told = told_.Next(); told != "kept 1"; told = told_.Next())
    EXPECT_THAT(told, HasSubstr("Connection refused"));
}

// What it kept went with its process: no use in trying again.
TEST_F(Keeping, WhereNobodyListensNothingIsKept) {
  int port = 0;
  {
    const Fd free = ListenOnFreePort(true, port).value();
  }
  const absl::Status gone = FetchAll(port, 0, At(1), kToken, kFetchPatience).status();
  EXPECT_TRUE(absl::IsNotFound(gone)) << gone;
  EXPECT_THAT(Message(gone), HasSubstr("Connection refused"));
}

TEST_F(Keeping, AKeeperWithoutRoomSaysSoAndIsOfferedTheNextOne) {
  Keeper small(kToken, Bytes{10'000});
  ASSERT_TRUE(small.Open(true).ok());
  Sender sender(kToken, own_, told_.listener());
  sender.SendTo(Address{"127.0.0.1", small.port()});
  sender.Offer(OfferOf(0, At(1), {RandomBytes(50'000, 1)}, kMeta));
  EXPECT_THAT(told_.Next(), HasSubstr("there is no room"));
  sender.Offer(OfferOf(0, At(2), {RandomBytes(5'000, 1)}, kMeta));
  EXPECT_EQ("kept 2", told_.Next());
}

TEST_F(Keeping, WhatIsSentInGapsOfTheJobsTrafficIsCounted) {
  std::atomic<int> questions = 0;
  Sender::Listener listener = told_.listener();
  listener.busy = [&] { return std::optional(questions++ < 0); };
  Sender sender(kToken, own_, listener);
  sender.SendTo(Address{"127.0.0.1", keeper_.port()});
  sender.Offer(OfferOf(0, At(1), {RandomBytes(3'000'000, 1)}, kMeta));
  EXPECT_EQ("kept 1", told_.Next());
  EXPECT_EQ(sender.bytes_sent(), sender.bytes_in_gaps());
  EXPECT_EQ(4, questions) << "of the leading part and of three chunks of tensors, each once";
}

TEST_F(Keeping, AJobThatAlwaysCommunicatesIsKeptToo) {
  Sender::Listener listener = told_.listener();
  listener.busy = [] { return std::optional(true); };
  Sender sender(kToken, own_, listener);
  sender.SendTo(Address{"127.0.0.1", keeper_.port()});
  sender.Offer(OfferOf(0, At(1), {RandomBytes(5'000'000, 1)}, kMeta));
  EXPECT_EQ("kept 1", told_.Next());
  EXPECT_EQ(0u, sender.bytes_in_gaps());
}

TEST_F(Keeping, WhatIsWrittenOverMeanwhileIsNotKept) {
  auto memory = std::make_shared<std::vector<Content>>(1, RandomBytes(5'000, 1));
  OwnPart offering = OfferOf(0, At(1), *memory, kMeta);
  offering.contents = {(*memory)[0]};
  offering.mapping = memory;
  Sender sender(kToken, own_, told_.listener());
  sender.Offer(offering);
  own_.AwaitOwn(At(1), Seconds{60});  // it is described now
  (*memory)[0][4'000] ^= std::byte{1};
  sender.SendTo(Address{"127.0.0.1", keeper_.port()});
  EXPECT_THAT(told_.Next(), HasSubstr("1 chunks were written over while they were sent"));
}

TEST_F(Keeping, AStrangerIsTurnedAway) {
  EXPECT_TRUE(absl::IsUnavailable(FetchAll(keeper_.port(), 0, At(1), "another run's token").status()));
  EXPECT_EQ(1, keeper_.turned_away());
}

// What all other threads of this process have done so far.
struct Others {
  Others() {
    rusage all, own;
    getrusage(RUSAGE_SELF, &all);
    getrusage(RUSAGE_THREAD, &own);
    rests = all.ru_nvcsw - own.ru_nvcsw;
    cpu_us = Microseconds(all) - Microseconds(own);
  }
  static int64_t Microseconds(const rusage& used) {
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1'000'000 + used.ru_utime.tv_usec + used.ru_stime.tv_usec;
  }
  int64_t rests, cpu_us;
};

// Training has the processors: who can't be let in is no reason to take one.
TEST_F(Keeping, AtTheLimitOfOpenFilesTheKeeperDoesNotSpin) {
  const Fd guest(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const TestLimit none(RLIMIT_NOFILE, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(keeper_.port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(0, connect(guest.get(), reinterpret_cast<sockaddr*>(&address), sizeof address));
  // It rests after each time that it could not, 50 ms, and takes a processor for a small part of that.
  const auto begin = std::chrono::steady_clock::now();
  const auto passed_us = [begin] { return (std::chrono::steady_clock::now() - begin) / std::chrono::microseconds(1); };
  const Others began;
  Others now = began;
  for (; now.rests < began.rests + 8 && passed_us() < 10'000'000; now = Others()) std::this_thread::yield();
  EXPECT_LE(began.rests + 8, now.rests);
  EXPECT_LT(now.cpu_us - began.cpu_us, passed_us() / 50);
}

}  // namespace
}  // namespace lockstep::keep
