#include "lockstep/agent/code_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "lockstep/base/file.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::agent {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class CodeCopy : public testing::Test {
 protected:
  CodeCopy() {
    spec_.run_dir = Folder("run");
    spec_.cwd = root_.path();
    spec_.command = {"old/train.py", "--lr", "1"};
    spec_.node_name = "a";
    Write("old/train.py", "print(1)");
    Write("new/train.py", "print(2)");
    Write("new/parts/model.py", "x = 2");
  }

  std::string Folder(const std::string& name) {
    fs::create_directories(root_ / name);
    return root_ / name;
  }
  void Write(const std::string& name, const std::string& text) { root_.Write(name, text); }
  void WriteProgram(const std::string& name, int mb) {
    Write(name, "\177ELF and so on");
    fs::permissions(Path(name), fs::perms(0755));
    fs::resize_file(Path(name), static_cast<uintmax_t>(mb) << 20);
  }
  std::string Path(const std::string& name) { return root_ / name; }
  std::string HashOf(const std::string& name) { return LookAtCode(EntryOf(spec_), Path(name))->hash; }
  control::CodeKept KeepFirst(uint64_t epoch = 1) { return KeepFirstCode(spec_, EpochId(epoch)); }
  // Of another node, whose directory this is.
  control::CodeKept KeepFirstOf(const std::string& name) {
    RunSpec spec = spec_;
    spec.run_dir = Folder("run of " + name);
    spec.command.front() = name + "/train.py";
    return KeepFirstCode(spec, EpochId(1));
  }
  control::Version Version(const std::string& name) { return {.number = 1, .code = Path(name), .hash = HashOf(name)}; }

  const TestFolder root_;
  RunSpec spec_;
};

TEST_F(CodeCopy, OutlivesChangesInPlace) {
  const control::Version version = Version("new");
  const std::string path = *PathOfCode(spec_, version);
  EXPECT_EQ(fs::path(path).parent_path(), spec_.run_dir + "/code");
  Write("new/train.py", "print(3)");
  EXPECT_EQ(*ReadFile(path + "/train.py"), "print(2)");
  EXPECT_EQ(*ReadFile(path + "/parts/model.py"), "x = 2");
  EXPECT_EQ(*PathOfCode(spec_, version), path) << "it is there already";
  EXPECT_NE(*PathOfCode(spec_, Version("new")), path);
}

TEST_F(CodeCopy, LinksWhatIsNoCode) {
  Write("new/data/train.bin", "numbers");
  Write("new/__pycache__/train.cpython-311.pyc", "old");
  Write("new/.git/config", "hidden");
  Write("new/runs/run.json", "{}");
  Write("new/venv/pyvenv.cfg", "");
  Write("new/launch", "#!/bin/sh\n");
  const std::string path = *PathOfCode(spec_, Version("new"));
  EXPECT_EQ(fs::read_symlink(path + "/data/train.bin"), Path("new/data/train.bin"));
  for (const char* name : {"/__pycache__", "/.git", "/runs", "/venv"}) EXPECT_FALSE(fs::exists(path + name)) << name;
  EXPECT_FALSE(fs::is_symlink(path + "/launch")) << "a script without a suffix";
  const std::string before = HashOf("new");
  Write("new/data/train.bin", "other numbers");
  EXPECT_EQ(HashOf("new"), before);
}

