#include "lockstep/record/own_trail.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

#include "lockstep/base/test_folder.h"

namespace {

class OwnTrail : public testing::Test {
 protected:
  void SetUp() override {
    setenv("LOCKSTEP_TRAILS", folder_.path().c_str(), 1);
    setenv("LOCKSTEP_EPOCH", "1", 1);
  }
  static ls_trail* Make(ls_own_trail& own) { return ls_own_trail_make(&own, "gloo", "communication", 0, 2, 16); }
  const lockstep::TestFolder folder_;
};

TEST_F(OwnTrail, IsOfTheEpochThatItsProcessEnteredLast) {
  static ls_own_trail own;
  ls_trail* trail = Make(own);
  ASSERT_NE(trail, nullptr);
  EXPECT_EQ(trail->origin.epoch, 1u);
  setenv("LOCKSTEP_EPOCH", "2", 1);  // the rank enters its training function again
  EXPECT_EQ(Make(own), trail);
  EXPECT_EQ(trail->origin.epoch, 2u);
}

// As in containers that are started again and again.
TEST_F(OwnTrail, APidMayComeAnyNumberOfTimes) {
  char host[64] = {};
  gethostname(host, sizeof host - 1);
  for (int i = 0; i < 16; ++i)
    folder_.Write(std::string("epoch_1.") + host + "." + std::to_string(getpid()) + "." + std::to_string(i) + ".trail",
                  "");
  static ls_own_trail own;
  EXPECT_NE(Make(own), nullptr);
}

}  // namespace
