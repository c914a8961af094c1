// One pipelined job, as rows and as profiler files: both say the same of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/explain/causes.h"
#include "lockstep/explain/report.h"
#include "lockstep/explain/test_job.h"
#include "lockstep/explain/unsettled.h"
#include "lockstep/synth/job.h"
#include "lockstep/synth/pipeline_files.h"
#include "lockstep/trace/kineto_job.h"
#include "lockstep/trace/straggler_job.h"
#include "lockstep/trace/test_trace.h"

namespace lockstep::explain {
namespace {

using synth::Fault;
using synth::FaultKind;

struct Explained {
  double slowdown = 0;
  std::vector<Cause> causes;
  std::vector<std::vector<int32_t>> ranks;
};

Explained Explain(const trace::TracedJob& job) {
  const WhatIf analysis(job);
  return {analysis.slowdown(), FindCauses(job, analysis).found, job.ranks};
}

// numbers[rank]: another one; empty: it stays.
void Renumber(trace::KinetoRank& one, const std::vector<int>& numbers) {
  if (numbers.empty()) return;
  const auto other = [&](int rank) { return numbers.at(static_cast<size_t>(rank)); };
  one.rank = other(one.rank);
  for (trace::ProcessGroup& group : one.groups) {
    std::transform(group.ranks.begin(), group.ranks.end(), group.ranks.begin(), other);
    std::sort(group.ranks.begin(), group.ranks.end());
  }
  for (trace::Collective& collective : one.collectives)
    if (collective.peer >= 0) collective.peer = other(collective.peer);
}

// Of every `nth` send or receive of a step; 0: of none.
void Untell(trace::KinetoRank& one, int nth) {
  if (nth == 0) return;
  one.collectives.push_back({.name = trace::kExchange});
  std::map<int64_t, int> count;  // by the step's begin
  for (trace::DeviceOp& op : one.ops) {
    if (op.collective == trace::kNoIndex || one.collectives[op.collective].peer < 0) continue;
    const auto behind = std::ranges::upper_bound(one.steps, op.launch_ns, {}, &trace::ProfilerStep::begin_ns);
    if (++count[std::prev(behind)->begin_ns] % nth == 0)
      op.collective = static_cast<uint32_t>(one.collectives.size() - 1);
  }
}

trace::KinetoJob FromFiles(const synth::JobShape& shape, const trace::StragglerRows& rows, synth::KinetoEra era,
                           const std::vector<int>& numbers = {}, int untold = 0) {
  const std::string folder = trace::TempPath("pipeline");
  const absl::Status written = synth::WritePipelineFiles(folder, shape, rows, era);
  EXPECT_TRUE(written.ok()) << Message(written);
  std::vector<std::string> paths;
  paths.reserve(static_cast<size_t>(shape.dp) * static_cast<size_t>(shape.pp));
  for (int rank = 0; rank < shape.dp * shape.pp; ++rank)
    paths.push_back(fmt::format("{}/rank-{}.json.gz", folder, rank));
  auto ranks = trace::ReadKinetoFiles(paths, std::nullopt).value();
  for (trace::KinetoRank& one : ranks) Renumber(one, numbers);
  for (trace::KinetoRank& one : ranks) Untell(one, untold);
  return trace::BuildKinetoJob(std::move(ranks), {}).value();
}

// From rows, and from profiler files.
std::pair<Explained, Explained> BothWays(const synth::JobShape& shape, const std::vector<Fault>& faults,
                                         synth::KinetoEra era = synth::KinetoEra::kBase) {
  trace::StragglerRows rows = synth::Generate(shape, faults, 3).value();
  const trace::KinetoJob traced = FromFiles(shape, rows, era);
  for (const trace::Counter& counter : traced.job.counters) EXPECT_NE(counter.name, "unmatched_collectives");
  return {Explain(trace::BuildStragglerJob(std::move(rows), synth::MetaOf(shape)).value()), Explain(traced.job)};
}

struct Case {
  const char* name;
  Fault fault;
  double tolerance = 0.02;  // of the gain
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class InAPipeline : public testing::TestWithParam<std::tuple<synth::JobShape, Case>> {};

TEST_P(InAPipeline, BothFormsOfATraceTellTheSame) {
  const auto& [shape, one] = GetParam();
  const auto [rows, files] = BothWays(shape, {one.fault});
  EXPECT_EQ(files.ranks, rows.ranks);
  EXPECT_NEAR(files.slowdown, rows.slowdown, 0.03 * rows.slowdown);
  ASSERT_EQ(rows.causes.size(), 1U);
  ASSERT_EQ(files.causes.size(), 1U);
  const Cause &from_rows = rows.causes[0], &from_files = files.causes[0];
  EXPECT_STREQ(CauseName(from_files.kind), CauseName(from_rows.kind));
  EXPECT_STREQ(CauseName(from_files.kind), synth::FaultKindName(one.fault.kind));
  EXPECT_EQ(from_files.suspects, from_rows.suspects);
  EXPECT_NEAR(from_files.gain_s, from_rows.gain_s, one.tolerance * from_rows.gain_s);
}

const Case kCases[] = {
    {"worker", {.kind = FaultKind::kWorker, .dp = 2, .stage = 1, .factor = 1.4}},
    {"transient",
     {.kind = FaultKind::kTransientWorker, .dp = 1, .stage = 2, .factor = 1.5, .first_step = 3, .last_step = 6}},
    {"stage", {.kind = FaultKind::kStage, .stage = 3, .factor = 1.3}},
    {"lengths", {.kind = FaultKind::kSequenceLength, .factor = 0.3}, 0.15},
    {"pauses", {.kind = FaultKind::kGc, .seconds{0.3}, .share = 0.2}},
    {"link", {.kind = FaultKind::kLink, .dp = 1, .stage = 1, .seconds{0.1}}},
    {"ring", {.kind = FaultKind::kRing, .stage = 1, .factor = 20}},
    {"fabric", {.kind = FaultKind::kFabric, .factor = 30, .first_step = 4, .last_step = 5}},
    {"loading", {.kind = FaultKind::kDataLoading, .dp = 2, .seconds{0.5}}}};
INSTANTIATE_TEST_SUITE_P(Plain, InAPipeline,
                         testing::Combine(testing::Values(synth::JobShape{.microbatches = 8, .steps = 10}),
                                          testing::ValuesIn(kCases)));
const Case kWrapped[] = {{"worker", {.kind = FaultKind::kWorker, .dp = 0, .stage = 1, .factor = 1.4}},
                         {"stage", {.kind = FaultKind::kStage, .stage = 1, .factor = 1.4}},
                         {"link", {.kind = FaultKind::kLink, .dp = 1, .stage = 0, .seconds{0.25}}},
                         {"link_between", {.kind = FaultKind::kLink, .dp = 1, .stage = 1, .seconds{0.25}}},
                         {"link_to_the_last", {.kind = FaultKind::kLink, .dp = 1, .stage = 2, .seconds{0.6}}},
                         {"fabric", {.kind = FaultKind::kFabric, .factor = 30, .first_step = 4, .last_step = 5}, 0.05}};
INSTANTIATE_TEST_SUITE_P(Interleaved, InAPipeline,
                         testing::Combine(testing::Values(synth::JobShape{.vpp = 2, .microbatches = 8, .steps = 8}),
                                          testing::ValuesIn(kWrapped)));
// Of two stages nothing but the times of segments tells which are of forward and which of backward passes.
const Case kWrappedTwice[] = {
    {"worker", {.kind = FaultKind::kWorker, .dp = 0, .stage = 1, .factor = 1.3}},
    {"transient",
     {.kind = FaultKind::kTransientWorker, .dp = 1, .stage = 0, .factor = 1.6, .first_step = 3, .last_step = 6}},
    {"stage", {.kind = FaultKind::kStage, .stage = 1, .factor = 1.3}},
    {"link", {.kind = FaultKind::kLink, .dp = 0, .stage = 0, .seconds{0.1}}},
    {"very_slow_link", {.kind = FaultKind::kLink, .dp = 1, .stage = 0, .seconds{0.25}}, 0.07},
    {"loading", {.kind = FaultKind::kDataLoading, .dp = 0, .seconds{0.3}}},
    {"fabric", {.kind = FaultKind::kFabric, .factor = 20, .first_step = 4, .last_step = 6}}};
INSTANTIATE_TEST_SUITE_P(
    InterleavedOfTwo, InAPipeline,
    testing::Combine(testing::Values(synth::JobShape{.dp = 2, .pp = 2, .vpp = 2, .microbatches = 8, .steps = 10},
                                     synth::JobShape{.dp = 4, .pp = 2, .vpp = 2, .microbatches = 16, .steps = 10},
                                     synth::JobShape{.dp = 2, .pp = 2, .vpp = 3, .microbatches = 8, .steps = 10}),
                     testing::ValuesIn(kWrappedTwice)));
const Case kFewRanks[] = {{"stage", {.kind = FaultKind::kStage, .stage = 1, .factor = 1.4}},
                          {"link", {.kind = FaultKind::kLink, .stage = 0, .seconds{0.2}}}};
INSTANTIATE_TEST_SUITE_P(OnePipeline, InAPipeline,
                         testing::Combine(testing::Values(synth::JobShape{.dp = 1, .microbatches = 8, .steps = 8}),
                                          testing::ValuesIn(kFewRanks)));

TEST(AHealthyPipeline, HasNothingToBeNamed) {
  for (const synth::JobShape& shape : {synth::JobShape{.microbatches = 8, .steps = 8},
                                       synth::JobShape{.dp = 1, .pp = 2, .microbatches = 6, .steps = 8},
                                       synth::JobShape{.dp = 4, .pp = 2, .vpp = 2, .microbatches = 8, .steps = 8},
                                       synth::JobShape{.vpp = 2, .microbatches = 8, .steps = 8}}) {
    const auto [rows, files] = BothWays(shape, {});
    EXPECT_NEAR(files.slowdown, rows.slowdown, 0.002);
    EXPECT_TRUE(files.causes.empty());
  }
}

TEST(PipelineFiles, WithoutSequenceNumbersTellAsMuch) {
  const Fault slow{.kind = FaultKind::kLink, .dp = 1, .stage = 1, .seconds{0.1}};
  const auto [rows, files] = BothWays({.microbatches = 8, .steps = 8}, {slow}, synth::KinetoEra::kDecimals);
  EXPECT_NEAR(files.slowdown, rows.slowdown, 0.01);
  ASSERT_EQ(files.causes.size(), 1U);
  EXPECT_EQ(files.causes[0].suspects, rows.causes.at(0).suspects);
}

// So few do not tell that chunks wrap around two stages.
TEST(PipelineFiles, OfOneStepDoNotNameAllRanksOfAStage) {
  const Fault loading{.kind = FaultKind::kDataLoading, .dp = 0, .seconds{0.3}};
  const Fault slow{.kind = FaultKind::kWorker, .dp = 0, .stage = 1, .factor = 1.3};
  synth::JobShape shape{.dp = 1, .pp = 2, .vpp = 2, .microbatches = 8, .steps = 1};
  EXPECT_EQ(TextOf(BothWays(shape, {loading}).second.causes), "data_loading 0");
  shape.dp = 2;
  EXPECT_EQ(TextOf(BothWays(shape, {loading}).second.causes), "data_loading 0");
  EXPECT_THAT(TextOf(BothWays(shape, {slow}).second.causes), testing::StartsWith("worker 2"));
}

// Until 2024 no kernel told with whom it communicated.
TEST(PipelineFiles, WithoutGroupsLeaveOpenWhatTheyHide) {
  const synth::JobShape shape{.microbatches = 8, .steps = 4};
  const Fault slow{.kind = FaultKind::kWorker, .dp = 2, .stage = 1, .factor = 1.4};
  const trace::StragglerRows rows = synth::Generate(shape, {slow}, 3).value();
  const Unsettled unsettled = FindUnsettled(FromFiles(shape, rows, synth::KinetoEra::kMicros));
  EXPECT_GT(unsettled.at_most_s, 0.5);  // of a step of 7.7 s
  EXPECT_TRUE(unsettled.ranks.empty());
  EXPECT_LT(FindUnsettled(FromFiles(shape, rows, synth::KinetoEra::kBase)).at_most_s, 0.01);
}

// Ranks that do the same in the same order may be stages.
TEST(PipelineFiles, WithoutGroupsHoldNoRankAgainstAnother) {
  for (const synth::JobShape& shape : {synth::JobShape{.dp = 1, .pp = 2, .vpp = 2, .microbatches = 4, .steps = 5},
                                       synth::JobShape{.dp = 1, .pp = 4, .microbatches = 8, .steps = 5},
                                       synth::JobShape{.dp = 4, .pp = 2, .microbatches = 8, .steps = 5},
                                       synth::JobShape{.dp = 4, .pp = 2, .vpp = 2, .microbatches = 8, .steps = 5},
                                       synth::JobShape{.dp = 4, .pp = 4, .vpp = 2, .microbatches = 8, .steps = 5},
                                       synth::JobShape{.dp = 2, .pp = 4, .microbatches = 8, .steps = 5}}) {
    const trace::KinetoJob traced = FromFiles(shape, synth::Generate(shape, {}, 3).value(), synth::KinetoEra::kMicros);
    const WhatIf analysis(traced.job);
    const Causes causes = FindCauses(traced.job, analysis);
    EXPECT_EQ(TextOf(causes.found), "");
    Json report = Report(traced.job, analysis, causes);
    AddRanks(traced, report);
    EXPECT_THAT(report["verdict"].get<std::string>(),
                testing::MatchesRegex("[^,]*(, but the replay misses much of the step)?"
                                      ", as far as is told who communicates with whom"));
    EXPECT_THAT(OneLine(report["notes"]), testing::HasSubstr("ranks may be stages of a pipeline"));
  }
}

// What a transfer takes whose other end is not told may be the wait for it.
TEST(PipelineFiles, ThatLackSomePeersNameNoLinkForThat) {
  const synth::JobShape shape{.dp = 4, .pp = 4, .vpp = 2, .microbatches = 8, .steps = 5};
  const Fault slow{.kind = FaultKind::kWorker, .dp = 1, .stage = 2, .factor = 1.4};
  const auto causes = [&](const std::vector<Fault>& faults, int untold) {
    const trace::KinetoJob traced =
        FromFiles(shape, synth::Generate(shape, faults, 3).value(), synth::KinetoEra::kBase, {}, untold);
    EXPECT_EQ(traced.job.pp, 4);
    return TextOf(FindCauses(traced.job, WhatIf(traced.job)).found);
  };
  for (const int untold : {5, 7, 11, 30}) {
    EXPECT_EQ(causes({}, untold), "") << untold;
    EXPECT_EQ(causes({slow}, untold), "worker 9") << untold;
  }
  EXPECT_THAT(causes({{.kind = FaultKind::kLink, .dp = 1, .stage = 1, .seconds{0.1}}}, 30),
              testing::StartsWith("link "));
}

// They have a rank in common.
TEST(TwoSlowLinks, NameEachRankOnce) {
  const synth::JobShape shape{.dp = 4, .pp = 4, .microbatches = 8, .steps = 8};
  std::vector<Fault> faults;
  for (const int stage : {1, 2}) faults.push_back({.kind = FaultKind::kLink, .dp = 1, .stage = stage, .seconds{0.25}});
  const std::vector<Cause> causes = CausesOf(synth::Generate(shape, faults, 3).value(), shape);
  EXPECT_EQ(TextOf(causes), "link 5 9 13");
}

TEST(PipelineFiles, AreNotOfTensorParallelRanks) {
  const synth::JobShape shape{.tp = 2, .steps = 1};
  EXPECT_THAT(synth::WritePipelineFiles(trace::TempPath("tp"), shape, synth::Generate(shape, {}, 1).value(),
                                        synth::KinetoEra::kBase)
                  .message(),
              testing::HasSubstr("found tp = 2"));
}

// Pipelines are numbered by their first stages; the ranks of others may stand in another order.
TEST(APipeline, MayHaveItsRanksInAnyOrder) {
  const synth::JobShape shape{.dp = 2, .pp = 2, .microbatches = 3, .steps = 3};
  const trace::StragglerRows rows = synth::Generate(shape, {}, 3).value();
  const Explained usual = Explain(FromFiles(shape, rows, synth::KinetoEra::kBase).job);
  EXPECT_EQ(usual.ranks, (std::vector<std::vector<int32_t>>{{0, 2}, {1, 3}}));
  const Explained crossed = Explain(FromFiles(shape, rows, synth::KinetoEra::kBase, {0, 1, 3, 2}).job);
  EXPECT_EQ(crossed.ranks, (std::vector<std::vector<int32_t>>{{0, 3}, {1, 2}}));
  EXPECT_DOUBLE_EQ(crossed.slowdown, usual.slowdown);
}

}  // namespace
}  // namespace lockstep::explain