// A compiled program has no suffix that tells, and one that its workers are started with may be anything.
TEST_F(CodeCopy, CopiesPrograms) {
  const std::string elf = "\177ELF and so on";
  spec_.torchrun.no_python = true;
  for (const char* entry : {"solver", "solver.v2", ".solver"}) {
    spec_.command = {Path("old/") + entry};
    Write(std::string("new/") + entry, "one");
    const control::Version one = Version("new");
    const std::string path = *PathOfCode(spec_, one);
    Write(std::string("new/") + entry, "two");
    EXPECT_FALSE(fs::is_symlink(path + "/" + entry)) << entry;
    EXPECT_EQ(*ReadFile(path + "/" + entry), "one");
    EXPECT_NE(HashOf("new"), one.hash) << entry;
  }
  Write("new/tool.v2", elf);
  Write("new/libx.so.1", elf);
  Write("new/data.bin", "numbers");
  for (const char* name : {"tool.v2", "libx.so.1", "data.bin"}) fs::permissions(Path("new/") + name, fs::perms(0755));
  Write("new/tool", elf);
  Write("new/object.o", elf);
  const std::string path = *PathOfCode(spec_, Version("new"));
  for (const char* name : {"/tool.v2", "/libx.so.1", "/tool"}) {
    EXPECT_TRUE(fs::exists(path + name)) << name;
    EXPECT_FALSE(fs::is_symlink(path + name)) << name;
  }
  for (const char* name : {"/data.bin", "/object.o"}) EXPECT_TRUE(fs::is_symlink(path + name)) << name;
  EXPECT_EQ(access((path + "/tool.v2").c_str(), X_OK), 0);
}

TEST_F(CodeCopy, TakesProgramsOfAnySize) {
  WriteProgram("new/libx.so.1", 70);
  const control::Version version = Version("new");
  const std::string path = *PathOfCode(spec_, version) + "/libx.so.1";
  EXPECT_FALSE(fs::is_symlink(path));
  EXPECT_EQ(fs::file_size(path), 70u << 20);
  fs::resize_file(Path("new/libx.so.1"), (70 << 20) - 1);
  EXPECT_NE(HashOf("new"), version.hash);
}

// The entry is copied before all others.
TEST_F(CodeCopy, TellsLinkedProgramsByTheirTimes) {
  spec_.torchrun.no_python = true;
  spec_.command = {Path("old/solver")};
  WriteProgram("new/solver", 3);
  WriteProgram("new/small", 1);
  WriteProgram("new/large.so", 2);
  const auto look = [&](uint64_t most) {
    return *LookAtCode(EntryOf(spec_), Path("new"), {.most_programs = Bytes{most << 20}});
  };
  EXPECT_THAT(look(6).linked, testing::IsEmpty());
  EXPECT_THAT(look(4).linked, testing::ElementsAre("large.so"));
  EXPECT_EQ(WhatIsLinked(look(3), {.most_programs = Bytes{3 << 20}}),
            "more than 3 MB of programs, so large.so and 1 more are not copied");
  const std::string before = look(4).hash;
  EXPECT_EQ(look(4).hash, before);
  fs::last_write_time(Path("new/large.so"), fs::last_write_time(Path("new/large.so")) + std::chrono::nanoseconds(1));
  EXPECT_NE(look(4).hash, before);
}

// Each node may have a copy of the directory.
TEST_F(CodeCopy, TellsWhichTimesCount) {
  WriteProgram("new/large.so", 1025);
  const control::Version version = Version("new");
  fs::last_write_time(Path("new/large.so"), fs::last_write_time(Path("new/large.so")) + std::chrono::nanoseconds(1));
  EXPECT_THAT(PathOfCode(spec_, version).status().ToString(), HasSubstr("; large.so is too large to be copied"));
}

// Of an agent that was killed while it copied; the next one in its container often has its number.
TEST_F(CodeCopy, WritesIntoNothingThatIsLeftOver) {
  for (int copy = 0; copy < 100; ++copy) {
    const std::string left = Folder(fmt::format("run/code/next.{}.{}", getpid(), copy));
    Write(fmt::format("run/code/next.{}.{}/left_behind.py", getpid(), copy), "old");
    fs::create_symlink(Path("new/train.py"), left + "/train.py");
  }
  const std::string path = *PathOfCode(spec_, Version("new"));
  EXPECT_EQ(*ReadFile(Path("new/train.py")), "print(2)");
  EXPECT_EQ(*ReadFile(path + "/train.py"), "print(2)");
  EXPECT_FALSE(fs::exists(path + "/left_behind.py"));
}

