#include "lockstep/node/run_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "lockstep/agent/spec.h"
#include "lockstep/agent/wire.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/node/run_spec.h"

namespace lockstep::node {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class RunDir : public testing::Test {
 protected:
  RunDir() { setenv("XDG_RUNTIME_DIR", base_.path().c_str(), 1); }

  // The n-th of all.
  std::string Make(const std::string& name, int n) {
    const std::string spec = base_.Write("lockstep/" + name + "/run.json", "{}");
    fs::last_write_time(spec, fs::file_time_type() + std::chrono::seconds(n));
    return base_ / "lockstep/" + name;
  }

  const TestFolder base_;
};

TEST_F(RunDir, TheNewestIsMeantUnlessItHasEndedAndAnotherGoesOn) {
  EXPECT_THAT(Message(FindLiveRunDir("").status()), HasSubstr("no run under " + base_ / "lockstep"));
  const std::string oldest = Make("a", 1), middle = Make("b", 2), newest = Make("c", 3);
  EXPECT_EQ(*FindRunDir(""), newest);
  EXPECT_EQ(*FindLiveRunDir(""), newest) << "none goes on";
  const auto watched = agent::ListenAt(oldest + "/" + agent::kControlSocket);
  EXPECT_EQ(Message(FindLiveRunDir("").status()), "the newest run, " + newest + ", has ended; if you mean " + oldest +
                                                      ", which goes on, say --run " + oldest);
  EXPECT_EQ(*FindLiveRunDir(oldest), oldest);
  {
    const auto unwatched = agent::ListenAt(middle + "/worker.sock");
    EXPECT_THAT(Message(FindLiveRunDir("").status()), HasSubstr("if you mean " + middle))
        << "its workers go on, though nobody watches";
  }
  const auto also_watched = agent::ListenAt(newest + "/" + agent::kControlSocket);
  EXPECT_EQ(*FindLiveRunDir(""), newest);
  EXPECT_EQ(*FindRunDir(""), newest);
  EXPECT_EQ(*FindLiveRunDir(newest), newest) << "as it was named";
}

TEST_F(RunDir, IsNotWhereItWouldGoWithItsUsersLastSession) {
  EXPECT_EQ(RunsBase(), base_ / "lockstep");
  EXPECT_FALSE(GoesAtLogout(base_.path(), 0, base_.path())) << "of somebody's own making";
  EXPECT_TRUE(GoesAtLogout("/run/user/0", 0, base_.path()));
  base_.Write("root", "");
  EXPECT_FALSE(GoesAtLogout("/run/user/0", 0, base_.path())) << "root lingers";
}

// Nobody can go on with it, and its workers are there.
TEST_F(RunDir, ARunWithoutAJournalNamesItsStarter) {
  agent::RunSpec spec;
  spec.run_dir = Make("a", 1);
  ASSERT_TRUE(KeepSpec(spec).ok());
  const auto starter = agent::ListenAt(spec.run_dir + "/worker.sock");
  const std::string what = HowToGoOn(spec.run_dir);
  EXPECT_THAT(what, HasSubstr("it cannot be resumed (cannot open the journal " + spec.run_dir));
  EXPECT_THAT(what, HasSubstr(fmt::format("`kill {}`", getpid())));
  EXPECT_EQ(Message(CheckJournal(spec.run_dir)), spec.run_dir + ": " + what);
}

TEST_F(RunDir, ACopyIsNotTheRun) {
  agent::RunSpec spec;
  spec.run_dir = Make("a", 1);
  const std::string copy = Make("b", 2), link = base_ / "link";
  fs::create_symlink(spec.run_dir, link);
  EXPECT_TRUE(CheckInPlace(link, spec).ok());
  EXPECT_EQ(Message(CheckInPlace(copy, spec)),
            copy + " was copied or moved: its run was started in " + spec.run_dir + "; name that directory");
  fs::remove_all(spec.run_dir);
  EXPECT_THAT(Message(CheckInPlace(copy, spec)), HasSubstr("expected it there: move it back"));
}

}  // namespace
}  // namespace lockstep::node
