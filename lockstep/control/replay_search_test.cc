// As conversations: nodes that answer as they are told, until the search does.
#include "lockstep/control/replay_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace lockstep::control {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

constexpr Seconds kAtMost{600};  // so runs have 100 s

ReplayQuestion Question(int nodes, int ranks = 1) {
  ReplayQuestion question{.id = 7, .probe = {EpochId(2), Rung::kReplay, 3, kAtMost}, .version = {}, .nodes = {}};
  for (int node = 0; node < nodes; ++node)
    question.nodes.push_back({std::string(1, static_cast<char>('a' + node)), ranks});
  return question;
}

class Conversation {
 public:
  using Answer = std::function<std::optional<ReplayEnded>(int node, const ReplayRun& run)>;  // nullopt: it is silent

  explicit Conversation(const ReplayQuestion& question)
      : nodes_(static_cast<int>(question.nodes.size())),
        ranks_(question.nodes.front().ranks),
        search_(question, now_) {}

  // Where each node would let ranks meet: 100 + its number.
  ReplayReady ReadyOf(int node) const {
    return {.search = 7, .host = "h" + std::to_string(node), .port = 100 + node, .processor = "EPYC"};
  }
  void AllReady(const std::function<void(int node, ReplayReady&)>& change = [](int, ReplayReady&) {}) {
    for (int node = 0; node < nodes_; ++node) {
      ReplayReady ready = ReadyOf(node);
      change(node, ready);
      search_.Hear(node, ready, now_);
    }
  }

  // What every rank reports of its gradient.
  ReplayEnded Well(const ReplayRun& run, const std::string& digest = "right") const {
    ReplayEnded ended{.search = run.search, .run = run.run};
    const std::string report =
        R"({"step":0,"scope":"everywhere","values":{"gradient":[")" + digest + R"(",0]}})" + "\n";
    ended.reports.assign(static_cast<size_t>(ranks_), report);
    return ended;
  }
  ReplayEnded Crashed(int node, const ReplayRun& run) const {
    ReplayEnded ended = Well(run);
    ended.trouble = fmt::format("node {} (rank {} of its group) was killed by Killed (signal 9)",
                                static_cast<char>('a' + node), run.first_rank);
    ended.troubled_at = now_;
    return ended;
  }

  // Until nobody has anything to say.
  std::optional<Probed> Play(const Answer& answer) {
    for (auto words = search_.TakeWords(); !words.empty(); words = search_.TakeWords()) {
      for (const auto& [node, told] : words) {
        if (const auto* stop = std::get_if<ReplayStop>(&told)) stops_.emplace_back(node, stop->run);
        const auto* run = std::get_if<ReplayRun>(&told);
        if (run == nullptr) continue;
        runs_.push_back({node, *run});
        if (const auto ended = answer(node, *run)) search_.Hear(node, *ended, now_);
      }
    }
    return search_.TakeAnswer();
  }
  std::optional<Probed> PlayWithBad(const std::set<int>& bad) {
    return Play([&](int node, const ReplayRun& run) { return bad.contains(node) ? Crashed(node, run) : Well(run); });
  }

  void Wait(double seconds) {
    now_ = now_ + ToNanos(Seconds{seconds});
    search_.Tick(now_);
  }

  // The nodes of each run, in order.
  std::vector<std::vector<int>> Groups() const {
    std::map<uint64_t, std::vector<int>> groups;
    for (const auto& [node, run] : runs_) groups[run.run] = run.nodes;
    std::vector<std::vector<int>> list;
    for (const auto& [run, nodes] : groups) list.push_back(nodes);
    return list;
  }