TEST_F(CodeCopy, WhatIsLinkedTakesNoRoomOfTheOthers) {
  spec_.torchrun.no_python = true;
  spec_.command = {Path("old/solver")};
  WriteProgram("new/solver", 3);
  WriteProgram("new/small.so", 1);
  EXPECT_THAT(LookAtCode(EntryOf(spec_), Path("new"), {.most_programs = Bytes{2 << 20}})->linked,
              testing::ElementsAre("solver"));
}

// An update that lacked the right to execute its program is asked for again once it has it.
TEST_F(CodeCopy, WhatMayBeExecutedIsAnotherVersion) {
  Write("new/launch", "#!/bin/sh\n");
  for (const char* name : {"new/launch", "new/parts/model.py"}) {
    fs::permissions(Path(name), fs::perms(0644));
    const std::string before = *PathOfCode(spec_, Version("new"));
    fs::permissions(Path(name), fs::perms(0755));
    const std::string after = *PathOfCode(spec_, Version("new"));
    EXPECT_NE(before, after) << name;
    EXPECT_EQ(access((after + std::string(name).substr(3)).c_str(), X_OK), 0) << name;
  }
}

// As a coordinator of nodes looks at it, which knows the name alone.
TEST_F(CodeCopy, IsTheVersionOfWhoKnowsTheNameOfTheScript) {
  spec_.torchrun.no_python = true;
  spec_.command = {"old/solve"};
  Write("new/solve", "neither its name nor its beginning tells");
  const std::string one = LookAtCode("solve", Path("new"))->hash;
  EXPECT_EQ(HashOf("new"), one);
  Write("new/solve", "other code");
  const std::string two = LookAtCode("solve", Path("new"))->hash;
  EXPECT_NE(two, one);
  EXPECT_FALSE(PathOfCode(spec_, {.number = 1, .code = Path("new"), .hash = one}).ok());
  EXPECT_EQ(*ReadFile(*PathOfCode(spec_, {.number = 1, .code = Path("new"), .hash = two}) + "/solve"), "other code");
}

// In a directory that others write to, or of a whole file system.
TEST_F(CodeCopy, PassesOverWhatMayNotBeRead) {
  Write("new/secret.so", "of somebody else");
  Write("new/lost+found/some.py", "");
  for (const char* name : {"new/secret.so", "new/lost+found"}) fs::permissions(Path(name), fs::perms(0));
  fs::permissions(root_.path(), fs::perms(0755));
  const bool is_root = geteuid() == 0;
  ASSERT_EQ(is_root ? seteuid(65534) : 0, 0);
  const absl::StatusOr<CodeTree> tree = LookAtCode("train.py", Path("new"));
  ASSERT_EQ(is_root ? seteuid(0) : 0, 0);
  fs::permissions(Path("new/lost+found"), fs::perms(0755));
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(WhatIsLinked(*tree), "lost+found and 1 more are not to be read here, so not copied");
}

TEST_F(CodeCopy, NeedsRoom) {
  const control::Version version = Version("new");
  spec_.run_dir = "/proc";  // a file system without any
  EXPECT_THAT(PathOfCode(spec_, version).status().ToString(), HasSubstr("/proc has only 0 MB left"));
}

// The copies of two directories with the same code link to different data.
TEST_F(CodeCopy, AnotherDirectoryIsAnotherVersion) {
  Write("twin/train.py", "print(2)");
  Write("twin/parts/model.py", "x = 2");
  Write("new/words.txt", "a");
  Write("twin/words.txt", "b");
  const std::string path = *PathOfCode(spec_, Version("new")), other = *PathOfCode(spec_, Version("twin"));
  EXPECT_EQ(*ReadFile(path + "/words.txt"), "a");
  EXPECT_EQ(*ReadFile(other + "/words.txt"), "b");
}

