// Streams whose steps are written to a file, too.
#include <fcntl.h>

#include <filesystem>
#include <string>

#include "lockstep/stage/spill.h"
#include "lockstep/stage/stream_fixture.h"

namespace lockstep::stage {
namespace {

using ::testing::HasSubstr;

TEST_F(Stream, SpillsEveryStep) {
  const std::string path = folder_ / "all.spill";
  ls_stage_options how = Options(LS_STAGE_REPLAY, 1);
  how.spill = path.c_str();
  ls_stage* writer = Open(how);
  ls_stage* reader = Attach();
  for (int64_t step = 0; step < 10; ++step) ASSERT_EQ(LS_STAGE_OK, Put(writer, 3 * step)) << ls_stage_last_error();
  EXPECT_EQ(10U, Facts(reader).spilled);
  EXPECT_EQ(path, Facts(reader).spill);
  ls_stage_close(writer, 0);
  ls_stage_detach(reader);
  EXPECT_EQ(LS_SPILL_PAGE + 10 * ls_spill_stride(64), std::filesystem::file_size(path));
  ls_stage* other = nullptr;
  EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_open("s", 0, 1, LS_STAGE_F32, 2, kShape, &how, 1, &other));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("name another, or remove it"));
}

TEST_F(Stream, AFullDiskEndsTheSpillAndNotTheSimulation) {
  ls_stage_options how = Options(LS_STAGE_REPLAY, 2);
  const std::string path = folder_ / "full.spill";
  how.spill = path.c_str();
  ls_stage* writer = Open(how);
  ls_stage* reader = Attach();
  close(writer->spill);
  writer->spill = open("/dev/full", O_RDWR);
  EXPECT_EQ(LS_STAGE_SPILL, Put(writer, 0));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("ends after 0 steps: No space left on device"));
  EXPECT_EQ(LS_STAGE_SPILL, Put(writer, 1));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("an earlier one could not be written"));
  EXPECT_EQ(0, Next(reader));
  EXPECT_EQ(2U, Facts(reader).spill_failures);
  ls_stage_close(writer, 0);
  ls_stage_detach(reader);
}

TEST_F(Stream, ALimitOnFilesEndsTheSpillAndNotTheSimulation) {
  ls_stage_options how = Options(LS_STAGE_REPLAY, 2);
  const std::string path = folder_ / "limited.spill";
  how.spill = path.c_str();
  ls_stage* writer = Open(how);
  ls_stage* reader = Attach();
  {
    const TestLimit limit(RLIMIT_FSIZE,
                          LS_SPILL_PAGE + ls_spill_stride(64) + 70);  // the second record's parts not whole
    EXPECT_EQ(LS_STAGE_OK, Put(writer, 0));
    EXPECT_EQ(LS_STAGE_SPILL, Put(writer, 1));
    EXPECT_THAT(ls_stage_last_error(), HasSubstr("ends after 1 steps: File too large"));
  }
  EXPECT_EQ(0, Next(reader));
  EXPECT_EQ(1, Next(reader));
  EXPECT_EQ(1U, Facts(reader).spill_failures);
  EXPECT_EQ(1U, Facts(reader).spilled);
  ls_stage_close(writer, 0);
  ls_stage_detach(reader);
}

TEST_F(Stream, ALimitOnFilesIsAnErrorOfOpen) {
  ls_stage_options how = Options(LS_STAGE_LATEST, 2);
  const std::string path = folder_ / "limited.spill";
  ls_stage* stream = nullptr;
  {
    const TestLimit limit(RLIMIT_FSIZE, 4096);
    EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_open("s", 0, 1, LS_STAGE_F32, 2, kShape, &how, 1, &stream));
    EXPECT_THAT(ls_stage_last_error(), HasSubstr("File too large"));
  }
  how.spill = path.c_str();
  ls_stage* first = Open(how, 0, 2);
  EXPECT_EQ(LS_STAGE_OK, ls_stage_close(first, 0));
  std::filesystem::remove(path);
}

// Its parts were flushed, and the lock could not be had back: as after a commit that answered LS_STAGE_TIMEOUT.
TEST_F(Stream, AStepThatWasFlushedAndNotShownIsCommittedAgain) {
  for (const bool again : {true, false}) {
    const std::string path = folder_ / (again ? "again.spill" : "abandoned.spill");
    ls_stage_options how = Options(LS_STAGE_LATEST, 2);
    how.spill = path.c_str();
    ls_stage* writer = Open(how);
    ls_stage* reader = Attach();
    Begin(writer, 0);
    writer->slots[writer->open_slot].state = LS_SLOT_FLUSHING;
    writer->committed[writer->open_slot] = 1;
    EXPECT_EQ(LS_STAGE_OK, again ? ls_stage_commit(writer) : ls_stage_abandon(writer));
    EXPECT_EQ(again ? 0 : -LS_STAGE_TIMEOUT, Next(reader));
    EXPECT_EQ(again ? 1 : 0, Taken(writer).first);
    EXPECT_EQ(again ? 1U : 0U, Facts(reader).spilled);
    EXPECT_EQ(again ? 0U : 1U, Facts(reader).incomplete);
    ls_stage_close(writer, 0);
    ls_stage_detach(reader);
  }
}

TEST_F(Stream, AnOpenThatFailsLeavesNoSpillFile) {
  ls_stage_options how = Options(LS_STAGE_LATEST, 2);
  const std::string path = folder_ / "all.spill", deep = folder_ / std::string(250, 'd');
  how.spill = path.c_str();
  ls_stage* stream = nullptr;
  const int room = dup(0), spill = dup(0);
  close(room);
  close(spill);
  {
    // Those of the folder and of the spill file: none is left to look up in /proc who we are.
    const TestLimit limit(RLIMIT_NOFILE, static_cast<rlim_t>(spill) + 1);
    EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_open("s", 0, 1, LS_STAGE_F32, 2, kShape, &how, 1, &stream));
    EXPECT_THAT(ls_stage_last_error(), HasSubstr("by which others know us, cannot be read: Too many open files"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  how.spill = deep.c_str();
  EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_open("s", 0, 1, LS_STAGE_F32, 2, kShape, &how, 1, &stream));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("expected a path of less than 256 bytes"));
  EXPECT_FALSE(std::filesystem::exists(deep));
}

// It would leave a hole in the file where it is the last to commit.
TEST_F(Stream, AllRanksSpillOrNone) {
  const std::string path = folder_ / "all.spill";
  ls_stage_options how = Options(LS_STAGE_LATEST, 2);
  how.spill = path.c_str();
  ls_stage* first = Open(how, 0, 2);
  how.spill = nullptr;
  ls_stage* second = nullptr;
  EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_open("s", 1, 2, LS_STAGE_F32, 2, kShape, &how, 1, &second));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("k 2, a spill file; this rank says"));
  ls_stage_close(first, 0);
}

// ---- the folder ----

}  // namespace
}  // namespace lockstep::stage
