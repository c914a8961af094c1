// A job that changes its pace in the middle, with its sequence length, its batch or its clock: all ranks alike.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/explain/test_job.h"

namespace lockstep::explain {
namespace {

using synth::Fault;
using synth::FaultKind;
using synth::JobShape;

constexpr int kSteps = 20;

// What takes `factor` times as long from a step on.
enum class Slower { kAll, kPasses };

trace::StragglerRows Rows(JobShape shape, const std::vector<Fault>& faults, Slower what, double factor, int from,
                          uint64_t seed) {
  shape.steps = kSteps;
  trace::StragglerRows rows = synth::Generate(shape, faults, seed).value();
  if (what == Slower::kPasses) shape.forward.value *= factor, shape.backward.value *= factor;
  trace::StragglerRows slower = synth::Generate(shape, faults, seed).value();
  const auto is_late = [&](const trace::StragglerRow& row) { return static_cast<int>(row.step) >= from; };
  if (what == Slower::kAll)
    EachRow(slower, [&](trace::StragglerRow& row) {
      row.start *= static_cast<float>(factor);
      row.duration *= static_cast<float>(factor);
    });
  for (auto& piece : rows.pieces) std::erase_if(piece, is_late);
  for (auto& piece : slower.pieces) {
    std::erase_if(piece, [&](const trace::StragglerRow& row) { return !is_late(row); });
    rows.pieces.push_back(std::move(piece));
  }
  return rows;
}

struct Case {
  const char* name;
  JobShape shape;
  Fault slow;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class ChangeOfPace : public testing::TestWithParam<Case> {
 protected:
  void EachChange(const std::function<void(Slower, double, int, uint64_t)>& check) {
    for (const Slower what : {Slower::kAll, Slower::kPasses})
      for (const double factor : {1.5, 0.6})
        for (const int from : {6, kSteps / 2, 14})
          for (uint64_t seed = 1; seed <= 3; ++seed) {
            SCOPED_TRACE(testing::Message() << (what == Slower::kAll ? "all" : "passes") << " " << factor
                                            << " from step " << from << ", seed " << seed);
            check(what, factor, from, seed);
          }
  }
};

TEST_P(ChangeOfPace, ByItselfNamesNobody) {
  const auto& [name, shape, slow] = GetParam();
  EachChange([&, &shape = shape](Slower what, double factor, int from, uint64_t seed) {
    EXPECT_EQ(TextOf(CausesOf(Rows(shape, {}, what, factor, from, seed), shape)), "");
  });
}

TEST_P(ChangeOfPace, LeavesTheCauseOfAJob) {
  const auto& [name, shape, slow] = GetParam();
  EachChange([&, &shape = shape, &slow = slow](Slower what, double factor, int from, uint64_t seed) {
    const std::vector<Cause> steady = CausesOf(Rows(shape, {slow}, what, 1, from, seed), shape);
    const std::vector<Cause> changed = CausesOf(Rows(shape, {slow}, what, factor, from, seed), shape);
    ASSERT_EQ(NamesOf(steady).size(), 1U);
    ASSERT_EQ(TextOf(changed), TextOf(steady));
    EXPECT_EQ(changed[0].suspects, steady[0].suspects);
  });
}

const JobShape kPlain{.dp = 4, .pp = 4, .steps = kSteps};
INSTANTIATE_TEST_SUITE_P(
    Jobs, ChangeOfPace,
    testing::Values(
        Case{"worker", kPlain, {.kind = FaultKind::kWorker, .dp = 2, .stage = 1, .factor = 1.4}},
        Case{"worker_of_two", {.dp = 2, .pp = 1, .steps = kSteps}, {.kind = FaultKind::kWorker, .dp = 1}},
        Case{"worker_interleaved",
             {.dp = 2, .pp = 2, .vpp = 2, .steps = kSteps},
             {.kind = FaultKind::kWorker, .dp = 1, .stage = 1, .factor = 1.4}},
        Case{"stage_of_one_rank", {.dp = 1, .pp = 4, .steps = kSteps}, {.kind = FaultKind::kStage, .stage = 2}},
        Case{"transient_worker",
             kPlain,
             {.kind = FaultKind::kTransientWorker, .dp = 3, .stage = 0, .first_step = 8, .last_step = 15}},
        Case{"worker_of_a_chatty_job",
             {.dp = 4, .pp = 2, .steps = kSteps, .transfer{0.1}, .gather{0.3}, .reduce{1}},
             {.kind = FaultKind::kWorker, .dp = 2, .stage = 1, .factor = 1.4}},
        Case{"link", kPlain, {.kind = FaultKind::kLink, .dp = 1, .stage = 1}}),
    [](const auto& one) { return one.param.name; });

// The passes of all ranks and the network at once: what of the network's part the pace does not explain is its own.
TEST(ChangeOfPaceOfAll, LeavesASlowFabric) {
  const Fault fabric{.kind = FaultKind::kFabric, .factor = 20, .first_step = 8, .last_step = 12};
  for (const int from : {6, 10, 14}) {
    const std::vector<Cause> causes = CausesOf(Rows(kPlain, {fabric}, Slower::kPasses, 1.5, from, 1), kPlain);
    ASSERT_EQ(TextOf(causes), "fabric") << from;
    EXPECT_EQ(causes[0].suspects[0].first_step, 8) << from;
    EXPECT_EQ(causes[0].suspects[0].last_step, 12) << from;
  }
}

// In most of the steps: that is no pace of the other half.
TEST(ASlowHalf, OfTheRanksNamesNobodyElse) {
  const JobShape two{.dp = 2, .pp = 1, .steps = kSteps};
  const Fault slow{.kind = FaultKind::kTransientWorker, .dp = 1, .factor = 1.5, .first_step = 8, .last_step = 19};
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const std::vector<Cause> causes = CausesOf(synth::Generate(two, {slow}, seed).value(), two);
    ASSERT_EQ(TextOf(causes), "transient_worker 1") << seed;
    EXPECT_EQ(causes[0].suspects[0].first_step, 8) << seed;
    EXPECT_EQ(causes[0].suspects[0].last_step, 19) << seed;
  }
}

TEST(ASlowHalf, OfTheStagesNamesNoRankOfTheOther) {
  const JobShape shape{.dp = 4, .pp = 2, .steps = kSteps};
  std::vector<Fault> faults;
  for (int dp = 0; dp < shape.dp; ++dp)
    faults.push_back(
        {.kind = FaultKind::kTransientWorker, .dp = dp, .stage = 1, .factor = 1.5, .first_step = 8, .last_step = 19});
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const std::vector<Cause> causes = CausesOf(synth::Generate(shape, faults, seed).value(), shape);
    ASSERT_EQ(TextOf(causes), "stage") << seed;
    EXPECT_EQ(causes[0].suspects[0].stage, 1) << seed;
  }
}

}  // namespace
}  // namespace lockstep::explain
