#include "lockstep/cli/slurm.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::cli {
namespace {

class Slurm : public testing::Test {
 protected:
  void Say(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    said_.push_back(name);
  }
  void SayStep(const std::string& nodes, const std::string& tasks) {
    Say("SLURM_STEP_NUM_NODES", nodes);
    Say("SLURM_STEP_NUM_TASKS", tasks);
    Say("SLURM_NODEID", "1");
    Say("SLURM_JOB_ID", "4711");
    Say("SLURMD_NODENAME", "gpu08");
    Say("SLURM_STEP_NODELIST", "gpu[07-08]");
  }
  ~Slurm() override {
    for (const std::string& name : said_) unsetenv(name.c_str());
  }

 private:
  std::vector<std::string> said_;
};

TEST_F(Slurm, AStepWithATaskOnEachNode) {
  SayStep("2", "2");
  const std::optional<SlurmStep> step = FindSlurmStep();
  ASSERT_TRUE(step.has_value());
  EXPECT_EQ(step->nodes, 2);
  EXPECT_EQ(step->node, 1);
  EXPECT_EQ(step->node_name, "gpu08");
  EXPECT_EQ(step->first_node, "gpu07");
  EXPECT_EQ(step->job, 4711);
}

TEST_F(Slurm, NothingIsGuessedOfOtherShapes) {
  EXPECT_FALSE(FindSlurmStep().has_value()) << "not under Slurm";
  SayStep("2", "16");
  EXPECT_FALSE(FindSlurmStep().has_value()) << "srun starts the ranks itself";
  SayStep("1", "1");
  EXPECT_FALSE(FindSlurmStep().has_value());
  SayStep("two", "2");
  EXPECT_FALSE(FindSlurmStep().has_value());
}

TEST(HostList, ItsFirstHost) {
  const std::pair<const char*, const char*> cases[] = {{"n1", "n1"},
                                                       {"n1,n2", "n1"},
                                                       {"gpu[07-08]", "gpu07"},
                                                       {"gpu[003,007-9],x", "gpu003"},
                                                       {"a,gpu[1-2]", "a"},
                                                       {"rack[1-2]-ib,b", "rack1-ib"},
                                                       {"n[1", ""},
                                                       {"", ""}};
  for (const auto& [list, first] : cases) EXPECT_EQ(FirstHost(list), first) << list;
}

}  // namespace
}  // namespace lockstep::cli
