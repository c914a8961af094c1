#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "lockstep/base/cgroup.h"
#include "lockstep/base/check.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/base/host.h"
#include "lockstep/base/ids.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/mailbox.h"
#include "lockstep/base/median.h"
#include "lockstep/base/number.h"
#include "lockstep/base/packets.h"
#include "lockstep/base/parallel.h"
#include "lockstep/base/poller.h"
#include "lockstep/base/report.h"
#include "lockstep/base/select.h"
#include "lockstep/base/status.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/base/wall_time.h"

namespace lockstep {
namespace {

absl::StatusOr<int> Half(int n) {
  if (n % 2 != 0) return InvalidArgument("n must be even, found {}", n);
  return n / 2;
}
absl::StatusOr<int> Quarter(int n) {
  LS_ASSIGN_OR_RETURN(const int half, Half(n));
  return Half(half);
}

TEST(Status, MacrosPassErrorsOn) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Message(Quarter(6).status()), "n must be even, found 3");
  EXPECT_EQ(Message(Errno(ENOENT, "/x")), "/x: No such file or directory");
  EXPECT_EQ(Errno(ENOENT, "/x").code(), absl::StatusCode::kNotFound);
}

TEST(CheckDeathTest, PrintsPlaceConditionAndValues) {
  EXPECT_DEATH(LS_CHECK(1 > 2, "one is {}", 1), "base_test.cc:[0-9]+: check failed: 1 > 2: one is 1");
}

