// Who is outside what its peers show. Healthy rates are normal with a deviation of 5 %, seeded; a bad node's is half.
#include "lockstep/probe/peer_range.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "lockstep/base/json_text.h"

namespace lockstep::probe {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

NodeReport Node(const std::string& name, std::vector<Measurement> measurements, const std::string& type = "a") {
  return {.node = name, .address = name + ":1", .isa = "x86_64", .type = type, .measurements = std::move(measurements)};
}
Measurement Rate(double value, const std::string& name = "memory.all") {
  return {.name = name, .value = value, .unit = "GB/s"};
}
Measurement Bits(uint32_t crc) { return {.name = "aligned.single", .value = double(crc), .unit = "crc32c"}; }

std::vector<NodeReport> Nodes(const std::vector<Measurement>& each) {
  std::vector<NodeReport> nodes;
  for (size_t i = 0; i < each.size(); ++i) nodes.push_back(Node(fmt::format("n{:03}", i), {each[i]}));
  return nodes;
}

std::vector<std::string> Named(const Judgement& judgement) {
  std::vector<std::string> names;
  for (const Finding& finding : judgement.findings)
    names.insert(names.end(), finding.suspects.begin(), finding.suspects.end());
  std::ranges::sort(names);
  return names;
}

class Noise {
 public:
  explicit Noise(uint32_t seed) : generator_(seed) {}
  std::vector<double> Rates(size_t count) {
    std::normal_distribution<double> noise(10, 0.5);
    std::vector<double> rates(count);
    for (double& rate : rates) rate = noise(generator_);
    return rates;
  }

 private:
  std::mt19937 generator_;
};

std::vector<size_t> Outside(const std::vector<double>& values) {
  const Range range = RangeOf(values, values.size(), "memory.all", "GB/s");
  std::vector<size_t> outside;
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] < range.median * (1 - range.tolerance)) outside.push_back(i);
  return outside;
}

