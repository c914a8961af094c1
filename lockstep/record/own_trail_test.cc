#include "lockstep/record/own_trail.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "lockstep/base/test_folder.h"

namespace {

class OwnTrail : public testing::Test {
 protected:
  void SetUp() override {
    setenv("LOCKSTEP_TRAILS", folder_.path().c_str(), 1);
    setenv("LOCKSTEP_EPOCH", "1", 1);
  }
  static ls_trail* Make(ls_own_trail& own, int rank = 0, int size = 2) {
    return ls_own_trail_make(&own, "gloo", "communication", rank, size, 16);
  }
  static void SetEnvironment(const char* rank, const char* world) {
    setenv("SLURM_PROCID", rank, 1);
    setenv("SLURM_NTASKS", world, 1);
  }
  static std::pair<uint32_t, uint32_t> Who(const ls_trail* trail) { return {trail->origin.rank, trail->origin.world}; }
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

TEST_F(OwnTrail, TheEnvironmentSaysWhoItIs) {
  static ls_own_trail own;
  SetEnvironment("5", "8");
  EXPECT_EQ(Who(Make(own, 1, 4)), std::pair(5u, 8u));
  EXPECT_EQ(Who(Make(own, 3, 8)), std::pair(5u, 8u)) << "numbered otherwise in another communicator";
}

// A step of Slurm without srun has one task, whose ranks are started otherwise.
TEST_F(OwnTrail, TheEnvironmentOfASmallerJobIsNotIts) {
  static ls_own_trail own, beyond, unsaid;
  SetEnvironment("0", "1");
  ls_trail* trail = Make(own, 1, 2);
  EXPECT_EQ(Who(trail), std::pair(1u, 2u));
  EXPECT_EQ(Who(Make(own, 3, 4)), std::pair(3u, 4u)) << "the first was not of all ranks";
  EXPECT_EQ(Who(Make(own, 0, 2)), std::pair(3u, 4u));
  SetEnvironment("4", "4");
  EXPECT_EQ(Who(Make(beyond, 1, 2)), std::pair(1u, 2u)) << "no rank of such a job";
  SetEnvironment("1", "4");
  EXPECT_EQ(Who(Make(unsaid, 0, 0)), std::pair(1u, 4u)) << "of a communicator whose size is not told";
}

}  // namespace
