#include "lockstep/trace/run_trace.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "lockstep/base/test_folder.h"
#include "lockstep/record/file.h"
#include "lockstep/record/trail.h"
#include "lockstep/trace/kineto_job.h"

namespace lockstep::trace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kMs = 1'000'000;
constexpr int kRanks = 3, kSteps = 12;

// A run of data-parallel ranks. A step: 1 ms of data, 10 forward, 20 backward (rank 2: 26), 3 optimizer. Half way
// through backward a bucket of gradients is reduced beside it, at its end another one, for which the optimizer waits;
// then the losses, for which all wait.
class RunTrace : public testing::Test {
 protected:
  RunTrace() {
    std::filesystem::create_directory(run_ + "/trails");
    for (int rank = 0; rank < kRanks; ++rank) {
      ls_origin origin{};
      origin.rank = static_cast<uint32_t>(rank);
      origin.world = kRanks;
      origin.pid = static_cast<uint32_t>(getpid());
      strcpy(origin.host, "here");
      strcpy(origin.source, "gloo");
      trails_.push_back(ls_trail_create(fmt::format("{}/trails/{}.trail", run_, rank).c_str(), &origin, 512));
      ls_communicator& world = trails_.back()->communicator[ls_trail_add_communicator(trails_.back(), 7)];
      world.rank = static_cast<uint32_t>(rank);
      world.size = kRanks;
      world.id = 77;
    }
    const int file = ls_record_file_create((run_ + "/records").c_str());
    int64_t now = 1000 * kMs;
    for (int step = 0; step < kSteps; ++step) now = Step(file, step, now);
    close(file);
  }
  ~RunTrace() override {
    for (ls_trail* trail : trails_) munmap(trail, ls_trail_bytes(512));
  }

  int64_t Step(int file, int step, int64_t begin) {
    const auto jitter = [&](int rank) { return (step * 7 + rank * 13) % 5 * kMs / 10; };  // what is not measured alike
    std::vector<int64_t> forward_end, backward_end;
    for (int rank = 0; rank < kRanks; ++rank) {
      forward_end.push_back(begin + 11 * kMs + jitter(rank));
      backward_end.push_back(forward_end.back() + (rank == 2 ? 26 : 20) * kMs);
    }
    const int64_t first = *std::max_element(forward_end.begin(), forward_end.end()) + 12 * kMs;
    const int64_t reduced = *std::max_element(backward_end.begin(), backward_end.end()) + 2 * kMs;
    const int64_t end = reduced + 4 * kMs;
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto i = static_cast<size_t>(rank);
      Op(rank, 3 * step + 1, forward_end[i] + 10 * kMs, first);
      Op(rank, 3 * step + 2, backward_end[i], reduced);
      Op(rank, 3 * step + 3, reduced + 3 * kMs + kMs / 2, end);
      ls_record record{};
      record.kind = LS_RECORD_STEP;
      record.time_ns = end;
      ls_step_body& body = record.body.step;
      body.step = step;
      body.rank = static_cast<uint32_t>(rank);
      body.duration = static_cast<uint32_t>(end - begin);
      body.save = kMs / 4;
      body.data = kMs - kMs / 4;
      body.forward = static_cast<uint32_t>(forward_end[i] - begin - kMs);
      body.backward = static_cast<uint32_t>(reduced - forward_end[i]);
      body.optimizer = 3 * kMs;
      EXPECT_TRUE(ls_record_file_append(file, &record, 1));
    }
    return end;
  }

  void Op(int rank, int number, int64_t begin, int64_t end) {
    ls_record record{};
    record.kind = LS_RECORD_OP;
    record.time_ns = end;
    record.body.op.number = static_cast<uint32_t>(number);
    record.body.op.tag = LS_NO_TAG;
    record.body.op.rank = static_cast<uint32_t>(rank);
    record.body.op.function = LS_ALL_REDUCE;
    record.body.op.state = LS_OP_COMPLETED;
    record.body.op.duration = static_cast<uint32_t>(end - begin);
    record.body.op.bytes = number % 3 == 0 ? 4 : 1 << 20;
    ls_trail_push(trails_[static_cast<size_t>(rank)], &record);
  }

  const TestFolder folder_;
  const std::string run_ = folder_.path();
  std::vector<ls_trail*> trails_;
};

