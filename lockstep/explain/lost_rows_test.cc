// Traces of which rows are lost have the causes and the figures of the whole traces, also where no lane is whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "lockstep/explain/test_job.h"

namespace lockstep::explain {
namespace {

using synth::FaultKind;
using synth::JobShape;

trace::StragglerRows WithoutSome(trace::StragglerRows rows, double share, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (auto& piece : rows.pieces)
    std::erase_if(piece, [&](const trace::StragglerRow&) {
      return static_cast<double>(random()) < share * static_cast<double>(std::mt19937_64::max());
    });
  return rows;
}

class LostRows : public testing::TestWithParam<JobShape> {};

TEST_P(LostRows, ChangeNeitherCauseNorFigures) {
  const JobShape& shape = GetParam();
  for (uint64_t seed = 1; seed <= 6; ++seed)
    for (const double share : {0.001, 0.01, 0.03}) {
      const synth::Fault fault{.kind = FaultKind::kWorker,
                               .dp = static_cast<int>(seed) % shape.dp,
                               .stage = static_cast<int>(seed) % shape.pp,
                               .factor = 1.4};
      const trace::StragglerRows rows = synth::Generate(shape, {fault}, seed).value();
      const size_t all = rows.size();
      trace::StragglerRows some = WithoutSome(rows, share, seed);
      const size_t lost = all - some.size();
      const trace::TracedJob whole = JobOf(rows, shape), job = JobOf(std::move(some), shape);
      const WhatIf expected(whole), is(job);
      const auto causes = FindCauses(whole, expected).found, found = FindCauses(job, is).found;
      EXPECT_EQ(TextOf(found), TextOf(causes)) << "seed " << seed << ", " << lost << " lost";
      EXPECT_NEAR(is.slowdown(), expected.slowdown(), 0.02 * expected.slowdown()) << "seed " << seed;
      const auto told = std::ranges::find(job.counters, "absent_ops", &trace::Counter::name);
      EXPECT_EQ(told == job.counters.end() ? 0 : told->count, lost) << "seed " << seed;
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LostRows,
                         testing::Values(JobShape{.dp = 4, .pp = 4, .steps = 2}, JobShape{.dp = 4, .pp = 1, .steps = 3},
                                         JobShape{.dp = 8, .pp = 1, .microbatches = 4, .steps = 1},
                                         JobShape{.dp = 4, .pp = 4, .vpp = 2, .microbatches = 8, .steps = 2},
                                         JobShape{.dp = 4, .pp = 4, .steps = 2, .overlapped = true},
                                         JobShape{.dp = 4, .pp = 4, .steps = 1}));

}  // namespace
}  // namespace lockstep::explain
