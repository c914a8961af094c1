#include "lockstep/node/head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace lockstep::node {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

class HeadOfTwoNodes : public testing::Test {
 protected:
  HeadOfTwoNodes() {
    std::filesystem::remove(path_);
    Head first(options_, clock_, Listener());
    first.Keep(Journal());
    control::JobSpec job;
    job.name = "job";
    job.nodes = {{"a", 1, "a's"}, {"b", 1, "b's"}};
    job.ranks = 2;
    EXPECT_TRUE(first.Begin(job).ok());
  }

  std::unique_ptr<store::Journal> Journal() { return *store::OpenSqliteJournal(path_, store::JournalMode::kWrite); }
  Head::Listener Listener() {
    return {.tell = [](int, const control::Told&) {},
            .seat = [](const control::Seat&) {},
            .vacate = [](const control::Vacate&) {},
            .resize = [](const std::vector<int>&) {},
            .line = [this](const std::string& text) { lines_.push_back(text); }};
  }

  const std::string path_ = testing::TempDir() + "/head." + std::to_string(getpid());
  RunOptions options_;
  FakeClock clock_;
  std::vector<std::string> lines_;
};

TEST_F(HeadOfTwoNodes, WhoTakesOverSaysForWhomItWaitsAndNamesAllThatAreLost) {
  Head head(options_, clock_, Listener());
  head.Keep(Journal());
  ASSERT_TRUE(head.Resume().ok());
  const auto absent = HasSubstr("of node a, b have not come back: waits until 1970-01-01T00:01:06.000Z");
  head.Tick();
  EXPECT_THAT(lines_, Not(Contains(absent))) << "they may be on their way";
  clock_.Advance(Seconds{2});
  head.Tick();
  EXPECT_THAT(lines_, Contains(absent).Times(1));
  clock_.Advance(Seconds{63});
  head.Tick();
  EXPECT_EQ(head.state().verdict, "node a is lost: its agent has not been heard of for 65 s; nor of node b");
}

TEST_F(HeadOfTwoNodes, AStopSaysForWhomItWaits) {
  Head head(options_, clock_, Listener());
  head.Keep(Journal());
  ASSERT_TRUE(head.Resume().ok());
  head.Hear(0, control::Said(control::AllSaid{}));
  head.Handle(control::EventBody(control::StopAsked{SIGTERM}));
  EXPECT_THAT(lines_, Contains(HasSubstr("of node b has not come back: waits until")));
}

}  // namespace
}  // namespace lockstep::node
