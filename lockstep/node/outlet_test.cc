#include "lockstep/node/outlet.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <thread>

#include "lockstep/base/file.h"

namespace lockstep::node {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

class OutletTest : public testing::Test {
 protected:
  OutletTest() : out_(*MakePipe()), err_(*MakePipe()) { outlet_.emplace(out_.write.get(), err_.write.get()); }

  // All that is written there, once the outlet has ended.
  std::string ReadAll(Pipe& pipe) {
    std::string all;
    std::thread reader([&] {
      char chunk[65536];
      for (ssize_t got = 0; (got = read(pipe.read.get(), chunk, sizeof chunk)) > 0;) all.append(chunk, size_t(got));
    });
    outlet_.reset();
    pipe.write.Close();
    reader.join();
    return all;
  }

  Pipe out_, err_;
  std::optional<Outlet> outlet_;
};

// A pipe holds 64 KiB; who writes a megabyte to one that nobody reads goes on, and nothing of it is lost.
TEST_F(OutletTest, NobodyWaitsForAReader) {
  std::string all;
  for (int line = 0; line < 20'000; ++line) {
    all += fmt::format("line {} of what a rank prints while nobody looks\n", line);
    outlet_->Write(out_.write.get(), std::string_view(all).substr(all.rfind('\n', all.size() - 2) + 1));
  }
  EXPECT_TRUE(outlet_->IsBehind(out_.write.get()));
  outlet_->Write(err_.write.get(), "and this has a reader\n");
  std::string line(22, '\0');
  EXPECT_EQ(read(err_.read.get(), line.data(), line.size()), 22) << "one does not wait for the other";
  EXPECT_EQ(ReadAll(out_), all);
}

TEST_F(OutletTest, WhatIsTooMuchIsCounted) {
  const std::string megabyte(1 << 20, '.');
  for (int i = 0; i < 40; ++i) outlet_->Write(out_.write.get(), megabyte);
  std::string taken(Outlet::kMostKept, '\0');  // all that was kept: nothing else comes
  for (size_t at = 0; at < taken.size();) at += size_t(read(out_.read.get(), taken.data() + at, taken.size() - at));
  while (outlet_->IsBehind(out_.write.get())) std::this_thread::yield();  // until it has seen that all is taken
  outlet_->Write(out_.write.get(), "the end");
  const std::string rest = ReadAll(out_);
  EXPECT_THAT(rest, HasSubstr(" bytes are left out here: nobody took them\n"));
  EXPECT_THAT(rest, EndsWith("the end"));
}

// Nothing may come any more behind it.
TEST_F(OutletTest, WhatIsLeftOutAtTheEndIsSaid) {
  const std::string megabyte(1 << 20, '.');
  for (int i = 0; i < 40; ++i) outlet_->Write(out_.write.get(), megabyte);
  const uint64_t dropped = outlet_->dropped();
  EXPECT_GT(dropped, 0U);
  EXPECT_THAT(ReadAll(out_), EndsWith(agent::LeftOut(dropped)));
}

TEST(Outlet, OneFileKeepsItsOrder) {
  Pipe pipe = *MakePipe();
  const Fd other(dup(pipe.write.get()));
  {
    Outlet outlet(pipe.write.get(), other.get());
    for (int i = 0; i < 100; ++i) outlet.Write(i % 2 == 0 ? pipe.write.get() : other.get(), fmt::format("{} ", i));
  }
  std::string text(4096, '\0');
  text.resize(size_t(read(pipe.read.get(), text.data(), text.size())));
  EXPECT_THAT(text, StartsWith("0 1 2 3 4 5 6 7 "));
  EXPECT_THAT(text, EndsWith("98 99 "));
}

}  // namespace
}  // namespace lockstep::node
