#include "lockstep/prepare/http_file.h"

#include <gmock/gmock.h>

#include <chrono>
#include <optional>

#include "lockstep/http/test_server.h"
#include "lockstep/prepare/data_file.h"

namespace lockstep::prepare {
namespace {

using http::AnswerText;
using http::GoodAnswer;
using http::TestServer;
using testing::HasSubstr;

std::string Content() {
  std::string content;
  for (int i = 0; i < 5000; ++i) content += std::to_string(i) + " ";
  return content;
}

std::string ReadAt(const DataFile& file, uint64_t offset, size_t count) {
  std::string text(count, '\0');
  const absl::Status status = file.Read(offset, {reinterpret_cast<uint8_t*>(text.data()), count});
  return status.ok() ? text : std::string(status.message());
}

std::string ErrorOf(const absl::StatusOr<DataFile>& file) { return std::string(file.status().message()); }

TEST(HttpFile, PartsComeOverOneConnection) {
  const std::string content = Content();
  TestServer server([&](const std::string& request) { return GoodAnswer(request, content, "v1"); });
  Files files;
  const absl::StatusOr<DataFile> file = files.Open(server.Url("/a.bin?secret=1"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->size(), content.size());
  EXPECT_EQ(file->path(), server.Url("/a.bin"));  // what is shown
  for (size_t at : {size_t{0}, size_t{4711}, content.size() - 10})
    EXPECT_EQ(ReadAt(*file, at, 10), content.substr(at, 10));
  EXPECT_EQ(ReadAt(*file, 0, content.size()), content);
  EXPECT_EQ(server.connections(), 1);
  EXPECT_EQ(server.requests(), 5);
  EXPECT_THAT(ReadAt(*file, content.size() - 5, 6), HasSubstr("it ends before byte"));
  EXPECT_EQ(server.requests(), 5) << "what can't be there is not asked for";
}

TEST(HttpFile, SmallPartsAreReadAhead) {
  const std::string content = Content();
  TestServer server([&](const std::string& request) { return GoodAnswer(request, content, "v1"); });
  Files files;
  const absl::StatusOr<DataFile> file = files.Open(server.Url("/a"));
  ASSERT_TRUE(file.ok());
  NearReader near(*file);
  std::string text(100, '\0');
  for (size_t at = 0; at < 8000; at += 100) {
    ASSERT_TRUE(near.Read(at, {reinterpret_cast<uint8_t*>(text.data()), text.size()}).ok());
    ASSERT_EQ(text, content.substr(at, 100));
  }
  EXPECT_EQ(server.requests(), 3);
}

TEST(HttpFile, AnEmptyFileIsOne) {
  TestServer server([&](const std::string& request) { return GoodAnswer(request, "", "v1"); });
  Files files;
  const absl::StatusOr<DataFile> file = files.Open(server.Url("/a"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->size(), 0U);
}

TEST(HttpFile, WhatIsWrongWithTheServerIsSaid) {
  std::string answer;
  TestServer server([&](const std::string&) { return TestServer::Answer(answer, true); });
  Files files(Seconds{0});
  const auto error = [&](const std::string& text) {
    answer = text;
    return ErrorOf(files.Open(server.Url("/a.tar?key=secret")));
  };
  const std::string whole = error(AnswerText("200 OK", "", std::string(10'000'000, 'x')));
  EXPECT_THAT(whole, HasSubstr("/a.tar: the server answers a range request with the whole file (status 200)"));
  EXPECT_THAT(whole, testing::Not(HasSubstr("secret")));
  EXPECT_THAT(error(AnswerText("404 No", "", "")), HasSubstr("the server has no such file (status 404)"));
  EXPECT_THAT(error(AnswerText("403 No", "", "")), HasSubstr("the server refuses it (status 403)"));
  EXPECT_THAT(error(AnswerText("302 There", "Location: http://there/a\r\n", "")),
              HasSubstr("address itself, http://there/a"));
  EXPECT_THAT(error(AnswerText("503 Busy", "", "")), HasSubstr("answers with status 503"));
  EXPECT_THAT(error(AnswerText("206 Part", "", "x")), HasSubstr("expected bytes 0-0/SIZE"));
  EXPECT_THAT(error(AnswerText("206 Part", "Content-Range: bytes 0-0/*\r\n", "x")),
              HasSubstr("expected bytes 0-0/SIZE"));
  EXPECT_THAT(error("nonsense\r\n\r\n"), HasSubstr("failed"));
  EXPECT_THAT(error(""), HasSubstr("failed"));
}

TEST(HttpFile, AFileThatChangesIsAnErrorAndNoWrongBytes) {
  std::string content = Content(), tag = "v1";
  bool knows_if_range = true;
  TestServer server([&](std::string request) {
    if (!knows_if_range) request.replace(request.find("If-Range"), 8, "If-Large");
    return GoodAnswer(request, content, tag);
  });
  Files files;
  const absl::StatusOr<DataFile> file = files.Open(server.Url("/a"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(ReadAt(*file, 0, 4), "0 1 ");
  tag = "v2";
  EXPECT_THAT(ReadAt(*file, 0, 4), HasSubstr("it has changed since it was opened"));  // 200, by If-Range
  knows_if_range = false;
  EXPECT_THAT(ReadAt(*file, 0, 4), HasSubstr("it has changed since it was opened"));  // 206 with another tag
  tag = "v1";
  content.resize(100);
  EXPECT_THAT(ReadAt(*file, 0, 4), HasSubstr("it has changed since it was opened"));    // another size
  EXPECT_THAT(ReadAt(*file, 200, 4), HasSubstr("it has changed since it was opened"));  // 416
}

TEST(HttpFile, WrongBytesAreAnError) {
  const std::string content = Content();
  std::string answer;
  TestServer server(
      [&](const std::string& request) { return answer.empty() ? GoodAnswer(request, content, "v1") : answer; });
  Files files(Seconds{0});
  const absl::StatusOr<DataFile> file = files.Open(server.Url("/a"));
  ASSERT_TRUE(file.ok());
  const std::string size = std::to_string(content.size());
  const auto error = [&](const std::string& range, const std::string& body) {
    answer = AnswerText("206 Part", "Content-Range: bytes " + range + "/" + size + "\r\n", body);
    return ReadAt(*file, 10, 4);
  };
  EXPECT_EQ(error("10-13", "good"), "good");
  EXPECT_THAT(error("9-12", "bad!"), HasSubstr("asked for 4 bytes from 10 on"));
  EXPECT_THAT(error("10-13", "bad"), HasSubstr("3 came"));
  EXPECT_THAT(error("10-13", "bad and more"), HasSubstr("asked for 4 bytes from 10 on"));
}

TEST(HttpFile, AnAnswerThatIsCutShortIsAskedForAgain) {
  const std::string content = Content();
  std::atomic<int> asked = 0;
  TestServer server([&](const std::string& request) {
    const std::string good = GoodAnswer(request, content, "v1");
    const bool cut = ++asked % 2 == 0;
    return TestServer::Answer(cut ? good.substr(0, good.size() - 10) : good, cut);
  });
  Files files;
  const absl::StatusOr<DataFile> file = files.Open(server.Url("/a"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(ReadAt(*file, 100, 50), content.substr(100, 50));
  EXPECT_EQ(ReadAt(*file, 200, 50), content.substr(200, 50));
  EXPECT_EQ(asked, 5);  // the second and the fourth had none
}

TEST(HttpFile, AServerThatComesBackIsWaitedFor) {
  const std::string content = Content();
  const auto handler = [&](const std::string& request) { return GoodAnswer(request, content, "v1"); };
  std::optional<TestServer> server(std::in_place, handler);
  Files files;
  const absl::StatusOr<DataFile> file = files.Open(server->Url("/a"));
  ASSERT_TRUE(file.ok());
  const uint16_t port = server->port();
  server.reset();
  server.emplace([](const std::string&) { return TestServer::Answer("", true); }, port);  // it dies at each request
  std::string found;
  std::thread reader([&] { found = ReadAt(*file, 7, 9); });
  while (server->requests() == 0) std::this_thread::yield();
  server.emplace(handler, port);
  reader.join();
  EXPECT_EQ(found, content.substr(7, 9));
}

TEST(HttpFile, OneThatStaysAwayIsAnErrorWhenPatienceIsOver) {
  const std::string content = Content();
  std::optional<TestServer> server(std::in_place,
                                   [&](const std::string& request) { return GoodAnswer(request, content, "v1"); });
  Files files(Seconds{0.35});
  const absl::StatusOr<DataFile> file = files.Open(server->Url("/a"));
  ASSERT_TRUE(file.ok());
  server.reset();
  EXPECT_THAT(ReadAt(*file, 0, 9), testing::AllOf(HasSubstr("/a: http://127.0.0.1:"), HasSubstr("failed")));
}

TEST(HttpFile, StopEndsReadsThatAreUnderWay) {
  const std::string content = Content();
  std::atomic<bool> silent = false, asked = false, over = false;
  TestServer server([&](const std::string& request) {
    asked = silent.load();
    silent.wait(true);
    return GoodAnswer(request, content, "v1");
  });
  Files files(Seconds{3600});
  const absl::StatusOr<DataFile> file = files.Open(server.Url("/a"));
  ASSERT_TRUE(file.ok());
  silent = true;
  std::thread reader([&] {
    std::vector<uint8_t> bytes(5);
    EXPECT_FALSE(file->Read(0, bytes).ok());
    over = true;
  });
  while (!asked) std::this_thread::yield();
  files.Stop();
  reader.join();
  EXPECT_TRUE(over);
  silent = false;
  silent.notify_all();
  EXPECT_THAT(ReadAt(*file, 0, 9), HasSubstr("stopped"));
}

TEST(HttpFile, ManyThreadsAtOnce) {
  const std::string content = Content();
  TestServer server([&](const std::string& request) { return GoodAnswer(request, content, "v1"); });
  Files files;
  const absl::StatusOr<DataFile> file = files.Open(server.Url("/a"));
  ASSERT_TRUE(file.ok());
  std::atomic<int> wrong = 0;
  std::vector<std::thread> readers;
  for (size_t t = 0; t < 8; ++t)
    readers.emplace_back([&, t] {
      for (size_t i = 0; i < 50; ++i)
        wrong += ReadAt(*file, t * 100 + i, 33) == content.substr(t * 100 + i, 33) ? 0 : 1;
    });
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(server.connections(), 8);
}

TEST(HttpFile, ContentRange) {
  const auto text = [](std::string_view from) {
    const std::optional<ContentRange> range = ParseContentRange(from);
    return range ? fmt::format("{} {} {} {}", range->has_range, range->first, range->last, range->size) : "none";
  };
  EXPECT_EQ(text("bytes 1-3/10"), "true 1 3 10");
  EXPECT_EQ(text("bytes */10"), "false 0 0 10");
  for (const char* bad : {"", "bytes", "bytes 1-3/*", "bytes 3-1/10", "bytes 1-10/10", "bytes -3/10", "bytes 1-3/10 ",
                          "items 1-3/10", "bytes 1-3/99999999999999999999"})
    EXPECT_EQ(text(bad), "none") << bad;
}

}  // namespace
}  // namespace lockstep::prepare
