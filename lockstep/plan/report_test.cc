#include "lockstep/plan/report.h"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/plan/test_workload.h"

namespace lockstep::plan {
namespace {

using testing::DoubleNear;

Candidate Laid(const std::string& layout) {
  Workload work = TestWorkload();
  work.machine.usd_per_hour = 3.6;
  EXPECT_TRUE(TakeLayout(layout, work).ok());
  return Predict(work, Rates{});
}

TEST(Report, APredictionAddsUp) {
  const Candidate one = Laid("tp=2,pp=2");
  const Json report = PredictionReport(one, Rates{}, true);
  double sum = 0;
  for (const auto& [part, seconds] : report["breakdown"].items()) sum += seconds.get<double>();
  const double step = report["step_time_s"].get<double>();
  EXPECT_THAT(sum, DoubleNear(step, 1e-9));
  EXPECT_LT(report["lo80"], report["step_time_s"]);
  EXPECT_EQ(report["fits"], report["memory_gib"]["total"] <= report["memory_gib"]["capacity"]);
  double memory = 0;
  for (const auto& [kind, gib] : report["memory_gib"].items())
    if (kind != "total" && !kind.ends_with("capacity") && kind != "host") memory += gib.get<double>();
  EXPECT_THAT(memory, DoubleNear(report["memory_gib"]["total"].get<double>(), 1e-9));
  EXPECT_THAT(report["usd_per_step"].get<double>(), DoubleNear(16 * 3.6 / 3600 * step, 1e-12));
  EXPECT_TRUE(report["kwh_per_step"].is_null()) << "its power is not known";
}

// Adapters need no gradients of the weights that they are beside: a third of the products is not done.
TEST(Report, ModelFlopsOfAdapters) {
  Workload work = TestWorkload();
  work.sequence = 1;
  const double full = Mfu(work, {1});
  work.training = Training::kLora;
  EXPECT_THAT(Mfu(work, {1}) / full, DoubleNear(2.0 / 3, .01));
}

// Every figure that a step depends on, each by its key; halving what has an elasticity of -e takes 2^e as long, nearly.
TEST(Report, SensitivitiesAreElasticities) {
  const Candidate one = Laid("tp=2,pp=2");
  const Json all = PredictionReport(one, Rates{}, true)["sensitivities"];
  EXPECT_LT(all["machine.bf16_tflops"].get<double>(), -.3);
  EXPECT_FALSE(all.contains("machine.fp8_tflops")) << "it has none";
  for (const RateField& field : RateFields())
    EXPECT_TRUE(all.contains(fmt::format("rates.{}", field.name))) << field.name;
  EXPECT_THAT(all["rates.gemm_fp8"].get<double>(), DoubleNear(0, 1e-12)) << "not used in 16 bits";
  Rates slower;
  slower.gemm *= .99;
  const double ratio = PredictStep(one.workload, slower).total().value / one.step.total().value;
  EXPECT_THAT(std::log(ratio) / std::log(.99), DoubleNear(all["rates.gemm"].get<double>(), .01));
}

TEST(Report, AComparisonIsTermByTerm) {
  const Candidate a = Laid("tp=2,pp=2"), b = Laid("tp=8,pp=1");
  const Json report = ComparisonReport(a, b, Rates{});
  double parts = 0, step = 0;
  for (const Json& row : report["difference"]) {
    EXPECT_THAT(row["b"].get<double>() - row["a"].get<double>(), DoubleNear(row["b_minus_a"].get<double>(), 1e-12));
    const std::string term = row["term"];
    if (term == "step_time_s")
      step = row["b_minus_a"];
    else if (term.ends_with("_s"))
      parts += row["b_minus_a"].get<double>();
  }
  EXPECT_THAT(step, DoubleNear(b.step.total().value - a.step.total().value, 1e-12));
  EXPECT_THAT(parts, DoubleNear(step, 1e-9));
}

// A failure a day, after which it is down for an hour; of 82,800 s in between, on average, whole intervals count.
TEST(Report, GoodputByHand) {
  cost::DowntimeSpec failures;
  failures.failures = 1, failures.period = Seconds{86400};
  failures.restart = {3600}, failures.checkpoint_interval = {1800}, failures.checkpoint_cost = {0};
  const Candidate one = Laid("tp=2,pp=2");
  const auto report = GoodputReport(one, failures);
  ASSERT_TRUE(report.ok());
  EXPECT_THAT((*report)["useful"].get<double>(), DoubleNear(1800 / std::expm1(1800 / 82'800.0) / 86'400, 1e-9));
  // Of a job of half as many accelerators: twice as many failures of what runs.
  failures.accelerators = static_cast<int>(one.workload.accelerators / 2);
  const auto twice = GoodputReport(one, failures);
  ASSERT_TRUE(twice.ok());
  EXPECT_THAT((*twice)["useful"].get<double>(), DoubleNear(1800 / std::expm1(1800 / 41'400.0) / (41'400 + 3600), 1e-9));
  EXPECT_THAT((*twice)["scaled_by"].get<double>(), DoubleNear(2, 1e-12));
  failures.restart = {1e6};
  EXPECT_FALSE(GoodputReport(one, failures).ok()) << "no time is left";
}

}  // namespace
}  // namespace lockstep::plan