TEST(Units, SecondsWithoutEndAreACentury) {
  EXPECT_EQ(ToNanos({1.5}).value, 1'500'000'000);
  for (const double endless : {1e10, 1e300, std::numeric_limits<double>::infinity()}) {
    EXPECT_GT(ToNanos({endless}), ToNanos({3e9})) << endless;
    EXPECT_GT(ToNanos({1e9}) + ToNanos({endless}), ToNanos({endless})) << endless;
    EXPECT_LT(ToNanos({-endless}), ToNanos({-3e9})) << endless;
  }
}

TEST(Endpoint, MayBeIpv6OrLackAPort) {
  const auto endpoint = ParseEndpoint("[::1]:400");
  ASSERT_TRUE(endpoint.has_value());
  EXPECT_EQ(endpoint->host, "::1");
  EXPECT_EQ(endpoint->port, 400);
  for (const char* text : {"[::1]:400", "[::1]", "node3", "node3:0", "127.0.0.1:65535"})
    EXPECT_EQ(EndpointText(ParseEndpoint(text).value_or(Endpoint{})), text);
  for (const char* text : {"", ":400", "[::1", "[]:1", "[::1]400", "::1", "a:b", "a:", "a:1:2", "a:-1", "a:65536"})
    EXPECT_FALSE(ParseEndpoint(text).has_value()) << text;
}

TEST(Number, IsTheWholeTextOrIsTakenOffIt) {
  EXPECT_EQ(WholeNumber<int>("-12"), -12);
  EXPECT_EQ(WholeNumber<int>("777", 8), 511);
  EXPECT_EQ(WholeNumber<double>("1.5e1"), 15);
  for (const char* text : {"", " 1", "1 ", "+1", "0x1", "99999999999", "1.0"})
    EXPECT_FALSE(WholeNumber<int>(text).has_value()) << text;
  std::string_view text = "12-x";
  EXPECT_EQ(TakeNumber<int>(text), 12);
  EXPECT_EQ(TakeNumber<unsigned>(text), std::nullopt);
  EXPECT_EQ(text, "-x");
}

TEST(Cgroup, OfBothHierarchies) {
  constexpr std::string_view kGroups = "5:cpu,memory:/docker/a:b\n1:name=systemd:/x\n0::/job";
  EXPECT_EQ(CgroupPath(kGroups, "memory"), "/docker/a:b");
  EXPECT_EQ(CgroupPath(kGroups, kUnified), "/job");
  EXPECT_EQ(CgroupPath(kGroups, "mem"), std::nullopt);
  constexpr std::string_view kMounts =
      "proc /proc proc rw 0 0\ncgroup /sys/cpu cgroup rw,cpu,cpuacct 0 0\ncgroup2 /sys/unified cgroup2 rw 0 0\n";
  EXPECT_EQ(FindCgroupMount(kMounts, "cpuacct"), "/sys/cpu");
  EXPECT_EQ(FindCgroupMount(kMounts, kUnified), "/sys/unified");
  EXPECT_EQ(FindCgroupMount(kMounts, "freezer"), std::nullopt);
}

TEST(Median, OfAnEvenNumberAndOfNone) {
  const std::vector<double> even = {4, 1, 3, 2}, odd = {3, 1, 2};
  EXPECT_EQ(LowerMedian(even), 2);
  EXPECT_EQ(UpperMedian(even), 3);
  EXPECT_EQ(Median(even), 2.5);
  for (const double middle : {LowerMedian(odd), UpperMedian(odd), Median(odd)}) EXPECT_EQ(middle, 2);
  for (const double none : {LowerMedian<double>({}), UpperMedian<double>({}), Median({})}) EXPECT_EQ(none, 0);
}

TEST(Ids, AreOrderedAndDistinct) {
  EXPECT_LT(RankId(1), RankId(2));
  static_assert(!std::is_convertible_v<RankId, EpochId>);
}

TEST(FakeClock, MovesOnlyWhenTold) {
  FakeClock clock;
  const Nanos before = clock.Now();
  clock.Advance(Seconds{1.5});
  EXPECT_EQ((clock.Now() - before).value, 1'500'000'000);
}

TEST(WallTime, IsUtcWithOrWithoutMilliseconds) {
  const Nanos wall{1'767'261'610'041'999'999};
  EXPECT_EQ(IsoTime(wall), "2026-01-01T10:00:10.041Z");
  EXPECT_EQ(IsoSecond(wall), "2026-01-01T10:00:10Z");
  EXPECT_EQ(IsoDay(wall), "2026-01-01");
}

TEST(File, WriteThenReadWhole) {
  const TestFolder folder;
  const std::string path = folder / "file";
  ASSERT_TRUE(WriteFileAtomically(path, "a\n").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "bb\n").ok());
  EXPECT_EQ(*ReadFile(path), "bb\n");
  unlink(path.c_str());
  EXPECT_EQ(ReadFile(path).status().code(), absl::StatusCode::kNotFound);
}

TEST(Report, NestedRowsAreBlocksAndSentencesLines) {
  const Json report = {{{"id", 1}, {"evidence", {"a", "b"}}}, {{"id", 2}, {"evidence", {"c"}}}};
  EXPECT_EQ(RenderText(report),
            "id        1\n"
            "evidence\n"
            "  a\n"
            "  b\n"
            "\n"
            "id        2\n"
            "evidence  c\n");
}

TEST(Report, ATableHasTheKeysOfAllItsRows) {
  EXPECT_EQ(RenderText({{{"name", "a"}, {"s", 1}}, {{"name", "b"}, {"rung", 2}, {"s", 3}}, {{"reason", "far"}}}),
            "name  s  rung  reason\n"
            "a     1  -     -\n"
            "b     3  2     -\n"
            "-     -  -     far\n");
}

// What JSON has as a number above 0 is none in text either.
TEST(Report, SmallNumbersAreNotZero) {
  EXPECT_EQ(RenderText({{"a", 2.6123e-7}, {"b", -3.21987e-5}, {"c", -1e-17}, {"d", 0.0}, {"e", 0.0010009}}),
            "a  2.61e-07\n"
            "b  -3.22e-05\n"
            "c  0\n"
            "d  0\n"
            "e  0.001\n");
}

TEST(Report, WhatIsAsLongAsAJobHasRanksIsRanges) {
  Json suspects = Json::array(), absent = Json::array();
  for (int rank = 0; rank < 16'000; ++rank) {
    if (rank != 7) suspects.push_back({{"kind", rank < 8 ? "rank" : "RANK"}, {"name", std::to_string(rank)}});
    if (rank % 8 == 0 && rank < 40) absent.push_back(rank);
  }
  absent.insert(absent.end(), {41, 43, 44, 45});
  EXPECT_EQ(RenderText({{"absent", absent}, {"sizes", {1, 2, 4, 3, 3}}, {"suspects", suspects}}),
            "absent    0, 8, 16, 24, 32, 41, 43-45\n"
            "sizes     1, 2, 4, 3, 3\n"
            "suspects\n"
            "  kind  name\n"
            "  rank  0-6\n"
            "  RANK  8-15999\n");
}

TEST(Report, NamesThatOnlyLookLikeNumbersAndNumbersBelow0AreNoRanges) {
  Json hosts = Json::array();
  std::string expected = "host\n";
  for (int host = 0; host < 20; ++host) {
    hosts.push_back({{"host", fmt::format("{:04}", host)}});
    expected += fmt::format("{:04}\n", host);
  }
  EXPECT_EQ(RenderText(hosts), expected);
  EXPECT_EQ(RenderText({{"offsets", {-3, -2, -1, 0, 1, 2}}}), "offsets  -3, -2, -1, 0-2\n");
}

TEST(Report, NumbersBeyondAnInt64AreToldAsTheyAre) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(RenderText({{"hashes", {uint64_t{1} << 63U, 2}}}), "hashes  9223372036854775808, 2\n");
  EXPECT_EQ(RenderText({{"ends", {kMost, kLeast, kMost - 2, kMost - 1, kMost}}}),
            fmt::format("ends  {}, {}, {}-{}\n", kMost, kLeast, kMost - 2, kMost));
}

