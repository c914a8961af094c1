// What must hold whatever the job: random shapes and faults, of fixed seeds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "lockstep/explain/test_job.h"

namespace lockstep::explain {
namespace {

using synth::Fault;
using synth::FaultKind;
using synth::JobShape;

class Laws : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    std::mt19937_64 chance(static_cast<uint64_t>(GetParam()));
    const auto below = [&](int limit) { return static_cast<int>(chance() % static_cast<uint64_t>(limit)); };
    shape_ = {.dp = 2 + below(4), .pp = 1 + below(4), .microbatches = 8, .steps = 12, .jitter = 0.003 * below(3)};
    shape_.overlapped = below(2) == 0;
    for (int i = below(3); i >= 0; --i) {
      Fault fault{.kind = static_cast<FaultKind>(below(9)), .dp = below(shape_.dp), .stage = below(shape_.pp)};
      fault.factor = 1.2 + 0.1 * below(8);
      fault.seconds.value = 0.2 + 0.1 * below(8);
      if (fault.kind == FaultKind::kTransientWorker || fault.kind == FaultKind::kFabric)
        fault.first_step = below(4), fault.last_step = 5 + below(5);
      if (fault.kind == FaultKind::kSequenceLength) fault.factor = 0.2;
      if (fault.kind == FaultKind::kRing || fault.kind == FaultKind::kFabric) fault.factor = 5 + below(20);
      if (fault.kind == FaultKind::kLink && fault.stage + 1 >= shape_.pp) fault.kind = FaultKind::kWorker;
      faults_.push_back(fault);
    }
    rows_ = synth::Generate(shape_, faults_, static_cast<uint64_t>(GetParam())).value();
    const bool gathers = below(2) == 0;  // without, a step begins with a forward
    for (auto& piece : rows_.pieces)
      std::erase_if(piece, [&](const trace::StragglerRow& row) {
        return !gathers && row.type == trace::OpType::kParamsAllGather;
      });
  }

  struct Answer {
    double slowdown, step_s;
    std::vector<Cause> causes;
  };
  Answer Of(trace::StragglerRows rows) const {
    const trace::TracedJob job = JobOf(std::move(rows), shape_);
    const WhatIf analysis(job);
    Causes causes = FindCauses(job, analysis);
    return {analysis.slowdown(), causes.step_s, std::move(causes.found)};
  }
  static void ExpectAlike(const Answer& a, const Answer& b, double scale = 1) {
    EXPECT_NEAR(a.slowdown, b.slowdown, 1e-3);
    EXPECT_NEAR(scale * a.step_s, b.step_s, 1e-3 * b.step_s);
    ASSERT_EQ(TextOf(a.causes), TextOf(b.causes));
    for (size_t i = 0; i < a.causes.size(); ++i) {
      EXPECT_NEAR(a.causes[i].share, b.causes[i].share, 0.01);
      EXPECT_NEAR(scale * a.causes[i].gain_s, b.causes[i].gain_s, 2e-3 * b.step_s);
    }
  }

  JobShape shape_;
  std::vector<Fault> faults_;
  trace::StragglerRows rows_;
};

TEST_P(Laws, MendingAllGainsNoLessThanMendingOne) {
  const trace::TracedJob job = JobOf(rows_, shape_);
  const WhatIf analysis(job);
  std::vector<WhatIf::Worker> all;
  for (const WhatIf::WorkerCost& worker : analysis.ByWorker()) all.push_back(worker.worker);
  EXPECT_NEAR(analysis.RemoveWorkers(all).removed_s, analysis.ideal_mean(), 1e-9);
  const Causes causes = FindCauses(job, analysis);
  double gain = 0, share = causes.unexplained();
  for (const Cause& cause : causes.found) {
    EXPECT_GT(cause.gain_s, 0);
    gain += cause.gain_s, share += cause.share;
  }
  for (const Cause& cause : causes.found) EXPECT_LE(cause.gain_s, gain + 1e-9);
  EXPECT_LE(gain, causes.step_s);
  EXPECT_GE(gain + causes.unexplained_s, causes.loss_s - 1e-9);
  EXPECT_NEAR(share, causes.loss_s > 0 ? 1 : 0, 1e-9);
}

TEST_P(Laws, PermutedRanksArePermutedNames) {
  std::vector<uint16_t> place(static_cast<size_t>(shape_.dp));
  std::iota(place.begin(), place.end(), uint16_t{0});
  std::shuffle(place.begin(), place.end(), std::mt19937_64(7));
  trace::StragglerRows permuted = rows_;
  EachRow(permuted, [&](trace::StragglerRow& row) { row.dp = place[row.dp]; });
  // Whoever is where, global ranks tell who it is.
  for (size_t dp = 0; dp < place.size(); ++dp) permuted.ranks[place[dp]] = rows_.ranks[dp];
  const Answer one = Of(rows_), other = Of(permuted);
  EXPECT_NEAR(one.slowdown, other.slowdown, 1e-9);
  ASSERT_EQ(NamesOf(one.causes), NamesOf(other.causes));
  for (size_t i = 0; i < one.causes.size(); ++i) {
    std::vector<int32_t> ranks[2];
    for (const auto& [causes, of] : {std::pair(&one.causes, &ranks[0]), {&other.causes, &ranks[1]}}) {
      for (const CauseSuspect& suspect : (*causes)[i].suspects) of->push_back(suspect.rank.value_or(-1));
      std::sort(of->begin(), of->end());
    }
    EXPECT_EQ(ranks[0], ranks[1]);
    EXPECT_NEAR(one.causes[i].gain_s, other.causes[i].gain_s, 1e-6);
  }
}

TEST_P(Laws, TimesThatAreScaledScaleSecondsAlone) {
  for (const double scale : {8.0, 0.25}) {
    trace::StragglerRows scaled = rows_;
    EachRow(scaled, [&](trace::StragglerRow& row) {
      row.start *= static_cast<float>(scale);
      row.duration *= static_cast<float>(scale);
    });
    ExpectAlike(Of(rows_), Of(scaled), scale);
  }
}

TEST_P(Laws, AClockThatAllShareMayBeOff) {
  trace::StragglerRows later = rows_;
  EachRow(later, [](trace::StragglerRow& row) { row.start += 64; });
  ExpectAlike(Of(rows_), Of(later));
}

INSTANTIATE_TEST_SUITE_P(Seeds, Laws, testing::Range(1, 25));

// Of many ranks with few microbatches some have longer ones by chance.
TEST(UnevenLengths, MakeNoWorkerSlow) {
  const Fault uneven{.kind = FaultKind::kSequenceLength, .factor = 0.35};
  for (const int microbatches : {2, 4}) {
    const JobShape shape{.dp = 32, .pp = 1, .microbatches = microbatches, .steps = 40 / microbatches};
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      SCOPED_TRACE(testing::Message() << microbatches << " microbatches, seed " << seed);
      EXPECT_EQ(TextOf(CausesOf(synth::Generate(shape, {uneven}, seed).value(), shape)), "sequence_length");
      const Fault slow{.kind = FaultKind::kWorker, .dp = 5, .factor = 2};
      // In what steps it is slow, chance has a say.
      EXPECT_THAT(TextOf(CausesOf(synth::Generate(shape, {uneven, slow}, seed).value(), shape)),
                  testing::MatchesRegex("(sequence_length, )?(transient_)?worker 5(, sequence_length)?"));
    }
  }
}

}  // namespace
}  // namespace lockstep::explain
