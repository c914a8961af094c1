#include "lockstep/trace/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/trace/test_trace.h"

namespace lockstep::trace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Read {
  std::vector<std::string> names;
  std::vector<int64_t> begins;
  std::map<std::string, std::string, std::less<>> members;
  uint64_t damaged = 0;
  std::string error;
};

Read ReadAll(const std::string& text) {
  Read read;
  auto reader = ChromeTraceReader::Open(WriteTrace(text));
  if (!reader.ok()) return {{}, {}, {}, 0, Message(reader.status())};
  while (reader->Next()) {
    read.names.emplace_back(reader->event().name);
    read.begins.push_back(reader->event().begin_ns);
  }
  read.members = reader->members();
  read.damaged = reader->damaged();
  read.error = Message(reader->status());
  return read;
}

std::string Event(const std::string& name, const std::string& time = "1") {
  return R"({"ph":"X","cat":"kernel","name":")" + name + R"(","pid":0,"tid":7,"ts":)" + time +
         R"(,"dur":2,"args":{"a":[1,"}"]}})";
}

TEST(ChromeTrace, ReadsEventsAndTheMembersOnBothSides) {
  const Read read = ReadAll("\xef\xbb\xbf{\"a\": {\"x\": [1, \"]\"]},\n\"traceEvents\": [\n" + Event("one") + ",\n " +
                            Event("two") + "],\n\"b\" : 12 }\n");
  EXPECT_EQ(read.error, "");
  EXPECT_THAT(read.names, ElementsAre("one", "two"));
  EXPECT_EQ(read.damaged, 0U);
  EXPECT_EQ(read.members.find("a")->second, R"({"x": [1, "]"]})");
  EXPECT_EQ(read.members.find("b")->second, "12");
}

TEST(ChromeTrace, ABareArrayWillDo) { EXPECT_THAT(ReadAll("[" + Event("one") + "]").names, ElementsAre("one")); }

// No double in between: an epoch in nanoseconds has 19 digits.
TEST(ChromeTrace, TimesKeepTheirNanoseconds) {
  const Read read = ReadAll("[" + Event("a", "1712195495520871.123") + "," + Event("b", "-1.5") + "," +
                            Event("c", "1669783687929439") + "," + Event("d", "1.5e3") + "," + Event("e", "0.0009") +
                            "," + Event("f", "\"12\"") + "]");
  EXPECT_THAT(read.begins, ElementsAre(1712195495520871123, -1500, 1669783687929439000, 1'500'000, 0, 12'000));
}

TEST(ChromeTrace, AnEventHasItsFields) {
  auto reader = ChromeTraceReader::Open(WriteTrace(
      R"([{"name":"k \"q\" \\","ph":"X","pid":"Spans","tid":-1,"args":{"n":18446744073709551615,"s":"7"},"id":3}])"));
  ASSERT_TRUE(reader->Next());
  const ChromeEvent& event = reader->event();
  EXPECT_EQ(event.name, R"(k \"q\" \\)");
  EXPECT_EQ(event.process.text(), "Spans");
  EXPECT_EQ(event.thread.integer(), -1);
  std::vector<std::string> args;
  ForEachMember(event.args, [&](std::string_view key, JsonValue value) {
    args.push_back(std::string(key) + "=" + std::to_string(value.unsigned_integer().value_or(0)));
    EXPECT_EQ(value.integer().has_value(), key == "s");
    return true;
  });
  EXPECT_THAT(args, ElementsAre("n=18446744073709551615", "s=7"));
}

TEST(ChromeTrace, DamageCostsTheEventItIsIn) {
  const std::string raw_quotes = R"({"ph":"X","name":"say "hi" now","ts":1})",
                    no_time = R"({"ph":"X","name":"x","ts":soon})";
  for (const std::string& bad :
       {raw_quotes, no_time, std::string("{{{"), std::string("12"), std::string(R"({"name":"no phase"})")}) {
    const Read read = ReadAll("[" + Event("one") + "," + bad + "," + Event("two") + "," + Event("three") + "]");
    EXPECT_THAT(read.names, ElementsAre("one", "two", "three")) << bad;
    EXPECT_EQ(read.damaged, 1U) << bad;
    EXPECT_EQ(read.error, "") << bad;
  }
}

TEST(ChromeTrace, ControlCharactersInNamesAreTakenAsTheyAre) {
  const Read read = ReadAll("[" + Event("a\tb\x01\n") + "]");
  EXPECT_THAT(read.names, ElementsAre("a\tb\x01\n"));
  EXPECT_EQ(read.damaged, 0U);
}

TEST(ChromeTrace, AFileThatIsCutOffGivesWhatItHas) {
  const std::string whole = "{\"traceEvents\": [" + Event("one") + "," + Event("two") + "]}";
  for (size_t cut = whole.find(Event("two")) + 1; cut < whole.size() - 1; ++cut) {
    const Read read = ReadAll(whole.substr(0, cut));
    EXPECT_GE(read.names.size(), 1U);
    EXPECT_EQ(read.damaged, 1U) << cut;
    EXPECT_EQ(read.error, "");
  }
}

TEST(ChromeTrace, EventsAcrossTheWindowAreWhole) {
  std::string text = "[";
  std::vector<std::string> expected;
  for (int i = 0; i < 3000; ++i) {
    expected.push_back("kernel " + std::to_string(i) + std::string(static_cast<size_t>(i * 7919 % 700), 'x'));
    if (i == 1500) expected.back().assign(1'000'000, 'y');
    text += (i == 0 ? "" : ",\n") + Event(expected.back());
  }
  EXPECT_EQ(ReadAll(text + "]").names, expected);
}

TEST(ChromeTrace, WhatIsNoTraceIsRefused) {
  EXPECT_THAT(ReadAll("").error, HasSubstr("trace.csv: no JSON: expected a Chrome trace"));
  EXPECT_THAT(ReadAll("dp_rank,stage\n").error, HasSubstr("no JSON"));
  EXPECT_THAT(ReadAll("{\"a\" 1}").error, HasSubstr("the document is damaged before its events"));
  EXPECT_THAT(Message(ChromeTraceReader::Open("/nowhere").status()), HasSubstr("/nowhere: No such file"));
}

}  // namespace
}  // namespace lockstep::trace
