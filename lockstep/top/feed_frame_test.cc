#include "lockstep/top/feed_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/term/text.h"

namespace lockstep::top {
namespace {

using testing::HasSubstr;
using testing::Not;

Json Rank(const char* job, int rank, int batches, const char* waits) {
  return {{"job", job},  {"rank", rank},       {"world", 4}, {"pid", 100 + rank}, {"items", 200},  {"epoch", 2},
          {"taken", 50}, {"batches", batches}, {"held", 1},  {"slots", 4},        {"waits", waits}};
}

Json Status(int deliveries, int preparations, double decode_s, double idle_s, std::vector<Json> jobs) {
  return {
      {"data_set", "photos"},
      {"path", "/data/photos"},
      {"pid", 7},
      {"items", 1000},
      {"up_s", 100},
      {"jobs", std::move(jobs)},
      {"sharing", {{"deliveries", deliveries}, {"preparations", preparations}}},
      {"cache", {{"budget_bytes", 1e9}, {"used_bytes", 5e8}, {"peak_bytes", 6e8}}},
      {"forms", {{{"form", "decoded"}, {"items", 12}, {"bytes", 4e8}, {"hits", 33}, {"evictions", 4}}}},
      {"time",
       {{"threads", 2}, {"read_s", 1}, {"decode_s", decode_s}, {"cut_s", 2}, {"idle_s", idle_s}, {"read_bytes", 3e6}}},
      {"corrupt_items", 0}};
}

std::string Painted(const FeedSeen& seen, Size size) {
  std::string text;
  for (const std::string& line : MakeFeedFrame(seen, size)) text += term::Colourless(line) + "\n";
  return text;
}

// In the 2 s between the two: 80 items of 20 preparations; of the 4 s that two threads had, 3 went into decoding.
TEST(FeedFrame, ShowsRatesBetweenTwoDocuments) {
  const FeedSeen seen{
      .before = Status(1000, 500, 10, 3, {Rank("a", 0, 20, "nobody")}),
      .now = Status(1080, 520, 13, 3.5, {Rank("a", 0, 23, "nobody"), Rank("b", 1, 5, "for the service")}),
      .apart_s = 2,
      .trouble = ""};
  const std::string text = Painted(seen, {20, 90});
  EXPECT_THAT(text, HasSubstr("photos  1000 items of /data/photos  up 100 s  pid 7\n"));
  EXPECT_THAT(text, HasSubstr("40 items/s delivered, 10 prepared: each serves 4.00; 0 MB/s read\n"));
  EXPECT_THAT(text, HasSubstr("  decode    75 % "));
  EXPECT_THAT(text, HasSubstr("  idle      12 % "));
  EXPECT_THAT(text, HasSubstr("  read       0 % "));
  EXPECT_THAT(text, HasSubstr("memory  500 MB of 1.0 GB, 600 MB at most\n"));
  EXPECT_THAT(text, HasSubstr("  decoded          12 items     400 MB  33 hits, 4 evicted\n"));
  EXPECT_THAT(text, HasSubstr("a                          0/4      2   25.0 %       1.5    1/4  nobody\n"));
  // It came between the two, and waits: it stands first.
  EXPECT_THAT(text, HasSubstr("b                          1/4      2   25.0 %         -    1/4  for the service\na "));
}

TEST(FeedFrame, ShowsTheMeanSinceTheBeginWhereThereIsOneDocument) {
  const FeedSeen seen{.before = {}, .now = Status(1000, 500, 10, 180, {}), .apart_s = 0, .trouble = ""};
  const std::string text = Painted(seen, {20, 90});
  EXPECT_THAT(text, HasSubstr("10 items/s delivered, 5 prepared: each serves 2.00"));
  EXPECT_THAT(text, HasSubstr("  idle      90 % "));
  EXPECT_THAT(text, HasSubstr("no jobs\n"));
}

TEST(FeedFrame, NamesAreCutBetweenLettersAndSteerNothing) {
  const std::vector<Json> jobs = {Rank("ééééééééééééééééééééééé", 0, 1, "nobody"),
                                  Rank("a\033[2J\xC2\x9Bz", 1, 1, "nobody")};
  const std::string text =
      Painted({.before = {}, .now = Status(1, 1, 1, 1, jobs), .apart_s = 0, .trouble = ""}, {24, 90});
  EXPECT_THAT(text, HasSubstr("ééééééééééééééééééé        0/4      2"));
  EXPECT_THAT(text, HasSubstr("a [2J z                    1/4      2"));
}

TEST(FeedFrame, FitsAnyTerminal) {
  std::vector<Json> jobs;
  for (int rank = 0; rank < 40; ++rank) jobs.push_back(Rank("a job with a very long name indeed", rank, 1, "nobody"));
  const FeedSeen seen{.before = {}, .now = Status(1, 1, 1, 1, jobs), .apart_s = 0, .trouble = "it is \033[31mgone"};
  for (const Size size : {Size{24, 80}, Size{1, 1}, Size{5, 20}, Size{60, 200}}) {
    const std::vector<std::string> lines = MakeFeedFrame(seen, size);
    EXPECT_EQ(size.rows, lines.size());
    for (const std::string& line : lines) EXPECT_LE(term::Colourless(line).size(), size.columns * 3);  // UTF-8
  }
  const std::string text = Painted(seen, {24, 80});
  EXPECT_THAT(text, HasSubstr("... and 28 ranks more\n"));
  EXPECT_THAT(text, HasSubstr("it is  [31mgone\n"));
  EXPECT_THAT(Painted({.before = {}, .now = Json::object(), .apart_s = 0, .trouble = ""}, {24, 80}),
              HasSubstr("no jobs"));
}

}  // namespace
}  // namespace lockstep::top