  const int nodes_, ranks_;
  Nanos now_{1'000};
  ReplaySearch search_;
  std::vector<std::pair<int, ReplayRun>> runs_;
  std::vector<std::pair<int, uint64_t>> stops_;  // of which run; 0: of the search
};

std::vector<std::string> Names(const std::vector<incident::Suspect>& suspects) {
  std::vector<std::string> names;
  for (const incident::Suspect& suspect : suspects) names.push_back(suspect.name);
  return names;
}

TEST(ReplaySearch, NamesTheNodeThatFailsInBothItsGroupsAndOnceMore) {
  Conversation talk(Question(4));
  talk.AllReady();
  const auto answer = talk.PlayWithBad({2});
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(std::pair(answer->epoch, answer->rung), std::pair(EpochId(2), Rung::kReplay));
  ASSERT_THAT(answer->findings, SizeIs(1));
  const incident::Finding& finding = answer->findings.front();
  EXPECT_THAT(Names(finding.suspects), ElementsAre("c"));
  EXPECT_TRUE(finding.certain);
  EXPECT_EQ(finding.syndrome, incident::Syndrome::kMachineFault);
  EXPECT_THAT(finding.evidence, ElementsAre(HasSubstr("round 1: nodes c, d failed 1 of 1 runs: node c (rank 0"),
                                            HasSubstr("round 2: nodes a, c failed"), HasSubstr("round 3: nodes b, c")));
  EXPECT_THAT(talk.Groups(), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(0, 2), ElementsAre(1, 3),
                                         ElementsAre(1, 2)));
  EXPECT_THAT(answer->note, HasSubstr("4 nodes replayed a model of ours in 3 rounds, 5 runs"));
  EXPECT_THAT(answer->unanswered, IsEmpty());
  std::set<int> told;
  for (const auto& [node, run] : talk.stops_)
    if (run == 0) told.insert(node);
  EXPECT_THAT(told, ElementsAre(0, 1, 2, 3)) << "that the search is over";
}

TEST(ReplaySearch, NamesTheNodeWhoseBitsDiffer) {
  Conversation talk(Question(9, 2));
  talk.AllReady();
  const auto answer =
      talk.Play([&](int node, const ReplayRun& run) { return talk.Well(run, node == 4 ? "wrong" : "right"); });
  ASSERT_THAT(answer->findings, SizeIs(1));
  EXPECT_THAT(Names(answer->findings[0].suspects), ElementsAre("e"));
  EXPECT_TRUE(answer->findings[0].certain);
  EXPECT_THAT(answer->findings[0].evidence[0],
              HasSubstr("node e (rank 2 of its group): gradient of step 0 differs from 16 of 18"));
}

TEST(ReplaySearch, RanksFindEachOther) {
  Conversation talk(Question(4, 2));
  talk.AllReady();
  talk.PlayWithBad({});
  for (const auto& [node, run] : talk.runs_) {
    EXPECT_EQ(run.nodes[static_cast<size_t>(run.index)], node);
    EXPECT_EQ(run.first_rank, 2 * run.index);
    EXPECT_EQ(run.ranks, 4);
    EXPECT_EQ(run.master_host, "h" + std::to_string(run.nodes.front()));
    EXPECT_EQ(run.master_port, 100 + run.nodes.front());
    EXPECT_EQ(run.deadline, Seconds{100});
    EXPECT_EQ(run.incident, 3);
  }
}

TEST(ReplaySearch, HealthyNodesAreNotNamed) {
  Conversation talk(Question(6));
  talk.AllReady();
  const auto answer = talk.PlayWithBad({});
  EXPECT_THAT(answer->findings, IsEmpty());
  EXPECT_THAT(answer->note, HasSubstr("2 rounds"));
  EXPECT_FALSE(talk.search_.TakeAnswer().has_value()) << "it was given";
}

// What it takes for certainty: a majority, one kind of nodes, a third failure.
TEST(ReplaySearch, NobodyIsNamedForCertainWithoutAMajority) {
  for (const int nodes : {2, 3, 4}) {
    Conversation talk(Question(nodes));
    talk.AllReady();
    const auto answer = talk.PlayWithBad(nodes == 2 ? std::set{1} : std::set{0, 1});
    ASSERT_THAT(answer->findings, SizeIs(1)) << nodes;
    EXPECT_FALSE(answer->findings[0].certain) << nodes;
  }
  Conversation bits(Question(2));
  bits.AllReady();
  const auto answer =
      bits.Play([&](int node, const ReplayRun& run) { return bits.Well(run, node == 1 ? "wrong" : "right"); });
  ASSERT_THAT(answer->findings, SizeIs(1));
  EXPECT_FALSE(answer->findings[0].certain);
}

