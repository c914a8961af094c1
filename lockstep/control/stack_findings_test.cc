#include "lockstep/control/stack_findings.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

namespace lockstep::control {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Four ranks on two nodes sum their gradients, but for one that is in its script.
std::string Rank(int rank, int outside) {
  const std::string python = rank == outside ? "    /home/me/job.py:9 in load\n"
                                             : "    /lib/torch/distributed/distributed_c10d.py:1541 in all_reduce\n"
                                               "    /home/me/job.py:34 in main\n";
  const std::string native = rank == outside ? "    read (libc.so.6)\n" : "    c10d::Work::wait (libtorch_cpu.so)\n";
  return fmt::format(
      "rank {0} (pid {1})\n Python\n  main thread\n{2} native\n  thread {1} python3 state S in futex\n{3}\n", rank,
      100 + rank, python, native);
}
std::string Node(const std::string& name, int first, int outside) {
  return fmt::format("node {}\n{}{}", name, Rank(first, outside), Rank(first + 1, outside));
}

class StackFindings : public testing::Test {
 protected:
  StackFindings() { spec_.ranks = 4; }
  void AddAll(int outside) {
    texts_.Add(0, {EpochId(1), Node("a", 0, outside)});
    texts_.Add(1, {EpochId(1), Node("b", 2, outside)});
  }
  StackTexts texts_;
  JobSpec spec_;
};

TEST_F(StackFindings, NameWhoIsOutsideWhileOthersWait) {
  AddAll(2);
  const auto finding = texts_.Find(spec_, {});
  ASSERT_TRUE(finding);
  ASSERT_EQ(finding->suspects.size(), 1u);
  EXPECT_EQ(finding->suspects[0].name, "2");
  EXPECT_FALSE(finding->certain) << "stacks of one moment prove nothing";
  EXPECT_EQ(finding->evidence.back(), "by the stacks of 4 processes, basis outside");
}

TEST_F(StackFindings, NameNobodyWhereNobodyToldAnything) { EXPECT_FALSE(texts_.Find(spec_, {})); }

TEST_F(StackFindings, OfATextThatIsNoneAreThoseOfTheOthers) {
  AddAll(2);
  texts_.Add(0, {EpochId(1), "\x01garbage"});
  const auto finding = texts_.Find(spec_, {});
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->suspects[0].name, "2");
  EXPECT_EQ(finding->evidence.back(), "what 1 nodes sent is of another form");
}

TEST_F(StackFindings, AreOfOneMoment) {
  AddAll(2);
  texts_.Clear();
  AddAll(1);
  EXPECT_EQ(texts_.Find(spec_, {})->suspects.at(0).name, "1");
}

}  // namespace
}  // namespace lockstep::control
