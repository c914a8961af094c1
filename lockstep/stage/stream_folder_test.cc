// The folder that streams lie in.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/stage/stream_fixture.h"

namespace lockstep::stage {
namespace {

using ::testing::HasSubstr;

// Wherever the two sides were started from: the one in a login's session, say, and the other by cron.
TEST_F(Stream, TheDefaultFolderIsOneAndStays) {
  const std::string name = "test-" + std::to_string(getpid());
  unsetenv("LOCKSTEP_STAGE_DIR");
  setenv("XDG_RUNTIME_DIR", folder_.path().c_str(), 1);
  const ls_stage_options how = Options(LS_STAGE_LATEST, 1);
  ls_stage *writer = nullptr, *reader = nullptr;
  ASSERT_EQ(LS_STAGE_OK, ls_stage_open(name.c_str(), 0, 1, LS_STAGE_F32, 2, kShape, &how, 1, &writer));
  EXPECT_EQ("/dev/shm/lockstep-stage-" + std::to_string(getuid()) + "/" + name + ".stream", writer->segment.path);
  unsetenv("XDG_RUNTIME_DIR");
  ASSERT_EQ(LS_STAGE_OK, ls_stage_attach(name.c_str(), 0, 1, 1, &reader)) << ls_stage_last_error();
  ls_stage_close(writer, 0);
  ls_stage_detach(reader);
}

// In /dev/shm anybody may make a name that leads to a folder of ours.
TEST_F(Stream, TheDefaultFolderIsNoLink) {
  const std::filesystem::path link = "/dev/shm/lockstep-stage-test-" + std::to_string(getpid());
  std::filesystem::create_directory_symlink(folder_.path(), link);
  setenv("LOCKSTEP_STAGE_DIR", link.c_str(), 1);
  ls_stage* reader = nullptr;
  EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_attach("s", 0, 1, 0, &reader));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("Not a directory; LOCKSTEP_STAGE_DIR names another folder"));
  std::filesystem::remove(link);
}

TEST_F(Stream, AFolderThatOthersMayWriteTo) {
  const std::filesystem::path room = folder_ / "room";
  std::filesystem::create_directory(room);
  chmod(room.c_str(), 0777);
  ls_stage* reader = nullptr;
  EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_attach("s", 0, 1, 0, &reader));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("must be yours alone; LOCKSTEP_STAGE_DIR names another folder"));
  std::filesystem::remove(room);
}

TEST_F(Stream, AFolderThatIsNamedFromWhereTheProcessIs) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  setenv("LOCKSTEP_STAGE_DIR", "room", 1);
  ls_stage* writer = Open(Options(LS_STAGE_LATEST, 2));
  std::filesystem::current_path(before);
  setenv("LOCKSTEP_STAGE_DIR", (folder_ / "elsewhere").c_str(), 1);
  ls_stage_close(writer, 0);  // and the fixture looks that nothing is left of it
  setenv("LOCKSTEP_STAGE_DIR", ("/tmp/" + std::string(300, 'x')).c_str(), 1);
  ls_stage* reader = nullptr;
  EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_attach("s", 0, 1, 0, &reader));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("expected a folder of less than 256 bytes"));
}

TEST_F(Stream, WhatIsNotOursInTheFolderStays) {
  const std::filesystem::path room = folder_ / "room";
  std::filesystem::create_directory(room);
  chmod(room.c_str(), 0700);
  const std::vector<std::string> others = {"zeros.model", "empty.stream", "short.stream", "pipe.stream"};
  std::ofstream(room / others[0]) << std::string(100'000, '\0');
  std::ofstream(room / others[1]).flush();
  std::ofstream(room / others[2]) << "short";
  ASSERT_EQ(0, mkfifo((room / others[3]).c_str(), 0600));
  ls_stage* writer = Open(Options(LS_STAGE_LATEST, 2));
  ls_stage* reader = nullptr;
  for (const char* name : {"empty", "short", "pipe"}) {
    EXPECT_EQ(LS_STAGE_REFUSED, ls_stage_attach(name, 0, 1, 0, &reader));
    EXPECT_THAT(ls_stage_last_error(), HasSubstr(std::string(name) + ".stream is damaged: remove it"));
  }
  ls_stage_close(writer, 0);
  for (const std::string& name : others) EXPECT_TRUE(std::filesystem::exists(room / name)) << name;
  std::filesystem::remove_all(room);
}

// Whoever leaves removes it, also where another has found it there and is about to open it.
TEST_F(Stream, ManyComeAndGoInAFolderThatIsNotThere) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([] {
      for (int times = 0; times < 300; ++times) {
        char folder[LS_FOLDER];
        const int room = ls_room_enter(folder, ls_stage_deadline(60));
        ASSERT_LE(0, room) << ls_stage_last_error();
        ls_room_leave(room, folder);
      }
    });
  }
}

// By who cleans up, or at a logout.
TEST_F(Stream, AFolderThatIsRemovedIsInNobodysWay) {
  ls_stage* writer = Open(Options(LS_STAGE_LATEST, 2));
  ls_stage* reader = Attach();
  std::filesystem::remove_all(folder_ / "room");
  EXPECT_EQ(LS_STAGE_OK, Put(writer, 0));
  EXPECT_EQ(0, Next(reader));
  ls_stage* other = Open(Options(LS_STAGE_LATEST, 2));
  Put(other, 7);
  ls_stage_close(writer, 0);
  EXPECT_EQ(-LS_STAGE_END, Next(reader));
  ls_stage_detach(reader);
  reader = Attach();  // the one of that name that is there by now is not touched
  EXPECT_EQ(7, Next(reader));
  ls_stage_close(other, 0);
  ls_stage_detach(reader);
}

// It has the folder open, and its lock with it, to its end.
TEST_F(Stream, AChildThatWasForkedWhileTheFolderWasLockedDoesNotKeepIt) {
  ls_stage* writer = Open(Options(LS_STAGE_LATEST, 2));
  char folder[LS_FOLDER];
  const int room = ls_room_enter(folder, ls_stage_deadline(1));
  const Child child([](Child& self) { self.Stop(); });
  ls_room_leave(room, folder);
  ls_stage_detach(Attach());
  ls_stage_close(writer, 0);
}

// ---- bad input ----

}  // namespace
}  // namespace lockstep::stage
