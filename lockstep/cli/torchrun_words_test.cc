#include "lockstep/cli/torchrun_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/cli/torchrun_flags.h"

namespace lockstep::cli {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Words = std::vector<std::string>;

Words Read(Words words) {
  CLI::App run;
  TorchrunFlags flags;
  flags.Declare(run);
  return AsTorchrunReads(run, std::move(words));
}

// As argparse does, of Python 3.8 to 3.13.
TEST(TorchrunWords, TheMarkBesideTheScriptIsNoArgument) {
  EXPECT_THAT(Read({"--", "train.py", "x"}), ElementsAre("train.py", "x"));
  EXPECT_THAT(Read({"--nproc_per_node", "2", "--", "train.py", "x"}),
              ElementsAre("--nproc_per_node", "2", "train.py", "x"));
  EXPECT_THAT(Read({"--nproc_per_node=2", "-m", "--", "pkg.train"}),
              ElementsAre("--nproc_per_node=2", "-m", "pkg.train"));
  EXPECT_THAT(Read({"train.py", "--", "x"}), ElementsAre("train.py", "x"));
  EXPECT_THAT(Read({"-r", "3", "train.py", "--", "--", "-r=3"}), ElementsAre("-r", "3", "train.py", "--", "-r=3"));
}

TEST(TorchrunWords, WhatTheScriptGetsIsItsOwn) {
  for (const Words& words : {Words{"train.py", "a", "--", "x"}, Words{"--standalone", "train.py", "-r=3", "--"},
                             Words{"-t", "1", "train.py", "--tee=3"}, Words{"-", "x"}, Words{"--nproc_per_node"}})
    EXPECT_EQ(Read(words), words);
  EXPECT_THAT(Read({}), IsEmpty());
  EXPECT_THAT(Read({"--"}), IsEmpty());
}

TEST(TorchrunWords, ALetterMayHaveAnEqualsSign) {
  EXPECT_THAT(Read({"-r=3", "-t=0:1", "-t2", "-m", "x"}), ElementsAre("-r3", "-t0:1", "-t2", "-m", "x"));
  EXPECT_THAT(Read({"-x=3", "-m=1", "y"}), ElementsAre("-x=3", "-m=1", "y")) << "CLI11 will say what it is";
}

}  // namespace
}  // namespace lockstep::cli
