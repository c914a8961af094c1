#include "lockstep/serve/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/test_connect.h"

namespace lockstep::serve {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::unique_ptr<Server> Started(const ServerOptions& options = {}) {
  auto server = Server::Start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

TEST(Server, ServesTheNewestSnapshot) {
  const auto server = Started();
  httplib::Client client("127.0.0.1", server->port());
  EXPECT_THAT(client.Get("/metrics")->body, HasSubstr("lockstep_up 0\n"));
  server->Publish({{"state", "running"}, {"step", 17}}, Json::array());
  const httplib::Result metrics = client.Get("/metrics");
  EXPECT_EQ(metrics->status, 200);
  EXPECT_EQ(metrics->get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(metrics->body, HasSubstr("lockstep_step 17\n"));
  const httplib::Result status = client.Get("/api/v1/status");
  EXPECT_EQ(status->get_header_value("Content-Type"), "application/json");
  EXPECT_EQ(ParseJson(status->body), Json({{"state", "running"}, {"step", 17}}));
}

TEST(Server, ACounterDoesNotFallWhenAnotherFindingLeads) {
  const auto server = Started();
  httplib::Client client("127.0.0.1", server->port());
  for (const char* symptom : {"stopped", "crash"}) {
    server->Publish(Json::object(), Json::array({{{"id", 1}, {"symptom", symptom}, {"closed", nullptr}}}));
    const std::string text = client.Get("/metrics")->body;
    EXPECT_THAT(text, HasSubstr("lockstep_incidents_total{symptom=\"stopped\"} 1\n")) << symptom;
    EXPECT_THAT(text, HasSubstr("lockstep_incidents_total{symptom=\"crash\"} 0\n")) << symptom;
  }
  server->Publish(Json::object(), ParseJson(R"([1, {}, {"id": "x"}])"));  // and of another shape
  EXPECT_EQ(client.Get("/metrics")->status, 200);
}

// A document is served whole, once: of ranges that a client may repeat a thousand times, each would be all of it.
TEST(Server, RangesAreNotServed) {
  const auto server = Started();
  server->Publish({{"state", "running"}, {"step", 17}}, Json::array());
  httplib::Client client("127.0.0.1", server->port());
  for (const char* path : {"/metrics", "/api/v1/status"}) {
    const std::string whole = client.Get(path)->body;
    for (const char* ranges : {"bytes=0-", "bytes=-5", "bytes=0-,0-,0-", "bytes=99999999-"}) {
      const httplib::Result result = client.Get(path, {{"Range", ranges}});
      EXPECT_EQ(result->status, 200) << ranges;
      EXPECT_EQ(result->body, whole) << ranges;
    }
  }
}

TEST(Server, SaysWhatThereIsInsteadOfAnUnknownPath) {
  const auto server = Started();
  httplib::Client client("127.0.0.1", server->port());
  const httplib::Result result = client.Get("/");
  EXPECT_EQ(result->status, 404);
  EXPECT_EQ(result->body, "not found; there are /metrics and /api/v1/status\n");
}

// And nobody waits for a body that may never come.
TEST(Server, WhoDoesNotReadIsToldSoAtOnce) {
  const auto server = Started();
  for (const char* body : {"", "Content-Length: 4\r\n\r\nbody"}) {
    const Fd client = ConnectTo(server->port());
    const std::string request = fmt::format("POST /metrics HTTP/1.1\r\nHost: a\r\n{}", *body ? body : "\r\n");
    ASSERT_EQ(send(client.get(), request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
    std::string answer(4096, '\0');
    const ssize_t got = recv(client.get(), answer.data(), answer.size(), 0);
    EXPECT_THAT(answer.substr(0, static_cast<size_t>(std::max<ssize_t>(got, 0))),
                AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("\r\nAllow: GET, HEAD\r\n")))
        << body;
  }
}

TEST(Server, AnswersManyClientsAtOnceWithWholeSnapshots) {
  const auto server = Started();
  server->Publish({{"a", 0}, {"b", 0}}, Json::array());
  std::vector<std::jthread> clients;
  clients.reserve(4);
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      httplib::Client client("127.0.0.1", server->port());
      for (int j = 0; j < 50; ++j) {
        const Json status = ParseJson(client.Get("/api/v1/status")->body);
        EXPECT_EQ(status["a"], status["b"]);
      }
    });
  }
  for (int i = 1; i <= 500; ++i) server->Publish({{"a", i}, {"b", i}}, Json::array());
}

TEST(Server, ATokenIsAskedForWhereOneIsSet) {
  const auto server = Started({.token = "s3cret"});
  httplib::Client client("127.0.0.1", server->port());
  EXPECT_EQ(client.Get("/metrics")->status, 401);
  EXPECT_EQ(client.Get("/metrics")->get_header_value("WWW-Authenticate"), "Bearer");
  for (const char* wrong : {"Bearer ", "Bearer s3creT", "Bearer s3cret0", "s3cret", "Basic s3cret"}) {
    EXPECT_EQ(client.Get("/metrics", {{"Authorization", wrong}})->status, 401) << wrong;
  }
  EXPECT_EQ(client.Get("/metrics", {{"Authorization", "Bearer s3cret"}})->status, 200);
  EXPECT_EQ(client.Get("/none", {{"Authorization", "Bearer s3cret"}})->status, 404);
  EXPECT_EQ(client.Get("/none")->status, 401);
}

TEST(Server, BeyondLoopbackATokenIsNeeded) {
  EXPECT_EQ(Message(Server::Start({.host = "0.0.0.0"}).status()),
            "serving on 0.0.0.0 lets other machines read this job: give a token (--token-file), or use 127.0.0.1");
  EXPECT_TRUE(Server::Start({.host = "0.0.0.0", .token = "x"}).ok());
  EXPECT_TRUE(Server::Start({.host = "127.3.2.1"}).ok());
  EXPECT_TRUE(Server::Start({.host = "localhost"}).ok());
}

TEST(Server, AnErrorNamesThePortAndWhatToDo) {
  const auto server = Started();
  const absl::Status taken = Server::Start({.port = server->port()}).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Message(taken), fmt::format("port {0} on 127.0.0.1 is in use; choose another, or 0 for any free one (`ss "
                                        "-ltnp 'sport = :{0}'` shows who has it)",
                                        server->port()));
  EXPECT_EQ(Message(Server::Start({.port = 70000}).status()),
            "the port must be between 0 (any free one) and 65535, found 70000");
  EXPECT_EQ(Server::Start({.host = "no such host"}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Server, APortIsFreeAgainAtOnce) {
  auto server = Started();
  const int port = server->port();
  EXPECT_TRUE(httplib::Client("127.0.0.1", port).Get("/metrics"));
  server.reset();
  EXPECT_EQ(Started({.port = port})->port(), port);
}

// More silent and half-spoken clients than there are threads.
TEST(Server, EndsWithinATenthOfASecondWhateverClientsDo) {
  auto server = Started();
  std::vector<Fd> clients;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(clients.emplace_back(ConnectTo(server->port())).valid());
    if (i % 2 == 0) {
      EXPECT_EQ(send(clients.back().get(), "GET /metr", 9, 0), 9);
    }
  }
  const Nanos begin = SystemClock().Now();
  server.reset();
  EXPECT_LT(ToSeconds(SystemClock().Now() - begin).value, 0.1);
}

TEST(Server, OfTooManyClientsTheNewestAreClosed) {
  auto server = Started();
  std::vector<Fd> clients;
  for (int i = 0; i < 80; ++i) ASSERT_TRUE(clients.emplace_back(ConnectTo(server->port())).valid());
  char byte = 0;
  for (size_t i = 64; i < clients.size(); ++i) EXPECT_LE(recv(clients[i].get(), &byte, 1, 0), 0) << i;
  EXPECT_EQ(recv(clients[63].get(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST(Server, AnEndlessRequestIsCutOff) {
  const auto server = Started();
  const Fd client = ConnectTo(server->port());
  ASSERT_TRUE(client.valid());
  const std::string chunk(4096, 'x');
  EXPECT_GT(send(client.get(), "GET /metrics HTTP/1.1\r\nA: ", 26, 0), 0);
  // Ends because the server stops reading at its limit and closes, which resets the connection.
  ssize_t sent = 1;
  for (int i = 0; i < 100'000 && sent > 0; ++i) sent = send(client.get(), chunk.data(), chunk.size(), MSG_NOSIGNAL);
  EXPECT_LT(sent, 0);
}

}  // namespace
}  // namespace lockstep::serve
