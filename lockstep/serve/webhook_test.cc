#include "lockstep/serve/webhook.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <poll.h>

#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"
#include "lockstep/http/test_server.h"
#include "lockstep/serve/listener.h"

namespace lockstep::serve {
namespace {

using testing::ElementsAre;

// A real HTTP server that notes bodies, answers with the statuses it is given (the last one again and again), and can
// keep callers waiting.
class Receiver {
 public:
  explicit Receiver(std::vector<int> statuses) : statuses_(std::move(statuses)) {
    http_.Post("/hook",
               [this](const httplib::Request& request, httplib::Response& response) { Answer(request, response); });
    port_ = http_.bind_to_any_port("127.0.0.1");
    thread_ = std::jthread([this] { http_.listen_after_bind(); });
    http_.set_keep_alive_max_count(1);
  }
  ~Receiver() {
    Release();
    // stop() has no effect before the loop runs.
    while (!http_.is_running()) std::this_thread::yield();
    http_.stop();
  }

  std::string Url() const { return fmt::format("http://localhost:{}/hook", port_); }
  void Hold() { held_ = true; }
  void Release() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  std::vector<int> WaitForIds(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ids_.size() >= count; });
    return ids_;
  }

 private:
  void Answer(const httplib::Request& request, httplib::Response& response) {
    std::unique_lock lock(mutex_);
    EXPECT_EQ(request.get_header_value("Content-Type"), "application/json");
    response.status = statuses_[std::min(ids_.size(), statuses_.size() - 1)];
    ids_.push_back(ParseJson(request.body)["id"].get<int>());
    changed_.notify_all();
    changed_.wait(lock, [this] { return !held_; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  std::vector<int> statuses_;
  std::vector<int> ids_;
  httplib::Server http_;
  int port_ = 0;
  std::jthread thread_;
};

std::unique_ptr<Webhook> Started(const std::string& url, size_t queue = 64) {
  auto webhook = Webhook::Start({.url = url, .timeout = Seconds{20}, .backoff = Seconds{0.001}, .queue = queue});
  EXPECT_TRUE(webhook.ok()) << webhook.status();
  return *std::move(webhook);
}

std::vector<int64_t> Counts(const Webhook& webhook) {
  const WebhookCounts counts = webhook.counts();
  return {counts.delivered, counts.failed, counts.dropped};
}

double SecondsToEnd(std::unique_ptr<Webhook> webhook) {
  const Nanos begin = SystemClock().Now();
  webhook.reset();
  return ToSeconds(SystemClock().Now() - begin).value;
}

TEST(Webhook, DeliversInOrder) {
  Receiver receiver({200});
  const auto webhook = Started(receiver.Url());
  for (int id = 1; id <= 3; ++id) webhook->Post({{"id", id}});
  EXPECT_TRUE(webhook->Drain(Seconds{60}));
  EXPECT_THAT(receiver.WaitForIds(3), ElementsAre(1, 2, 3));
  EXPECT_THAT(Counts(*webhook), ElementsAre(3, 0, 0));
}

TEST(Webhook, TriesAgainWhereThatMayHelp) {
  Receiver receiver({503, 429, 204});
  const auto webhook = Started(receiver.Url());
  webhook->Post({{"id", 1}});
  EXPECT_TRUE(webhook->Drain(Seconds{60}));
  EXPECT_THAT(receiver.WaitForIds(3), ElementsAre(1, 1, 1));
  EXPECT_THAT(Counts(*webhook), ElementsAre(1, 0, 0));
}

TEST(Webhook, GivesUpAfterThreeTriesOrAtOnceWhenRefused) {
  Receiver broken({500}), refusing({403});
  const auto first = Started(broken.Url()), second = Started(refusing.Url());
  for (const auto* webhook : {&first, &second}) {
    (*webhook)->Post({{"id", 1}});
    EXPECT_TRUE((*webhook)->Drain(Seconds{60}));
    EXPECT_THAT(Counts(**webhook), ElementsAre(0, 1, 0));
  }
  EXPECT_THAT(broken.WaitForIds(3), ElementsAre(1, 1, 1));
  EXPECT_THAT(refusing.WaitForIds(1), ElementsAre(1));
}

TEST(Webhook, NobodyListeningCountsAsFailed) {
  const int port = [] { return Listen("127.0.0.1", 0)->port; }();
  for (const std::string& url :
       {fmt::format("http://127.0.0.1:{}/", port), fmt::format("https://127.0.0.1:{}/", port)}) {
    const auto webhook = Started(url);
    webhook->Post({{"id", 1}});
    EXPECT_TRUE(webhook->Drain(Seconds{60}));
    EXPECT_THAT(Counts(*webhook), ElementsAre(0, 1, 0));
  }
}

std::vector<int64_t> CountsOfOne(const std::string& url, Seconds timeout) {
  auto webhook = Webhook::Start({.url = url, .timeout = timeout, .backoff = Seconds{0.001}});
  (*webhook)->Post({{"id", 1}});
  EXPECT_TRUE((*webhook)->Drain(Seconds{20}));
  return Counts(**webhook);
}

TEST(Webhook, AnAnswerWithoutEndIsNotTaken) {
  http::TestServer server([](const std::string&) {
    return "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n" + std::string(1 << 20, ' ');  // and no more
  });
  EXPECT_THAT(CountsOfOne(server.Url("/"), Seconds{20}), ElementsAre(1, 0, 0));
}

// A header line whenever the one who reads has not gone within 5 ms.
TEST(Webhook, AHeadThatComesInDropsEnds) {
  auto listener = Listen("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok());
  const std::jthread drips([fd = listener->fd.get()] {
    for (int i = 0; i < 3; ++i) {  // tries
      pollfd one{fd, POLLIN, 0};
      poll(&one, 1, 20'000);
      const Fd socket(accept4(fd, nullptr, nullptr, SOCK_CLOEXEC));
      for (std::string text = "HTTP/1.1 200 OK\r\n"; send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) >= 0;
           text = "A: b\r\n") {
        pollfd gone{socket.get(), POLLRDHUP, 0};
        poll(&gone, 1, 5);
      }
    }
  });
  EXPECT_THAT(CountsOfOne(fmt::format("http://127.0.0.1:{}/", listener->port), Seconds{0.1}), ElementsAre(0, 1, 0));
}

TEST(Webhook, AFullQueueDropsAndCounts) {
  Receiver receiver({200});
  receiver.Hold();
  const auto webhook = Started(receiver.Url(), /*queue=*/2);
  webhook->Post({{"id", 1}});
  receiver.WaitForIds(1);  // in flight, so the queue is empty now
  for (int id = 2; id <= 5; ++id) webhook->Post({{"id", id}});
  receiver.Release();
  EXPECT_TRUE(webhook->Drain(Seconds{60}));
  EXPECT_THAT(receiver.WaitForIds(3), ElementsAre(1, 2, 3));
  EXPECT_THAT(Counts(*webhook), ElementsAre(3, 0, 2));
}

TEST(Webhook, EndsAtOnceWhileAReceiverKeepsItWaiting) {
  Receiver receiver({200});
  receiver.Hold();
  auto webhook = Started(receiver.Url());
  webhook->Post({{"id", 1}});
  receiver.WaitForIds(1);
  EXPECT_FALSE(webhook->Drain(Seconds{0}));
  EXPECT_LT(SecondsToEnd(std::move(webhook)), 0.1);
}

// Connections to `port` that wait for an answer to their SYN (state 02 in /proc/net/tcp, "slot: local:port remote:port
// state").
size_t CountConnecting(int port) {
  const std::string wanted = fmt::format(":{:04X} 02 ", port);
  const std::string table = ReadFile("/proc/net/tcp").value_or("");
  size_t count = 0;
  for (size_t at = table.find(wanted); at != std::string::npos; at = table.find(wanted, at + 1)) ++count;
  return count;
}

// A backlog of one connection, filled: the kernel drops further SYNs, so connecting takes until the timeout.
TEST(Webhook, EndsAtOnceWhileConnecting) {
  auto listener = Listen("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok());
  listen(listener->fd.get(), 0);
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  getsockname(listener->fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  std::vector<Fd> fillers;
  for (int i = 0; i < 4; ++i) {
    fillers.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    // EINPROGRESS: that they wait is the point.
    [[maybe_unused]] const int connected = connect(fillers.back().get(), reinterpret_cast<sockaddr*>(&address), size);
  }
  const size_t before = CountConnecting(listener->port);
  if (before == 0) GTEST_SKIP() << "this kernel's listening sockets have no full backlog";
  auto webhook = Started(fmt::format("http://127.0.0.1:{}/", listener->port));
  webhook->Post({{"id", 1}});
  while (CountConnecting(listener->port) == before) std::this_thread::yield();
  EXPECT_LT(SecondsToEnd(std::move(webhook)), 0.1);
}

TEST(Webhook, ABadUrlIsRefused) {
  EXPECT_EQ(Message(Webhook::Start({.url = "alerts:9000"}).status()),
            "webhook: the URL must begin with http:// or https://");
}

}  // namespace
}  // namespace lockstep::serve