TEST_F(RunTrace, ComputeIsWhatLiesBetweenAndWaitingIsNot) {
  EXPECT_TRUE(IsRun(run_));
  const auto ranks = ReadRun(run_);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  ASSERT_EQ(ranks->size(), 3u);
  const KinetoRank& rank = ranks->at(1);
  EXPECT_EQ(rank.steps.size(), 11u) << "of the first the trail may have lost the begin";
  std::map<std::string, int64_t> spent;
  int64_t communication = 0;
  for (const DeviceOp& op : rank.ops)
    (op.collective == kNoIndex ? spent[rank.parts[op.part]] : communication) += op.duration_ns;
  EXPECT_EQ(spent["save"] + spent["data"], 11 * kMs);
  EXPECT_NEAR(static_cast<double>(spent["forward"]), 110 * kMs, 4.4 * kMs);
  EXPECT_EQ(spent["backward"], 220 * kMs) << "while it waits for rank 2 it does nothing";
  EXPECT_EQ(spent["optimizer"], 33 * kMs);
  EXPECT_EQ(spent["rest"], 11 * kMs / 2) << "then it waits for the losses";
  EXPECT_GT(communication, 88 * kMs);
}

TEST_F(RunTrace, BecomesAGraph) {
  auto ranks = ReadRun(run_);
  ASSERT_TRUE(ranks.ok());
  const auto built = BuildKinetoJob(*std::move(ranks), {});
  ASSERT_TRUE(built.ok()) << built.status();
  const TracedJob& job = built->job;
  EXPECT_EQ(job.steps.size(), 11u);
  EXPECT_EQ(job.dp, 3);
  std::vector<std::string> segments;
  for (const JobOp& op : job.ops)
    if (op.type == OpType::kSegment) segments.push_back(job.kinds[static_cast<size_t>(op.kind)]);
  // Backward is cut where the buckets are launched, and the rest where the losses are.
  EXPECT_THAT(segments,
              ElementsAre("save", "data", "forward", "backward", "backward", "backward", "optimizer", "rest", "rest"));
  for (const float time : job.step_times) EXPECT_NEAR(time, 0.0435, 0.001);
  EXPECT_EQ(job.counters.size(), 0u) << job.counters.front().name;
}

TEST_F(RunTrace, IsNamedAsItsJob) {
  EXPECT_EQ(NameOfRun(run_), "") << "a copy of what it noted";
  std::ofstream(run_ + "/run.json") << R"({"job":"seven"})";
  EXPECT_EQ(NameOfRun(run_), "seven");
}

TEST_F(RunTrace, SaysWhatIsMissing) {
  EXPECT_FALSE(IsRun(testing::TempDir()));
  const std::string empty = run_ + "/empty";
  std::filesystem::create_directory(empty);
  std::ofstream(empty + "/run.json") << "{}";
  EXPECT_EQ(NameOfRun(empty), "");
  EXPECT_TRUE(IsRun(empty)) << "whatever lies below it";
  EXPECT_THAT(Message(ReadRun(empty).status()), HasSubstr("/empty: nothing to explain: this run has no trails"));
  std::ofstream(empty + "/run.json") << R"({"job":"seven","ranks":0})";
  EXPECT_THAT(Message(ReadRun(empty).status()), HasSubstr("/empty: this is the run of a coordinator without ranks"));
  std::ofstream(run_ + "/records.1") << "something else";
  EXPECT_THAT(Message(ReadRun(run_).status()), HasSubstr("no file of records"));
  std::filesystem::remove(run_ + "/records.1");
  std::filesystem::resize_file(run_ + "/records", 64);
  const auto without_steps = AllOf(HasSubstr("its ranks have told no steps"), HasSubstr("lockstep.Checkpoint"),
                                   HasSubstr("`lockstep diagnose " + run_));
  EXPECT_THAT(Message(ReadRun(run_).status()), without_steps);
  std::filesystem::remove(run_ + "/records");
  EXPECT_THAT(Message(ReadRun(run_).status()), without_steps) << "it is made for the first of them";
  ls_record before{};  // all that is told of communication
  before.kind = LS_RECORD_STEP;
  before.time_ns = kMs;
  before.body.step.duration = 1;
  const int file = ls_record_file_create((run_ + "/records").c_str());
  EXPECT_TRUE(ls_record_file_append(file, &before, 1));
  close(file);
  EXPECT_THAT(Message(ReadRun(run_).status()), HasSubstr("no step with communication"));
}

}  // namespace
}  // namespace lockstep::trace