TEST(ReplaySearch, NobodyIsNamedForCertainWhereNodesDifferInKind) {
  Conversation talk(Question(4));
  talk.AllReady([](int node, ReplayReady& ready) { ready.processor = node == 2 ? "Xeon" : "EPYC"; });
  const auto answer = talk.PlayWithBad({2});
  ASSERT_THAT(answer->findings, SizeIs(1));
  EXPECT_FALSE(answer->findings[0].certain);
  EXPECT_THAT(Names(answer->findings[0].suspects), ElementsAre("c"));
  EXPECT_THAT(answer->findings[0].evidence.back(),
              HasSubstr("nodes differ in kind, and so may their bits: EPYC; Xeon"));
}

TEST(ReplaySearch, NobodyIsNamedForCertainWhoIsWellInAThirdGroup) {
  Conversation talk(Question(4));
  talk.AllReady();
  // b in its row and c in its column, and never again: both meet in d's groups, or in a's.
  const auto answer = talk.Play([&](int node, const ReplayRun& run) {
    const bool row = run.nodes == std::vector{0, 1} && node == 1, column = run.nodes == std::vector{0, 2} && node == 2;
    return row || column ? talk.Crashed(node, run) : talk.Well(run);
  });
  for (const incident::Finding& finding : answer->findings) EXPECT_FALSE(finding.certain);
  EXPECT_THAT(talk.Groups()[4], ElementsAre(0, 3)) << "a, who was named, among those that never failed";
}

TEST(ReplaySearch, WhatFailsEverywhereIsNoMachinesFault) {
  Conversation talk(Question(4));
  talk.AllReady();
  const auto answer = talk.Play([&](int node, const ReplayRun& run) {
    ReplayEnded ended = talk.Well(run);
    ended.trouble = fmt::format("node {} (rank 0 of its group) left with exit status 1: ValueError: 1", node);
    return ended;
  });
  EXPECT_THAT(answer->findings, IsEmpty());
  EXPECT_THAT(answer->note, HasSubstr("it is the script and no machine"));
}

// ---- silence, and other things that are no failure ----

TEST(ReplaySearch, AGroupIsJudgedWhenAllOfItHaveAnswered) {
  Conversation talk(Question(4));
  talk.AllReady();
  const auto only = [&](int whose) {
    return [&talk, whose](int node, const ReplayRun& run) -> std::optional<ReplayEnded> {
      if (run.nodes == std::vector{0, 1} && node != whose) return std::nullopt;
      return node == 0 ? talk.Crashed(0, run) : talk.Well(run);
    };
  };
  EXPECT_FALSE(talk.Play(only(0)).has_value());
  EXPECT_THAT(talk.stops_, IsEmpty());
  talk.Wait(3);  // what the others still run is no use
  talk.Play(only(0));
  EXPECT_THAT(talk.stops_, ElementsAre(std::pair<int, uint64_t>(1, 1)));
  EXPECT_THAT(talk.Groups(), SizeIs(2)) << "round 2 waits";
  talk.search_.Hear(1, ReplayEnded{.search = 7, .run = 1}, talk.now_);
  talk.PlayWithBad({0});
  EXPECT_THAT(talk.Groups(), SizeIs(5));
}

TEST(ReplaySearch, SilenceIsNoFailure) {
  Conversation talk(Question(4));
  talk.AllReady();
  const auto silent = [&](int node, const ReplayRun& run) {
    return node == 3 ? std::nullopt : std::optional(talk.Well(run));
  };
  EXPECT_FALSE(talk.Play(silent).has_value());
  talk.Wait(279);
  EXPECT_FALSE(talk.Play(silent).has_value());
  talk.Wait(2);  // 180 s until ranks run, 100 for them
  const auto answer = talk.Play(silent);
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(answer->findings, IsEmpty());
  EXPECT_THAT(answer->note, HasSubstr("says nothing of a machine: d"));
}

