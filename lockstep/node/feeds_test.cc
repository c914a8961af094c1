#include "lockstep/node/feeds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/base/test_folder.h"

namespace lockstep::node {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FeedsTest : public testing::Test {
 protected:
  FeedsTest() {
    std::filesystem::create_directory(In("photos"));
    for (const char* name : {"text.bin", "odd,cache=1:x"}) folder_.Write(name, "x");
  }
  std::string In(const std::string& name) const { return folder_ / name; }

  static agent::FeedSpec Parsed(const std::string& text) {
    const auto feeds = ParseFeeds({text});
    EXPECT_TRUE(feeds.ok()) << feeds.status();
    return feeds.ok() ? feeds->front() : agent::FeedSpec{};
  }
  static std::string Refusal(const std::vector<std::string>& texts) { return Message(ParseFeeds(texts).status()); }

  const TestFolder folder_;
};

TEST_F(FeedsTest, PathsNamesAndOptions) {
  EXPECT_EQ(Parsed(In("photos")), (agent::FeedSpec{In("photos"), "photos", {}}));
  EXPECT_EQ(Parsed(In("photos/")).name, "photos");
  EXPECT_EQ(Parsed(In("photos") + ":a").name, "a");
  const agent::FeedSpec tokens = Parsed(In("text.bin") + ":text,tokens=2048,token-bytes=4");
  EXPECT_EQ(tokens.data, In("text.bin"));
  EXPECT_EQ(tokens.name, "text");
  EXPECT_THAT(tokens.options, ElementsAre("--tokens", "2048", "--token-bytes", "4"));
  EXPECT_THAT(Parsed(In("photos") + ",max-pixels=99000000").options, ElementsAre("--max-pixels", "99000000"));
  EXPECT_EQ(Parsed(In("t-{00..12}.tar")), (agent::FeedSpec{In("t-{00..12}.tar"), "t-", {}}));
}

TEST_F(FeedsTest, AFileOfThatVeryNameIsMeant) { EXPECT_THAT(Refusal({In("odd,cache=1:x")}), HasSubstr("is no name")); }

TEST_F(FeedsTest, Urls) {
  EXPECT_EQ(Parsed("http://h:80/train.tar?key=a"), (agent::FeedSpec{"http://h:80/train.tar?key=a", "train", {}}));
  EXPECT_EQ(Parsed("http://h/t-{0..9}.tar:t,cache=8G"),
            (agent::FeedSpec{"http://h/t-{0..9}.tar", "t", {"--cache", "8G"}}));
  EXPECT_EQ(Parsed("feed://n1:29600:photos"), (agent::FeedSpec{"feed://n1:29600", "photos", {}}));
  EXPECT_EQ(Parsed("feed://[::1]:29600:photos"), (agent::FeedSpec{"feed://[::1]:29600", "photos", {}}));
  for (const char* text : {"feed://n1:29600", "feed://[::1]:29600"})
    EXPECT_THAT(Refusal({text}), HasSubstr("DATA:NAME gives one"));
}

TEST_F(FeedsTest, WhatIsWrongIsSaid) {
  EXPECT_EQ(Refusal({"/nowhere"}), "--feed /nowhere: /nowhere does not exist");
  EXPECT_THAT(Refusal({In("photos") + ":a b"}), HasSubstr("\"a b\" is no name"));
  EXPECT_THAT(Refusal({In("photos") + ",cash=8G"}), HasSubstr("\"cash=8G\": expected KEY=VALUE, and KEY one of cache"));
  EXPECT_THAT(Refusal({In("photos") + ",cache=8G,x"}), HasSubstr("\"x\": expected KEY=VALUE"));
  EXPECT_THAT(Refusal({In("photos"), In("text.bin") + ":photos"}), HasSubstr("another data set is called photos, too"));
}

}  // namespace
}  // namespace lockstep::node
