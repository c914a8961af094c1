#include "lockstep/top/keys.h"

#include <gtest/gtest.h>

namespace lockstep::top {
namespace {

using Keys = std::vector<Key>;

TEST(Keys, OfAnyTerminal) {
  EXPECT_EQ(KeysIn("\033[A\033OB"), (Keys{Key::kUp, Key::kDown}));
  EXPECT_EQ(KeysIn("jk\r"), (Keys{Key::kDown, Key::kUp, Key::kOpen}));
  EXPECT_EQ(KeysIn("i?q"), (Keys{Key::kIncidents, Key::kHelp, Key::kQuit}));
  EXPECT_EQ(KeysIn("\033[5~\033[6~"), (Keys{Key::kPageUp, Key::kPageDown}));
}

TEST(Keys, EscapeAloneIsBack) { EXPECT_EQ(KeysIn("\033"), Keys{Key::kBack}); }

TEST(Keys, WhatMeansNothingIsLeftOut) {
  EXPECT_EQ(KeysIn("\033[15;2~q"), Keys{Key::kQuit});
  EXPECT_EQ(KeysIn("\033["), Keys{});
  EXPECT_EQ(KeysIn("xyz\xc3\xa9"), Keys{});
  EXPECT_EQ(KeysIn(""), Keys{});
}

}  // namespace
}  // namespace lockstep::top