TEST(ReplaySearch, RanksThatHangHaveTheirDeadlineAfterTheImportOfTorch) {
  ReplayQuestion question = Question(4);
  question.probe.at_most = Seconds{1800};
  Conversation talk(question);
  talk.AllReady();
  EXPECT_FALSE(talk.Play([](int, const ReplayRun&) { return std::nullopt; }).has_value());
  talk.Wait(450);  // 150 until they ran, and all that a run may take
  EXPECT_FALSE(talk.search_.TakeAnswer().has_value());
  const auto runs = talk.runs_;
  for (const auto& [node, run] : runs) talk.search_.Hear(node, talk.Well(run), talk.now_);
  const auto answer = talk.PlayWithBad({});
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(answer->note, HasSubstr("in 2 rounds, 4 runs")) << answer->note;
}

TEST(ReplaySearch, WhoCannotTakePartIsLeftOut) {
  Conversation talk(Question(6));
  for (int node = 0; node < 4; ++node) talk.search_.Hear(node, talk.ReadyOf(node), talk.now_);
  talk.search_.Refused(4, talk.now_);
  EXPECT_FALSE(talk.PlayWithBad({2}).has_value());
  EXPECT_THAT(talk.runs_, IsEmpty());
  talk.Wait(31);
  const auto answer = talk.PlayWithBad({2});
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(Names(answer->findings.at(0).suspects), ElementsAre("c"));
  EXPECT_THAT(answer->unanswered, ElementsAre("f"));
  EXPECT_THAT(answer->note, HasSubstr("node e took no part: its agent is of a version that knows no replay"));
  EXPECT_THAT(answer->note, HasSubstr("4 nodes replayed"));
}

TEST(ReplaySearch, OneNodeAloneIsNotCompared) {
  Conversation talk(Question(3));
  talk.AllReady([](int node, ReplayReady& ready) { ready.error = node > 0 ? "no port is free" : ""; });
  const auto answer = talk.PlayWithBad({});
  EXPECT_THAT(answer->findings, IsEmpty());
  EXPECT_THAT(answer->note, HasSubstr("it takes 2 nodes, and 1 can take part"));
}

TEST(ReplaySearch, APortThatWasTakenIsNoFailure) {
  Conversation talk(Question(4));
  talk.AllReady();
  int taken = 0;
  const auto answer = talk.Play([&](int node, const ReplayRun& run) {
    ReplayEnded ended = node == 1 ? talk.Crashed(1, run) : talk.Well(run);
    if (run.nodes == std::vector{2, 3} && node == 2 && taken++ < 2) {
      ended = talk.Crashed(2, run);
      ended.port_taken = true;
      ended.port = 200 + taken;
    }
    return ended;
  });
  EXPECT_THAT(Names(answer->findings.at(0).suspects), ElementsAre("b"));
  std::vector<int> ports;
  for (const auto& [node, run] : talk.runs_)
    if (run.nodes == std::vector{2, 3} && node == 3) ports.push_back(run.master_port);
  EXPECT_THAT(ports, ElementsAre(102, 201, 202));
}

TEST(ReplaySearch, WhatNeverComesAboutEndsIt) {
  Conversation talk(Question(4));
  talk.AllReady();
  const auto answer = talk.Play([&](int node, const ReplayRun& run) {
    ReplayEnded ended = talk.Well(run);
    if (node == 3) ended.error = "no room on the disk";
    return ended;
  });
  EXPECT_THAT(answer->findings, IsEmpty());
  EXPECT_THAT(answer->note, HasSubstr("no run came about in 3 attempts: node d: no room on the disk"));
}

