#include "lockstep/control/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::control {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

FaultFacts Of(Symptom symptom) {
  FaultFacts facts;
  facts.symptom = symptom;
  facts.nodes = 4;
  facts.standbys = 1;
  return facts;
}

FaultFacts Again(Symptom symptom, std::vector<Rung> tried) {
  FaultFacts facts = Of(symptom);
  facts.tried = std::move(tried);
  facts.ran_since = Seconds{12};
  return facts;
}

Culprit Bad(int node, Role role = Role::kInspection) { return {node, std::string(1, "abcd"[node]), "it is hot", role}; }

Rung RungOf(const FaultFacts& facts, const Policy& policy = {}) { return Decide(policy, facts).rung; }

std::vector<std::string> Refused(const Decision& decision) {
  std::vector<std::string> texts;
  for (const Refusal& refusal : decision.refused)
    texts.push_back(std::string(RungName(refusal.rung)) + ": " + refusal.why);
  return texts;
}

// Faults for which nobody is to blame go down the ladder, rung by rung, each as soon as the one before it failed.
TEST(Ladder, GoesDownRungByRung) {
  for (const Symptom symptom : {Symptom::kCrash, Symptom::kHang, Symptom::kNan}) {
    EXPECT_EQ(RungOf(Of(symptom)), Rung::kReattempt);
    EXPECT_EQ(RungOf(Again(symptom, {Rung::kReattempt})), Rung::kDiagnose);
    EXPECT_EQ(RungOf(Again(symptom, {Rung::kReattempt, Rung::kDiagnose})), Rung::kReplay) << "no earlier code";
    FaultFacts updated = Again(symptom, {Rung::kReattempt, Rung::kDiagnose});
    updated.can_roll_back = true;
    EXPECT_EQ(RungOf(updated), Rung::kRollback);
    updated.tried.push_back(Rung::kRollback);
    EXPECT_EQ(RungOf(updated), Rung::kReplay);
    updated.tried.push_back(Rung::kReplay);
    EXPECT_EQ(RungOf(updated), Rung::kReattempt) << "restarts are left";
    updated.hopeless = "all restarts are used up";
    EXPECT_EQ(RungOf(updated), Rung::kGiveUp);
    EXPECT_EQ(Decide({}, updated).reason, "all restarts are used up");
  }
}

TEST(Ladder, TellsWhy) {
  EXPECT_EQ(Decide({}, Of(Symptom::kCrash)).reason, "the first crash in 600 s of training: most do not come back");
  const Decision decision = Decide({}, Again(Symptom::kCrash, {Rung::kReattempt, Rung::kDiagnose}));
  EXPECT_THAT(decision.reason, HasSubstr("another crash after 12 s of training"));
  EXPECT_THAT(Refused(decision), ElementsAre("diagnose: it was tried, and did not help",
                                             "rollback: there is no earlier version of the code"));
}

TEST(Ladder, OfOneNodeHasNoReplay) {
  FaultFacts alone = Again(Symptom::kCrash, {Rung::kReattempt, Rung::kDiagnose});
  alone.nodes = 1;
  EXPECT_EQ(RungOf(alone), Rung::kReattempt);
  EXPECT_EQ(Refused(Decide({}, alone)).back(), "replay: it compares nodes, and the job has one");
}

TEST(Ladder, WhoIsNamedByAProbeGoes) {
  for (const Role role : {Role::kDiagnosis, Role::kReplay}) {
    FaultFacts named = Again(Symptom::kCrash, {Rung::kReattempt, Rung::kDiagnose});
    named.culprits = {Bad(2, role)};
    const Decision decision = Decide({}, named);
    EXPECT_EQ(decision.rung, Rung::kEvict);
    EXPECT_THAT(decision.nodes, ElementsAre(2));
    EXPECT_THAT(decision.reason, HasSubstr("node c: it is hot"));
  }
}

TEST(Machine, IsEvictedAtOnceOrElseNamed) {
  FaultFacts hot = Of(Symptom::kMachine);
  hot.culprits = {Bad(1)};
  EXPECT_EQ(RungOf(hot), Rung::kEvict);
  hot.culprits[0].replaceable = false;
  const Decision alone = Decide({}, hot);
  EXPECT_EQ(alone.rung, Rung::kNote) << "the job is not stopped for it";
  EXPECT_EQ(alone.machines_wanted, 1);
  EXPECT_THAT(Refused(alone), ElementsAre("evict: node b: no standby waits that could take the place of node b"));
}

