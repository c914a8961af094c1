// Client and server over loopback, in one poller.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include "lockstep/base/file.h"
#include "lockstep/base/test_connect.h"
#include "lockstep/base/test_limit.h"
#include "lockstep/rpc/client.h"
#include "lockstep/rpc/server.h"

namespace lockstep::rpc {
namespace {

using testing::HasSubstr;

// A coordinator of its own, with a term of its own; one that stands in turns everybody away.
struct Other {
  Other(Poller& poller, const Clock& clock, int64_t number) : term(number) {
    auto started = Server::Start("127.0.0.1:0", poller, clock,
                                 {.joined = [this](Server::Peer who, const control::Join& join) { Joined(who, join); },
                                  .said = [](Server::Peer, const control::Said&) {},
                                  .left = [this](Server::Peer) { ++left; },
                                  .unreadable = [](const absl::Status& status) { ADD_FAILURE() << status; }});
    EXPECT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
  }
  void Joined(Server::Peer who, const control::Join& join) {
    peer = who;
    ++joined;
    newest = join.term;
    if (hesitates) return;
    if (leads_another) return server->SendElsewhere(peer, "it leads another run");
    if (term == 0) return server->TurnAway(peer, "it stands in");
    server->Welcome(peer, {1, 2, 4, 2}, "the run", term);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(server->port()); }

  int64_t term, newest = -1;
  Server::Peer peer = 0;  // the newest
  int joined = 0, left = 0;
  bool hesitates = false;  // with its answer
  bool leads_another = false;
  std::unique_ptr<Server> server;
};

class Link : public testing::Test {
 protected:
  void Serve(const std::string& address = "127.0.0.1:0") {
    auto started =
        Server::Start(address, poller_, clock_,
                      {.joined = [this](Server::Peer peer, const control::Join& join) { Joined(peer, join); },
                       .said = [this](Server::Peer, const control::Said& said) { said_.push_back(said); },
                       .left = [this](Server::Peer peer) { left_.push_back(peer); },
                       .unreadable = [](const absl::Status& status) { ADD_FAILURE() << status; }});
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
    address_ = "127.0.0.1:" + std::to_string(server_->port());
  }
  void Joined(Server::Peer peer, const control::Join& join) {
    peer_ = peer;
    if (join.version != control::kLinkVersion) return server_->Refuse(peer, "another version");
    server_->Welcome(peer, {1, 2, 4, 2}, "the run", 0);
  }
  std::unique_ptr<Client> Attend(control::Join join = {.name = "b", .token = "t"}) {
    return Attend(std::vector{address_}, std::move(join));
  }
  std::unique_ptr<Client> Attend(const std::vector<std::string>& addresses,
                                 control::Join join = {.name = "b", .token = "t"}) {
    return std::make_unique<Client>(
        addresses, std::move(join), poller_, clock_,
        Client::Listener{
            .welcomed = [this](const control::Place& place, const std::string&) { places_.push_back(place); },
            .refused = [this](const std::string& why) { refusals_.push_back(why); },
            .told = [this](const control::Told& told) { told_.push_back(told); },
            .lost = [this](const std::string& why) { losses_.push_back(why); },
            .leads_another = [this](const std::string& why) { strangers_.push_back(why); }});
  }
  // False after 10 s in vain.
  bool Until(Client* client, const std::function<bool()>& happened) {
    const Nanos deadline = clock_.Now() + ToNanos(Seconds{10});
    bool done = false;
    poller_.Run(Seconds{0.01}, [&] {
      if (client != nullptr) client->Tick();
      done = happened();
      if (done || clock_.Now() > deadline) poller_.Stop();
    });
    return done;
  }

