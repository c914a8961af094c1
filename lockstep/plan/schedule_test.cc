#include "lockstep/plan/schedule.h"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "lockstep/plan/memory.h"
#include "lockstep/plan/schedule_order.h"
#include "lockstep/plan/step.h"
#include "lockstep/plan/test_workload.h"

namespace lockstep::plan {
namespace {

using testing::DoubleNear;

constexpr Schedule kAll[] = {Schedule::k1F1B, Schedule::kZeroBubbleH1, Schedule::kZeroBubble2p, Schedule::kDualPipe};

Workload Pipelined(Schedule schedule, int stages, int batches) {
  Workload work = TestWorkload();
  work.layers = 2 * stages;
  work.accelerators = work.pp = stages;
  work.global_batch = batches;
  work.schedule = schedule;
  return work;
}

// Of 8 stages, F = 1, B = 1.2, W = .8.
TEST(Schedule, BubblesByHand) {
  const Passes others{7, 8.4, 5.6}, each{1, 1.2, .8};
  EXPECT_THAT(BubbleSeconds(Schedule::k1F1B, 8, 1, others, each), DoubleNear(21, 1e-12));
  EXPECT_THAT(BubbleSeconds(Schedule::k1F1B, 8, 3, others, each), DoubleNear(7, 1e-12));
  EXPECT_THAT(BubbleSeconds(Schedule::kZeroBubbleH1, 8, 1, others, each), DoubleNear(9.8, 1e-12));
  EXPECT_THAT(BubbleSeconds(Schedule::kZeroBubble2p, 8, 1, others, each), DoubleNear(4.2, 1e-12));
  EXPECT_THAT(BubbleSeconds(Schedule::kDualPipe, 8, 1, others, each), DoubleNear(3 * (3 + 2 - 2.4), 1e-12));
  EXPECT_EQ(BubbleSeconds(Schedule::k1F1B, 1, 1, {}, each), 0);
}

// Every microbatch passes every stage once each way, its weights' gradient after its input's.
TEST(Schedule, OrdersAreWhole) {
  for (const Schedule schedule : kAll)
    for (const int stages : {2, 4, 8})
      for (const int batches : {2 * stages, 3 * stages + stages % 4, 40}) {
        const Workload work = Pipelined(schedule, stages, batches);
        ASSERT_TRUE(CheckSchedule(work).ok());
        for (int stage = 0; stage < stages; ++stage) {
          std::set<std::pair<int, int>> forward, input, weight;  // chunk, microbatch
          for (const Piece& one : OrderOf(work, stage)) {
            const std::pair<int, int> pass{one.chunk, one.microbatch};
            if (one.work == Work::kForward) {
              EXPECT_TRUE(forward.insert(pass).second);
            }
            if (one.work == Work::kInput || one.work == Work::kBackward) {
              EXPECT_TRUE(input.insert(pass).second);
            }
            if (one.work == Work::kWeight || one.work == Work::kBackward) {
              EXPECT_TRUE(weight.insert(pass).second);
            }
            if (one.work == Work::kInput) {
              EXPECT_TRUE(forward.contains(pass));
            }
            if (one.work == Work::kWeight) {
              EXPECT_TRUE(input.contains(pass));
            }
          }
          EXPECT_EQ(forward.size(), size_t(batches)) << ScheduleName(schedule) << " " << stages << " " << batches;
          EXPECT_EQ(forward, input);
          EXPECT_EQ(forward, weight);
        }
      }
}

// As many microbatches as InFlight says are the most whose activations a stage ever holds: from the forward pass until
// the gradient of the weights.
TEST(Schedule, InFlightIsWhatTheOrderHolds) {
  for (const Schedule schedule : kAll)
    for (const int chunks : {1, 2}) {
      if (chunks == 2 && schedule != Schedule::k1F1B) continue;
      Workload work = Pipelined(schedule, 4, 16);
      work.chunks = chunks;
      for (int stage = 0; stage < 4; ++stage) {
        int held = 0, most = 0;
        for (const Piece& one : OrderOf(work, stage)) {
          if (one.work == Work::kForward) most = std::max(most, ++held);
          if (one.work == Work::kWeight || one.work == Work::kBackward) --held;
        }
        const double bound = InFlight(VariantOf(work), work.pp, work.Microbatches(), stage);
        EXPECT_LE(most, bound * chunks + 1e-9) << ScheduleName(schedule) << " stage " << stage;
        if (schedule != Schedule::kDualPipe) {
          EXPECT_THAT(double(most), DoubleNear(bound * chunks, 1e-9));
        }
      }
    }
}

TEST(Schedule, LessBubbleForMoreMemory) {
  std::map<Schedule, double> bubble, memory;
  for (const Schedule schedule : kAll) {
    const Workload work = Pipelined(schedule, 8, 32);
    bubble[schedule] = PredictStep(work, Rates{})[Part::kBubble];
    memory[schedule] = PredictMemory(work).total();
  }
  EXPECT_LT(bubble[Schedule::kZeroBubbleH1], bubble[Schedule::k1F1B]);
  EXPECT_LT(bubble[Schedule::kZeroBubble2p], bubble[Schedule::kZeroBubbleH1]);
  EXPECT_LT(bubble[Schedule::kDualPipe], bubble[Schedule::k1F1B]);
  EXPECT_GT(memory[Schedule::kZeroBubble2p], memory[Schedule::kZeroBubbleH1]);
  EXPECT_GE(memory[Schedule::kZeroBubbleH1], memory[Schedule::k1F1B]);
}

// The last stage has the output layer: a layer less of the others' makes the step shorter, one more longer.
TEST(Schedule, UnevenStages) {
  Workload work = Pipelined(Schedule::k1F1B, 4, 16);
  work.layers = 32, work.vocabulary = 200'000;
  const double even = PredictStep(work, Rates{}).total().value;
  work.stage_layers = {8, 8, 8, 8};
  EXPECT_DOUBLE_EQ(PredictStep(work, Rates{}).total().value, even);
  work.stage_layers = {9, 8, 8, 7};
  EXPECT_LT(PredictStep(work, Rates{}).total().value, even);
  work.stage_layers = {7, 8, 8, 9};
  EXPECT_GT(PredictStep(work, Rates{}).total().value, even);
  EXPECT_GT(PredictMemory(work).total(), 0);
}

}  // namespace
}  // namespace lockstep::plan
