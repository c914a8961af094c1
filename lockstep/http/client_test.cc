#include "lockstep/http/client.h"

#include <gmock/gmock.h>

#include <atomic>

#include "lockstep/http/test_server.h"

namespace lockstep::http {
namespace {

using testing::HasSubstr;

std::unique_ptr<Client> OpenTo(const TestServer& server) { return *Client::Open(server.Url("")); }

TEST(Client, OneConnectionIsKept) {
  std::string last;
  TestServer server([&](const std::string& request) {
    last = request;
    return AnswerText("200 OK", "ETag: \"a\"\r\nLast-Modified: then\r\n", "body");
  });
  const std::unique_ptr<Client> client = OpenTo(server);
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<Answer> answer = client->Send({"GET", "/a?b=c", {{"x-mine", "1"}}});
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->body, "body");
    EXPECT_EQ(answer->etag, "\"a\"");
    EXPECT_EQ(answer->last_modified, "then");
    EXPECT_FALSE(answer->cut);
  }
  EXPECT_THAT(last, HasSubstr("GET /a?b=c HTTP/1.1\r\n"));
  EXPECT_EQ(HeaderOf(last, "x-mine"), "1");
  EXPECT_EQ(server.connections(), 1);
}

TEST(Client, AnswersWithoutABodyHaveTheirHead) {
  TestServer server([](const std::string& request) {
    if (request.starts_with("HEAD")) return std::string("HTTP/1.1 200 OK\r\nContent-Length: 123456\r\nETag: e\r\n\r\n");
    if (request.starts_with("DELETE")) return std::string("HTTP/1.1 204 Gone\r\n\r\n");
    return AnswerText("404 Not Found", "", "<Code>NoSuchKey</Code>");
  });
  const std::unique_ptr<Client> client = OpenTo(server);
  const absl::StatusOr<Answer> head = client->Send({"HEAD", "/a", {}});
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->content_length, 123'456U);
  EXPECT_EQ(head->etag, "e");
  EXPECT_EQ(client->Send({"DELETE", "/a", {}})->status, 204);
  const absl::StatusOr<Answer> error = client->Send({"GET", "/a", {}});
  EXPECT_EQ(error->status, 404);
  EXPECT_EQ(error->body, "<Code>NoSuchKey</Code>");
}

TEST(Client, WhatIsLongerThanWantedIsCutShort) {
  TestServer server([](const std::string&) { return AnswerText("200 OK", "", std::string(20'000'000, 'x')); });
  const std::unique_ptr<Client> client = OpenTo(server);
  for (int i = 0; i < 2; ++i) {  // the connection that is broken off is made again
    const absl::StatusOr<Answer> answer = client->Send({.method = "GET", .target = "/", .headers = {}, .max_body = 10});
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->body, "xxxxxxxxxx");
    EXPECT_TRUE(answer->cut);
    EXPECT_EQ(answer->content_length, 20'000'000U);
  }
}

TEST(Client, AnAnswerThatTakesTooLongIsNone) {
  TestServer server([](const std::string&) { return AnswerText("200 OK", "", std::string(1000, 'x')); });
  const absl::StatusOr<Answer> answer =
      OpenTo(server)->Send({.method = "GET", .target = "/", .headers = {}, .longest = Seconds{0}});
  EXPECT_THAT(std::string(answer.status().message()), HasSubstr("the answer was not whole after 0 s"));
}

// How many bytes it may have at most says nothing of how long this one may take.
TEST(Client, AnAnswerHasTimeForTheBytesThatItHas) {
  TestServer server([](const std::string& request) {
    if (request.starts_with("GET /length")) return AnswerText("200 OK", "", std::string(1000, 'x'));
    return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n" + std::string(1000, 'x') + "\r\n0\r\n\r\n";
  });
  for (const char* target : {"/length", "/chunks"}) {
    Request request{.method = "GET", .target = target, .headers = {}, .max_body = size_t{1} << 40};
    request.longest = Seconds{0};
    request.bytes_per_second = 1e12;  // 1 ns, and not 1.1 s
    EXPECT_THAT(std::string(OpenTo(server)->Send(request).status().message()), HasSubstr("not whole after 0 s"));
    request.bytes_per_second = 1;
    const absl::StatusOr<Answer> answer = OpenTo(server)->Send(request);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->body.size(), 1000U);
  }
}

TEST(Client, OneThatEndsTooEarlyIsNone) {
  TestServer server([](const std::string&) {
    const std::string whole = AnswerText("200 OK", "", "0123456789");
    return TestServer::Answer(whole.substr(0, whole.size() - 3), true);
  });
  EXPECT_EQ(OpenTo(server)->Send({"GET", "/", {}}).status().code(), absl::StatusCode::kUnavailable);
}

TEST(Client, AKeptConnectionThatIsClosedUnderARequestCostsNothing) {
  std::atomic<int> asked = 0;
  TestServer server([&](const std::string&) {
    return ++asked % 2 == 0 ? TestServer::Answer("", true) : TestServer::Answer(AnswerText("200 OK", "", "body"));
  });
  const std::unique_ptr<Client> client = OpenTo(server);
  ASSERT_TRUE(client->Send({"GET", "/", {}}).ok());
  const absl::StatusOr<Answer> again = client->Send({"GET", "/", {}});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->body, "body");
  EXPECT_EQ(asked, 3);
  // What may have happened is not done twice, and a new connection that is closed is a server that does so.
  EXPECT_EQ(client->Send({"POST", "/", {}}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(asked, 4);
  ++asked;
  EXPECT_EQ(OpenTo(server)->Send({"GET", "/", {}}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(asked, 6);
}

TEST(Client, AnEndpointIsNoPath) { EXPECT_FALSE(Client::Open("ftp://host").ok()); }

}  // namespace
}  // namespace lockstep::http