TEST(PeerRange, NoHealthyNodeIsNamedIn100000Trials) {
  for (uint32_t trial = 0; trial < 100'000; ++trial) {
    const size_t count = 3 + trial % 27;
    ASSERT_THAT(Outside(Noise(trial).Rates(count)), IsEmpty()) << trial;
  }
  size_t named = 0;  // where the spread is learnt, its estimate may be low: of 63 * 2000 values none or one
  for (uint32_t trial = 0; trial < 2'000; ++trial) named += Outside(Noise(trial).Rates(30 + trial % 67)).size();
  EXPECT_LE(named, 1u);
}

TEST(PeerRange, OneOrTwoBadNodesAreNamedAndNobodyElse) {
  for (uint32_t trial = 0; trial < 20'000; ++trial) {
    std::vector<double> one = Noise(trial).Rates(3 + trial % 27), two = Noise(trial).Rates(8);
    const size_t bad = trial % one.size();
    one[bad] /= 2;
    ASSERT_EQ(Outside(one), std::vector{bad}) << trial;
    two[1] /= 2, two[6] /= 2;
    ASSERT_EQ(Outside(two), (std::vector<size_t>{1, 6})) << trial;
  }
}

TEST(PeerRange, ASmallSpreadIsLearntAndTightens) {
  std::mt19937 generator(7);
  std::normal_distribution<double> noise(10, 0.1);
  std::vector<Measurement> rates;
  for (int i = 0; i < 100; ++i) rates.push_back(Rate(noise(generator)));
  rates[42] = Rate(8.5);  // 15 % less
  const Judgement judgement = JudgePeers(Nodes(rates));
  EXPECT_EQ(Named(judgement), std::vector<std::string>{"n042"});
  EXPECT_TRUE(judgement.ranges.at(0).learnt);
  EXPECT_NEAR(judgement.ranges[0].tolerance, 0.10, 1e-9);
  EXPECT_GT(judgement.findings[0].confidence, 0.98);
  EXPECT_THAT(judgement.findings[0].evidence,
              HasSubstr("8.5 GB/s, 15 % worse than its peers of type \"a\": median 9.99"));
}

// Three nodes say ten times what they have said, or nearly: that tells nothing of what others are like.
TEST(PeerRange, ANodeCountsOnceHoweverOftenItWasLearnt) {
  std::vector<NodeReport> history;
  for (int i = 0; i < 10; ++i)
    for (const NodeReport& node : Nodes({Rate(10), Rate(10.1 + 0.001 * i), Rate(9.9)})) history.push_back(node);
  const Judgement judgement = JudgePeers(Nodes({Rate(10), Rate(10), Rate(8.5)}), history);
  ASSERT_THAT(judgement.ranges, SizeIs(1));
  EXPECT_FALSE(judgement.ranges[0].learnt);
  EXPECT_EQ(judgement.ranges[0].history, 3);
  EXPECT_NEAR(judgement.ranges[0].tolerance, 0.30, 1e-9);
  EXPECT_THAT(judgement.findings, IsEmpty()) << "15 % less";
  const std::vector<NodeReport> twenty = Nodes(std::vector<Measurement>(20, Rate(10)));
  EXPECT_FALSE(JudgePeers(twenty, twenty).ranges.at(0).learnt) << "40 values, of 20 nodes";
  EXPECT_TRUE(JudgePeers(twenty, Nodes(std::vector<Measurement>(30, Rate(10)))).ranges.at(0).learnt);
}

TEST(PeerRange, WhatCannotBeComparedIsNotKnownToBeWell) {
  const auto healthy = [](const std::vector<Measurement>& values) {
    const std::vector<NodeReport> nodes = Nodes(values);
    return JudgementJson(JudgePeers(nodes), nodes)["healthy"];
  };
  EXPECT_TRUE(healthy({Rate(10)}).is_null()) << "one alone";
  EXPECT_TRUE(healthy({Rate(45.9), Rate(2.3)}).is_null()) << "one of the two is slow, and which can't be told";
  EXPECT_EQ(healthy({Rate(10), Rate(10), Rate(10)}), true);
  EXPECT_EQ(healthy({Rate(10), Rate(10), Rate(1)}), false);
  EXPECT_EQ(healthy({Bits(1), Bits(2)}), false) << "somebody is named, though nobody is certain";
}

TEST(PeerRange, OrderOfNodesChangesNothing) {
  std::mt19937 generator(3);
  std::vector<NodeReport> nodes = Nodes({Rate(10), Rate(4), Rate(9.5), Rate(10.5), Rate(10), Rate(3)});
  for (size_t i = 0; i < nodes.size(); ++i) nodes[i].measurements.push_back(Bits(i == 2 ? 1 : 2));
  nodes[3].measurements.push_back({.name = "disk.bits", .unit = "errors", .ok = false, .text = "full"});
  nodes[0].measurements.push_back(
      {.name = "neighbours.send", .unit = "errors", .ok = false, .text = "no", .with = "n001:1"});
  const std::string first = OneLine(JudgementJson(JudgePeers(nodes), nodes));
  for (int i = 0; i < 50; ++i) {
    std::ranges::shuffle(nodes, generator);
    ASSERT_EQ(OneLine(JudgementJson(JudgePeers(nodes), nodes)), first);
  }
}

TEST(PeerRange, TwoNodesCanNotTellWhoIsSlow) {
  const Judgement alone = JudgePeers(Nodes({Rate(10), Rate(4)}));
  EXPECT_THAT(alone.findings, IsEmpty());
  ASSERT_THAT(alone.unknown, SizeIs(1));
  EXPECT_THAT(alone.unknown[0], HasSubstr("memory.all: two nodes of type \"a\" have 2 values, 4 to 10 GB/s: too few"));
  const Judgement with_history = JudgePeers(Nodes({Rate(10), Rate(4)}), Nodes({Rate(10), Rate(10.5), Rate(9.8)}));
  EXPECT_EQ(Named(with_history), std::vector<std::string>{"n001"});
  EXPECT_EQ(Named(JudgePeers(Nodes({Rate(4)}), Nodes({Rate(10), Rate(10.5), Rate(9.8)}))),
            std::vector<std::string>{"n000"});
}

TEST(PeerRange, HalfOfThemSlowIsNoFaultOfOne) {
  for (const auto& judgement :
       {JudgePeers(Nodes({Rate(10), Rate(10), Rate(4), Rate(4)})),
        JudgePeers(Nodes({Rate(4), Rate(4), Rate(4)}), Nodes({Rate(10), Rate(10), Rate(10), Rate(10)}))}) {
    EXPECT_THAT(judgement.findings, IsEmpty());
    ASSERT_THAT(judgement.unknown, SizeIs(1));
    EXPECT_THAT(judgement.unknown[0], HasSubstr("which is no fault of one node"));
  }
}

TEST(PeerRange, TypesAreNotCompared) {
  std::vector<NodeReport> nodes = Nodes({Rate(10), Rate(10), Rate(10)});
  nodes.push_back(Node("old", {Rate(3)}, "b"));
  const Judgement judgement = JudgePeers(nodes);
  EXPECT_THAT(judgement.findings, IsEmpty());
  ASSERT_THAT(judgement.unknown, SizeIs(1));
  EXPECT_THAT(judgement.unknown[0], HasSubstr("one node of type \"b\""));
}

TEST(PeerRange, BitsGoByMajorityAndTiesAreAmbiguous) {
  EXPECT_THAT(JudgePeers(Nodes({Bits(7), Bits(7)})).findings, IsEmpty());
  const Judgement one = JudgePeers(Nodes({Bits(7), Bits(8), Bits(7)}));
  ASSERT_THAT(one.findings, SizeIs(1));
  EXPECT_EQ(Named(one), std::vector<std::string>{"n001"});
  EXPECT_EQ(one.findings[0].evidence, "00000007 on n000, n002; 00000008 on n001");
  for (const auto& crcs :
       {std::vector{Bits(7), Bits(8)}, {Bits(7), Bits(8), Bits(9)}, {Bits(7), Bits(8), Bits(7), Bits(8)}}) {
    const Judgement tie = JudgePeers(Nodes(crcs));
    ASSERT_THAT(tie.findings, SizeIs(1));
    EXPECT_TRUE(tie.findings[0].ambiguous());
    EXPECT_EQ(tie.findings[0].suspects.size(), crcs.size());
    EXPECT_LE(tie.findings[0].confidence, 0.5);
  }
}

// What is told of each grows with the nodes, and not with their square.
TEST(PeerRange, OfManyNodesWithTheSameBitsSomeAreTold) {
  std::vector<Measurement> bits(300, Bits(7));
  for (size_t i = 0; i < bits.size(); i += 3) bits[i] = Bits(8);
  const Judgement judgement = JudgePeers(Nodes(bits));
  ASSERT_THAT(judgement.findings, SizeIs(100));
  EXPECT_EQ(judgement.findings[99].evidence,
            "00000007 on n001, n002, n004, n005, n007, n008, n010, n011, ... and 192 more nodes; "
            "00000008 on n000, n003, n006, n009, n012, n015, n018, n021, ... and 92 more nodes");
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = Bits(static_cast<uint32_t>(i));
  const Judgement tie = JudgePeers(Nodes(bits));
  ASSERT_THAT(tie.findings, SizeIs(1));
  EXPECT_THAT(tie.findings[0].suspects, SizeIs(300));
  EXPECT_THAT(tie.findings[0].evidence, testing::EndsWith("00000007 on n007; ... and 292 more checksums"));
}

TEST(PeerRange, WhoIsAtTwoBadLinksIsNamedElseBothEnds) {
  const auto link = [](const std::string& name, const std::string& with) {
    return Measurement{.name = name, .unit = "errors", .ok = false, .text = "refused", .with = with};
  };
  // A ring of a, b, c in which b is gone: a can't reach it, and nothing comes to c.
  const std::vector<NodeReport> gone = {Node("a", {link("neighbours.send", "b:1")}),
                                        Node("c", {link("neighbours.receive", "b:1")})};
  EXPECT_EQ(JudgePeers(gone).findings.at(0).suspects, std::vector<std::string>{"b:1"});
  const std::vector<NodeReport> cut = {Node("a", {link("neighbours.send", "b:1")}),
                                       Node("b", {link("neighbours.receive", "a:1")}), Node("c", {})};
  const Judgement judgement = JudgePeers(cut);
  ASSERT_THAT(judgement.findings, SizeIs(1));
  EXPECT_EQ(judgement.findings[0].suspects, (std::vector<std::string>{"a", "b"}));
  EXPECT_THAT(judgement.findings[0].evidence, HasSubstr("a says of b: refused; b says of a: refused"));
}

TEST(PeerRange, ReportsAreReadBackAndBadOnesAreRefused) {
  const NodeReport node = Node("n", {Rate(1.5), Bits(0xffffffff), {.name = "x", .text = "\"", .with = "m:1"}});
  const std::string line = OneLine(ReportJson(node));
  for (const std::string& text : {line, RenderJson(ReportJson(node)), line + "\n"}) {
    const auto read = ParseReports(text, "f.json");
    ASSERT_TRUE(read.ok()) << Message(read.status());
    ASSERT_THAT(*read, SizeIs(1));
    EXPECT_EQ(ReportJson((*read)[0]), ReportJson(node));
  }
  EXPECT_THAT(*ParseReports(line + "\n\n" + line, "f"), SizeIs(2));
  EXPECT_THAT(*ParseReports("", "f"), IsEmpty());
  for (const auto& [text, error] : std::vector<std::pair<std::string, std::string>>{
           {line + "\n{", "f:2: expected JSON as lockstep probe --json prints it: byte 2: not JSON"},
           {"1e999", "f:1: expected JSON as lockstep probe --json prints it: a number that no double holds"},
           {R"({"format": )" + std::string(200'000, '[') + std::string(200'000, ']') + "}", "f:1: expected JSON"},
           {"[]", "f: expected an object, found array"},
           {"{}", "f: expected format 1"},
           {R"({"format": 1})", "f: expected the name of a node"},
           {R"({"format": 1, "node": 3})", "f: node must be a text, found 3"},
           {R"({"format": 1, "node": "n"})", "f: expected a list of measurements"},
           {R"({"format": 1, "node": "n", "measurements": [{"name": "x", "ok": 1}]})", "measurement 1: ok must be"},
           {R"({"format": 1, "node": "n", "measurements": [{"name": "x", "ok": true, "value": "1"}]})",
            "value must be"},
           {R"({"format": 1, "node": "n", "measurements": [7]})", "measurement 1: expected an object, found 7"}}) {
    const auto read = ParseReports(text, "f");
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_THAT(Message(read.status()), HasSubstr(error));
  }
}

}  // namespace
}  // namespace lockstep::probe
