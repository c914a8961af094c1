#include "lockstep/detect/stack_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/detect/stack_report.h"
#include "lockstep/detect/stack_test_job.h"

namespace lockstep::detect {
namespace {

using incident::Suspect;
using incident::Syndrome;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using trace::ProcessRole;
using trace::ProcessStack;

std::vector<int> RanksOf(const std::vector<Suspect>& suspects) {
  std::vector<int> ranks;
  for (const Suspect& suspect : suspects) ranks.push_back(incident::RankOf(suspect).value_or(RankId(-1)).value());
  return ranks;
}

std::vector<ProcessStack> JobAt(const std::vector<At>& places) {
  FrameWriter write;
  std::vector<ProcessStack> stacks;
  for (size_t rank = 0; rank < places.size(); ++rank)
    stacks.push_back(StackOf(static_cast<int>(rank), places[rank], write));
  return stacks;
}

StackVerdict Judge(const std::vector<ProcessStack>& stacks, const StackContext& context = {}) {
  absl::StatusOr<StackVerdict> verdict = AggregateStacks(stacks, context);
  EXPECT_TRUE(verdict.ok()) << verdict.status();
  return *std::move(verdict);
}

// The case of the paper: TP2 PP4 DP4 on 16 machines of two ranks, machine = pp + 4 dp. Machines 0 to 11 wait for the
// sum of their gradients, 12 and 13 receive, 14 sends, 15 gathers.
class PaperCase : public testing::Test {
 protected:
  static std::vector<ProcessStack> Stacks(At of_15) {
    FrameWriter write(3);
    std::vector<ProcessStack> stacks;
    for (int rank = 0; rank < 32; ++rank) {
      const int machine = rank / 2;
      const At at = machine < 12 ? At::kGradSync : machine < 14 ? At::kIrecv : machine == 14 ? At::kIsend : of_15;
      stacks.push_back(StackOf(rank, at, write, fmt::format("machine{}", machine)));
    }
    return stacks;
  }
  static void ExpectGroupRule(const StackVerdict& verdict) {
    ASSERT_TRUE(verdict.group_rule.has_value());
    EXPECT_EQ(verdict.group_rule->group.dimensions, "tp+pp");
    EXPECT_THAT(verdict.group_rule->group.ranks, ElementsAre(24, 25, 26, 27, 28, 29, 30, 31));
    EXPECT_EQ(verdict.group_rule->machines, 4U);
    EXPECT_EQ(verdict.group_rule->over_evicted, 3U);
  }
  const cluster::Layout layout_{.tp = 2, .dp = 4, .pp = 4, .order = "tp-pp-dp"};
};

// Whose group the calls are of is not told: nothing is left but the rule of the paper, at the price of three machines.
TEST_F(PaperCase, WithoutAnyHintTheGroupGoes) {
  std::vector<ProcessStack> stacks = Stacks(At::kGatherSomewhere);
  for (ProcessStack& stack : stacks)
    std::erase_if(stack.python,
                  [](const std::string& frame) { return frame.find("finish_grad") != std::string::npos; });
  const StackVerdict verdict = Judge(stacks, {.layout = layout_});
  EXPECT_EQ(verdict.basis, StackBasis::kSharedGroup);
  EXPECT_EQ(verdict.finding->syndrome, Syndrome::kDesynchronised);
  EXPECT_THAT(RanksOf(verdict.finding->suspects), ElementsAre(24, 25, 26, 27, 28, 29, 30, 31));
  EXPECT_THAT(verdict.machines, ElementsAre("machine12", "machine13", "machine14", "machine15"));
  EXPECT_DOUBLE_EQ(verdict.confidence, 24.0 / 32);
  EXPECT_FALSE(verdict.finding->certain);
  ExpectGroupRule(verdict);
  EXPECT_THAT(verdict.finding->evidence,
              Contains(HasSubstr("(tp+pp: ranks 24-31) has 4 machines, of which 3 would be evicted without need")));
}

// The frames tell whose group each call is of: who waits for whom follows from the layout, and one machine is left.
TEST_F(PaperCase, ByTheirCallsOneMachineGoes) {
  const StackVerdict verdict = Judge(Stacks(At::kTensorParallel), {.layout = layout_});
  EXPECT_EQ(verdict.basis, StackBasis::kLayout);
  EXPECT_EQ(verdict.finding->syndrome, Syndrome::kCommunicationHang);
  EXPECT_THAT(RanksOf(verdict.finding->suspects), ElementsAre(30, 31));
  EXPECT_THAT(verdict.machines, ElementsAre("machine15"));
  EXPECT_DOUBLE_EQ(verdict.confidence, 1);
  EXPECT_FALSE(verdict.finding->certain);
  ExpectGroupRule(verdict);
}

// Logs of communication say that rank 31 has not come to what rank 30 waits in: one rank, whatever the frames are.
TEST_F(PaperCase, ByLogsOneRankIsNamed) {
  std::vector<ProcessStack> stacks = Stacks(At::kGatherSomewhere);
  FrameWriter write;
  stacks[31] = StackOf(31, At::kLoadsData, write, "machine15");
  StackContext context{.layout = layout_};
  context.waits.hangs = true;
  for (int dp = 0; dp < 3; ++dp)
    for (int lane = 0; lane < 8; ++lane)
      context.waits.waits.push_back({{8 * dp + lane}, {24 + lane}, "all_reduce 7 of communicator dp", false});
  for (int lane = 0; lane < 6; ++lane) context.waits.waits.push_back({{24 + lane}, {26 + lane}, "a receive", false});
  context.waits.waits.push_back({{30}, {31}, "all_gather 9 of communicator tp", false});
  const StackVerdict verdict = Judge(stacks, context);
  EXPECT_EQ(verdict.basis, StackBasis::kWaitFor);
  EXPECT_THAT(RanksOf(verdict.finding->suspects), ElementsAre(31));
  EXPECT_THAT(verdict.finding->ambiguous_with, IsEmpty());
  EXPECT_THAT(verdict.machines, ElementsAre("machine15"));
  EXPECT_TRUE(verdict.finding->certain) << "logs and stacks agree, and all are accounted for";
  ExpectGroupRule(verdict);
  EXPECT_THAT(verdict.finding->evidence,
              Contains(HasSubstr("rank 30 in all_gather 9 of communicator tp: waits for rank 31")));

  context.waits.hangs = false;
  EXPECT_FALSE(Judge(stacks, context).finding->certain) << "it may go on the next moment";
  context.waits.hangs = true;
  stacks[31] = StackOf(31, At::kGatherSomewhere, write, "machine15");
  EXPECT_FALSE(Judge(stacks, context).finding->certain) << "its stack says something else";
  stacks.pop_back();
  EXPECT_FALSE(Judge(stacks, context).finding->certain) << "it has no stack";
  EXPECT_THAT(RanksOf(Judge(stacks, context).finding->suspects), ElementsAre(31));
}

// Logs of ranks whose stacks nobody brought: they count among the job's.
TEST(StackGroups, RanksOfLogsAreOfTheJob) {
  StackContext context;
  context.waits = {{{{0, 1}, {7}, "all_reduce 3 of communicator 0", false}}, {}, true};
  const StackVerdict verdict = Judge(JobAt({At::kGradSync, At::kGradSync}), context);
  EXPECT_THAT(RanksOf(verdict.finding->suspects), ElementsAre(7));
  EXPECT_THAT(verdict.no_stack, ElementsAre(7));
  EXPECT_DOUBLE_EQ(verdict.confidence, 1);
  EXPECT_FALSE(verdict.finding->certain) << "it has no stack";
}

TEST(StackGroups, WhoIsOutsideWhileOthersWaitIsNamed) {
  const StackVerdict verdict = Judge(JobAt({At::kGradSync, At::kGradSync, At::kLoadsData, At::kGradSync}));
  EXPECT_EQ(verdict.basis, StackBasis::kOutside);
  EXPECT_EQ(verdict.finding->syndrome, Syndrome::kNotEntered);
  EXPECT_THAT(RanksOf(verdict.finding->suspects), ElementsAre(2));
  EXPECT_THAT(
      verdict.finding->evidence,
      ElementsAre("rank 2 at torch/utils/data/dataloader.py in _try_get_data, called from train.py in next_batch",
                  "3 of 4 ranks wait in communication"));
  EXPECT_FALSE(verdict.finding->certain);
  EXPECT_THAT(verdict.finding->probe, HasSubstr("second look"));
}

// Most ranks are where the culprit is: it is dominant, and not healthy.
TEST(StackGroups, MostMayBeToBlame) {
  const StackVerdict verdict = Judge(JobAt({At::kLoadsData, At::kLoadsData, At::kLoadsData, At::kGradSync}));
  EXPECT_THAT(RanksOf(verdict.finding->suspects), ElementsAre(0, 1, 2));
  EXPECT_THAT(verdict.outliers, ElementsAre(3));
}

TEST(StackGroups, WithoutMajorityAllAreEquallyGood) {
  const StackVerdict verdict = Judge(JobAt({At::kGatherSomewhere, At::kGatherSomewhere, At::kGradSync, At::kGradSync}));
  EXPECT_EQ(verdict.basis, StackBasis::kTie);
  EXPECT_THAT(verdict.finding->suspects, IsEmpty());
  EXPECT_THAT(RanksOf(verdict.finding->ambiguous_with), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(verdict.finding->evidence, SizeIs(2));
  EXPECT_FALSE(verdict.group_rule.has_value());
}

TEST(StackGroups, AllTogetherNobodyIsNamed) {
  const StackVerdict verdict = Judge(JobAt({At::kGradSync, At::kGradSync, At::kGradSync}), {.layout = {{.dp = 3}}});
  EXPECT_EQ(verdict.basis, StackBasis::kTogether);
  EXPECT_EQ(verdict.finding->syndrome, Syndrome::kStalled);
  EXPECT_THAT(verdict.finding->suspects, IsEmpty());
}

TEST(StackGroups, NobodyWaitsInAJobThatComputes) {
  EXPECT_FALSE(Judge(JobAt({At::kLoadsData, At::kLoadsData})).finding.has_value());
  EXPECT_FALSE(Judge({}).finding.has_value());
  EXPECT_FALSE(Judge(JobAt({At::kGradSync})).finding.has_value());
}

// DDP waits below autograd: Python says "backward", only the native stack says that it waits.
TEST(StackGroups, NativeFramesTellThatABackwardPassWaits) {
  std::vector<ProcessStack> stacks;
  for (int rank = 0; rank < 3; ++rank) {
    ProcessStack& stack = stacks.emplace_back();
    stack.rank = rank;
    stack.python = {"/usr/lib/python3/dist-packages/torch/autograd/__init__.py:197 in backward",
                    "/me/job.py:3 in main"};
    stack.native = rank == 1 ? std::vector<std::string>{"sgemm_kernel_HASWELL (libopenblasp-r0.3.21.so)"}
                             : std::vector<std::string>{"pthread_cond_wait (libc.so.6)",
                                                        "c10d::Reducer::finalize_backward (libtorch_cpu.so.1.13.0)"};
  }
  EXPECT_THAT(RanksOf(Judge(stacks).finding->suspects), ElementsAre(1));
  // Without the right to look, nobody knows.
  for (ProcessStack& stack : stacks) stack.native.clear();
  EXPECT_FALSE(Judge(stacks).finding.has_value());
}

// What writes the files of a distributed checkpoint runs below functions that are called as collectives are.
TEST(StackGroups, WhoWritesItsCheckpointIsOutside) {
  const std::string torch = "/usr/lib/python3/dist-packages/torch/distributed/";
  std::vector<ProcessStack> stacks;
  for (int rank = 0; rank < 4; ++rank) {
    ProcessStack& stack = stacks.emplace_back();
    stack.rank = rank;
    if (rank == 2) {
      stack.python = {torch + "checkpoint/filesystem.py:200 in _write_item",
                      torch + "checkpoint/filesystem.py:520 in write_data"};
      stack.native = {"__write (libc.so.6)"};
    } else {
      stack.python = {torch + "distributed_c10d.py:2500 in gather_object",
                      torch + "checkpoint/utils.py:130 in gather_object"};
      stack.native = {"pthread_cond_wait (libc.so.6)", "c10d::Work::wait (libtorch_cpu.so)"};
    }
    stack.python.push_back(torch + "checkpoint/utils.py:230 in all_reduce");
    stack.python.emplace_back("/me/job.py:3 in main");
  }
  const StackVerdict verdict = Judge(stacks);
  EXPECT_EQ(verdict.basis, StackBasis::kOutside);
  EXPECT_THAT(RanksOf(verdict.finding->suspects), ElementsAre(2));
}

TEST(StackGroups, WhoCouldNotBeReadIsNamedWhereNobodyElseExplainsIt) {
  std::vector<ProcessStack> stacks = JobAt({At::kGradSync, At::kGradSync, At::kGradSync, At::kGradSync});
  stacks[3].python = stacks[3].native = {};
  stacks[3].unreadable = "the process is frozen";
  const StackVerdict verdict = Judge(stacks);
  EXPECT_THAT(RanksOf(verdict.finding->suspects), ElementsAre(3));
  EXPECT_EQ(verdict.stacks.unread, 1U);
  // A rank of which there is no process at all: the layout tells that it is missing.
  stacks.pop_back();
  EXPECT_THAT(RanksOf(Judge(stacks, {.layout = {{.dp = 4}}}).finding->suspects), ElementsAre(3));
  EXPECT_THAT(Judge(stacks, {.layout = {{.dp = 4}}}).no_stack, ElementsAre(3));
}

// Of DDP's wait, whose Python frames say "backward" only.
std::vector<ProcessStack> InBackward(int ranks) {
  std::vector<ProcessStack> stacks;
  for (int rank = 0; rank < ranks; ++rank) {
    ProcessStack& stack = stacks.emplace_back();
    stack.rank = rank;
    stack.python = {"/usr/lib/python3/dist-packages/torch/autograd/__init__.py:197 in backward",
                    "/me/job.py:3 in main"};
    stack.native = {"pthread_cond_wait (libc.so.6)", "c10d::Reducer::finalize_backward (libtorch_cpu.so.1.13.0)",
                    fmt::format("python3.11+0x{}", rank)};
  }
  return stacks;
}

TEST(StackGroups, WhoIsStoppedIsNamedForThat) {
  std::vector<ProcessStack> stacks = InBackward(4);
  stacks[1].stopped = true;
  stacks[1].python.clear();  // a stopped process can't answer
  const StackVerdict verdict = Judge(stacks);
  EXPECT_EQ(verdict.basis, StackBasis::kStopped);
  EXPECT_EQ(verdict.finding->syndrome, Syndrome::kStopped);
  EXPECT_THAT(RanksOf(verdict.finding->suspects), ElementsAre(1));
  EXPECT_THAT(verdict.finding->ambiguous_with, IsEmpty());
  EXPECT_FALSE(verdict.finding->certain);
  EXPECT_THAT(verdict.outliers, IsEmpty());
  EXPECT_THAT(verdict.finding->evidence, Contains("3 of 4 ranks wait in communication"));
  for (ProcessStack& stack : stacks) stack.stopped = true;
  EXPECT_EQ(Judge(stacks).basis, StackBasis::kTogether) << "a pause of the whole job";
}

TEST(StackGroups, WithoutPythonFramesTheNativeCallTells) {
  std::vector<ProcessStack> stacks = InBackward(4);
  stacks[0].python.clear();
  const StackVerdict together = Judge(stacks);
  EXPECT_EQ(together.basis, StackBasis::kTogether);
  ASSERT_THAT(together.stacks.clusters, SizeIs(1));
  EXPECT_THAT(together.stacks.clusters.front().ranks, ElementsAre(0, 1, 2, 3));
  stacks[0].native[1] = "c10d::Work::wait (libtorch_cpu.so.1.13.0)";
  const StackVerdict apart = Judge(stacks);
  EXPECT_EQ(apart.basis, StackBasis::kOutliers);
  EXPECT_THAT(RanksOf(apart.finding->suspects), ElementsAre(0));
}

// Below one call of Python, gloo's natives differ by the moment.
TEST(StackGroups, WithoutPythonFramesTheNativeCallOfAnyMemberTells) {
  std::vector<ProcessStack> stacks = InBackward(5);
  for (ProcessStack& stack : stacks) {
    stack.python.front() = "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py:1534 in all_reduce";
    stack.native[1] = "c10d::ProcessGroupGloo::AsyncWork::wait (libtorch_cpu.so.1.13.0)";
  }
  stacks[0].native[1] = "c10d::Work::wait (libtorch_cpu.so.1.13.0)";
  stacks[3].python.clear();
  stacks[4].native.clear();
  const StackVerdict together = Judge(stacks);
  EXPECT_EQ(together.basis, StackBasis::kTogether);
  EXPECT_THAT(together.stacks.clusters, SizeIs(1));
  for (const int rank : {1, 2}) stacks[static_cast<size_t>(rank)].native.clear();
  EXPECT_THAT(RanksOf(Judge(stacks).finding->suspects), ElementsAre(3)) << "who can't be read natively says nothing";
}

ProcessStack Helper(int rank, ProcessRole role, const char* function) {
  ProcessStack stack;
  stack.rank = rank;
  stack.role = role;
  stack.pid = 5000 + rank;
  stack.native = {fmt::format("{} (libc.so.6)", function)};
  return stack;
}

TEST(StackGroups, AWriterThatIsElsewhereIsNamedWhereAllTrainersWaitTogether) {
  std::vector<ProcessStack> stacks = JobAt({At::kGradSync, At::kGradSync, At::kGradSync, At::kGradSync});
  for (int rank = 0; rank < 4; ++rank)
    stacks.push_back(Helper(rank, ProcessRole::kCheckpointWriter, rank == 2 ? "fsync" : "read"));
  const StackVerdict verdict = Judge(stacks);
  EXPECT_EQ(verdict.basis, StackBasis::kHelpers);
  EXPECT_THAT(RanksOf(verdict.finding->suspects), ElementsAre(2));
  EXPECT_THAT(verdict.finding->evidence, Contains("rank 2, checkpoint_writer at fsync (libc.so.6)"));
}

TEST(StackGroups, AHelperOfTheSuspectAloneAtItsPlaceIsEvidence) {
  std::vector<ProcessStack> stacks = JobAt({At::kGradSync, At::kGradSync, At::kLoadsData});
  for (int rank = 0; rank < 3; ++rank)
    stacks.push_back(Helper(rank, ProcessRole::kDataWorker, rank == 2 ? "openat" : "sem_wait"));
  const StackVerdict verdict = Judge(stacks);
  EXPECT_EQ(verdict.basis, StackBasis::kOutside);
  EXPECT_THAT(verdict.finding->evidence, Contains("data_worker of rank 2 alone at openat (libc.so.6)"));
}

// Both ends of a transfer have come, and it does not end.
TEST(StackGroups, TwoNeighboursThatFaceEachOtherAreNamed) {
  const StackVerdict verdict =
      Judge(JobAt({At::kRecvBackward, At::kRecvBackward, At::kRecvForward, At::kRecvForward}), {.layout = {{.pp = 4}}});
  EXPECT_EQ(verdict.basis, StackBasis::kLayout);
  EXPECT_EQ(verdict.finding->syndrome, Syndrome::kCommunicationHang);
  EXPECT_THAT(RanksOf(verdict.finding->suspects), ElementsAre(1, 2));
  EXPECT_DOUBLE_EQ(verdict.confidence, 1);
}

TEST(StackGroups, RefusesStacksThatDoNotFit) {
  std::vector<ProcessStack> stacks = JobAt({At::kGradSync, At::kGradSync});
  const auto error = [&](const StackContext& context) {
    return std::string(Message(AggregateStacks(stacks, context).status()));
  };
  EXPECT_EQ(error({.layout = {{.dp = 1}}}), "a stack of rank 1, but the layout has 1 ranks; expected that of this job");
  EXPECT_THAT(error({.layout = {{.dp = 0}}}), HasSubstr("dp must be at least 1"));
  stacks.push_back(stacks[0]);
  EXPECT_EQ(error({}), "two stacks of rank 0; expected those of one moment, each rank once");
  stacks[2].rank = -1;
  EXPECT_THAT(error({}), HasSubstr("expected a rank of 0 or more"));
}

TEST(StackGroups, TheReportHasClustersWithCountsAndAnExample) {
  const StackVerdict verdict = Judge(JobAt({At::kGradSync, At::kGradSync, At::kLoadsData, At::kGradSync}));
  const Json report = StackReport(verdict);
  EXPECT_EQ(report["basis"], "outside");
  EXPECT_EQ(report["outliers"], "2");
  ASSERT_THAT(report["clusters"], SizeIs(2));
  const Json& first = report["clusters"][0];
  EXPECT_EQ(first["role"], "trainer");
  EXPECT_EQ(first["processes"], 3);
  EXPECT_EQ(first["ranks"], "0-1, 3");
  EXPECT_EQ(first["in_communication"], "yes");
  EXPECT_EQ(first["place"], "torch/distributed/distributed_c10d.py in all_reduce");
  EXPECT_EQ(first["example"]["rank"], 0);
  EXPECT_EQ(first["example"]["frames"][0],
            "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py:10 in all_reduce");
  EXPECT_EQ(report["clusters"][1]["in_communication"], "no");
  EXPECT_TRUE(report["group_rule"].is_null());
}

TEST(StackGroups, LinesTellPlacesApartWhereTheyAreKept) {
  std::vector<ProcessStack> stacks = JobAt({At::kLoadsData, At::kLoadsData});
  stacks[1].python[0] = "/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py:11 in _try_get_data";
  EXPECT_THAT(Judge(stacks).stacks.clusters, SizeIs(1));
  EXPECT_THAT(Judge(stacks, {.lines = Lines::kKeep}).stacks.clusters, SizeIs(2));
}

}  // namespace
}  // namespace lockstep::detect
