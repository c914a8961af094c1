#include "lockstep/agent/told_once.h"

#include <gtest/gtest.h>

namespace lockstep::agent {
namespace {

TEST(ToldOnce, IsTheCauseWhereverItStruck) {
  ToldOnce causes;
  EXPECT_TRUE(causes.IsNew("step_8/rank_0: No space left on device"));
  EXPECT_FALSE(causes.IsNew("step_9/rank_1: No space left on device"));
  EXPECT_TRUE(causes.IsNew("step_9/rank_1: Input/output error"));
  causes.Forget();
  EXPECT_TRUE(causes.IsNew("step_9/rank_1: Input/output error"));
}

TEST(ToldOnce, ASentenceThatNamesNoPlaceIsACauseToo) {
  ToldOnce causes;
  EXPECT_TRUE(causes.IsNew("nothing of it went on for 120 s"));
  EXPECT_FALSE(causes.IsNew("nothing of it went on for 120 s"));
  EXPECT_TRUE(causes.IsNew("the upload before still hangs"));
}

}  // namespace
}  // namespace lockstep::agent