TEST_F(CodeCopy, RefusesOtherCodeThanWasAskedFor) {
  control::Version version = Version("new");
  Write("new/train.py", "print(3)");
  EXPECT_THAT(PathOfCode(spec_, version).status().ToString(), HasSubstr("or is another directory"));
  version.code = Path("nowhere");
  EXPECT_THAT(PathOfCode(spec_, version).status().ToString(), HasSubstr("does not exist"));
}

TEST_F(CodeCopy, TellsThatAnotherReleaseAskedForIt) {
  const control::Version version{.number = 1, .code = Path("new"), .hash = "6f1de3a0c2b7f954"};
  EXPECT_THAT(PathOfCode(spec_, version).status().ToString(), HasSubstr("that was by another release of Lockstep"));
}

// Of a run of somebody who may read less than whoever asks.
TEST_F(CodeCopy, TellsWhatOnlyWhoAsksMayRead) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be two users";
  Write("new/secret.so", "of somebody else");
  const control::Version version = Version("new");
  fs::permissions(Path("new/secret.so"), fs::perms(0600));
  fs::permissions(root_.path(), fs::perms(0755));
  fs::permissions(spec_.run_dir, fs::perms(0777));
  ASSERT_EQ(seteuid(65534), 0);
  const absl::Status refused = PathOfCode(spec_, version).status();
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_THAT(refused.ToString(), HasSubstr("another directory; secret.so is not to be read by the run's user"));
}

TEST_F(CodeCopy, SaysWhatIsMissing) {
  EXPECT_TRUE(CheckCode(spec_, Path("new")).ok());
  EXPECT_THAT(CheckCode(spec_, Path("run")).ToString(), HasSubstr("run has no train.py"));
  EXPECT_THAT(CheckCode(spec_, Path("new/train.py")).ToString(), HasSubstr("is a file: name the directory"));
  RunSpec module = spec_;
  module.module = true;
  module.command = {"parts.model"};
  EXPECT_TRUE(CheckCode(module, Path("new")).ok());
  EXPECT_THAT(CheckCode(module, Path("old")).ToString(), HasSubstr("has no parts or parts.py"));
  EXPECT_EQ(*CodeRoot(module), spec_.cwd);
  EXPECT_EQ(*CodeRoot(spec_), Path("old"));
  RunSpec program = spec_;
  program.torchrun.no_python = true;
  program.command = {"sh"};
  EXPECT_THAT(CodeRoot(program).status().ToString(), HasSubstr("is found on PATH"));
}

TEST_F(CodeCopy, HasLimits) {
  EXPECT_THAT(LookAtCode(EntryOf(spec_), Path("new"), {.most_entries = 2}).status().ToString(),
              HasSubstr("more than 2 files"));
  EXPECT_THAT(LookAtCode(EntryOf(spec_), Path("new"), {.most = Bytes{3}}).status().ToString(), HasSubstr("of code"));
}

TEST_F(CodeCopy, TheFirstVersionIsWhereItWasUnlessItWasChanged) {
  const control::CodeKept said = KeepFirst();
  EXPECT_EQ(said, (control::CodeKept{0, "", said.hash}));
  const control::Version first{.hash = said.hash, .kept = true};
  EXPECT_EQ(*PathOfCode(spec_, first), "");
  Write("old/train.py", "print('edited in place')");
  const std::string path = *PathOfCode(spec_, first);
  EXPECT_EQ(*ReadFile(path + "/train.py"), "print(1)");
  EXPECT_EQ(KeepFirst(), said) << "of an agent that came later, too";
  EXPECT_EQ(*PathOfCode(spec_, first), path);
  EXPECT_EQ(*PathOfCode(spec_, {.kept = true}), path) << "an older coordinator does not say which";
  EXPECT_EQ(*PathOfCode(spec_, {}), "") << "nobody has asked for an update yet";
}

// Of a standby that got its place after the directory was edited.
TEST_F(CodeCopy, WhoHasAnotherFirstVersionDoesNotRunIt) {
  const control::Version first{.hash = KeepFirstOf("old").hash, .kept = true};
  EXPECT_EQ(*PathOfCode(spec_, first), "") << "what is there is as it was";
  Write("old/train.py", "print('edited in place')");
  EXPECT_THAT(PathOfCode(spec_, first).status().ToString(), HasSubstr("was changed since the run began"));
  EXPECT_NE(KeepFirst().hash, first.hash);
  EXPECT_FALSE(PathOfCode(spec_, first).ok());
}