TEST(Report, OfALongTableRowsThatDifferInMoreThanANumberAreRowsOfTheirOwn) {
  Json table = Json::array();
  std::string expected = "host   slot  rank\n";
  for (int rank = 0; rank < 40; ++rank) {
    table.push_back(
        {{"host", rank < 20 ? "a" : "b" + std::to_string(rank)}, {"slot", rank < 20 ? 0 : rank}, {"rank", rank}});
    if (rank == 0) expected = "host  slot  rank\na     0     0-19\n";
    if (rank >= 20) expected += fmt::format("b{0}   {0}    {0}\n", rank);
  }
  EXPECT_EQ(RenderText(table), expected);
}

TEST(Report, TextAndJsonComeFromOneDocument) {
  const Json report = {{"state", "running"},
                       {"ettr", {{"cumulative", 0.98765432}}},
                       {"ranks", {{{"rank", 0}, {"step", 12}}, {{"rank", 10}, {"step", 7}}}}};
  EXPECT_EQ(RenderText(report),
            "state  running\n"
            "ettr\n"
            "  cumulative  0.9877\n"
            "ranks\n"
            "  rank  step\n"
            "  0     12\n"
            "  10    7\n");
  EXPECT_EQ(ParseJson(RenderJson(report)), report);
}

// Or whoever copies it, or writes it into a message, dies of it.
TEST(JsonText, WhatIsNestedDeeperThanAnythingIsNoDocument) {
  const auto nested = [](size_t depth) {
    return R"({"\"[":)" + std::string(depth - 1, '[') + R"("]")" + std::string(depth - 1, ']') + "}";
  };
  EXPECT_EQ(OneLine(ParseJson(nested(kDeepestJson))), nested(kDeepestJson));
  EXPECT_TRUE(ParseJson(nested(kDeepestJson + 1)).is_discarded());
  const Json deep = ParseJson(nested(1'000'000)), copied = deep;
  EXPECT_TRUE(copied.is_discarded()) << OneLine(copied).size();
  const auto why = [](const std::string& text) { return Message(ReadJson(text).status()); };
  EXPECT_EQ(why(nested(1'000'000)), "nested more than 128 deep");
  EXPECT_EQ(why("{\"a\": x}"), "byte 7: not JSON");
  EXPECT_EQ(why("1e999"), "a number that no double holds");
  EXPECT_EQ(*ReadJson("[1, 2]"), Json({1, 2}));
}

// One packet of such must not hold up for minutes who serves all.
TEST(JsonText, OfManyNamesNoneIsLookedForAmongAllBefore) {
  constexpr int kNames = 100'000;
  std::string text = "{";
  for (int i = 0; i < kNames; ++i) text += fmt::format("{}\"k{}\":{}", i == 0 ? "" : ",", i, i);
  const Json document = ParseJson(text + "}");
  ASSERT_EQ(document.size(), size_t{kNames});
  EXPECT_EQ(document.begin().key(), "k0");
  EXPECT_EQ(document.back(), kNames - 1);
}

