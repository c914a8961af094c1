#include "lockstep/feed/service.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "lockstep/client/feed_ring.h"

namespace lockstep::feed {
namespace {

using testing::HasSubstr;

constexpr int kLongMs = 60'000;
constexpr uint64_t kItems = 200;

// Items of 16 bytes, each full of its number.
void WriteNpy(const std::string& path) {
  std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': (200, 16), }";
  header.resize(117, ' ');
  header += '\n';
  std::string text = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header;
  for (uint64_t item = 0; item < kItems; ++item) text.append(16, static_cast<char>(item));
  ASSERT_TRUE(WriteFileAtomically(path, text).ok());
}

Json JoinPacket(const std::string& job) {
  return {{"op", "join"},       {"version", kProtocolVersion},
          {"dataset", "bytes"}, {"job", job},
          {"where", nullptr},   {"recipe", {{"crop", "center"}, {"size", {8, 8}}, {"shorter", 8}, {"flip", 0.0}}},
          {"batch", 10},        {"slots", 2},
          {"seed", 7},          {"rank", 0},
          {"world", 1},         {"drop_last", false},
          {"alone", true},      {"state", ""}};
}

Json With(Json packet, const std::string& key, Json value) {
  packet[key] = std::move(value);
  return packet;
}

// A rank, as a loader is one.
class Client {
 public:
  Client(const std::string& path, const Json& packet, std::span<const int> fds = {}) {
    absl::StatusOr<Fd> connected = ConnectTo(path);
    if (!connected.ok()) return;
    socket_ = *std::move(connected);
    EXPECT_TRUE(SendPacket(socket_.get(), packet.dump(), fds).ok());
    Receive();
  }
  Client(Client&& other) noexcept
      : answer(std::move(other.answer)),
        socket_(std::move(other.socket_)),
        ring_(std::exchange(other.ring_, nullptr)),
        bytes_(other.bytes_),
        ticket_(other.ticket_) {}
  ~Client() {
    if (ring_ != nullptr) munmap(ring_, bytes_);
  }
  void Receive() {
    pollfd waiting{socket_.get(), POLLIN, 0};
    ASSERT_EQ(poll(&waiting, 1, kLongMs), 1);
    std::optional<Packet> packet = ReceivePacket(socket_.get());
    ASSERT_TRUE(packet);
    if (packet->closed) return;
    answer = Json::parse(packet->text);
    if (packet->fds.size() != 1) return;
    struct stat info{};
    fstat(packet->fds[0].get(), &info);
    bytes_ = static_cast<size_t>(info.st_size);
    ring_ =
        static_cast<ls_feed_ring*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, packet->fds[0].get(), 0));
  }
  std::vector<uint64_t> Next() {
    const int slot = ls_feed_await(ring_, ticket_++, socket_.get(), kLongMs);
    if (slot < 0) return {};
    const char* at =
        reinterpret_cast<const char*>(ring_) + LS_FEED_ALIGN + static_cast<uint64_t>(slot) * ring_->slot_stride;
    const auto& batch = *reinterpret_cast<const ls_feed_batch*>(at);
    const auto* ids = reinterpret_cast<const uint64_t*>(at + sizeof batch);
    std::vector<uint64_t> seen(ids, ids + batch.items);
    for (size_t i = 0; i < seen.size(); ++i)
      EXPECT_EQ(static_cast<uint8_t>(at[ring_->payload_offset + i * 16 + 15]), seen[i]);
    state = batch.state;
    ls_feed_release(ring_, static_cast<uint32_t>(slot), socket_.get());
    return seen;
  }
  std::string error() const { return answer.value("error", ""); }
  void Close() { socket_.Close(); }

  Json answer;
  std::string state;  // after the last batch

 private:
  Fd socket_;
  ls_feed_ring* ring_ = nullptr;
  size_t bytes_ = 0;
  uint64_t ticket_ = 0;
};

class ServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/feed." + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
    WriteNpy(folder_ + "/bytes.npy");
    options_.data.path = folder_ + "/bytes.npy";
    options_.name = "bytes";
    options_.socket = folder_ + "/s";
    options_.threads = 2;
    Start();
  }
  void TearDown() override {
    Stop();
    EXPECT_FALSE(std::filesystem::exists(options_.socket));
    std::filesystem::remove_all(folder_);
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

  std::string folder_;
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
  EXPECT_THAT(Refusal(With(good, "batch", -5)), HasSubstr("batch -5"));
  EXPECT_THAT(Refusal(With(good, "slots", 1)), HasSubstr("prefetch 1: expected 2 to 32"));
  EXPECT_THAT(Refusal(With(good, "world", 201)), HasSubstr("world 201: the set has 200 items"));
  EXPECT_THAT(Refusal(With(good, "rank", 3)), HasSubstr("rank 3: expected less than world"));
  EXPECT_THAT(Refusal(With(good, "version", 99)), HasSubstr("version 99"));
  EXPECT_THAT(Refusal(With(good, "job", "")), HasSubstr("expected a name"));
  EXPECT_THAT(Refusal(With(good, "seed", "x")), HasSubstr("seed must be"));
  EXPECT_THAT(Refusal(With(good, "where", {{"items", {300, 400}}})), HasSubstr("are none of the 200"));
  EXPECT_THAT(Refusal(With(good, "where", {{"labels", {"cat"}}})), HasSubstr("no label \"cat\""));
  EXPECT_THAT(Refusal(With(good, "where", {{"shape", 1}})), HasSubstr("where: shape 1"));
  EXPECT_THAT(Refusal(With(good, "where", {{"listed", 5}})), HasSubstr("did not"));
  EXPECT_THAT(Refusal(With(With(good, "drop_last", true), "batch", 300)), HasSubstr("fewer than the 300"));
  EXPECT_THAT(Refusal(With(good, "op", "dance")), HasSubstr("found \"dance\""));
  EXPECT_THAT(Refusal({{"op", "join"}}), HasSubstr("field version is missing"));
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

TEST_F(ServiceTest, SeventyJobsWithFewDescriptors) {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{400, before.rlim_max};  // both ends are in this process: 70 of the clients, 2 * 70 of the service
  setrlimit(RLIMIT_NOFILE, &few);
  std::vector<Client> clients;
  for (int i = 0; i < 70; ++i) clients.push_back(Join("job" + std::to_string(i)));
  for (int step = 0; step < 20; ++step)
    for (Client& client : clients) EXPECT_EQ(client.Next().size(), 10U);
  const Json status = Status();
  EXPECT_EQ(status["jobs"].size(), 70U);
  EXPECT_GE(status["sharing"]["deliveries"].get<uint64_t>(), 70 * kItems);
  clients.clear();
  AwaitRanks(0);
  setrlimit(RLIMIT_NOFILE, &before);
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

}  // namespace
}  // namespace lockstep::feed
