#include "lockstep/node/console.h"

#include <gtest/gtest.h>

namespace lockstep::node {
namespace {

TEST(LinePrefixer, PutsThePrefixBeforeEachLineHoweverItComes) {
  LinePrefixer prefixer("[default1]:");
  EXPECT_EQ(prefixer.Take("one\ntw"), "[default1]:one\n");
  EXPECT_EQ(prefixer.Take("o\n\nthree"), "[default1]:two\n[default1]:\n");
  EXPECT_EQ(prefixer.Rest(), "[default1]:three\n");
  EXPECT_EQ(prefixer.Rest(), "");
}

TEST(LinePrefixer, AProgressBarIsALine) {
  LinePrefixer prefixer("p ");
  EXPECT_EQ(prefixer.Take("10 %\r20 %\r"), "p 10 %\rp 20 %\r");
  EXPECT_EQ(prefixer.Take("\nnext\n"), "\np next\n");
}

TEST(LinePrefixer, ALineWithoutEndIsNotHeldForEver) {
  LinePrefixer prefixer("p ");
  EXPECT_EQ(prefixer.Take(std::string(100 << 10, 'x')).size(), (64u << 10) + 2);
}

// Those of torch 2's elastic agent, whose rank is the one in the job.
TEST(LinePrefix, IsTorchruns) {
  agent::RunSpec spec;
  spec.torchrun.role = "trainer";
  spec.place.first_rank = 8;
  EXPECT_EQ(LinePrefix(spec, 1), "[trainer1]:");
  spec.torchrun.line_prefix = "[$role_name${local_rank}/${rank}] $other ";
  EXPECT_EQ(LinePrefix(spec, 1), "[trainer1/9] $other ");
}

}  // namespace
}  // namespace lockstep::node