TEST_F(CodeCopy, OfTheFirstVersionLargeProgramsAreLinkedAndTold) {
  WriteProgram("old/tool", 65);
  const control::CodeKept said = KeepFirst();
  EXPECT_EQ(said, (control::CodeKept{0, "node a: more than 64 MB of programs, so tool is not copied", said.hash}));
  EXPECT_EQ(KeepFirst(), said) << "again";
  Write("old/train.py", "print('edited in place')");
  const std::string path = *PathOfCode(spec_, {.hash = said.hash, .kept = true});
  EXPECT_EQ(*ReadFile(path + "/train.py"), "print(1)");
  EXPECT_EQ(fs::read_symlink(path + "/tool"), Path("old/tool"));
}

// The same code under another path, and programs that are linked and have times of their own.
TEST_F(CodeCopy, TheFirstVersionIsTheSameWhereverANodeHasIt) {
  Write("elsewhere/train.py", "print(1)");
  for (const char* name : {"old/tool", "elsewhere/tool"}) WriteProgram(name, 65);
  fs::last_write_time(Path("old/tool"), fs::last_write_time(Path("old/tool")) - std::chrono::seconds(9));
  const control::CodeKept elsewhere = KeepFirstOf("elsewhere");
  EXPECT_EQ(KeepFirst().hash, elsewhere.hash);
  EXPECT_EQ(*PathOfCode(spec_, {.hash = elsewhere.hash, .kept = true}), "");
  Write("other/train.py", "print(9)");
  WriteProgram("other/tool", 65);
  EXPECT_NE(KeepFirstOf("other").hash, elsewhere.hash);
}

// The directory may have been edited in place meanwhile.
TEST_F(CodeCopy, TellsThatTheFirstVersionWasCopiedLater) {
  Write("old/words.json", "");
  fs::resize_file(Path("old/words.json"), 17 << 20);
  EXPECT_EQ(KeepFirst().hash, "");
  EXPECT_EQ(KeepFirst(2).hash, "") << "as little as in the epoch before";
  fs::remove(Path("old/words.json"));
  const control::CodeKept said = KeepFirst(3);
  EXPECT_EQ(said, (control::CodeKept{0, "node a: it was taken in epoch 3, of what was there then", said.hash}));
  EXPECT_EQ(KeepFirst(4), said) << "of an agent that came later, too";
}

// The agent was killed, or had no room for the link, when the copy was there.
TEST_F(CodeCopy, TellsThatTheFirstVersionWasCopiedLaterWhereTheFirstAttemptGotFar) {
  const std::string first = spec_.run_dir + "/code/first";
  fs::create_directories(first);
  EXPECT_THAT(KeepFirst().error, HasSubstr("first: File exists"));
  Write("old/train.py", "print(2)");
  fs::remove(first);
  const control::CodeKept said = KeepFirst(2);
  EXPECT_EQ(said, (control::CodeKept{0, "node a: it was taken in epoch 2, of what was there then", said.hash}));
}

TEST_F(CodeCopy, TellsThatTheFirstVersionIsTooLarge) {
  Write("old/words.json", "");
  fs::resize_file(Path("old/words.json"), 17 << 20);
  EXPECT_THAT(KeepFirst().error, HasSubstr("old has more than 16 MB of code"));
  EXPECT_FALSE(fs::exists(spec_.run_dir + "/code/first"));
  fs::remove(Path("old/words.json"));
  EXPECT_NE(KeepFirst().hash, "");
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(spec_.run_dir + "/code")) ++entries;
  EXPECT_EQ(entries, 3) << "the copy, its name and that it came later: nothing half copied is left";
}

}  // namespace
}  // namespace lockstep::agent