TEST(Network, OneAlertIsNoneAndManyNodesAreNobody) {
  FaultFacts facts = Of(Symptom::kNetwork);
  EXPECT_EQ(RungOf(facts), Rung::kNote);
  facts.culprits = {Bad(1)};
  EXPECT_EQ(RungOf(facts), Rung::kEvict);
  facts.widespread = true;
  EXPECT_EQ(RungOf(facts), Rung::kNote);
}

TEST(Program, IsRolledBackAndNeverEvicted) {
  FaultFacts raised = Of(Symptom::kProgram);
  raised.culprits = {Bad(1)};
  EXPECT_EQ(RungOf(raised), Rung::kReattempt);
  raised.hopeless = "ValueError struck twice";
  EXPECT_EQ(RungOf(raised), Rung::kGiveUp);
  raised.can_roll_back = true;
  EXPECT_EQ(RungOf(raised), Rung::kRollback);
  raised.spent = true;
  EXPECT_EQ(RungOf(raised), Rung::kGiveUp) << "a rollback is a restart";
}

TEST(OnTrial, IsTakenBackBeforeAnythingElse) {
  for (const Symptom symptom : {Symptom::kProgram, Symptom::kCrash, Symptom::kHang, Symptom::kNan, Symptom::kUpdate}) {
    FaultFacts fault = Again(symptom, {Rung::kRollback});  // of another version, a moment ago
    fault.on_trial = fault.can_roll_back = true;
    fault.hopeless = "it struck twice";
    EXPECT_EQ(RungOf(fault), Rung::kRollback) << SymptomName(symptom);
    fault.hopeless.clear();
    fault.culprits = {Bad(1)};
    if (symptom == Symptom::kProgram) continue;  // no machine is to blame for it
    EXPECT_NE(RungOf(fault), Rung::kRollback) << SymptomName(symptom) << ": a machine is named";
  }
}

TEST(Ours, IsTriedAgain) {
  EXPECT_EQ(RungOf(Again(Symptom::kOurs, {Rung::kReattempt, Rung::kReattempt})), Rung::kReattempt);
}

TEST(Loss, IsHeldBackByNoCap) {
  FaultFacts lost = Of(Symptom::kNodeLost);
  EXPECT_EQ(RungOf(lost), Rung::kGiveUp);
  lost.culprits = {Bad(1, Role::kLoss)};
  lost.evicted_last_hour = 9;
  EXPECT_EQ(RungOf(lost), Rung::kEvict);
}

TEST(Caps, HoldTogether) {
  FaultFacts hot = Of(Symptom::kMachine);
  hot.standbys = 3;
  hot.culprits = {Bad(0), Bad(1), Bad(2)};
  Decision decision = Decide({}, hot);
  EXPECT_THAT(decision.nodes, ElementsAre(0, 1)) << "two in an hour";
  EXPECT_THAT(Refused(decision), ElementsAre("evict: node c: the cap of 2 evictions an hour is reached"));
  hot.evicted_last_hour = 2;
  EXPECT_EQ(RungOf(hot), Rung::kNote);
  hot.evicted_last_hour = 0;
  Policy careful;
  careful.least_machines = 6;  // 4 + 3 - 1
  decision = Decide(careful, hot);
  EXPECT_THAT(decision.nodes, ElementsAre(0));
  EXPECT_EQ(Refused(decision).front(), "evict: node b: 5 machines would be left, and eviction.least_machines is 6");
}

TEST(Caps, WhoMayNotAndWhoCannot) {
  FaultFacts hot = Of(Symptom::kMachine);
  hot.culprits = {Bad(1)};
  Policy policy;
  policy.may_evict = {"replay"};
  EXPECT_THAT(Refused(Decide(policy, hot)), ElementsAre("evict: node b: eviction.may_evict does not have inspection"));
  hot.culprits[0].leads = true;
  EXPECT_EQ(RungOf(hot), Rung::kNote);
}

TEST(DryRun, OnlyRestarts) {
  Policy dry;
  dry.dry_run = true;
  FaultFacts crash = Again(Symptom::kCrash, {Rung::kReattempt});
  crash.culprits = {Bad(1)};
  crash.can_roll_back = true;
  const Decision decision = Decide(dry, crash);
  EXPECT_EQ(decision.rung, Rung::kReattempt);
  EXPECT_EQ(decision.refused.size(), 4u);
  for (const Refusal& refusal : decision.refused) EXPECT_THAT(refusal.why, HasSubstr("dry run"));
}

