// A rank that waits for its data service is told as that, from what a run keeps of itself; one that is slow in the same
// part of the step for another reason is not.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "lockstep/explain/causes.h"
#include "lockstep/explain/report.h"
#include "lockstep/record/file.h"
#include "lockstep/record/trail.h"
#include "lockstep/trace/kineto_job.h"
#include "lockstep/trace/run_trace.h"
#include "lockstep/trace/test_trace.h"

namespace lockstep::explain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kMs = 1'000'000;
constexpr int kRanks = 4, kSteps = 20;
constexpr uint32_t kCells = 512;

// A run of data-parallel ranks. A step: 2 ms in the data part and what is said below, 20 forward, 30 backward, in whose
// end gradients are reduced in 4 ms, for which the optimizer waits, 5 ms.
struct Plan {
  std::map<int, int64_t> waits, slow;  // by rank, ns: of the data part, as a record says, and as none does
};

class RunWithWaits {
 public:
  explicit RunWithWaits(const Plan& plan) : plan_(plan) {
    std::filesystem::create_directories(path_ + "/trails");
    for (int rank = 0; rank < kRanks; ++rank) {
      gloo_.push_back(Trail(rank, "gloo"));
      feed_.push_back(Trail(rank, "feed"));
      ls_communicator& world = gloo_.back()->communicator[ls_trail_add_communicator(gloo_.back(), 7)];
      world.rank = static_cast<uint32_t>(rank);
      world.size = kRanks;
      world.id = 77;
    }
    const int file = ls_record_file_create((path_ + "/records").c_str());
    int64_t now = 1000 * kMs;
    for (int step = 0; step < kSteps; ++step) now = Step(file, step, now);
    close(file);
  }
  ~RunWithWaits() {
    for (const auto* trails : {&gloo_, &feed_})
      for (ls_trail* trail : *trails) munmap(trail, ls_trail_bytes(kCells));
    std::filesystem::remove_all(path_);
  }

  Causes Explain() const {
    const trace::KinetoJob traced = trace::BuildKinetoJob(trace::ReadRun(path_).value(), {}).value();
    return FindCauses(traced.job, WhatIf(traced.job));
  }

 private:
  ls_trail* Trail(int rank, const char* source) const {
    ls_origin origin{};
    origin.rank = static_cast<uint32_t>(rank);
    origin.world = kRanks;
    origin.pid = static_cast<uint32_t>(getpid());
    strcpy(origin.host, "here");
    strncpy(origin.source, source, sizeof origin.source - 1);
    return ls_trail_create(fmt::format("{}/trails/{}.{}.trail", path_, source, rank).c_str(), &origin, kCells);
  }
  static int64_t Of(const std::map<int, int64_t>& by_rank, int rank) {
    const auto found = by_rank.find(rank);
    return found == by_rank.end() ? 0 : found->second;
  }

  int64_t Step(int file, int step, int64_t begin) {
    std::vector<int64_t> data_end, backward_end;
    for (int rank = 0; rank < kRanks; ++rank) {
      const int64_t jitter = (step * 7 + rank * 13) % 5 * kMs / 10;
      const int64_t wait = Of(plan_.waits, rank);
      data_end.push_back(begin + 2 * kMs + jitter + wait + Of(plan_.slow, rank));
      backward_end.push_back(data_end.back() + 50 * kMs);
      if (wait > 0) Wait(rank, begin + kMs + wait, wait);
    }
    const int64_t reduced = *std::max_element(backward_end.begin(), backward_end.end()) + 4 * kMs;
    const int64_t end = reduced + 5 * kMs;
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto i = static_cast<size_t>(rank);
      Reduce(rank, step + 1, backward_end[i], reduced);
      ls_record record{};
      record.kind = LS_RECORD_STEP;
      record.time_ns = end;
      ls_step_body& body = record.body.step;
      body.step = step;
      body.rank = static_cast<uint32_t>(rank);
      body.duration = static_cast<uint32_t>(end - begin);
      body.data = static_cast<uint32_t>(data_end[i] - begin);
      body.forward = static_cast<uint32_t>(20 * kMs);
      body.backward = static_cast<uint32_t>(reduced - data_end[i] - 20 * kMs);
      body.optimizer = static_cast<uint32_t>(end - reduced);
      EXPECT_TRUE(ls_record_file_append(file, &record, 1));
    }
    return end;
  }
  void Wait(int rank, int64_t end, int64_t took) {
    ls_record record{};
    record.kind = LS_RECORD_DATA;
    record.time_ns = end;
    record.body.data.rank = static_cast<uint32_t>(rank);
    record.body.data.waits = 1;
    record.body.data.threads = 2;
    record.body.data.busy = 100;
    strcpy(record.body.data.data_set, "photos");
    ls_data_set_parts(&record, {0, 0, 0, took, 0});
    ls_trail_push(feed_[static_cast<size_t>(rank)], &record);
  }
  void Reduce(int rank, int number, int64_t begin, int64_t end) {
    ls_record record{};
    record.kind = LS_RECORD_OP;
    record.time_ns = end;
    ls_op_body& op = record.body.op;
    op.bytes = 1 << 20;
    op.number = static_cast<uint32_t>(number);
    op.tag = LS_NO_TAG;
    op.rank = static_cast<uint32_t>(rank);
    op.peer = op.waits_for = LS_NO_PEER;
    op.function = LS_ALL_REDUCE;
    op.state = LS_OP_COMPLETED;
    op.alone = LS_UNKNOWN;
    ls_op_set_duration(&record, end - begin);
    ls_trail_push(gloo_[static_cast<size_t>(rank)], &record);
  }

  const Plan plan_;
  const std::string path_ = trace::TempPath("run");
  std::vector<ls_trail*> gloo_, feed_;
};

