// What the report says beside causes: a verdict that agrees with them, and what the trace lacks or has wrong.
#include "lockstep/explain/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/explain/fleet_report.h"
#include "lockstep/explain/page.h"
#include "lockstep/explain/test_job.h"
#include "lockstep/synth/ddp.h"
#include "lockstep/trace/test_trace.h"

namespace lockstep::explain {
namespace {

using synth::Fault;
using synth::FaultKind;
using synth::JobShape;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const JobShape kShape{.dp = 4, .pp = 4, .microbatches = 8, .steps = 12};
const Fault kSlow{.kind = FaultKind::kWorker, .dp = 0, .stage = 3, .factor = 1.4};

Explained Explain(trace::StragglerRows rows, const JobShape& shape = kShape) {
  return Explained(JobOf(std::move(rows), shape));
}

std::string NotesOf(const Json& report) { return OneLine(report.value("notes", Json::array())); }

// However a job's loss comes about, in ops or in late begins, and whatever passes between ops.
TEST(Report, VerdictCausesAndFleetGoByOneNumber) {
  size_t healthy = 0, slow = 0;
  for (const double launch : {0.0, 0.004, 0.02})
    for (const double late : {0.0, 0.05, 0.15, 0.6})
      for (const double factor : {1.0, 1.03, 1.1}) {
        JobShape shape = kShape;
        shape.launch.value = launch;
        const std::vector<Fault> faults = {{.kind = FaultKind::kDataLoading, .dp = 1, .seconds{late}},
                                           {.kind = FaultKind::kWorker, .dp = 2, .stage = 1, .factor = factor}};
        const Explained explained = Explain(synth::Generate(shape, faults, 1).value(), shape);
        const Json& report = explained.report();
        SCOPED_TRACE(testing::Message() << launch << " " << late << " " << factor << " " << report["verdict"] << " "
                                        << report["wasted"]["share"]);
        const bool is_slow = report["wasted"]["share"].get<double>() >= 1 - 1 / kStraggles;
        const bool missed = launch == 0.02;  // 20 ms between any two ops are much of a step
        EXPECT_THAT(report["verdict"].get<std::string>(), StartsWith(is_slow  ? "straggles"
                                                                     : missed ? "unclear: the replay misses much"
                                                                              : "healthy"));
        EXPECT_EQ(report["causes"].empty(), !is_slow);
        EXPECT_EQ(FleetReport({FleetLine("job", explained)})["straggling"]["jobs"], is_slow ? 1 : 0);
        ++(is_slow ? slow : healthy);
      }
  EXPECT_GT(healthy, 5U);
  EXPECT_GT(slow, 5U);
}

class OffClock : public testing::TestWithParam<double> {};

TEST_P(OffClock, OfAStageIsToldAndIsNoLink) {
  const double off = GetParam();
  const std::pair<const char*, std::function<bool(const trace::StragglerRow&)>> whose[] = {
      {"stage", [](const auto& row) { return row.stage == 2; }},
      {"first stage", [](const auto& row) { return row.stage == 0; }},
      {"worker", [](const auto& row) { return row.stage == 1 && row.dp == 3; }},
      {"pipeline", [](const auto& row) { return row.dp == 2; }}};
  for (const auto& [name, is_off] : whose)
    for (const std::vector<Fault>& faults : {std::vector<Fault>{}, std::vector{kSlow}}) {
      SCOPED_TRACE(name);
      trace::StragglerRows rows = synth::Generate(kShape, faults, 1).value();
      const Explained right = Explain(rows);
      size_t workers = 0;
      for (int dp = 0; dp < kShape.dp; ++dp)
        for (int stage = 0; stage < kShape.pp; ++stage)
          workers += is_off({.dp = static_cast<uint16_t>(dp), .stage = static_cast<uint8_t>(stage)}) ? 1 : 0;
      EachRow(rows, [&](trace::StragglerRow& row) {
        if (is_off(row)) row.start += static_cast<float>(off);
      });
      const Json report = Explain(std::move(rows)).report();
      EXPECT_EQ(report["verdict"], right.report()["verdict"]);
      EXPECT_NEAR(report["slowdown"].get<double>(), right.analysis().slowdown(), 0.002);
      ASSERT_EQ(report["causes"].size(), faults.size());
      for (size_t i = 0; i < faults.size(); ++i)
        EXPECT_EQ(report["causes"][i]["suspects"], right.report()["causes"][i]["suspects"]);
      EXPECT_EQ(report["counters"]["clocks_off"], workers);
      EXPECT_THAT(NotesOf(report), HasSubstr(fmt::format("up to 0.5 s {}", off > 0 ? "ahead" : "behind")));
    }
}
INSTANTIATE_TEST_SUITE_P(Offsets, OffClock, testing::Values(0.5, -0.5));

// A lost collective ends when the others' do by the clock of its own worker, which is put right with it.
TEST(Report, WhereAClockIsOffALostCollectiveEndsWithTheOthers) {
  trace::StragglerRows rows = synth::Generate(kShape, {kSlow}, 1).value();
  const Explained right = Explain(rows);
  EachRow(rows, [](trace::StragglerRow& row) { row.start += row.dp == 3 && row.stage == 1 ? 0.5F : 0; });
  for (auto& piece : rows.pieces)
    std::erase_if(piece, [&](const trace::StragglerRow& row) {
      return row.dp == 3 && row.stage == 1 && row.step % 3 == 1 && row.type == trace::OpType::kGradsReduceScatter;
    });
  const Explained explained = Explain(std::move(rows));
  EXPECT_EQ(explained.report().at("verdict"), right.report().at("verdict"));
  EXPECT_EQ(explained.report().at("counters").at("clocks_off"), 1);
  const trace::TracedJob &job = explained.job(), &whole = right.job();
  size_t put_back = 0;
  for (size_t cell = 0; cell < job.starts.size(); ++cell)
    if (IsPutBack(job, cell)) {
      EXPECT_NEAR(job.starts[cell] + job.durations[cell], whole.starts[cell] + whole.durations[cell], 0.01);
      ++put_back;
    }
  EXPECT_EQ(put_back, 4U);
}

// No one offset of a step puts it right.
TEST(Report, AClockThatJumpsWithinStepsMakesNoLinkSlow) {
  trace::StragglerRows rows = synth::Generate(kShape, {}, 1).value();
  EachRow(rows, [](trace::StragglerRow& row) {
    if (row.stage == 2) row.start += row.sequence % 2 == 0 ? 0.5F : -0.5F;
  });
  const Json report = Explain(std::move(rows)).report();
  for (const Json& cause : report["causes"]) EXPECT_NE(cause["cause"], "link");
  EXPECT_THAT(report["verdict"].get<std::string>(), HasSubstr("clocks disagree"));
  EXPECT_THAT(NotesOf(report), HasSubstr("clocks disagree"));
}

const Fault kSlowLink{.kind = FaultKind::kLink, .dp = 1, .stage = 1, .seconds{0.3}};

// Many transfers of a fast job come out as exactly 0 then: no clock is off.
TEST(Report, ASlowLinkIsNamedWhereStampsAreRounded) {
  trace::StragglerRows rows = synth::Generate(kShape, {kSlowLink}, 1).value();
  constexpr float kTimes = 0.1F, kStamp = 0.001F;
  EachRow(rows, [](trace::StragglerRow& row) {
    const float end = std::round((row.start + row.duration) * kTimes / kStamp) * kStamp;
    row.start = std::round(row.start * kTimes / kStamp) * kStamp;
    row.duration = end - row.start;
  });
  const Json report = Explain(std::move(rows)).report();
  ASSERT_EQ(report["causes"].size(), 1U);
  EXPECT_EQ(report["causes"][0]["cause"], "link");
}

// They end before their receivers come, which is no clock that is off.
TEST(Report, ASlowLinkIsNamedWhereSendsAreBuffered) {
  const Fault stage{.kind = FaultKind::kStage, .stage = 1, .factor = 1.5};
  for (const std::vector<Fault>& faults : {std::vector{stage}, {stage, kSlowLink}}) {
    trace::StragglerRows rows = synth::Generate(kShape, faults, 1).value();
    EachRow(rows, [](trace::StragglerRow& row) {
      if (IsSend(row.type)) row.duration = 0.001F;
    });
    const Json report = Explain(std::move(rows)).report();
    EXPECT_THAT(report["verdict"].get<std::string>(), Not(HasSubstr("clocks disagree")));
    EXPECT_FALSE(report["counters"].contains("clocks_off"));
    size_t links = 0;
    for (const Json& cause : report["causes"]) links += cause["cause"] == "link" ? 1 : 0;
    EXPECT_EQ(links, faults.size() - 1);
  }
}

// All of a job, few communications tell of it.
TEST(Report, AClockIsPutRightThatIsSeldomSeenToBeOff) {
  struct {
    const char* name;
    JobShape shape;
    std::function<float(const trace::StragglerRow&)> off;
    size_t workers;
  } cases[] = {{"of a host with a whole pipeline",
                {.dp = 4, .pp = 2, .microbatches = 16, .steps = 12},
                [](const auto& row) { return row.dp == 1 ? 1.0F : 0.0F; },
                2},
               {"that leaps in the last step", kShape,
                [](const auto& row) { return row.dp == 1 && row.stage == 1 && row.step == 11 ? 5.0F : 0.0F; }, 1},
               {"of one of two workers",
                {.dp = 1, .pp = 2, .steps = 12},
                [](const auto& row) { return row.stage == 1 ? 0.016F : 0.0F; },
                1}};
  for (const auto& [name, shape, off, workers] : cases) {
    SCOPED_TRACE(name);
    trace::StragglerRows rows = synth::Generate(shape, {}, 1).value();
    const Json right = Explain(rows, shape).report();
    EachRow(rows, [&off = off](trace::StragglerRow& row) { row.start += off(row); });
    const Json report = Explain(std::move(rows), shape).report();
    EXPECT_EQ(report["verdict"], right["verdict"]);
    EXPECT_EQ(report["causes"].size(), 0U);
    EXPECT_NEAR(report["slowdown"].get<double>(), right["slowdown"].get<double>(), 0.002);
    EXPECT_EQ(report["counters"].value("clocks_off", size_t{0}), workers);
  }
}

TEST(Report, TellsOfAWorkerWhoseStepsAreOthers) {
  trace::StragglerRows rows = synth::Generate(kShape, {kSlow}, 1).value();
  for (auto& piece : rows.pieces)
    std::erase_if(piece, [](const trace::StragglerRow& row) { return row.dp == 1 && row.step < 5; });
  const Json report = Explain(std::move(rows)).report();
  EXPECT_EQ(report["counters"]["workers_without_all_steps"], 4);
  EXPECT_THAT(NotesOf(report), AllOf(HasSubstr("12 steps, 0 to 11"), HasSubstr("rank 1 (dp 1, stage 0) has 7"),
                                     HasSubstr("and 1 more")));
  EXPECT_EQ(report["causes"][0]["suspects"][0]["dp"], 0);
  EXPECT_EQ(NotesOf(Explain(synth::Generate(kShape, {kSlow}, 1).value()).report()), "[]");
}

TEST(Report, NamesWhoseRowsArePutBack) {
  auto rows = synth::Generate(kShape, {kSlow}, 1).value();
  for (auto& piece : rows.pieces)
    std::erase_if(piece, [](const trace::StragglerRow& row) {
      return row.dp == 1 && row.stage == 0 && row.step % 2 == 1 && row.type == trace::OpType::kForwardCompute &&
             row.sequence == 2;
    });
  EXPECT_THAT(NotesOf(Explain(std::move(rows)).report()),
              AllOf(HasSubstr("rows that the tracer lost are put back"), HasSubstr("(dp 1, stage 0) 1 in step 1, ")));
}

TEST(Report, AWorkerThatCountsItsStepsFromAnotherNumberMakesNoCause) {
  for (const std::vector<Fault>& faults : {std::vector<Fault>{}, std::vector{kSlow}}) {
    trace::StragglerRows rows = synth::Generate(kShape, faults, 1).value();
    for (int step = kShape.steps; step < kShape.steps + 5; ++step) rows.steps.push_back(step);
    EachRow(rows, [](trace::StragglerRow& row) {
      if (row.dp == 1) row.step += 5;
    });
    const Json report = Explain(std::move(rows)).report();
    EXPECT_EQ(report["counters"]["workers_without_all_steps"], 16);
    ASSERT_EQ(report["causes"].size(), faults.size()) << report["causes"];
    for (const Json& cause : report["causes"]) EXPECT_EQ(cause["suspects"][0]["rank"], 12) << cause;
  }
}

TEST(Report, AStepOfNothingButGarbageCollectionIsNone) {
  trace::StragglerRows rows = synth::Generate(kShape, {kSlow}, 1).value();
  const Explained whole = Explain(rows);
  const auto number = static_cast<uint32_t>(rows.steps.size());
  rows.steps.push_back(kShape.steps);
  for (int dp = 0; dp < kShape.dp; ++dp)
    rows.pieces.back().push_back(
        {.step = number, .dp = static_cast<uint16_t>(dp), .type = trace::OpType::kGc, .start = 0, .duration = 0});
  const Explained explained = Explain(std::move(rows));
  EXPECT_EQ(explained.report()["counters"]["steps_without_compute"], 1);
  EXPECT_EQ(explained.report()["step_s"], whole.report()["step_s"]);
  EXPECT_EQ(OneLine(StepsReport(explained.analysis())), OneLine(StepsReport(whole.analysis())));
  EXPECT_EQ(OneLine(StepsReport(explained.analysis())).find("null"), std::string::npos);
}

TEST(Report, WorkersOfWhichThereAreNoRowsAreNoMembers) {
  trace::StragglerRows rows = synth::Generate(kShape, {kSlow}, 1).value();
  JobShape larger = kShape;
  larger.dp = 6;
  rows.ranks.resize(6, {-1, -1, -1, -1});
  const Json report = Explain(std::move(rows), larger).report();
  EXPECT_EQ(report["by_worker"].size(), 16U);
  EXPECT_EQ(report["by_dp_rank"].size(), 4U);
  EXPECT_EQ(OneLine(report).find("\"rank\":-1"), std::string::npos);
  EXPECT_EQ(report["counters"]["workers_without_rows"], 8);
  EXPECT_THAT(NotesOf(report), HasSubstr("of 8 of 24 workers the trace has no rows"));
  EXPECT_THAT(report["verdict"].get<std::string>(), EndsWith(", as far as these ranks tell"));
  EXPECT_EQ(Explain(synth::Generate(kShape, {kSlow}, 1).value()).report()["verdict"], "straggles");
}

trace::StragglerRows Without(trace::StragglerRows rows, const std::function<bool(const trace::StragglerRow&)>& lost) {
  for (auto& piece : rows.pieces) std::erase_if(piece, lost);
  return rows;
}

// What the others waited for it is no transfer.
TEST(Report, OfASlowWorkerWhoseRowsAreLostNobodyElseIsNamed) {
  const trace::StragglerRows rows = synth::Generate(kShape, {kSlow}, 1).value();
  const Json whole = Explain(rows).report();
  trace::StragglerRows absent =
      Without(rows, [](const trace::StragglerRow& row) { return row.dp == kSlow.dp && row.stage == kSlow.stage; });
  absent.ranks[0][3] = -1;
  const Json without = Explain(std::move(absent)).report();
  EXPECT_TRUE(without["causes"].empty()) << without["causes"];
  EXPECT_EQ(without["verdict"], "unclear: the replay misses much of the step, as far as these ranks tell");
  EXPECT_GT(without["launch_slowdown"].get<double>(), whole["slowdown"].get<double>());

  for (const bool in_all_steps : {false, true}) {
    const Json report = Explain(Without(rows, [&](const trace::StragglerRow& row) {
                          return row.dp == kSlow.dp && row.stage == kSlow.stage &&
                                 row.type == trace::OpType::kGradsReduceScatter && (in_all_steps || row.step == 5);
                        })).report();
    EXPECT_GT(report["counters"]["unknown_transfers"], 0);
    ASSERT_EQ(report["causes"].size(), 1U) << report["causes"];
    EXPECT_EQ(report["causes"][0]["cause"], "worker");
    EXPECT_NEAR(report["causes"][0]["gain_s"].get<double>(), whole["causes"][0]["gain_s"].get<double>(), 0.01);
    EXPECT_NEAR(report["slowdown"].get<double>(), whole["slowdown"].get<double>(), 1e-3);
  }
}

// Sends and receives of one stage alone would not pair.
TEST(Report, TellsOfStagesWithoutForward) {
  const trace::StragglerRows rows = synth::Generate(kShape, {}, 1).value();
  const Json report = Explain(Without(rows, [](const trace::StragglerRow& row) {
                        return row.type == trace::OpType::kForwardCompute;
                      })).report();
  EXPECT_EQ(report["counters"]["stages_without_forward"], kShape.pp);
  EXPECT_THAT(NotesOf(report), HasSubstr("the trace has no forward-compute, so steps seem shorter"));
  EXPECT_FALSE(Explain(rows).report()["counters"].contains("stages_without_forward"));
}

TEST(Report, TellsOfARankWhoseProfileBeganLater) {
  const std::string folder = trace::TempPath("later");
  ASSERT_TRUE(synth::WriteDdpTraces(folder, {.ranks = 3, .steps = 8}, {}, 1).ok());
  std::vector<std::string> paths;
  for (int rank = 0; rank < 3; ++rank) paths.push_back(fmt::format("{}/rank-{}.json.gz", folder, rank));
  std::vector<trace::KinetoRank> ranks = trace::ReadKinetoFiles(paths, std::nullopt).value();
  std::erase_if(ranks[1].steps, [](const trace::ProfilerStep& step) { return step.number < 3; });
  const trace::KinetoJob traced = trace::BuildKinetoJob(std::move(ranks), {}).value();
  const WhatIf analysis(traced.job);
  Json report = Report(traced.job, analysis, FindCauses(traced.job, analysis));
  AddRanks(traced, report);
  EXPECT_EQ(report["ranks"]["lacking_steps"], Json{1});
  EXPECT_EQ(report["counters"]["steps_not_on_all_ranks"], 3);
}

Json ReportOf(std::vector<trace::KinetoRank> ranks) {
  const trace::KinetoJob traced = trace::BuildKinetoJob(std::move(ranks), {}).value();
  const WhatIf analysis(traced.job);
  Json report = Report(traced.job, analysis, FindCauses(traced.job, analysis));
  AddRanks(traced, report);
  return report;
}

std::vector<trace::KinetoRank> RanksOf(const synth::DdpShape& shape, const std::vector<Fault>& faults) {
  const std::string folder = trace::TempPath("ranks");
  EXPECT_TRUE(synth::WriteDdpTraces(folder, shape, faults, 1).ok());
  std::vector<std::string> paths;
  for (int rank = 0; rank < shape.ranks; ++rank) paths.push_back(fmt::format("{}/rank-{}.json.gz", folder, rank));
  return trace::ReadKinetoFiles(paths, std::nullopt).value();
}

// It never waits for another, and so looks as if it had nothing to lose.
TEST(Report, OfOneRankThatMayBeTheSlowOneHealthIsNotSaid) {
  std::vector<trace::KinetoRank> ranks =
      RanksOf({.ranks = 4, .steps = 8}, {{.kind = FaultKind::kWorker, .dp = 0, .factor = 1.4}});
  EXPECT_EQ(ReportOf(ranks)["causes"][0]["suspects"][0]["rank"], 0);
  ranks.resize(1);
  const Json report = ReportOf(std::move(ranks));
  EXPECT_EQ(report["verdict"], "healthy, as far as these ranks tell");
  EXPECT_EQ(report["unsettled"]["ask_ranks"], (Json{1, 2, 3}));
  EXPECT_THAT(NotesOf(report), HasSubstr("whether a rank is slow itself"));
}

// As if the clocks of half of the ranks jumped, step by step.
TEST(Report, OfRanksWhoseCommunicationsMeetNoneHealthIsNotSaid) {
  std::vector<trace::KinetoRank> ranks = RanksOf({.ranks = 4, .steps = 8}, {});
  EXPECT_EQ(ReportOf(ranks)["verdict"], "healthy");
  for (int rank = 2; rank < 4; ++rank) {
    trace::KinetoRank& one = ranks[static_cast<size_t>(rank)];
    for (trace::DeviceOp& op : one.ops) {
      const int64_t at = op.launch_ns == trace::kNoTime ? op.begin_ns : op.launch_ns;
      const auto step = std::ranges::upper_bound(one.steps, at, {}, &trace::ProfilerStep::begin_ns) - one.steps.begin();
      const int64_t jump = step % 2 == 0 ? 0 : 30'000'000;
      op.begin_ns += jump;
    }
  }
  const Json report = ReportOf(std::move(ranks));
  EXPECT_THAT(report["verdict"].get<std::string>(), HasSubstr("communications could not be matched between ranks"));
  EXPECT_THAT(report["verdict"].get<std::string>(), Not(HasSubstr("healthy")));
}

// Half of the files: what looks like a slow network may be a rank of the other half.
TEST(Report, WhatAnAbsentRankMayExplainIsNoCertainFabric) {
  const std::string folder = trace::TempPath("partial");
  const synth::DdpShape shape{.ranks = 4, .steps = 12};
  const Fault fabric{.kind = FaultKind::kFabric, .factor = 8, .first_step = 4, .last_step = 7};
  ASSERT_TRUE(synth::WriteDdpTraces(folder, shape, {fabric}, 1).ok());
  trace::JobFiles files;
  for (int rank = 0; rank < shape.ranks; ++rank)
    files.kineto.push_back(fmt::format("{}/rank-{}.json.gz", folder, rank));
  EXPECT_EQ(Explained::Of(files, {}).value().report()["causes"][0]["cause"], "fabric");
  files.kineto.resize(2);
  const Json part = Explained::Of(files, {}).value().report();
  ASSERT_FALSE(part["causes"].empty());
  EXPECT_EQ(part["causes"][0]["cause"], "fabric_or_late_rank");
  EXPECT_THAT(OneLine(part["causes"][0]["evidence"]), HasSubstr("may have come late"));

  // Some collectives have all their members here: it is a fabric by these, but a late rank may have its part.
  trace::KinetoJob traced =
      trace::BuildKinetoJob(trace::ReadKinetoFiles(files.kineto, std::nullopt).value(), {}).value();
  for (size_t op = traced.job.ops.size() / 2; op < traced.job.ops.size(); ++op) traced.absent_peers[op].clear();
  const WhatIf analysis(traced.job);
  Json report = Report(traced.job, analysis, FindCauses(traced.job, analysis));
  AddRanks(traced, report);
  EXPECT_EQ(report["causes"][0]["cause"], "fabric");
  EXPECT_THAT(OneLine(report["causes"][0]["evidence"]), HasSubstr("or a rank whose file is not here was late"));
}

}  // namespace
}  // namespace lockstep::explain