// Whatever the facts: there is an answer, and nobody is evicted who is not named, or beyond the caps.
TEST(Decide, AlwaysAnswersAndEvictsTheNamedOnly) {
  for (int bits = 0; bits < 1 << 13; ++bits) {
    for (int symptom = 0; symptom < kSymptoms; ++symptom) {
      FaultFacts facts = Of(static_cast<Symptom>(symptom));
      for (int node = 0; node < 4; ++node)
        if (bits >> node & 1) facts.culprits.push_back(Bad(node, static_cast<Role>((bits >> 4 & 3))));
      if (bits >> 6 & 1) facts.hopeless = "hopeless";
      facts.can_roll_back = bits >> 7 & 1;
      facts.evicted_last_hour = bits >> 8 & 3;
      if (bits >> 10 & 1) facts.tried = {Rung::kReattempt, Rung::kDiagnose};
      facts.widespread = bits >> 11 & 1;
      facts.on_trial = bits >> 12 & 1;
      const Policy policy;
      const Decision decision = Decide(policy, facts);
      ASSERT_FALSE(decision.reason.empty());
      ASSERT_EQ(decision.nodes.empty(), decision.rung != Rung::kEvict);
      for (const int node : decision.nodes) ASSERT_TRUE(bits >> node & 1);
      const bool capped = !decision.nodes.empty() && facts.culprits[0].role != Role::kLoss;
      const int evicted = facts.evicted_last_hour + static_cast<int>(decision.nodes.size());
      ASSERT_TRUE(!capped || evicted <= policy.evictions_per_hour);
    }
  }
}

class PolicyFile : public testing::Test {
 protected:
  absl::StatusOr<Policy> Read(const std::string& text) { return ReadPolicy(folder_.Write("policy.toml", text)); }
  std::string Wrong(const std::string& text) {
    return Message(Read(text).status()).substr((folder_ / "policy.toml").size());
  }
  const TestFolder folder_;
};

TEST_F(PolicyFile, DefaultHasTheDefaults) {
  const auto policy = ReadPolicy(LOCKSTEP_PRESETS "/policy/default.toml");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ(*policy, Policy());
  const std::string text = *ReadFile(LOCKSTEP_PRESETS "/policy/default.toml");
  const Json values = ToJson(Policy());  // ordered_json: `items` would need it to outlive the loop
  for (const auto& [name, value] : values.items())
    EXPECT_THAT(text, HasSubstr("\n" + name.substr(name.find('.') + 1) + " = ")) << name;
}

TEST_F(PolicyFile, MayHaveSomeKeysOnly) {
  const auto policy = Read("dry_run = true\n[eviction]\nper_hour = 0\nmay_evict = []\n[ladder]\nagain_within_s = 60\n");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_TRUE(policy->dry_run);
  EXPECT_EQ(policy->evictions_per_hour, 0);
  EXPECT_THAT(policy->may_evict, IsEmpty());
  EXPECT_EQ(policy->again_within, Seconds{60});
  EXPECT_EQ(policy->network_alerts, 2);
  const auto back = PolicyFromJson(ParseJson(OneLine(ToJson(*policy))));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, *policy);
}

TEST_F(PolicyFile, ErrorsNameThePlace) {
  EXPECT_EQ(Wrong("[eviction]\nper_hour = \"two\"\n"),
            ":2:12: eviction.per_hour must be a whole number, found \"two\"");
  EXPECT_THAT(Wrong("[network]\nalert = 2\n"), HasSubstr("did you mean alerts"));
  EXPECT_THAT(Wrong("[nan]\nsteps = 0\n"), HasSubstr(":2:9: nan.steps must be at least 1, found 0"));
  EXPECT_THAT(Wrong("[eviction]\nmay_evict = [\"me\"]\n"), HasSubstr("found \"me\""));
  EXPECT_THAT(Wrong("[ladder]\nagain_within_s = -1\n"), HasSubstr("ladder.again_within_s must not be negative"));
}

TEST(Report, HasTheTable) {
  const Json report = PolicyReport({});
  EXPECT_EQ(report["policy"]["eviction.per_hour"], 2);
  EXPECT_EQ(report["table"].front()["symptom"], "machine");
  EXPECT_EQ(report["table"].front()["rung"], "evict");
}

}  // namespace
}  // namespace lockstep::control