std::vector<int32_t> RanksOf(const Cause& cause) {
  std::vector<int32_t> ranks;
  for (const CauseSuspect& suspect : cause.suspects) ranks.push_back(suspect.rank.value_or(-1));
  return ranks;
}

TEST(DataWaits, NoneInAHealthyRun) { EXPECT_THAT(RunWithWaits({}).Explain().found, IsEmpty()); }

// A step takes 61 ms, and rank 3 waits for 40 more.
TEST(DataWaits, OfOneRankAreToldWithTheirSource) {
  const Causes causes = RunWithWaits({.waits = {{3, 40 * kMs}}, .slow = {}}).Explain();
  ASSERT_EQ(1U, causes.found.size());
  EXPECT_EQ(CauseKind::kDataLoading, causes.found[0].kind);
  EXPECT_THAT(RanksOf(causes.found[0]), ElementsAre(3));
  EXPECT_NEAR(0.040, causes.found[0].gain_s, 0.001);
  EXPECT_THAT(
      causes.found[0].evidence,
      ElementsAre("rank 3 waits 0.04 s of each step (40 %) for data set photos: decoding (2 of 2 threads busy)"));
  EXPECT_LT(causes.unexplained(), 0.05);
}

TEST(DataWaits, OfAllRanksAlikeAreALossToo) {
  Plan plan;
  for (int rank = 0; rank < kRanks; ++rank) plan.waits[rank] = 40 * kMs;
  const Causes causes = RunWithWaits(plan).Explain();
  ASSERT_EQ(1U, causes.found.size());
  EXPECT_EQ(CauseKind::kDataLoading, causes.found[0].kind);
  EXPECT_THAT(RanksOf(causes.found[0]), testing::UnorderedElementsAre(0, 1, 2, 3));
  EXPECT_NEAR(0.040, causes.found[0].gain_s, 0.001);
  EXPECT_THAT(causes.found[0].evidence, testing::SizeIs(4));
}

TEST(DataWaits, ASlowRankIsAWorker) {
  const Causes causes = RunWithWaits({.waits = {}, .slow = {{2, 40 * kMs}}}).Explain();
  ASSERT_EQ(1U, causes.found.size());
  EXPECT_EQ(CauseKind::kWorker, causes.found[0].kind);
  EXPECT_THAT(RanksOf(causes.found[0]), ElementsAre(2));
}

// Both at once: what one rank waits does not hide that another is slow.
TEST(DataWaits, AndASlowRankAreTwoCauses) {
  const Causes causes = RunWithWaits({.waits = {{3, 60 * kMs}}, .slow = {{1, 30 * kMs}}}).Explain();
  std::vector<std::pair<CauseKind, std::vector<int32_t>>> found;
  for (const Cause& cause : causes.found) found.emplace_back(cause.kind, RanksOf(cause));
  EXPECT_THAT(found, testing::UnorderedElementsAre(std::pair(CauseKind::kDataLoading, std::vector<int32_t>{3}),
                                                   std::pair(CauseKind::kWorker, std::vector<int32_t>{1})));
  EXPECT_LT(causes.unexplained(), 0.05);
}

// Rank 3 waits little, and is slow by itself.
TEST(DataWaits, OfASlowRankAreNotAllOfIt) {
  const Causes causes = RunWithWaits({.waits = {{3, 15 * kMs}}, .slow = {{3, 30 * kMs}}}).Explain();
  ASSERT_EQ(2U, causes.found.size());
  EXPECT_EQ(CauseKind::kWorker, causes.found[0].kind);
  EXPECT_NEAR(0.030, causes.found[0].gain_s, 0.002);
  EXPECT_EQ(CauseKind::kDataLoading, causes.found[1].kind);
  EXPECT_NEAR(0.015, causes.found[1].gain_s, 0.002);
}

}  // namespace
}  // namespace lockstep::explain
