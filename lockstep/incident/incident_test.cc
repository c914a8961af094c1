#include "lockstep/incident/incident.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"

namespace lockstep::incident {
namespace {

Finding StoppedRank2() {
  Finding finding;
  finding.syndrome = Syndrome::kStopped;
  finding.suspects = {SuspectRank(RankId(2))};
  finding.evidence = {"state T since 1.2 s", "3 ranks wait in all_reduce"};
  finding.certain = true;
  finding.since = {5'000'000'000};
  return finding;
}

Incident OneIncident() {
  Incident incident;
  incident.id = 3;
  incident.findings = {StoppedRank2()};
  incident.opened = {6'000'000'000};
  incident.closed = {7'500'000'000};
  incident.opened_wall = {1'700'000'000'250'000'000};
  incident.actions = {{ActionKind::kRestart, "restart of all 4 ranks", true, {6'500'000'000}}};
  incident.phases = {{1}, {0.25}, {0.5}, {0.125}};
  incident.steps_lost = 2;
  return incident;
}

TEST(Incident, JsonIsTheInterface) {
  const Json json = ToJson(OneIncident());
  EXPECT_EQ(json["id"], 3);
  EXPECT_EQ(json["symptom"], "stopped");
  EXPECT_EQ(json["suspects"], ParseJson(R"([{"kind": "rank", "name": "2"}])"));
  EXPECT_EQ(json["phases"],
            ParseJson(R"({"detect_s": 1.0, "decide_s": 0.25, "restart_s": 0.5, "recompute_s": 0.125})"));
  EXPECT_EQ(json["actions"],
            ParseJson(R"([{"kind": "restart", "text": "restart of all 4 ranks", "done": true, "after_s": 0.5}])"));
  EXPECT_EQ(json["steps_lost"], 2);
  EXPECT_EQ(json["opened"], "2023-11-14T22:13:20.250Z");
  EXPECT_EQ(json["closed"], "2023-11-14T22:13:21.750Z");
  EXPECT_EQ(json["certain"], true);
  EXPECT_EQ(json["evidence"].size(), 2u);
  EXPECT_EQ(json["headline"], "rank 2 was stopped (state T) while others wait: state T since 1.2 s");
}

TEST(Incident, AnOpenOneHasNoClosingTime) {
  Incident incident = OneIncident();
  incident.closed = {0};
  EXPECT_TRUE(ToJson(incident)["closed"].is_null());
}

TEST(Incident, TheFirstCertainFindingLeads) {
  Incident incident = OneIncident();
  Finding guess;
  guess.suspects = {SuspectRank(RankId(1))};
  incident.findings.insert(incident.findings.begin(), guess);
  EXPECT_EQ(ToJson(incident)["symptom"], "stopped");
  EXPECT_EQ(ToJson(incident)["joined"], Json::array({"rank 1 makes no progress (not certain)"}));
  incident.findings.pop_back();
  EXPECT_EQ(ToJson(incident)["symptom"], "stalled");
}

TEST(Finding, HeadlineSaysWhoElseItMayBe) {
  Finding finding = StoppedRank2();
  finding.evidence.clear();
  finding.ambiguous_with = {SuspectRank(RankId(1)), {Suspect::Kind::kSoftware, "train.py:41 in forward"}};
  EXPECT_EQ(Headline(finding),
            "rank 2 was stopped (state T) while others wait (or it is rank 1 or train.py:41 in forward)");
  finding.suspects.clear();
  finding.ambiguous_with.clear();
  finding.syndrome = Syndrome::kStalled;
  EXPECT_EQ(Headline(finding), "the job makes no progress");
}

TEST(Finding, HeadlineNamesManyAsRanges) {
  Finding finding = StoppedRank2();
  finding.suspects.clear();
  for (int rank = 0; rank < 600; ++rank)
    if (rank != 7) finding.suspects.push_back(SuspectRank(RankId(rank)));
  finding.evidence = {"rank 0: state T for 2.0 s"};
  EXPECT_EQ(Headline(finding),
            "each of ranks 0-6, 8-599 was stopped (state T) while others wait: rank 0: state T for 2.0 s");
  EXPECT_EQ(ToJson(finding)["suspects"].size(), 599u);
  finding.ambiguous_with.swap(finding.suspects);
  EXPECT_TRUE(Headline(finding).ends_with(" (or it is one of ranks 0-6, 8-599)"));
  for (int i = 0; i < 600; ++i) finding.suspects.push_back({Suspect::Kind::kLink, fmt::format("{}->{}", i, i + 1)});
  EXPECT_TRUE(Headline(finding).starts_with("link 0->1, link 1->2, ")) << Headline(finding);
  EXPECT_NE(Headline(finding).find(", ... and 592 more suspects was stopped"), std::string::npos);
  finding.suspects.push_back(SuspectRank(RankId(3)));
  EXPECT_TRUE(Headline(finding).starts_with("rank 3, link 0->1, ")) << Headline(finding);
  for (int rank = 0; rank < 600; rank += 2) finding.suspects.push_back(SuspectRank(RankId(rank)));
  EXPECT_LT(Headline(finding).size(), 500u);
}

TEST(Finding, HeadlineSaysWhatItCosts) {
  Finding finding;
  finding.syndrome = Syndrome::kNonCommunicationSlow;
  finding.suspects = {SuspectRank(RankId(13))};
  finding.certain = true;
  finding.price = {0.072, 18};
  EXPECT_EQ(Headline(finding),
            "rank 13 is slow, and the others wait for it; it costs 7.2 % of the time, 31.1 GPU-hours a day");
  EXPECT_EQ(ToJson(finding)["price"]["share"], 0.072);
  finding.price.at_least = true;
  EXPECT_THAT(Headline(finding), testing::HasSubstr("; it costs at least 7.2 % of the time, 31.1 GPU-hours a day"));
  EXPECT_EQ(ToJson(finding)["price"]["at_least"], true);
}

TEST(Finding, GoesThroughJsonAndBack) {
  Finding finding = StoppedRank2();
  finding.ambiguous_with = {{Suspect::Kind::kNicPort, "node3/mlx5_0"}};
  finding.probe = "stack of rank 1";
  finding.price = {0.25, 8, true};
  Json json = ToJson(finding);
  const auto back = FindingFromJson(ParseJson(OneLine(json)));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToJson(*back), json);
  json["price"].erase("at_least");
  const auto older = FindingFromJson(json);
  ASSERT_TRUE(older.ok()) << "journals of before: " << older.status();
  EXPECT_FALSE(older->price.at_least);
}

TEST(Finding, ErrorsNameTheField) {
  Json json = ToJson(StoppedRank2());
  json["syndrome"] = "gremlins";
  EXPECT_EQ(Message(FindingFromJson(json).status()), "finding: unknown syndrome \"gremlins\"");
  json = ToJson(StoppedRank2());
  json["suspects"][0]["kind"] = "planet";
  EXPECT_EQ(Message(FindingFromJson(json).status()), "suspect: unknown kind \"planet\"");
  json = ToJson(StoppedRank2());
  json.erase("since_ns");
  EXPECT_EQ(Message(FindingFromJson(json).status()), "finding: field since_ns is missing");
}

TEST(Names, EveryValueHasOne) {
  EXPECT_STREQ(SyndromeName(Syndrome::kWatcherLost), "watcher_lost");
  EXPECT_STREQ(SyndromeName(Syndrome::kNotEntered), "not_entered");
  EXPECT_STREQ(ActionName(ActionKind::kStop), "stop");
  EXPECT_STREQ(ActionName(ActionKind::kNote), "note");
}

}  // namespace
}  // namespace lockstep::incident
