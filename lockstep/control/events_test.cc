#include "lockstep/control/events.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "lockstep/base/json_text.h"
#include "lockstep/control/scenario.h"

namespace lockstep::control {
namespace {

// One event of every type, with every field set to something that is not its default.
std::vector<EventBody> AllEvents() {
  Suspected suspected = Suspect(2, 3, true, 4.5, Step(8, 4.25));
  suspected.bad_from = 17;
  suspected.bad_epoch = EpochId(2);
  suspected.finding.ambiguous_with = {{incident::Suspect::Kind::kLink, "a-b"}};
  return {JobStarted{{"gpt", 4, 7, 2, true, Seconds{12.5}, true, EpochId(5), true}},
          EpochSpawned{EpochId(3)},
          LoopBegan{EpochId(3), At(5), Checkpoint(2, 17)},
          CaughtUp{EpochId(3), Step(18, 6.5)},
          CaughtUp{EpochId(3), Step(18, 6.5), true},
          ProgressSeen{EpochId(3), Step(19, 7.5), Seconds{0.25}},
          LostPeer(3, 1, Step(19, 7.5), 7.75),
          InItsStep(LostPeer(3, 1, Step(19, 7.5), 7.75), 20),
          suspected,
          StacksKept{EpochId(3), "stacks/3.txt"},
          EpochStopped{EpochId(3)},
          EpochStopped{EpochId(3), Checkpoint(2, 17)},
          RestoreChosen{EpochId(4), Checkpoint(3, 19), {"rank 0: torn"}},
          SpawnFailed{EpochId(4), "fork: no memory"},
          StopAsked{15},
          JobPaused{},
          JobContinued{},
          WatcherGone{At(8)},
          WatcherGone{At(8), true},
          WatcherGone{At(8), false, true},
          WaitInterrupted{At(8)},
          SecondaryGraceOver{EpochId(4)},
          Drilled{EpochId(4), "kill", 2},
          Drilled{EpochId(4), "nan", 2, true},
          AgentLost{1, "b", "its connection was lost", {70}},
          AgentLost{2, "c", "nothing heard for 4 s", {70}, true},
          AgentBack{1},
          AgentGone{1, "node b is lost", true},
          StandbyCame{{"s", 2, "s's token"}},
          StandbyLeft{"s's token"},
          JournalBehind{EpochId(9)},
          Alerted{1, "gpu_xid", AlertClass::kNetwork, "gpu3", "Xid 79", At(9), true, "a standby's"},
          Probed{EpochId(4), Rung::kReplay, {suspected.finding}, {"b"}},
          Probed{EpochId(4), Rung::kDiagnose, {}, {}, {"{}"}},
          Probed{EpochId(4), Rung::kReplay, {}, {}, {}, "4 nodes in 2 rounds"},
          StopOverdue{EpochId(4)},
          StopOverdue{EpochId(4), {0, 2}},
          StopOverdue{EpochId(4), {}, {1}},
          UpdateAsked{"/new", "abc", {{"LR", "1"}}, true, Seconds{3600}, true},
          CodeKept{2, "node b: /new does not exist"},
          CodeKept{0, "node b: /old/large.so is linked", "abc"},
          UpdateDue{2},
          ClusterDid{3, "h3", "Slurm drains node h3"},
          Tick{}};
}

TEST(Events, GoThroughJsonAndBack) {
  for (const EventBody& event : AllEvents()) {
    const auto back = EventFromJson(TypeName(event), ParseJson(OneLine(ToJson(event))));
    ASSERT_TRUE(back.ok()) << TypeName(event) << ": " << back.status();
    EXPECT_EQ(back->index(), event.index());
    EXPECT_EQ(ToJson(*back), ToJson(event)) << TypeName(event);
  }
}

TEST(Events, MayLackWhatIsOptional) {
  const auto began = EventFromJson("loop_began", ParseJson(R"({"epoch": 1, "begin_ns": 5, "restored": null})"));
  ASSERT_TRUE(began.ok());
  EXPECT_FALSE(std::get<LoopBegan>(*began).restored.has_value());
  Json exited = ToJson(InItsStep(Killed(1, 2, 9), 20));
  exited.erase("step");
  EXPECT_EQ(std::get<RankExited>(*EventFromJson("rank_exited", exited)).step, -1) << "an agent that doesn't tell it";
}

TEST(Events, UnknownFieldsAreIgnored) {
  EXPECT_TRUE(EventFromJson("stop_asked", ParseJson(R"({"signal": 2, "by": "someone from the future"})")).ok());
}

TEST(Events, EveryMissingFieldIsOneClearError) {
  const std::set<std::string> kOptional = {"restored",   "point",        "exception",   "restarts_without_steps",
                                           "port_taken", "leading_node", "policy",      "bad_from",
                                           "bad_epoch",  "first_epoch",  "load_first",  "standbys",
                                           "layout",     "reports",      "stuck_nodes", "unstopped_nodes",
                                           "env",        "step_time_s",  "can_ask",     "withdrawn",
                                           "note",       "same",         "finite",      "step",
                                           "noted",      "token",        "explains",    "takes_back",
                                           "copy",       "entry",        "after_loss",  "silent",
                                           "timed_out"};
  for (const EventBody& event : AllEvents()) {
    const Json whole = ToJson(event);
    for (const auto& [name, value] : whole.items()) {
      if (kOptional.contains(name)) continue;
      Json less = whole;
      less.erase(name);
      const auto back = EventFromJson(TypeName(event), less);
      ASSERT_FALSE(back.ok()) << TypeName(event) << " without " << name;
      EXPECT_EQ(Message(back.status()), fmt::format("{}: field {} is missing", TypeName(event), name));
    }
  }
}

TEST(Events, NestedProblemsAreNamedToo) {
  Json json = ToJson(EventBody(CaughtUp{EpochId(1), Step(1, 1)}));
  json["progress"].erase("step");
  EXPECT_EQ(Message(EventFromJson("caught_up", json).status()), "progress: field step is missing");
  EXPECT_EQ(Message(EventFromJson("caught_up", Json::array()).status()),
            "caught_up: expected a JSON object, found array");
}

TEST(Events, UnknownTypesAreRefused) {
  EXPECT_EQ(Message(EventFromJson("abdicated", Json::object()).status()),
            "unknown event type \"abdicated\": was this journal written by a newer Lockstep?");
}

}  // namespace
}  // namespace lockstep::control
