#include "lockstep/relay/relay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "lockstep/base/test_folder.h"
#include "lockstep/feed/service.h"
#include "lockstep/feed/test_client.h"
#include "lockstep/relay/sender.h"

namespace lockstep::relay {
namespace {

using feed::Client;
using feed::JoinPacket;
using feed::kItems;
using feed::With;
using testing::HasSubstr;
using testing::Not;

// What runs in one process of `lockstep feed serve`: a poller of its own, in a thread.
template <typename What>
class Served {
 public:
  template <typename Open>
  explicit Served(const Open& open) {
    absl::StatusOr<std::unique_ptr<What>> opened = open(poller_);
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (!opened.ok()) return;
    what_ = *std::move(opened);
    thread_ = std::thread([this] { poller_.Run(Seconds{0.02}, [] {}); });
  }
  ~Served() {
    poller_.Stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  Poller poller_;
  std::unique_ptr<What> what_;
  std::thread thread_;
};

class RelayTest : public testing::Test {
 protected:
  void SetUp() override {
    feed::WriteNpy(folder_ / "bytes.npy", 50'000);  // 10 of them are no one piece
    StartService();
    StartSender("127.0.0.1:0");
    StartRelay();
  }
  void TearDown() override {
    relay_ = nullptr;
    StopService();
  }

  std::string far() const { return folder_ / "far"; }
  std::string near() const { return folder_ / "near"; }
  std::string address() const { return "127.0.0.1:" + std::to_string(sender_->port()); }
  void StartService() {
    service_ = std::make_unique<Served<feed::Service>>([this](Poller& poller) {
      feed::ServiceOptions options{.data = {.path = folder_ / "bytes.npy"}, .name = "bytes", .socket = far()};
      options.threads = 2;
      options.for_machines = true;
      return feed::Service::Open(options, poller, clock_);
    });
  }
  void StartSender(const std::string& at) {
    auto sender = Sender::Start({.address = at, .socket = far(), .token = token_});
    ASSERT_TRUE(sender.ok()) << sender.status();
    sender_ = *std::move(sender);
  }
  void StopService() {
    sender_ = nullptr;
    service_ = nullptr;
  }
  void StartRelay() {
    relay_ = std::make_unique<Served<Relay>>([this](Poller& poller) {
      return Relay::Open({.address = address(), .token = token_, .socket = near()}, poller, clock_);
    });
  }
  // Ids of the next steps.
  static std::vector<uint64_t> Take(Client& client, int steps) {
    std::vector<uint64_t> all;
    for (int step = 0; step < steps; ++step)
      for (const uint64_t id : client.Next()) all.push_back(id);
    return all;
  }
  std::string Refusal(const Json& packet) { return Client(near(), packet).error(); }
  void AwaitRanks(size_t count) {
    while ((*feed::AskStatus(far()))["jobs"].size() != count) std::this_thread::yield();
  }

  const TestFolder folder_;
  std::string token_ = "secret";
  SystemClock clock_;
  std::unique_ptr<Served<feed::Service>> service_;
  std::unique_ptr<Sender> sender_;
  std::unique_ptr<Served<Relay>> relay_;
};

TEST_F(RelayTest, ARankGetsWhatItWouldGetThere) {
  std::vector<uint64_t> there;
  std::string state;
  {
    Client client(far(), JoinPacket("a"));
    there = Take(client, 23);
    state = client.state;
  }
  AwaitRanks(0);
  Client client(near(), JoinPacket("a"));
  EXPECT_EQ(client.answer["items"], kItems);
  EXPECT_EQ(Take(client, 23), there);
  EXPECT_EQ(client.state, state);
}

TEST_F(RelayTest, JobsOfTwoMachinesShare) {
  Client here(near(), JoinPacket("a")), there(far(), JoinPacket("b"));
  for (int step = 0; step < 20; ++step) EXPECT_EQ(here.Next(), there.Next());
  const Json status = *feed::AskStatus(near());
  EXPECT_LE(status["sharing"]["preparations"].get<uint64_t>(), kItems + 60);
  EXPECT_EQ(status["jobs"].size(), 2U);
  EXPECT_EQ(status["relay"]["ranks"], 1U);
  EXPECT_EQ(status["relay"]["socket"], near());
  std::set<std::pair<std::string, bool>> hosts;
  for (const Json& row : status["jobs"]) hosts.emplace(row["job"], row["host"] == "");
  EXPECT_THAT(hosts, testing::UnorderedElementsAre(testing::Pair("a", false), testing::Pair("b", true)));
}

TEST_F(RelayTest, RanksOfAJobThatComeToOneServiceAreNotApart) {
  const Json packet = With(With(JoinPacket("a"), "alone", false), "apart", true);
  const Client client(near(), packet);
  EXPECT_NE((*feed::AskStatus(far()))["jobs"][0]["order"], "alone");
}

TEST_F(RelayTest, WhatIsAskedForWronglyIsSaidAsThere) {
  EXPECT_THAT(Refusal(With(JoinPacket("a"), "dataset", "imagenet")), HasSubstr("this service has \"bytes\""));
  EXPECT_THAT(Refusal(With(JoinPacket("a"), "batch", 0)), HasSubstr("batch 0: expected 1 to"));
  EXPECT_THAT(Refusal(With(JoinPacket("a"), "where", {{"listed", 5}})), HasSubstr("did not"));
  EXPECT_THAT(Refusal(With(JoinPacket("a"), "op", "dance")), HasSubstr("found \"dance\""));
  const Client there(far(), JoinPacket("a"));
  EXPECT_THAT(Refusal(JoinPacket("a")), HasSubstr("job \"a\" has a rank 0 already"));
}

TEST_F(RelayTest, AListOfIdsGoesWithIt) {
  const std::vector<uint64_t> ids = {5, 190, 7, 6};
  const Fd memory(memfd_create("ids", MFD_CLOEXEC));
  ASSERT_EQ(write(memory.get(), ids.data(), 32), 32);
  const int fd = memory.get();
  Client client(near(), With(JoinPacket("a"), "where", {{"listed", 4}}), std::span(&fd, 1));
  EXPECT_THAT(client.Next(), testing::UnorderedElementsAre(5, 6, 7, 190));
}

TEST_F(RelayTest, ARankThatComesBackAtOnceIsNotItsOwnRival) {
  std::string state;
  std::vector<uint64_t> seen;
  for (int life = 0; life < 10; ++life) {
    Client client(near(), With(JoinPacket("a"), "state", state));
    ASSERT_EQ(client.error(), "");
    for (const uint64_t id : Take(client, 2)) seen.push_back(id);
    state = client.state;
  }
  EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), kItems);
  EXPECT_EQ(seen.size(), kItems);
}

TEST_F(RelayTest, WhenTheOtherMachineIsLostNothingOfTheJobIs) {
  std::set<uint64_t> seen;
  std::string state;
  const std::string at = address();
  {
    Client client(near(), JoinPacket("a"));
    for (const uint64_t id : Take(client, 7)) seen.insert(id);
    state = client.state;
    StopService();
    while (!client.Next().empty()) {  // what had been carried; the job takes it for not had, and goes on from its state
    }
  }
  EXPECT_EQ(seen.size(), 70U);
  EXPECT_THAT(Client(near(), With(JoinPacket("a"), "state", state)).answer["gone"].get<std::string>(),
              HasSubstr("feed://" + at));
  StartService();
  StartSender(at);
  Client again(near(), With(JoinPacket("a"), "state", state));
  for (const uint64_t id : Take(again, 13)) EXPECT_TRUE(seen.insert(id).second);
  EXPECT_EQ(seen.size(), kItems);
}

TEST_F(RelayTest, ARelayThatIsStoppedLeavesNothingThere) {
  Client client(near(), JoinPacket("a"));
  EXPECT_EQ(client.Next().size(), 10U);
  relay_ = nullptr;
  AwaitRanks(0);
  EXPECT_FALSE(std::filesystem::exists(near()));
}

TEST_F(RelayTest, MemoryForRingsIsBounded) {
  relay_ = std::make_unique<Served<Relay>>([this](Poller& poller) {
    return Relay::Open({.address = address(), .token = token_, .socket = folder_ / "small", .ring_bytes = 1'500'000},
                       poller, clock_);
  });
  Client first(folder_ / "small", JoinPacket("a"));
  EXPECT_EQ(first.Next().size(), 10U);
  EXPECT_THAT(Client(folder_ / "small", JoinPacket("b")).error(), HasSubstr("raise --ring-memory"));
}

TEST_F(RelayTest, ATokenIsWanted) {
  Poller poller;
  const auto open = [&](const std::string& to, const std::string& token) {
    return Relay::Open({.address = to, .token = token, .socket = folder_ / "other", .patience = {0.1}}, poller, clock_)
        .status();
  };
  EXPECT_EQ(open(address(), "guess").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(Message(open(address(), "")), HasSubstr("wants its token: give --token-file"));
  EXPECT_THAT(Message(open("127.0.0.1:1", token_)), HasSubstr("feed://127.0.0.1:1: "));
  EXPECT_TRUE(open(address(), token_).ok());
  const auto listen = [](const std::string& at) { return Message(Sender::Start({.address = at}).status()); };
  EXPECT_THAT(listen("0.0.0.0:0"), HasSubstr("give a token"));
  EXPECT_THAT(listen("[::]:0"), HasSubstr("give a token"));
  EXPECT_THAT(listen("[::1]:0"), Not(HasSubstr("give a token")));
  EXPECT_THAT(listen("29600"), HasSubstr("expected HOST:PORT"));
  EXPECT_THAT(listen(address()), HasSubstr("can't be had"));
}

}  // namespace
}  // namespace lockstep::relay
