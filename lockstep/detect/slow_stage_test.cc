// Stages of a pipeline of which there are no replicas: whoever takes longer than the others is named, by what they wait
// for it in sends and receives, and never for certain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "lockstep/detect/comm_hang.h"
#include "lockstep/detect/telemetry_job.h"
#include "lockstep/trace/trails.h"

namespace lockstep::detect {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

synth::TelemetryShape Pipeline(int stages) {
  return {.layout = {.pp = stages},
          .ranks_per_host = 1,
          .microbatches = 8,
          .forward = Seconds{0.05},
          .backward = Seconds{0.1}};
}

bool IsOfCollective(const ls_record& record) {
  return (record.kind == LS_RECORD_OP ? record.body.op.number : record.body.transfer.number) != 0;
}

// As of jobs that have none: what a rank waited in one it waits in its next receive.
std::vector<trace::TrailSnapshot> WithoutItsCollectives(std::vector<trace::TrailSnapshot> trails) {
  for (trace::TrailSnapshot& trail : trails) {
    int64_t waited_ns = 0;
    for (ls_record& record : trail.ended) {
      if (record.kind != LS_RECORD_OP) continue;
      const int64_t duration_ns = ls_delta_ns(record.body.op.duration, record.delta_shift);
      if (record.body.op.number != 0) waited_ns += duration_ns;
      if (record.body.op.number != 0 || record.body.op.function != LS_RECEIVE) continue;
      waited_ns += duration_ns;
      ls_op_set_alone(&record, waited_ns);
      ls_op_set_duration(&record, std::exchange(waited_ns, 0));
    }
    std::erase_if(trail.ended, IsOfCollective);
    for (ls_communicator& one : trail.communicators) one.launched = one.ended = 0;
  }
  return trails;
}

CommDiagnosis Diagnose(std::vector<trace::TrailSnapshot> trails) {
  return DiagnoseCommunication(trace::JoinTrails(std::move(trails)));
}

TEST(SlowStage, IsNamedWhicheverItIs) {
  for (const int stages : {2, 4, 8})
    for (int rank = 0; rank < stages; ++rank)
      for (const bool collectives : {true, false}) {
        auto trails = Take(Pipeline(stages), SlowRanks(rank, rank + 1, 1.5), 60);
        if (!collectives) trails = WithoutItsCollectives(std::move(trails));
        const CommDiagnosis diagnosis = Diagnose(std::move(trails));
        ASSERT_EQ(diagnosis.findings.size(), 1u)
            << stages << " " << rank << " " << collectives << diagnosis.too_short << TextOf(diagnosis.findings);
        EXPECT_EQ(diagnosis.findings[0].syndrome, incident::Syndrome::kNonCommunicationSlow);
        EXPECT_THAT(NamesOf(diagnosis.findings[0]), ElementsAre(std::to_string(rank)));
        EXPECT_FALSE(diagnosis.findings[0].certain);  // its layers may be as many
        EXPECT_THAT(diagnosis.findings[0].probe, HasSubstr("by design"));
      }
}

// The job would gain what the slow stage takes beyond the others, but for the bubble, which holds one microbatch of it.
TEST(SlowStage, CostsWhatTheJobWouldGain) {
  for (const bool collectives : {true, false}) {
    const double healthy = StepsPerSecond(Take(Pipeline(4), "", 60));
    auto trails = Take(Pipeline(4), SlowRanks(3, 4, 1.5), 60);
    const double lost = 1 - StepsPerSecond(trails) / healthy;
    if (!collectives) trails = WithoutItsCollectives(std::move(trails));
    const CommDiagnosis diagnosis = Diagnose(std::move(trails));
    ASSERT_EQ(diagnosis.findings.size(), 1u) << diagnosis.too_short;
    EXPECT_NEAR(diagnosis.findings[0].price.share, lost, 0.2 * lost);
  }
}

TEST(SlowStage, OfAPipelineThatIsWellThereIsNone) {
  for (const int stages : {2, 4, 8})
    for (const char* irregular : {"", "lengths:factor=0.3", "gc:share=0.02,seconds=0.5", "pause:from=30,seconds=5"})
      for (const bool collectives : {true, false}) {
        auto trails = Take(Pipeline(stages), irregular, 60);
        if (!collectives) trails = WithoutItsCollectives(std::move(trails));
        const CommDiagnosis diagnosis = Diagnose(std::move(trails));
        EXPECT_THAT(diagnosis.findings, IsEmpty()) << stages << irregular << TextOf(diagnosis.findings);
        EXPECT_EQ(diagnosis.too_short, "") << stages << irregular;
      }
}

// While the slowest is waited for, a little more than usual costs nothing.
TEST(SlowStage, IsNoneThatHasTimeBesideASlowerOne) {
  const CommDiagnosis diagnosis = Diagnose(Take(Pipeline(4), SlowRanks(3, 4, 2) + SlowRanks(1, 2, 1.15), 60));
  ASSERT_EQ(diagnosis.findings.size(), 1u) << TextOf(diagnosis.findings);
  EXPECT_THAT(NamesOf(diagnosis.findings[0]), ElementsAre("3"));
}

// What is lost of a rank's sends and receives looks like its own doing.
TEST(SlowStage, IsNotKnownOfAPartOfTheSendsAndReceives) {
  for (const bool some : {true, false}) {  // else all of two ranks
    auto trails = WithoutItsCollectives(Take(Pipeline(4), "", 60));
    std::mt19937 chance(1);
    std::erase_if(trails[2].ended, [&](const ls_record&) { return !some || chance() % 5 == 0; });
    const CommDiagnosis diagnosis = Diagnose(std::move(trails));
    EXPECT_THAT(diagnosis.findings, IsEmpty()) << TextOf(diagnosis.findings);
    EXPECT_THAT(diagnosis.too_short, HasSubstr("whether a stage of the pipeline of rank 0 is slow"));
  }
}

}  // namespace
}  // namespace lockstep::detect
