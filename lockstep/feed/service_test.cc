#include "lockstep/feed/service.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "lockstep/base/json_text.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/base/test_limit.h"
#include "lockstep/feed/test_client.h"
#include "lockstep/prepare/test_tar.h"

namespace lockstep::feed {
namespace {

using testing::HasSubstr;

class ServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    WriteNpy(folder_ / "bytes.npy");
    options_.data.path = folder_ / "bytes.npy";
    options_.name = "bytes";
    options_.socket = folder_ / "s";
    options_.threads = 2;
    Start();
  }
  void TearDown() override {
    Stop();
    EXPECT_FALSE(std::filesystem::exists(options_.socket));
  }
  void Start() {
    poller_ = std::make_unique<Poller>();
    absl::StatusOr<std::unique_ptr<Service>> opened = Service::Open(options_, *poller_, clock_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    service_ = *std::move(opened);
    thread_ = std::jthread([this] { poller_->Run(Seconds{0.02}, [] {}); });
  }
  void Stop() {
    poller_->Stop();
    thread_ = {};
    service_ = nullptr;
  }
  Client Join(const std::string& job) { return {options_.socket, JoinPacket(job)}; }
  std::string Refusal(const Json& packet) { return Client(options_.socket, packet).error(); }
  Json Status() { return *AskStatus(options_.socket); }
  // Until so many ranks are there; the test's time limit is the limit.
  void AwaitRanks(size_t count) {
    while (Status()["jobs"].size() != count) std::this_thread::yield();
  }

  const TestFolder folder_;
  ServiceOptions options_;
  SystemClock clock_;
  std::unique_ptr<Poller> poller_;
  std::unique_ptr<Service> service_;
  std::jthread thread_;
};

TEST_F(ServiceTest, ARankGetsItsEpoch) {
  Client client = Join("a");
  EXPECT_EQ(client.answer["items"], kItems);
  EXPECT_EQ(client.answer["shape"], Json({16}));
  std::set<uint64_t> seen;
  for (int step = 0; step < 20; ++step)
    for (const uint64_t id : client.Next()) seen.insert(id);
  EXPECT_EQ(seen.size(), kItems);
}

TEST_F(ServiceTest, WhatIsAskedForWronglyIsSaidInOneSentence) {
  const Json good = JoinPacket("a");
  EXPECT_THAT(Refusal(With(good, "dataset", "imagenet")), HasSubstr("there is no data set \"imagenet\""));
  EXPECT_THAT(Refusal(With(good, "batch", 0)), HasSubstr("batch 0: expected 1 to"));
  EXPECT_THAT(Refusal(With(good, "batch", -5)), HasSubstr("batch -5: expected 1 to 1048576"));
  EXPECT_THAT(Refusal(With(good, "slots", 1 << 21)), HasSubstr("prefetch 2097152: expected 2 to 32"));
  EXPECT_THAT(Refusal(With(good, "world", 0)), HasSubstr("world 0: expected 1 to 1048576"));
  EXPECT_THAT(Refusal(With(good, "world", -1)), HasSubstr("world -1: expected 1 to 1048576"));
  EXPECT_THAT(Refusal(With(good, "rank", -1)), HasSubstr("rank -1: expected 0 to 1048575"));
  EXPECT_THAT(Refusal(With(good, "slots", 1)), HasSubstr("prefetch 1: expected 2 to 32"));
  EXPECT_THAT(Refusal(With(good, "world", 201)), HasSubstr("world 201: the set has 200 items"));
  EXPECT_THAT(Refusal(With(good, "rank", 3)), HasSubstr("rank 3: expected less than world"));
  EXPECT_THAT(Refusal(With(good, "version", 99)), HasSubstr("version 99"));
  EXPECT_THAT(Refusal(With(good, "job", "")), HasSubstr("expected a name"));
  EXPECT_THAT(Refusal(With(good, "seed", "x")), HasSubstr("seed must be"));
  EXPECT_THAT(Refusal(With(good, "seed", -1)),
              HasSubstr("seed must be a whole number from 0 to 18446744073709551615, found -1"));
  EXPECT_THAT(Refusal(With(good, "where", {{"items", {300, 400}}})),
              HasSubstr("items from 300 to before 400: expected some of the 200"));
  EXPECT_THAT(Refusal(With(good, "where", {{"labels", {"cat"}}})), HasSubstr("no label \"cat\""));
  EXPECT_THAT(Refusal(With(good, "where", {{"labels", {2.5}}})), HasSubstr("label 2.5: expected a name, or a number"));
  EXPECT_THAT(Refusal(With(good, "where", {{"shape", 1}})), HasSubstr("where: shape 1"));
  EXPECT_THAT(Refusal(With(good, "where", {{"listed", 5}})), HasSubstr("did not"));
  EXPECT_THAT(Refusal(With(With(good, "drop_last", true), "batch", 300)), HasSubstr("fewer than the 300"));
  EXPECT_THAT(Refusal(With(good, "op", "dance")), HasSubstr("found \"dance\""));
  EXPECT_THAT(Refusal({{"op", "join"}}), HasSubstr("field version is missing"));
  EXPECT_EQ(Status()["jobs"].size(), 0U);
}

// It serves all jobs: what one of them sends may not end it.
TEST_F(ServiceTest, APacketOfBracketsIsRefused) {
  absl::StatusOr<Fd> socket = ConnectTo(options_.socket);
  ASSERT_TRUE(socket.ok()) << socket.status();
  const int room = 1 << 20;
  ASSERT_EQ(setsockopt(socket->get(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room), 0);
  const std::string where = std::string(90'000, '[') + std::string(90'000, ']'), join = OneLine(JoinPacket("a"));
  ASSERT_TRUE(SendPacket(socket->get(), join.substr(0, join.size() - 1) + ",\"where\":" + where + "}").ok());
  pollfd waiting{socket->get(), POLLIN, 0};
  ASSERT_EQ(poll(&waiting, 1, -1), 1);
  EXPECT_THAT(ReceivePacket(socket->get())->text, HasSubstr("nested more than 128 deep"));
  EXPECT_EQ(Status()["jobs"].size(), 0U);
}

TEST_F(ServiceTest, BytesThatAreNoPacketHarmNobody) {
  Client good = Join("a");
  for (const std::string& text :
       {std::string("\0\0", 2), std::string(100'000, '{'), std::string("[1,2"), std::string("r")}) {
    const Fd socket = *ConnectTo(options_.socket);
    EXPECT_TRUE(SendPacket(socket.get(), text).ok());
  }
  EXPECT_EQ(good.Next().size(), 10U);
}

TEST_F(ServiceTest, OneNameIsOneJob) {
  Client first = Join("a");
  EXPECT_THAT(Refusal(JoinPacket("a")), HasSubstr("job \"a\" has a rank 0 already, process"));
  first.Close();
  Client second = Join("a");  // at once: the end of the first need not have been noticed
  EXPECT_EQ(second.error(), "");
}

TEST_F(ServiceTest, AJobMayComeBackAtOnceInAnotherWorld) {
  for (int world = 1; world < 40; ++world) {
    std::vector<Client> ranks;
    for (int rank = 0; rank < world; ++rank) {
      ranks.emplace_back(options_.socket, With(With(JoinPacket("a"), "world", world), "rank", rank));
      ASSERT_EQ(ranks.back().error(), "");
    }
  }
}

TEST_F(ServiceTest, RanksOfAJobAskForTheSame) {
  Client first(options_.socket, With(JoinPacket("a"), "world", 2));
  Json other = With(With(JoinPacket("a"), "world", 2), "rank", 1);
  EXPECT_THAT(Refusal(With(other, "batch", 11)), HasSubstr("expected the same"));
  EXPECT_THAT(Refusal(With(other, "where", {{"items", {0, 100}}})), HasSubstr("expected the same"));
  Client second(options_.socket, other);
  std::set<uint64_t> seen;
  for (int step = 0; step < 10; ++step)
    for (Client* client : {&first, &second})
      for (const uint64_t id : client->Next()) seen.insert(id);
  EXPECT_EQ(seen.size(), kItems);
}

TEST_F(ServiceTest, AStateOfAnotherSetIsRefused) {
  Client first = Join("a");
  const std::string state = first.answer["state"];
  first.Close();
  const Json packet = With(JoinPacket("a"), "state", state);
  EXPECT_THAT(Refusal(With(packet, "where", {{"items", {0, 100}}})), HasSubstr("state of a stream: of another"));
  EXPECT_THAT(Refusal(With(packet, "seed", 8)), HasSubstr("state of a stream: of another seed"));
  EXPECT_THAT(Refusal(With(packet, "state", state.substr(0, state.size() - 3))), HasSubstr("state of a stream"));
  EXPECT_EQ(Refusal(packet), "");
}

TEST_F(ServiceTest, AListOfIdsComesBesideThePacket) {
  const std::vector<uint64_t> ids = {5, 190, 7, 6};
  const Fd memory(memfd_create("ids", MFD_CLOEXEC));
  ASSERT_EQ(write(memory.get(), ids.data(), 32), 32);
  const int fd = memory.get();
  Client client(options_.socket, With(JoinPacket("a"), "where", {{"listed", 4}}), std::span(&fd, 1));
  EXPECT_THAT(client.Next(), testing::UnorderedElementsAre(5, 6, 7, 190));
}

TEST_F(ServiceTest, AKilledProcessIsReapedThoughItsChildHoldsTheSocket) {
  Pipe joined = *MakePipe();
  const pid_t job = fork();
  if (job == 0) {
    Client client = Join("a");
    const pid_t child = fork();
    if (child == 0) {
      pause();
      _exit(0);
    }
    if (write(joined.write.get(), &child, sizeof child) != sizeof child) _exit(1);
    pause();
    _exit(0);
  }
  pid_t child = 0;
  ASSERT_EQ(read(joined.read.get(), &child, sizeof child), static_cast<ssize_t>(sizeof child));
  EXPECT_EQ(Status()["jobs"].size(), 1U);
  kill(job, SIGKILL);
  AwaitRanks(0);
  EXPECT_EQ(kill(child, 0), 0);  // it lives, and holds the socket
  kill(child, SIGKILL);
  waitpid(job, nullptr, 0);
}

TEST_F(ServiceTest, ARestartedServiceGoesOnWhereTheJobSays) {
  std::set<uint64_t> seen;
  std::string state;
  {
    Client client = Join("a");
    for (int step = 0; step < 7; ++step)
      for (const uint64_t id : client.Next()) seen.insert(id);
    state = client.state;
  }
  EXPECT_EQ(seen.size(), 70U);
  Stop();
  Start();
  Client again(options_.socket, With(JoinPacket("a"), "state", state));
  for (int step = 7; step < 20; ++step)
    for (const uint64_t id : again.Next()) EXPECT_TRUE(seen.insert(id).second);
  EXPECT_EQ(seen.size(), kItems);
}

TEST_F(ServiceTest, TheSocketOfALivingServiceIsNotTaken) {
  Poller poller;
  const auto other = Service::Open(options_, poller, clock_);
  EXPECT_THAT(Message(other.status()), HasSubstr("in use by process"));
  EXPECT_EQ(Join("a").error(), "");
}

// Each round as after a kill: what is there is a socket at which nobody answers.
TEST_F(ServiceTest, OfSeveralThatStartAtOnceOneDoes) {
  const std::string path = folder_ / "shared";
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> opened = 0, refused = 0;
    std::barrier together(4);
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
          Poller poller;
          together.arrive_and_wait();
          const auto door = Door::Open(path, poller);
          ++(door.ok() ? opened : refused);
          together.arrive_and_wait();  // nobody ends before all have tried
        });
      }
    }
    ASSERT_EQ(opened, 1) << round;
    ASSERT_EQ(refused, 3) << round;
    const Fd left = *ListenAt(path);
  }
  std::filesystem::remove(path);
  EXPECT_FALSE(std::filesystem::exists(path + ".lock"));
}

TEST_F(ServiceTest, TheSocketOfTheNextOneStays) {
  Poller poller;
  const std::string path = folder_ / "shared";
  std::unique_ptr<Door> before = *Door::Open(path, poller);
  std::filesystem::remove(path);
  const std::unique_ptr<Door> next = *Door::Open(path, poller);
  before = nullptr;
  EXPECT_TRUE(ConnectTo(path).ok());
}

TEST_F(ServiceTest, SeventyJobsWithFewDescriptors) {
  // Both ends are in this process: 70 of the clients, 2 * 70 of the service.
  const TestLimit few(RLIMIT_NOFILE, 400);
  std::vector<Client> clients;
  for (int i = 0; i < 70; ++i) clients.push_back(Join("job" + std::to_string(i)));
  for (int step = 0; step < 20; ++step)
    for (Client& client : clients) EXPECT_EQ(client.Next().size(), 10U);
  const Json status = Status();
  EXPECT_EQ(status["jobs"].size(), 70U);
  EXPECT_GE(status["sharing"]["deliveries"].get<uint64_t>(), 70 * kItems);
  clients.clear();
  AwaitRanks(0);
}

// Its rehearsal takes as long as it likes: batches come, and who joins or asks is answered.
TEST_F(ServiceTest, WhileAGroupChoosesNobodyWaits) {
  Stop();
  std::atomic<bool> chooses = false;
  options_.choose = [&](const sampling::GroupQuestion& question, const std::stop_token& stop) {
    if (question.sets.size() > 1) {
      chooses = true;
      std::mutex mutex;
      std::unique_lock lock(mutex);
      std::condition_variable_any().wait(lock, stop, [] { return false; });
    }
    return sampling::GroupChoice{.version = question.version};
  };
  Start();
  const auto packet = [](const std::string& job) { return With(JoinPacket(job), "alone", false); };
  Client leader(options_.socket, packet("leader")), second(options_.socket, packet("second"));
  while (!chooses) std::this_thread::yield();
  for (int step = 0; step < 60; ++step) EXPECT_EQ(leader.Next().size(), 10U);
  Client third(options_.socket, packet("third"));
  EXPECT_EQ(third.Next().size(), 10U);
  EXPECT_EQ(Status()["groups"][0]["why"], "not predicted yet");
  Stop();
}

TEST_F(ServiceTest, WithoutDescriptorsWhoComesIsTurnedAwayAndTheOthersGoOn) {
  Client first = Join("a");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  options_.socket.copy(address.sun_path, sizeof address.sun_path - 1);
  std::vector<Fd> knocks, others;
  for (int i = 0; i < 30; ++i) knocks.emplace_back(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  int turned_away = 0;
  {
    const TestLimit few(RLIMIT_NOFILE, 200);
    for (const Fd& knock : knocks) {  // a thread that reads items may give one back in between, which lets the next in
      for (Fd one(open("/dev/null", O_RDONLY)); one.valid(); one = Fd(open("/dev/null", O_RDONLY)))
        others.push_back(std::move(one));
      ASSERT_EQ(connect(knock.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
      turned_away += absl::IsUnavailable(AwaitPacket(knock.get(), 20).status());
    }
    others.clear();
  }
  EXPECT_GT(turned_away, 0);
  const Client second = Join("b");
  EXPECT_EQ(Status()["jobs"].size(), 2U);
}

TEST_F(ServiceTest, RingsBeyondTheirMemoryAreRefused) {
  Stop();
  options_.ring_bytes = 100'000;
  Start();
  Client first = Join("a");
  EXPECT_THAT(Refusal(With(JoinPacket("b"), "batch", 10'000)), HasSubstr("raise --ring-memory"));
  EXPECT_EQ(first.Next().size(), 10U);
}

TEST_F(ServiceTest, ABudgetThatHoldsNothingIsRefused) {
  ServiceOptions small = options_;
  small.cache_bytes = 8 << 20;
  small.threads = 8;
  Poller poller;
  EXPECT_THAT(Message(Service::Open(small, poller, clock_).status()),
              HasSubstr("--cache of 8 MB: 8 threads work in 28 MB, and items need some too; expected 32M or more"));
}

TEST_F(ServiceTest, StatusCountsWhatIsShared) {
  Client a = Join("a"), b = Join("b");
  for (int step = 0; step < 20; ++step) EXPECT_EQ(a.Next(), b.Next());
  const Json status = Status();
  EXPECT_EQ(status["data_set"], "bytes");
  EXPECT_LE(status["sharing"]["preparations"].get<uint64_t>(), kItems + 40);
  EXPECT_GE(status["sharing"]["deliveries_per_preparation"].get<double>(), 1.6);
  EXPECT_EQ(status["jobs"][0]["slots"], 2U);
}

// Of more than a packet holds: here by names of items, as it is by the ranks of a large job.
TEST_F(ServiceTest, AStatusOfAnySizeComesWhole) {
  Stop();
  options_.data.path = folder_ / "set.tar";
  const std::string folders(3000, 'x');
  std::string set;
  for (int i = 0; i < 100; ++i)
    set += prepare::TarEntry("././@LongLink", fmt::format("{}{}.jpg", folders, i), 'L') +
           prepare::TarEntry("i.jpg", "no image");
  ASSERT_TRUE(WriteFileAtomically(options_.data.path, set).ok());
  Start();
  Client client(options_.socket, With(JoinPacket("a"), "batch", 100));
  EXPECT_TRUE(client.Next().empty());
  const absl::StatusOr<Json> status = AskStatus(options_.socket);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_GT(OneLine(*status).size(), 256'000U);
  EXPECT_EQ((*status)["corrupt"].size(), 100U);
}

TEST_F(ServiceTest, StatusCountsWhatIsLeftOutAndWhatIsRefused) {
  Stop();
  options_.data.path = folder_ / "set.tar";
  const std::string set =
      prepare::TarEntry("1.jpg", "no image") + prepare::TarEntry("1.txt", "of it") + std::string(1024, '\0');
  ASSERT_TRUE(WriteFileAtomically(options_.data.path, set).ok());
  Start();
  EXPECT_TRUE(Join("a").Next().empty());
  const Json status = Status();
  EXPECT_EQ(status["left_out"], Json({{"members_of_other_kinds", 1}}));
  EXPECT_EQ(status["images"], Json({{"refused", 1}}));
}

}  // namespace
}  // namespace lockstep::feed