TEST(ReplaySearch, WhatIsOfAnotherSearchIsNotHeard) {
  Conversation talk(Question(4));
  ReplayReady other = talk.ReadyOf(0);
  other.search = 6;
  for (int node = 0; node < 4; ++node) talk.search_.Hear(node, other, talk.now_);
  EXPECT_THAT(talk.search_.TakeWords(), IsEmpty());
  talk.AllReady();
  const auto answer = talk.Play([&](int node, const ReplayRun& run) {
    ReplayEnded late = talk.Crashed(node, run);
    late.search = 6;
    talk.search_.Hear(node, late, talk.now_);
    late.search = 7;
    late.run = run.run + 100;
    talk.search_.Hear(node, late, talk.now_);
    return talk.Well(run);
  });
  EXPECT_THAT(answer->findings, IsEmpty());
}

TEST(ReplaySearch, AnAgentThatBeganAnewRunsItAgainWithItsGroup) {
  Conversation talk(Question(4));
  talk.AllReady();
  const auto waiting = [&](int node, const ReplayRun& run) {
    return run.run == 1 && node == 1 ? std::nullopt : std::optional(talk.Well(run));
  };
  EXPECT_FALSE(talk.Play(waiting).has_value());
  ReplayReady back = talk.ReadyOf(1);
  back.run = 1;
  talk.search_.Hear(1, back, talk.now_);
  EXPECT_THAT(talk.search_.TakeWords(), IsEmpty()) << "it was only out of reach";
  back.run = 0;
  talk.search_.Hear(1, back, talk.now_);
  const auto answer = talk.Play(waiting);
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(answer->findings, IsEmpty());
  EXPECT_EQ(talk.Groups()[2], (std::vector{0, 1})) << "once more";
}

// ---- the end ----

TEST(ReplaySearch, ANodeThatIsLostEndsItWithWhatItKnows) {
  Conversation talk(Question(4));
  talk.AllReady();
  const auto until_confirmed = [&](int node, const ReplayRun& run) {
    if (run.run > 4) return std::optional<ReplayEnded>();
    return std::optional(node == 2 ? talk.Crashed(2, run) : talk.Well(run));
  };
  EXPECT_FALSE(talk.Play(until_confirmed).has_value());
  talk.search_.Lost(0);
  const auto answer = talk.Play(until_confirmed);
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(Names(answer->findings.at(0).suspects), ElementsAre("c"));
  EXPECT_FALSE(answer->findings[0].certain) << "it was not confirmed";
  EXPECT_THAT(answer->note, HasSubstr("it ended early: node a was lost meanwhile"));
}