TEST(JsonText, OfANameThatComesTwiceTheLastValueCounts) {
  EXPECT_EQ(OneLine(ParseJson(R"({"a":1,"b":[{"x":3,"x":4}],"a":{"c":[]},"":-2.5})")),
            R"({"a":{"c":[]},"b":[{"x":4}],"":-2.5})");
}

TEST(Mailbox, DeliversInThePollersThreadInOrder) {
  Poller poller;
  Mailbox mailbox(poller);
  constexpr size_t kEach = 1000;
  std::vector<size_t> got[2];  // touched by our thread alone
  std::vector<std::jthread> threads;
  threads.reserve(2);
  for (int writer = 0; writer < 2; ++writer)
    threads.emplace_back([&, writer] {
      for (size_t i = 0; i < kEach; ++i) mailbox.Post([&, writer, i] { got[writer].push_back(i); });
    });
  poller.Run(Seconds{0.001}, [&] {
    if (got[0].size() + got[1].size() == 2 * kEach) poller.Stop();
  });
  for (const std::vector<size_t>& one : got) EXPECT_TRUE(std::is_sorted(one.begin(), one.end()));
  mailbox.Close();
  mailbox.Post([] { FAIL() << "it is closed"; });
}

TEST(Packets, ATextOfAnySizeComesWhole) {
  const auto ends = *MakeSocketPair();
  for (const size_t size : {size_t{10}, size_t{64} << 10, size_t{5} << 20}) {
    const std::string text(size, 'x');
    ASSERT_TRUE(SendText(ends.first.get(), text).ok());
    EXPECT_EQ(*TextOf(*ReceivePacket(ends.second.get())), text);
  }
}

TEST(Packets, WhatIsTooLongIsSaidToBe) {
  const auto ends = *MakeSocketPair();
  if (!SendPacket(ends.first.get(), std::string(kMaxPacket + 1, 'x')).ok())
    GTEST_SKIP() << "net.core.wmem_max allows for no such packet";
  const Packet packet = *ReceivePacket(ends.second.get());
  EXPECT_TRUE(packet.cut);
  EXPECT_TRUE(absl::IsDataLoss(TextOf(packet).status()));
}

TEST(SelectNth, PutsEachWhereSortingWould) {
  std::mt19937 chance(1);
  for (const size_t count : {1u, 2u, 3u, 8u, 9u, 50u, 1000u}) {
    std::vector<double> random, few, rising, equal(count, 3.0);
    for (size_t i = 0; i < count; ++i) {
      random.push_back(std::normal_distribution<double>()(chance));
      few.push_back(static_cast<double>(chance() % 3));
      rising.push_back(static_cast<double>(i));
    }
    const std::vector<double> falling(rising.rbegin(), rising.rend());
    for (const std::vector<double>& values : {random, few, rising, falling, equal})
      for (size_t nth = 0; nth < count; nth += 1 + count / 20) {
        std::vector<double> sorted = values, selected = values;
        std::ranges::sort(sorted);
        SelectNth(selected, nth);
        EXPECT_EQ(selected[nth], sorted[nth]) << nth << " of " << count;
        EXPECT_LE(*std::max_element(selected.begin(), selected.begin() + static_cast<std::ptrdiff_t>(nth) + 1),
                  selected[nth]);
        std::ranges::sort(selected);
        EXPECT_EQ(selected, sorted) << "nothing is lost";
      }
  }
}

TEST(ParallelFor, CallsEachOnceAndEachWorkerOneAtATime) {
  for (const size_t threads : {0u, 1u, 3u, 50u}) {
    std::vector<int> calls(1000);
    std::vector<int> of_worker(std::max<size_t>(threads, 1));  // touched by one thread each
    ParallelFor(calls.size(), threads, [&](size_t i, size_t worker) {
      ++calls[i];
      ++of_worker.at(worker);
    });
    EXPECT_EQ(std::count(calls.begin(), calls.end(), 1), 1000);
    EXPECT_EQ(std::accumulate(of_worker.begin(), of_worker.end(), 0), 1000);
  }
  ParallelFor(0, 4, [](size_t /*i*/, size_t /*worker*/) { FAIL() << "there is nothing to do"; });
}

}  // namespace
}  // namespace lockstep