  SystemClock clock_;
  Poller poller_;
  std::string address_;
  Server::Peer peer_ = 0;
  std::vector<control::Said> said_;
  std::vector<Server::Peer> left_;
  std::vector<control::Place> places_;
  std::vector<std::string> refusals_, losses_, strangers_;
  std::vector<control::Told> told_;
  std::unique_ptr<Server> server_;
};

TEST_F(Link, CarriesWordsBothWaysInOrder) {
  Serve();
  const auto client = Attend();
  ASSERT_TRUE(Until(client.get(), [&] { return !places_.empty(); }));
  EXPECT_EQ(places_[0].first_rank, 2);
  for (uint64_t epoch = 1; epoch <= 500; ++epoch) {
    client->Say(control::EventBody(control::EpochSpawned{EpochId(epoch)}));
    server_->Tell(peer_, control::LookClosely{EpochId(epoch), true});
  }
  ASSERT_TRUE(Until(client.get(), [&] { return said_.size() == 500 && told_.size() == 500; }));
  for (uint64_t i = 0; i < 500; ++i) {
    EXPECT_EQ(std::get<control::EpochSpawned>(std::get<control::EventBody>(said_[i])).epoch, EpochId(i + 1));
    EXPECT_EQ(std::get<control::LookClosely>(told_[i]).epoch, EpochId(i + 1));
  }
}

TEST_F(Link, AnAgentThatEndsIsNoticed) {
  Serve();
  auto client = Attend();
  ASSERT_TRUE(Until(client.get(), [&] { return !places_.empty(); }));
  client.reset();
  ASSERT_TRUE(Until(nullptr, [&] { return !left_.empty(); }));
  EXPECT_EQ(left_, std::vector{peer_});
  EXPECT_EQ(server_->peers(), 0u);
}

// As one that has placed all nodes and fails to begin: each has a place, and is not to wait for one.
TEST_F(Link, WhatACoordinatorSaidBeforeItEndedIsHeard) {
  Serve();
  const auto client = Attend();
  ASSERT_TRUE(Until(client.get(), [&] { return !places_.empty(); }));
  for (int i = 0; i < 3; ++i) server_->Tell(peer_, control::Command(control::KillEpoch{EpochId(1), {}, SIGTERM, {}}));
  server_.reset();
  ASSERT_TRUE(Until(nullptr, [&] { return !losses_.empty(); }));
  EXPECT_EQ(told_.size(), 3u);
}

TEST_F(Link, ACoordinatorThatEndsIsNoticedAndFoundAgain) {
  Serve();
  const auto client = Attend();
  ASSERT_TRUE(Until(client.get(), [&] { return !places_.empty(); }));
  const std::string address = address_;
  server_.reset();
  ASSERT_TRUE(Until(client.get(), [&] { return !losses_.empty(); }));
  EXPECT_FALSE(client->connected());
  client->Say(control::AllSaid{});  // dropped
  Serve(address);
  ASSERT_TRUE(Until(client.get(), [&] { return places_.size() == 2; }));
  EXPECT_TRUE(said_.empty());
}

TEST_F(Link, ARefusalIsFinal) {
  Serve();
  const auto client = Attend({.version = control::kLinkVersion + 2, .name = "b", .token = "t"});
  ASSERT_TRUE(Until(client.get(), [&] { return !refusals_.empty(); }));
  EXPECT_EQ(refusals_[0], "another version");
  const Server::Peer first = peer_;
  ASSERT_TRUE(Until(client.get(), [&] { return !left_.empty(); }));
  EXPECT_EQ(peer_, first) << "it did not come again";
}

// Its place was given away: there is a coordinator, and it will not have this agent.
TEST_F(Link, ARefusalOfWhoTookPartIsNoLoss) {
  Serve();
  const auto client = Attend();
  ASSERT_TRUE(Until(client.get(), [&] { return !places_.empty(); }));
  server_->Refuse(peer_, "this node is out of the job");
  ASSERT_TRUE(Until(client.get(), [&] { return !refusals_.empty(); }));
  EXPECT_TRUE(losses_.empty());
}

TEST_F(Link, OneThatWasDroppedComesBack) {
  Serve();
  const auto client = Attend();
  ASSERT_TRUE(Until(client.get(), [&] { return !places_.empty(); }));
  server_->Drop(peer_);
  ASSERT_TRUE(Until(client.get(), [&] { return places_.size() == 2; }));
  EXPECT_EQ(losses_.size(), 1u);
  EXPECT_TRUE(left_.empty()) << "who drops it knows";
}

TEST_F(Link, NobodyThereHasAReason) {
  address_ = "127.0.0.1:1";
  const auto client = Attend();
  ASSERT_TRUE(Until(client.get(), [&] { return !client->problem().empty(); }));
  EXPECT_NE(client->lost_since(), Nanos{});
  EXPECT_TRUE(losses_.empty()) << "it was never there";
}

TEST_F(Link, OfSeveralAddressesTheOneThatLeadsIsFound) {
  Other stands_in(poller_, clock_, 0), leads(poller_, clock_, 7);
  const auto client = Attend({"127.0.0.1:1", stands_in.address(), leads.address()});
  ASSERT_TRUE(Until(client.get(), [&] { return !places_.empty(); }));
  EXPECT_EQ(client->address(), leads.address());
  EXPECT_TRUE(refusals_.empty()) << "to be turned away is no refusal";
  EXPECT_GE(stands_in.joined, 1);
}

// One of the addresses is another job's by now.
TEST_F(Link, ACoordinatorOfAnotherRunIsPassedBy) {
  Other stranger(poller_, clock_, 0), leader(poller_, clock_, 7);
  stranger.leads_another = true;
  const auto client = Attend({stranger.address(), leader.address()});
  ASSERT_TRUE(Until(client.get(), [&] { return client->connected(); }));
  EXPECT_EQ(client->address(), leader.address());
  EXPECT_EQ(strangers_, std::vector<std::string>{"it leads another run"});
  EXPECT_TRUE(refusals_.empty());
}

TEST_F(Link, WhoStoodInIsFollowedWhenTheLeaderEnds) {
  auto first = std::make_unique<Other>(poller_, clock_, 1);
  Other second(poller_, clock_, 0);
  const auto client = Attend({first->address(), second.address()});
  ASSERT_TRUE(Until(client.get(), [&] { return !places_.empty(); }));
  first.reset();
  ASSERT_TRUE(Until(client.get(), [&] { return second.joined >= 2; }));
  second.term = 2;
  ASSERT_TRUE(Until(client.get(), [&] { return places_.size() == 2; }));
  EXPECT_EQ(client->address(), second.address());
}

// Whoever lost its journal can't know; its agents can.
TEST_F(Link, ALeaderThatMayHaveBeenReplacedIsLeftForOneWithANewerTerm) {
  Other first(poller_, clock_, 1), second(poller_, clock_, 0);
  const auto client = Attend({first.address(), second.address()});
  ASSERT_TRUE(Until(client.get(), [&] { return !places_.empty(); }));
  const int asked = second.joined;
  first.server->Heartbeat(true);
  ASSERT_TRUE(Until(client.get(), [&] { return second.joined > asked + 1; }));
  EXPECT_TRUE(client->connected()) << "nobody else leads: the first is attended meanwhile";
  EXPECT_EQ(places_.size(), 1u);
  second.term = 2;
  ASSERT_TRUE(Until(client.get(), [&] { return places_.size() == 2; }));
  EXPECT_EQ(client->address(), second.address());
  EXPECT_TRUE(losses_.empty());
  ASSERT_TRUE(Until(client.get(), [&] { return first.left == 1; }));
}

TEST_F(Link, TheNextLeadersAnswerMayComeRightBehindTheEndOfTheLast) {
  Other first(poller_, clock_, 1), second(poller_, clock_, 0);
  const auto client = Attend({first.address(), second.address()});
  ASSERT_TRUE(Until(client.get(), [&] { return !places_.empty(); }));
  second.hesitates = true;
  const int asked = second.joined;
  first.server->Heartbeat(true);
  ASSERT_TRUE(Until(client.get(), [&] { return second.joined > asked; }));
  first.server.reset();
  ASSERT_TRUE(Until(nullptr, [&] { return losses_.size() == 1; }));
  second.server->Welcome(second.peer, {1, 2, 4, 2}, "the run", 2);
  ASSERT_TRUE(Until(nullptr, [&] { return places_.size() == 2; }));
  EXPECT_TRUE(client->connected());
  EXPECT_EQ(client->address(), second.address());
}

TEST_F(Link, AnOlderTermIsNotFollowed) {
  Other newer(poller_, clock_, 5), older(poller_, clock_, 4);
  const auto client = Attend({newer.address(), older.address()});
  ASSERT_TRUE(Until(client.get(), [&] { return !places_.empty(); }));
  newer.server.reset();
  ASSERT_TRUE(Until(client.get(), [&] { return older.joined >= 2; }));
  EXPECT_EQ(older.newest, 5) << "it hears that there is a newer one";
  EXPECT_EQ(places_.size(), 1u);
  EXPECT_FALSE(client->connected());
}

// Both ends of a connection are this process's, here.
TEST_F(Link, ThoseWhoSayNothingKeepNobodyOut) {
  const TestLimit few(RLIMIT_NOFILE, 256);
  Serve();
  std::vector<Fd> silent;
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(silent.emplace_back(ConnectTo(server_->port())).valid()) << i;
  // As an HTTP/2 client that has nothing to ask.
  const std::string_view greeting("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", 33);
  ASSERT_EQ(ssize_t{33}, send(silent[0].get(), greeting.data(), greeting.size(), 0));
  const auto client = Attend();
  ASSERT_TRUE(Until(client.get(), [&] { return !places_.empty(); }));
  for (const Fd& each : silent) {
    char heard[4096];
    while (recv(each.get(), heard, sizeof heard, 0) > 0) {  // the end comes, after what HTTP/2 has to say
    }
  }
  server_->Tell(peer_, control::LookClosely{EpochId(1), true});  // an agent stays
  EXPECT_TRUE(Until(client.get(), [&] { return !told_.empty(); }));
  EXPECT_TRUE(left_.empty() && losses_.empty());
}

TEST_F(Link, APortHasOneCoordinator) {
  Serve();
  const auto second = Server::Start(address_, poller_, clock_, {});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(Message(second.status()), HasSubstr("can't listen on " + address_));
}

}  // namespace
}  // namespace lockstep::rpc
