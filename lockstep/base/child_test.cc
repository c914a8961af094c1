#include "lockstep/base/child.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <thread>

#include "lockstep/base/file.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

absl::StatusOr<ChildEnd> Shell(const std::string& script, Seconds at_most = Seconds{30},
                               const std::stop_token& stop = {}) {
  return RunChild({"sh", "-c", script}, {.at_most = at_most}, stop);
}

TEST(Child, WhatItPrintsAndHowItEnds) {
  const auto end = Shell("echo out; echo err >&2; exit 3");
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->out, "out\n");
  EXPECT_EQ(end->err, "err\n");
  EXPECT_EQ(end->code, 3);
  EXPECT_EQ(end->signal, 0);
  EXPECT_EQ(Shell("kill -9 $$")->signal, SIGKILL);
}

TEST(Child, LongOutput) {
  EXPECT_THAT(Shell("head -c 3000000 /dev/zero; head -c 500000 /dev/zero >&2")->out, SizeIs(3000000));
}

TEST(Child, NoSuchProgram) {
  const auto end = RunChild({"/nowhere/program"});
  EXPECT_TRUE(absl::IsNotFound(end.status())) << end.status();
  EXPECT_THAT(Message(end.status()), HasSubstr("/nowhere/program"));
}

TEST(Child, OverdueItIsKilledWithAllItHasStarted) {
  const auto begin = std::chrono::steady_clock::now();
  const auto end = Shell("sleep 60 & sleep 60; true", Seconds{0.1});
  EXPECT_TRUE(absl::IsDeadlineExceeded(end.status())) << end.status();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(Child, IsStoppedWhenAsked) {
  std::stop_source stop;
  std::jthread asks([&] { stop.request_stop(); });
  EXPECT_TRUE(absl::IsCancelled(Shell("sleep 60", Seconds{60}, stop.get_token()).status()));
}

TEST(Child, WhoKeepsItsOutputOpenIsNotWaitedFor) {
  const auto end = Shell("sleep 5 & echo done", Seconds{60});
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->out, "done\n");
}

TEST(Child, HasWhatIsHandedOver) {
  const Pipe pipe = MakePipe("a pipe").value();
  const ChildEnd end = RunChild({"sh", "-c", "echo heard >&3"}, {.hands_over = pipe.write.get()}).value();
  EXPECT_EQ(end.code, 0) << end.err;
  std::array<char, 16> heard{};
  EXPECT_EQ(std::string_view(heard.data(), static_cast<size_t>(read(pipe.read.get(), heard.data(), heard.size()))),
            "heard\n");
}

TEST(Child, SaysHowItEnded) {
  EXPECT_EQ(HowItEnded("it", {3, 0, "", "no disk"}), "it ended with status 3: no disk");
  EXPECT_EQ(HowItEnded("it", {0, SIGKILL, "", ""}), "it died of signal 9 (Killed)");
}

TEST(Child, KnowsItsOwnBinary) { EXPECT_THAT(OwnBinary().value(), ::testing::EndsWith("/base_child_test")); }

TEST(Child, ReadsNothing) { EXPECT_EQ(Shell("cat; echo $?")->out, "0\n"); }

}  // namespace
}  // namespace lockstep
