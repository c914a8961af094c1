// Answers that a store of S3 would not give, or not to this: of what stands in its place, or before it.
#include "lockstep/remote/s3.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/checkpoint/store.h"
#include "lockstep/http/test_server.h"
#include "lockstep/remote/object_disk.h"

namespace lockstep::remote {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kPage = http::AnswerText("404 Not Found", "", "<html>no such page</html>");

std::string Absent(const std::string& code) {
  return http::AnswerText("404 Not Found", "", "<Error><Code>" + code + "</Code><Message>no</Message></Error>");
}

class OneAnswer {
 public:
  explicit OneAnswer(const std::string& text) : OneAnswer([text](const std::string&) { return text; }) {}
  explicit OneAnswer(http::TestServer::Handler handler) : server_(std::move(handler)) {}

  S3 Open() {
    auto s3 = S3::Open("bucket", {server_.Url(""), "region", {"access", "secret", ""}}, clock_, [] { return true; });
    EXPECT_TRUE(s3.ok()) << s3.status();
    return *std::move(s3);
  }
  std::string Url() const { return server_.Url(""); }

 private:
  SystemClock clock_;
  http::TestServer server_;
};

TEST(S3, AListingThatIsNotFoundIsNoEmptyOne) {
  for (const std::string& answer : {kPage, Absent("NoSuchKey"), Absent("NoSuchBucket")}) {
    OneAnswer server(answer);
    const absl::Status status = server.Open().List("some/where/").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("GET s3://bucket/"), HasSubstr(server.Url()), HasSubstr("404")));
  }
}

TEST(S3, AnObjectIsAbsentWhereTheStoreSaysSo) {
  std::vector<std::byte> data(4);
  OneAnswer page(kPage), absent(Absent("NoSuchKey"));
  EXPECT_EQ(absent.Open().Read("key", 0, data).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(page.Open().Read("key", 0, data)), HasSubstr("not as S3 does: see whether AWS_ENDPOINT_URL"));
  EXPECT_EQ(absent.Open().Remove("key"), absl::OkStatus());
  EXPECT_EQ(page.Open().Remove("key").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(OneAnswer("HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n").Open().Size("key").status().code(),
            absl::StatusCode::kNotFound);
}

// Of one that says that it will send 100 GB, and sends more than anybody should take.
TEST(S3, AnAnswerWithoutEndIsNotTaken) {
  const std::string head = "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n";
  OneAnswer server(head + std::string(9 << 20, 'x'));  // and then nothing, on a connection that stays open
  std::vector<std::byte> data(4 << 20);
  for (const absl::Status& status : {server.Open().List("").status(), server.Open().Read("key", 0, data)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(Message(status), HasSubstr("answered with more than"));
  }
}

TEST(S3, AStoreThatKnowsNoRangesIsNotDamaged) {
  OneAnswer server(http::AnswerText("200 OK", "", "all of the object"));
  std::vector<std::byte> some(3), all(17), more(18);
  EXPECT_EQ(
      Message(server.Open().Read("key", 4, some)),
      "GET s3://bucket/key: " + server.Url() + " answered with more than 3 bytes, of which it was asked for no more");
  EXPECT_FALSE(checkpoint::MeansDamage(server.Open().Read("key", 4, some)));
  EXPECT_EQ(server.Open().Read("key", 0, all), absl::OkStatus());
  EXPECT_EQ(server.Open().Read("key", 0, more).code(), absl::StatusCode::kDataLoss);
}

// As behind a proxy that lets no HEAD through: a checkpoint that nobody sees would be cleared away as half.
TEST(ObjectDisk, ACheckpointIsThereThoughHeadIsNotAnswered) {
  const std::string name = "step_000000000007_epoch_1";
  OneAnswer server([&name](const std::string& request) -> std::string {
    if (request.starts_with("HEAD")) return "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    const bool of_manifest = request.substr(0, request.find("\r\n")).find("manifest.json") != std::string::npos;
    const std::string found = of_manifest ? "<Contents><Key>job/" + name + "/manifest.json</Key></Contents>"
                                          : "<CommonPrefixes><Prefix>job/" + name + "/</Prefix></CommonPrefixes>";
    return http::AnswerText("200 OK", "", "<R><IsTruncated>false</IsTruncated>" + found + "</R>");
  });
  ObjectDisk disk(server.Open(), "s3://bucket/job", "job/");
  const auto names = disk.List("s3://bucket/job");
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(*names, ElementsAre(name));
}

}  // namespace
}  // namespace lockstep::remote
