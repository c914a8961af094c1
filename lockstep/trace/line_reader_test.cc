#include "lockstep/trace/line_reader.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <fstream>

#include "lockstep/base/test_folder.h"

namespace lockstep::trace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class LineReaderTest : public testing::Test {
 protected:
  std::string Write(const std::string& bytes) { return folder_.Write("lines", bytes); }
  std::string Gzip(const std::string& text) {
    const std::string path = folder_ / "zipped";
    gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
    gzclose(file);
    std::ifstream zipped(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(zipped), {}};
  }
  std::vector<std::string> Read(const std::string& bytes) {
    auto lines = LineReader::Open(Write(bytes));
    std::vector<std::string> read;
    while (lines->Next()) read.emplace_back(lines->line());
    status_ = lines->status();
    return read;
  }

  const TestFolder folder_;
  absl::Status status_;
};

TEST_F(LineReaderTest, LinesEndWithLfCrlfOrTheFile) {
  EXPECT_THAT(Read("a\nbc\r\n\nd"), ElementsAre("a", "bc", "", "d"));
  EXPECT_THAT(Read(""), ElementsAre());
  EXPECT_THAT(Read("\n"), ElementsAre(""));
}

TEST_F(LineReaderTest, LongLinesAndManyAreReadWhole) {
  std::string text;
  std::vector<std::string> expected;
  for (int i = 0; i < 3000; ++i) {
    expected.emplace_back(static_cast<size_t>(i * 7919 % 1500), static_cast<char>('a' + i % 26));
    if (i == 1000) expected.back().assign(1'000'000, 'x');
    text += expected.back() + "\n";
  }
  EXPECT_EQ(Read(text), expected);
  EXPECT_EQ(Read(Gzip(text)), expected);
}

TEST_F(LineReaderTest, ATruncatedGzipFileIsNoEnd) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(int64_t{i} * i) + "\n";
  const std::string zipped = Gzip(text);
  EXPECT_TRUE(Read(zipped).size() == 100'000 && status_.ok());
  EXPECT_LT(Read(zipped.substr(0, zipped.size() / 2)).size(), 100'000U);
  EXPECT_THAT(Message(status_), HasSubstr("lines: damaged behind line "));
  EXPECT_THAT(Message(status_), HasSubstr("the file ends too early"));
}

TEST_F(LineReaderTest, DamageIsNamed) {
  std::string zipped = Gzip(std::string(100'000, 'a') + "\n" + std::string(1000, 'b'));
  zipped[zipped.size() / 2] = static_cast<char>(~zipped[zipped.size() / 2]);
  Read(zipped);
  EXPECT_THAT(Message(status_), HasSubstr("lines: damaged behind line "));
}

TEST_F(LineReaderTest, DamageOfTheFirstLineIsNamed) {
  Read(Gzip("a\nb\n").substr(0, 12));
  EXPECT_THAT(Message(status_), HasSubstr("lines: damaged in line 1: the file ends too early"));
}

// Small files are inflated at once, large ones piece by piece.
TEST_F(LineReaderTest, AnotherGzipStreamBehindTheFirstIsReadToo) {
  EXPECT_THAT(Read(Gzip("a\nb") + Gzip("c\nd\n")), ElementsAre("a", "bc", "d"));
  EXPECT_THAT(Read(Gzip("a\n") + Gzip("") + Gzip("b\n")), ElementsAre("a", "b"));
  EXPECT_THAT(Read(Gzip("a\n") + std::string(1000, '\0')), ElementsAre("a"));
  EXPECT_TRUE(status_.ok()) << status_;
}

TEST_F(LineReaderTest, WhatIsBehindAGzipStreamAndIsNoneIsNamed) {
  for (const std::string& behind :
       {std::string("x"), std::string("\x1f"), std::string("\x1f\x8b\x08"), std::string("\0x", 2)}) {
    Read(Gzip("a\nb\n") + behind);
    EXPECT_FALSE(status_.ok()) << behind;
  }
  Read(Gzip("a\nb\n") + "c,d\n");
  EXPECT_THAT(Message(status_), HasSubstr("lines: damaged behind line 2: what follows its gzip stream is none"));
}

TEST_F(LineReaderTest, AMissingFileIsNamed) {
  EXPECT_THAT(Message(LineReader::Open("/nowhere/trace.csv").status()), HasSubstr("/nowhere/trace.csv: No such file"));
}

TEST_F(LineReaderTest, APipeIsRefusedForItCanBeReadOnlyOnce) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Fd reading(ends[0]), writing(ends[1]);
  EXPECT_THAT(Message(LineReader::Open(fmt::format("/proc/self/fd/{}", reading.get())).status()),
              HasSubstr(": a pipe"));
}

// Nor is it opened to see what it holds: who does so waits for somebody to write, and takes what it is told by.
TEST_F(LineReaderTest, APipeTellsNothingOfWhatItHolds) {
  const std::string path = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const Fd writing(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  ASSERT_EQ(::write(writing.get(), "PAR1", 4), 4);
  EXPECT_EQ(FirstBytes(path, 4), std::string(4, '\0'));
  char held[4];
  EXPECT_EQ(::read(writing.get(), held, sizeof(held)), 4);
}

}  // namespace
}  // namespace lockstep::trace
