#include "lockstep/term/text.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep::term {
namespace {

TEST(Fit, CountsColumnsAndNotBytes) {
  EXPECT_EQ(Fit("abc", 3), "abc");
  EXPECT_EQ(Fit("abcd", 3), std::string("abc") + kPlain);
  EXPECT_EQ(Fit("▇▇▇", 2), std::string("▇▇") + kPlain);
  EXPECT_EQ(Fit("\033[31mab\033[0mc", 3), "\033[31mab\033[0mc");
  EXPECT_EQ(Fit("\033[31mabc", 2), "\033[31mab\033[0m");
  EXPECT_EQ(Fit("\033[31", 2), "\033[31");
  EXPECT_EQ(Fit("", 0), "");
}

TEST(Strip, IsFullForTheLargest) {
  EXPECT_EQ(Strip(2, 2, 4), "▇▇▇▇");
  EXPECT_EQ(Strip(1, 2, 4), "▇▇");
  EXPECT_EQ(Strip(9, 2, 4), "▇▇▇▇");
  EXPECT_EQ(Strip(std::nan(""), 2, 4), "");
  EXPECT_EQ(Strip(1, 0, 4), "");
}

TEST(Known, IsADashOtherwise) {
  EXPECT_EQ(Known(1.5, "{:.1f} s"), "1.5 s");
  EXPECT_EQ(Known(std::nan(""), "{:.1f} s"), "-");
  EXPECT_EQ(Known(INFINITY, "{:.1f} s"), "-");
}

}  // namespace
}  // namespace lockstep::term
