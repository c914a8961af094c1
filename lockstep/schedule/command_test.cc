#include "lockstep/schedule/command.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "lockstep/schedule/fake_programs.h"

namespace lockstep::schedule {
namespace {

using testing::HasSubstr;

TEST(Command, HearsWhatAProgramSays) {
  FakePrograms programs;
  programs.Add("say", "printf '%s/' \"$@\"; cat");
  const auto said = RunCommand({"say", "a b", "$(c)", "'"}, {.input = "from the input"});
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_EQ(*said, "a b/$(c)/'/from the input") << "no shell has looked at it";
}

TEST(Command, NamesTheProgramThatFails) {
  FakePrograms programs;
  programs.Add("refuse", "echo 'refuse: error: Invalid user id' >&2; echo more >&2; exit 1");
  EXPECT_EQ(Message(RunCommand({"refuse"}).status()), "refuse: error: Invalid user id");
  programs.Add("quiet", "exit 3");
  EXPECT_EQ(Message(RunCommand({"quiet"}).status()), "quiet: exit status 3");
  programs.Add("die", "kill -9 $$");
  EXPECT_EQ(Message(RunCommand({"die"}).status()), "die: killed by signal 9");
  EXPECT_THAT(Message(RunCommand({"no-such-program"}).status()), HasSubstr("no-such-program"));
}

TEST(Command, EndsWhatHangsWithAllThatItStarted) {
  FakePrograms programs;
  programs.Add("hang", "sleep 1000 & echo $! >$folder/child; wait");
  const absl::Status late = RunCommand({"hang"}, {.at_most = Seconds{0.3}}).status();
  EXPECT_EQ(Message(late), "hang has not answered within 0.3 s");
  const pid_t child = std::stoi(programs.Text("child"));
  for (int i = 0; i < 1000 && kill(child, 0) == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_NE(kill(child, 0), 0) << "somebody reaps it";
}

TEST(Command, DoesNotWaitForWhatIsLeftBehind) {
  FakePrograms programs;
  programs.Add("leave", "sleep 1000 & echo done");
  const auto said = RunCommand({"leave"}, {.at_most = Seconds{20}});
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_EQ(*said, "done\n");
}

TEST(Command, CanBeStopped) {
  FakePrograms programs;
  programs.Add("hang", "sleep 1000");
  std::stop_source stop;
  stop.request_stop();
  EXPECT_TRUE(absl::IsCancelled(RunCommand({"hang"}, {.at_most = Seconds{100}}, stop.get_token()).status()));
}

TEST(Command, ShieldsFromSignals) {
  FakePrograms programs;
  programs.Add("survive", "kill -TERM $$; echo still here");
  EXPECT_TRUE(RunCommand({"survive"}, {.takes_signals = false}).ok());
  EXPECT_FALSE(RunCommand({"survive"}).ok());
}

TEST(Command, HearsMuch) {
  FakePrograms programs;
  programs.Add("much", "i=0; while [ $i -lt 20000 ]; do echo 0123456789; i=$((i+1)); done");
  const auto said = RunCommand({"much"});
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_EQ(said->size(), 220000u);
}

}  // namespace
}  // namespace lockstep::schedule
