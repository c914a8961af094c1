// Traces that lack rows for several reasons. Where rows were lost, the answer is that of the whole trace; where nothing
// was lost, nothing is put back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "lockstep/base/json_text.h"
#include "lockstep/explain/test_job.h"

namespace lockstep::explain {
namespace {

using synth::FaultKind;
using synth::JobShape;
using testing::HasSubstr;
using testing::Not;
using trace::OpType;
using trace::StragglerRow;
using trace::StragglerRows;

float EndOf(const StragglerRow& row) { return row.start + row.duration; }

float EndOf(StragglerRows& rows, uint32_t step) {
  float end = 0;
  EachRow(rows, [&](const StragglerRow& row) { end = row.step == step ? std::max(end, EndOf(row)) : end; });
  return end;
}

template <typename Gone>
void Drop(StragglerRows& rows, const Gone& gone) {
  for (auto& piece : rows.pieces) std::erase_if(piece, gone);
}

// As a tracer that counts what it has kept.
void NumberAnew(StragglerRows& rows) {
  std::map<std::tuple<uint32_t, int, int, OpType>, std::vector<StragglerRow*>> of_worker;
  EachRow(rows, [&](StragglerRow& row) { of_worker[{row.step, row.dp, row.stage, row.type}].push_back(&row); });
  for (auto& [worker, some] : of_worker) {
    std::ranges::stable_sort(some, {}, [](const StragglerRow* row) { return std::pair(row->start, row->sequence); });
    for (size_t i = 0; i < some.size(); ++i) some[i]->sequence = static_cast<uint16_t>(i);
  }
}

StragglerRows Rows(const JobShape& shape, uint64_t seed, double factor = 1.4) {
  const synth::Fault slow{.kind = FaultKind::kWorker,
                          .dp = static_cast<int>(seed) % shape.dp,
                          .stage = static_cast<int>(seed) % shape.pp,
                          .factor = factor};
  return synth::Generate(shape, {slow}, seed).value();
}

std::string CountersOf(const trace::TracedJob& job) {
  std::string text;
  for (const trace::Counter& counter : job.counters) text += counter.name + " ";
  return text;
}

uint64_t PutBack(const trace::TracedJob& job) {
  const auto told = std::ranges::find(job.counters, "lost_rows_put_back", &trace::Counter::name);
  return told == job.counters.end() ? 0 : told->count;
}

void ExpectTheSame(StragglerRows rows, const StragglerRows& whole, const JobShape& shape, const std::string& what) {
  const trace::TracedJob job = JobOf(std::move(rows), shape), whole_job = JobOf(whole, shape);
  const WhatIf is(job), expected(whole_job);
  EXPECT_EQ(TextOf(FindCauses(job, is).found), TextOf(FindCauses(whole_job, expected).found)) << what;
  EXPECT_NEAR(is.slowdown(), expected.slowdown(), 0.02 * expected.slowdown()) << what;
  EXPECT_THAT(CountersOf(job), Not(HasSubstr("negative"))) << what;
  for (size_t step = 0; step < job.step_times.size(); ++step)
    EXPECT_LE(job.step_times[step], whole_job.step_times[step]) << what;
}

class PartialTraces : public testing::TestWithParam<JobShape> {};

// A burst of losses at the end of a step: what came last in it ended when its group did, and not behind the step.
TEST_P(PartialTraces, LostTailsLeaveTheAnswer) {
  const JobShape& shape = GetParam();
  const StragglerRows whole = Rows(shape, 1);
  for (int dp = 0; dp < shape.dp; ++dp)
    for (const size_t lost : {2U, 3U, 4U, 6U}) {
      StragglerRows rows = whole;
      std::vector<float> starts;
      const auto is_of = [&](const StragglerRow& row) { return row.dp == dp && row.stage == 0 && row.step == 0; };
      EachRow(rows, [&](const StragglerRow& row) { is_of(row) ? starts.push_back(row.start) : void(); });
      std::ranges::sort(starts, std::greater());
      Drop(rows, [&](const StragglerRow& row) { return is_of(row) && row.start >= starts[lost - 1]; });
      ExpectTheSame(std::move(rows), whole, shape, fmt::format("dp {}: the last {} rows", dp, lost));
    }
}

TEST_P(PartialTraces, AStepOfEvaluationHasLostNothing) {
  const JobShape& shape = GetParam();
  StragglerRows rows = Rows(shape, 1);
  Drop(rows, [](const StragglerRow& row) {
    return row.step == 1 && row.type != OpType::kForwardCompute && row.type != OpType::kForwardSend &&
           row.type != OpType::kForwardRecv && row.type != OpType::kParamsAllGather;
  });
  EXPECT_EQ(PutBack(JobOf(rows, shape)), 0);
}

TEST_P(PartialTraces, BeforeAWindowThatBeginsInAStepNothingIsLost) {
  const JobShape& shape = GetParam();
  for (const float share : {0.2F, 0.5F, 0.8F}) {
    StragglerRows rows = Rows(shape, 1, 1.0);
    const float begin = share * EndOf(rows, 0);
    Drop(rows, [&](const StragglerRow& row) { return row.step == 0 && row.start <= begin; });
    NumberAnew(rows);
    EachRow(rows, [&](StragglerRow& row) { row.start -= row.step == 0 ? begin : 0; });
    const trace::TracedJob job = JobOf(std::move(rows), shape);
    EXPECT_LE(PutBack(job), static_cast<uint64_t>(shape.dp * shape.pp)) << share;
    EXPECT_LT(WhatIf(job).slowdown(), 1.05) << share;
  }
}

TEST_P(PartialTraces, AStepThatIsCutOffBecomesNoLonger) {
  const JobShape& shape = GetParam();
  for (const float share : {0.3F, 0.6F, 0.9F}) {
    StragglerRows rows = Rows(shape, 1);
    const float end = share * EndOf(rows, 1);
    Drop(rows, [&](const StragglerRow& row) { return row.step == 1 && EndOf(row) >= end; });
    const trace::TracedJob job = JobOf(std::move(rows), shape);
    EXPECT_LE(PutBack(job), static_cast<uint64_t>(shape.dp * shape.pp)) << share;
    EXPECT_LE(job.step_times[1], end) << share;
  }
}

TEST_P(PartialTraces, NumbersThatWereCountedAfterTheLossAreThoseOfTheOps) {
  const JobShape& shape = GetParam();
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const StragglerRows whole = Rows(shape, seed);
    StragglerRows rows = whole;
    size_t number = seed;
    Drop(rows, [&](const StragglerRow&) { return ++number % 89 == 0; });
    NumberAnew(rows);
    ExpectTheSame(std::move(rows), whole, shape, fmt::format("seed {}", seed));
  }
}

TEST_P(PartialTraces, FewerMicrobatchesAreNotLost) {
  const JobShape& shape = GetParam();
  StragglerRows rows = Rows(shape, 1);
  std::map<std::pair<int, OpType>, int> count;
  EachRow(rows, [&](const StragglerRow& row) { count[{row.stage, row.type}] += row.dp == 0 && row.step == 0 ? 1 : 0; });
  const int kept = shape.microbatches - 3;
  Drop(rows, [&](const StragglerRow& row) {
    if (row.dp != 1 || row.step != 1) return false;
    if (IsPass(row.type)) return row.microbatch >= kept;
    return IsTransfer(row.type) && row.sequence >= count[{row.stage, row.type}] * kept / shape.microbatches;
  });
  NumberAnew(rows);
  EXPECT_EQ(PutBack(JobOf(rows, shape)), 0);
}

// By the other rank a lost receive began with a pause, which is late in the own one: behind the last forward pass.
TEST(PartialTrace, LostRowsThatFitNoScheduleAreLeftOut) {
  const JobShape shape{.dp = 2, .pp = 4, .microbatches = 4, .steps = 1};
  StragglerRows rows = Rows(shape, 1);
  const auto is = [](const StragglerRow& row, int dp, int stage, OpType type, int sequence) {
    return row.dp == dp && row.stage == stage && row.type == type && row.sequence == sequence;
  };
  float other = 0;
  EachRow(rows, [&](StragglerRow& row) {
    if (!is(row, 1, 2, OpType::kForwardRecv, 3)) return;
    row.duration += 0.05F;
    other = row.start -= 0.05F;
  });
  const float late = 0.95F * EndOf(rows, 0);
  Drop(rows, [&](const StragglerRow& row) {
    return is(row, 0, 1, OpType::kForwardSend, 3) || is(row, 0, 2, OpType::kForwardRecv, 3) ||
           is(row, 1, 0, OpType::kOptimizer, 0);
  });
  EachRow(rows, [&](StragglerRow& row) {
    if (row.stage == 2 && row.type == OpType::kGc) row.start = row.dp == 0 ? late : other;
  });
  const auto job = trace::BuildStragglerJob(std::move(rows), synth::MetaOf(shape));
  ASSERT_TRUE(job.ok()) << Message(job.status());
  EXPECT_EQ(PutBack(*job), 0);
  EXPECT_THAT(CountersOf(*job), HasSubstr("lost_rows_left_out"));
  EXPECT_THAT(OneLine(Explained(*job).report().at("notes")), HasSubstr("fits no schedule"));
}

// In seven of eight steps: as in all of those that it has.
TEST(PartialTrace, AStepWithoutRowsOfAWorkerTellsNothingOfIt) {
  const JobShape shape{.dp = 4, .pp = 4, .microbatches = 8, .steps = 8};
  const StragglerRows whole = Rows(shape, 1);
  StragglerRows rows = whole;
  Drop(rows, [](const StragglerRow& row) { return row.dp == 1 && row.stage == 1 && row.step == 0; });
  EXPECT_EQ(TextOf(CausesOf(rows, shape)), TextOf(CausesOf(whole, shape)));
}

// What is before its first row is no late start.
TEST(PartialTrace, AStepThatBeginsWithABackwardPassBeginsNotLate) {
  const JobShape shape{.dp = 1, .pp = 1, .microbatches = 4, .steps = 2};
  StragglerRows rows = synth::Generate(shape, {}, 1).value();
  Drop(rows, [](const StragglerRow& row) {
    return row.type == OpType::kForwardCompute && row.sequence == (row.step == 0 ? 2 : 0);
  });
  NumberAnew(rows);
  const Json report = Explained(JobOf(std::move(rows), shape)).report();
  EXPECT_TRUE(report["causes"].empty()) << report["causes"];
  EXPECT_THAT(report["verdict"].get<std::string>(), testing::StartsWith("healthy"));
}

INSTANTIATE_TEST_SUITE_P(Shapes, PartialTraces,
                         testing::Values(JobShape{.dp = 4, .pp = 1, .microbatches = 8, .steps = 4},
                                         JobShape{.dp = 2, .pp = 2, .microbatches = 8, .steps = 2},
                                         JobShape{.dp = 4, .pp = 4, .microbatches = 8, .steps = 3},
                                         JobShape{.dp = 2, .pp = 4, .vpp = 2, .microbatches = 8, .steps = 3}));

}  // namespace
}  // namespace lockstep::explain
