// Frames against goldens in testdata/, without colours. LOCKSTEP_UPDATE_GOLDEN=1 writes them anew: look at the diff.
#include "lockstep/top/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/term/text.h"
#include "lockstep/top/screen.h"

namespace lockstep::top {
namespace {

Json Incident(int id, bool open) {
  return {
      {"id", id},
      {"headline", "rank 17 was stopped (state T) while others wait: state T for 1.7 s"},
      {"closed", open ? Json() : Json("2026-01-01T00:00:00.000Z")},
      {"evidence", {"state T for 1.7 s", "all others wait in the same collective"}},
      {"actions", {{{"kind", "restart"}, {"text", "restart of all ranks in epoch 2 from step 116"}, {"done", true}}}},
      {"phases", {{"detect_s", 1.75}, {"decide_s", 0.043}, {"restart_s", 0.204}, {"recompute_s", 0.09}}}};
}

// Rank 17 (or 1) is stopped one step behind, rank 5 (or 0) is slow.
Known Job(int count, int incidents) {
  Json ranks = Json::array();
  for (int rank = 0; rank < count; ++rank) {
    const bool stopped = rank == std::min(17, count - 3), slow = rank == (count > 5 ? 5 : 0);
    ranks.push_back({{"rank", rank},
                     {"node", std::to_string(rank / 8)},
                     {"pid", 1000 + rank},
                     {"state", stopped ? "stopped" : "running"},
                     {"step", stopped ? 116 : 117},
                     {"step_time_s", slow ? 0.24 : 0.12}});
  }
  Known known;
  known.status = {{"job", "train_gpt"}, {"state", "running"},
                  {"epoch", 2},         {"step", 116},
                  {"loss", 2.0812},     {"ettr", {{"cumulative", 0.918}}},
                  {"ranks", ranks},     {"checkpoint", {{"step", 115}}}};
  known.incidents = Json::array();
  for (int id = 1; id <= incidents; ++id) known.incidents.push_back(Incident(id, id == incidents));
  known.folding = ByNode(ranks);
  return known;
}

std::string Painted(const Frame& frame) {
  std::string text;
  for (const std::string& line : frame.lines) text += term::Colourless(line) + "\n";
  return text;
}

void ExpectGolden(const std::string& name, const Known& known, Size size, const Look& look = {}) {
  const std::string path = std::string(LOCKSTEP_TESTDATA) + "/" + name + ".frame";
  const std::string painted = Painted(MakeFrame(known, size, look));
  if (std::getenv("LOCKSTEP_UPDATE_GOLDEN") != nullptr) {
    ASSERT_TRUE(WriteFileAtomically(path, painted).ok());
  }
  EXPECT_EQ(painted, ReadFile(path).value_or("there is no such file")) << path;
}

TEST(Golden, FourRanks) { ExpectGolden("ranks_4", Job(4, 1), {12, 100}); }
TEST(Golden, FourRanksBesideAPlan) {
  Known known = Job(4, 0);
  known.status["plan"] = {{"predicted_s", 0.1}, {"drift", 0.2}, {"verdict", "slower"}};
  ExpectGolden("ranks_4_plan", known, {8, 120});
}
TEST(Golden, FourRanksInANarrowTerminal) { ExpectGolden("ranks_4_narrow", Job(4, 2), {12, 40}); }
TEST(Golden, SixtyFourRanks) { ExpectGolden("ranks_64", Job(64, 0), {24, 80}); }
TEST(Golden, SixtyFourRanksInAWideTerminal) { ExpectGolden("ranks_64_wide", Job(64, 6), {40, 200}); }
TEST(Golden, FourThousandRanks) { ExpectGolden("ranks_4096", Job(4096, 2), {24, 80}); }
TEST(Golden, OneNodeOfFourThousandRanks) {
  ExpectGolden("node_2", Job(4096, 1), {16, 100},
               {.selected = 1, .within = {16, 17, 18, 19, 20, 21, 22, 23}, .within_name = "node 2"});
}
TEST(Golden, Incidents) {
  ExpectGolden("incidents", Job(64, 3), {16, 100}, {.screen = Screen::kIncidents, .selected = 1});
}
TEST(Golden, Stacks) {
  const Look look{
      .screen = Screen::kStacks, .scroll = 1, .stacks_of = 2, .stacks = "rank 2\n Python\n  main\n\033[2J\n"};
  ExpectGolden("stacks", Job(4, 0), {8, 60}, look);
}
TEST(Golden, Help) { ExpectGolden("help", Job(4, 0), {16, 80}, {.screen = Screen::kHelp}); }

TEST(Frame, SaysHowARunEnded) {
  Known known = Job(4, 0);
  known.status["state"] = "finished";
  known.status["verdict"] = "all 3 restarts that were allowed are used up";
  EXPECT_THAT(Painted(MakeFrame(known, {8, 100}, {})),
              testing::StartsWith("train_gpt  finished: all 3 restarts that were allowed are used up  epoch 2  "));
}

TEST(Frame, ARankWithoutAStepHasNoStepTime) {
  Known known = Job(16, 0);
  for (Json& rank : known.status["ranks"]) rank["step_time_s"] = 0;
  const std::string none = Painted(MakeFrame(known, {6, 100}, {}));  // folded by node
  EXPECT_THAT(none, testing::HasSubstr("step time - median, - longest"));
  EXPECT_THAT(none, testing::Not(testing::HasSubstr("0 ms")));
  for (int rank = 0; rank < 4; ++rank) known.status["ranks"][rank]["step_time_s"] = 0.12;
  const std::string some = Painted(MakeFrame(known, {24, 100}, {}));
  EXPECT_THAT(some, testing::HasSubstr("step time 120 ms median, 120 ms longest"));
  EXPECT_THAT(some, testing::Not(testing::HasSubstr(" 0 ms")));
}

// A count of columns that does not know Fit().
size_t Columns(const std::string& line) {
  size_t columns = 0;
  for (const char byte : term::Colourless(line)) columns += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  return columns;
}

TEST(Frame, FitsEveryTerminal) {
  for (const int count : {1, 4, 64, 4096}) {
    const Known known = Job(std::max(count, 4), 9);
    for (const Size size : {Size{1, 1}, Size{2, 40}, Size{5, 10}, Size{24, 80}, Size{24, 40}, Size{60, 200}}) {
      for (const Screen screen : {Screen::kRanks, Screen::kIncidents, Screen::kStacks, Screen::kHelp}) {
        const Frame frame = MakeFrame(known, size, {.screen = screen, .selected = 99, .scroll = 99});
        ASSERT_EQ(frame.lines.size(), size.rows);
        for (const std::string& line : frame.lines) EXPECT_LE(Columns(line), size.columns) << line;
      }
    }
  }
}

TEST(Frame, OpensWhatIsSelected) {
  const Known known = Job(4096, 0);
  EXPECT_THAT(MakeFrame(known, {24, 80}, {}).selected.ranks, ::testing::ElementsAre(17));
  EXPECT_GT(MakeFrame(known, {24, 80}, {.selected = 999}).selected.ranks.size(), 1u);
}

TEST(Frame, WithoutAJobItIsEmptyAndWhole) {
  const Frame frame = MakeFrame({Json::object(), Json::array(), ByNode(Json::array()), "nobody watches"}, {10, 40}, {});
  EXPECT_EQ(frame.selectable, 0u);
  EXPECT_EQ(term::Colourless(frame.lines.back()), "nobody watches");
}

TEST(Difference, IsOnlyWhatChanged) {
  EXPECT_EQ(Difference({"a", "b"}, {"a", "c"}), "\033[2;1Hc\033[K");
  EXPECT_EQ(Difference({"a"}, {"a"}), "");
  EXPECT_EQ(Difference({}, {"a"}), "\033[2J\033[1;1Ha\033[K");
}

}  // namespace
}  // namespace lockstep::top