TEST(ReplaySearch, ItEndsInItsTime) {
  Conversation talk(Question(4));
  const auto nobody = [](int, const ReplayRun&) { return std::optional<ReplayEnded>(); };
  talk.Wait(599);
  const auto early = talk.Play(nobody);
  ASSERT_TRUE(early.has_value()) << "nobody had answered after 30 s";
  EXPECT_THAT(early->unanswered, SizeIs(4));
  ReplayQuestion question = Question(4);
  question.probe.at_most = Seconds{24};  // so runs have 4 s, and 4 more for the answer
  Conversation slow(question);
  slow.AllReady();
  std::set<std::vector<int>> had;  // groups whose port was taken the first time
  std::optional<Probed> late = slow.Play(nobody);
  while (!late && slow.now_ < ToNanos(Seconds{40})) {
    slow.Wait(5);
    std::set<std::vector<int>> now;
    for (const auto& [node, run] : std::exchange(slow.runs_, {})) {
      ReplayEnded ended = node == 1 ? slow.Crashed(1, run) : slow.Well(run);
      ended.port_taken = run.index == 0 && !had.contains(run.nodes);
      now.insert(run.nodes);
      slow.search_.Hear(node, ended, slow.now_);
    }
    had.merge(now);
    late = slow.Play(nobody);
  }
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(slow.now_, Nanos{1'000} + ToNanos(Seconds{25}));
  EXPECT_THAT(late->note, HasSubstr("it ended early: it was to take 24 s at most"));
  EXPECT_FALSE(late->findings.at(0).certain) << "b was not confirmed";
}

// ---- what runs ----

// Of whoever hears the nodes.
TEST(ReplaySearch, WhatTimeAStopTookCountsForNobody) {
  Conversation talk(Question(4));
  talk.AllReady();
  EXPECT_FALSE(talk.Play([](int, const ReplayRun&) { return std::nullopt; }).has_value());
  const Seconds away{900};
  talk.search_.WasAway(ToNanos(away));
  talk.Wait(away.value);
  EXPECT_FALSE(talk.search_.TakeAnswer().has_value());
  for (const auto& [node, run] : std::exchange(talk.runs_, {})) talk.search_.Hear(node, talk.Well(run), talk.now_);
  const auto answer = talk.PlayWithBad({});
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(answer->note, Not(HasSubstr("ended early")));
}

TEST(ReplaySearch, TheScriptRunsWhereItsVersionHasAsked) {
  for (const int version : {0, 2}) {
    ReplayQuestion question = Question(4);
    question.version.number = version;
    Conversation talk(question);
    talk.AllReady(
        [](int node, ReplayReady& ready) { ready.opted_in = node == 3 ? std::vector{1, 2} : std::vector<int>(); });
    const auto answer = talk.PlayWithBad({});
    EXPECT_THAT(answer->note, HasSubstr(version == 2 ? "replayed the script" : "replayed a model of ours"));
    for (const auto& [node, run] : talk.runs_) {
      EXPECT_EQ(run.own_script, version == 2);
      EXPECT_EQ(run.version.number, version);
    }
  }
}

TEST(ReplaySearch, GroupsOfTheScriptHoldWholePipelines) {
  ReplayQuestion question = Question(8, 2);
  question.pipeline_ranks = 4;
  Conversation talk(question);
  talk.AllReady([](int, ReplayReady& ready) { ready.opted_in = {0}; });
  const auto answer = talk.PlayWithBad({5});
  for (const std::vector<int>& group : talk.Groups()) EXPECT_EQ(group.size() % 2, 0u);
  EXPECT_THAT(Names(answer->findings.at(0).suspects), ElementsAre("f"));

  Conversation one_missing(question);
  one_missing.AllReady([](int node, ReplayReady& ready) {
    ready.opted_in = {0};
    ready.error = node == 0 ? "no port is free" : "";
  });
  EXPECT_THAT(one_missing.PlayWithBad({})->note, HasSubstr("node h was left out, for pipelines take 2 nodes"));
}

TEST(ReplaySearch, AModelOfOursRunsWhereTheScriptMakesNoGroups) {
  ReplayQuestion question = Question(4);
  question.pipeline_ranks = 4;
  Conversation talk(question);
  talk.AllReady([](int, ReplayReady& ready) { ready.opted_in = {0}; });
  const auto answer = talk.PlayWithBad({1});
  EXPECT_THAT(Names(answer->findings.at(0).suspects), ElementsAre("b"));
  EXPECT_THAT(answer->note, HasSubstr("a model of ours"));
  EXPECT_THAT(answer->note, HasSubstr("the script can't be replayed by groups"));
}

TEST(ReplaySearch, TheQuestionIsOfTheStateThatProbes) {
  State state;
  state.spec.nodes = {{"a", 2, "t"}, {"b", 2, "u"}};
  state.spec.layout = R"({"tp":2,"cp":1,"ep":1,"dp":1,"pp":2,"vpp":1,"order":"tp-cp-ep-dp-pp"})";
  state.versions.push_back({.version = {1, "/new", "abc"}});
  state.running = 1;
  const ReplayQuestion question = QuestionOf(state, {EpochId(2), Rung::kReplay, 3, kAtMost}, 9);
  EXPECT_EQ(std::pair(question.id, question.probe.search), (std::pair<uint64_t, uint64_t>(9, 9)));
  EXPECT_EQ(question.version.code, "/new");
  EXPECT_EQ(question.pipeline_ranks, 4);
  EXPECT_EQ(std::pair(question.nodes[1].name, question.nodes[1].ranks), std::pair(std::string("b"), 2));
}

}  // namespace
}  // namespace lockstep::control
