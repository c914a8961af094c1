// Planted faults in a data-parallel job are named from its profiler files, whatever their era.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/explain/causes.h"
#include "lockstep/explain/report.h"
#include "lockstep/synth/ddp.h"
#include "lockstep/trace/kineto_job.h"
#include "lockstep/trace/test_trace.h"

namespace lockstep::explain {
namespace {

using synth::Fault;
using synth::FaultKind;
using synth::KinetoEra;
using testing::ElementsAre;

std::vector<Cause> CausesOf(synth::DdpShape shape, const std::vector<Fault>& faults, uint64_t seed) {
  const std::string folder = trace::TempPath("causes");
  const absl::Status written = synth::WriteDdpTraces(folder, shape, faults, seed);
  EXPECT_TRUE(written.ok()) << Message(written);
  std::vector<std::string> paths;
  paths.reserve(static_cast<size_t>(shape.ranks));
  for (int rank = 0; rank < shape.ranks; ++rank) paths.push_back(fmt::format("{}/rank-{}.json.gz", folder, rank));
  const auto traced = trace::BuildKinetoJob(trace::ReadKinetoFiles(paths, std::nullopt).value(), {}).value();
  EXPECT_TRUE(traced.job.counters.empty()) << traced.job.counters[0].name;
  return FindCauses(traced.job, WhatIf(traced.job), kStraggles).found;
}

std::vector<std::string> Names(const std::vector<Cause>& causes) {
  std::vector<std::string> names;
  names.reserve(causes.size());
  for (const Cause& cause : causes) names.emplace_back(CauseName(cause.kind));
  return names;
}

class PlantedInDdp : public testing::TestWithParam<std::tuple<KinetoEra, int>> {};

const synth::DdpShape kShape{.ranks = 4, .steps = 12, .clock_offset{0.02}};

TEST_P(PlantedInDdp, IsNamed) {
  const auto [era, seed_number] = GetParam();
  const auto seed = static_cast<uint64_t>(seed_number);
  synth::DdpShape shape = kShape;
  shape.era = era;
  EXPECT_THAT(Names(CausesOf(shape, {}, seed)), ElementsAre());
  const Fault faults[] = {
      {.kind = FaultKind::kWorker, .dp = 2, .factor = 1.3},
      {.kind = FaultKind::kTransientWorker, .dp = 1, .factor = 1.5, .first_step = 3, .last_step = 7},
      {.kind = FaultKind::kFabric, .dp = 0, .factor = 6, .first_step = 5, .last_step = 6},
      {.kind = FaultKind::kSequenceLength, .factor = 0.3},
      {.kind = FaultKind::kDataLoading, .dp = 3, .seconds{0.03}}};
  for (const Fault& fault : faults) {
    const std::vector<Cause> causes = CausesOf(shape, {fault}, seed);
    ASSERT_THAT(Names(causes), ElementsAre(synth::FaultKindName(fault.kind))) << "seed " << seed;
    if (fault.kind == FaultKind::kFabric || fault.kind == FaultKind::kSequenceLength) continue;
    ASSERT_EQ(causes[0].suspects.size(), 1U);
    EXPECT_EQ(causes[0].suspects[0].rank, fault.dp);
    if (fault.kind != FaultKind::kTransientWorker) continue;
    EXPECT_EQ(causes[0].suspects[0].first_step, fault.first_step);
    EXPECT_EQ(causes[0].suspects[0].last_step, fault.last_step);
  }
}
INSTANTIATE_TEST_SUITE_P(ErasAndSeeds, PlantedInDdp,
                         testing::Combine(testing::Values(KinetoEra::kMicros, KinetoEra::kDecimals, KinetoEra::kBase),
                                          testing::Range(1, 4)));

}  // namespace
}  // namespace lockstep::explain
