// Ranks that launch sends and receives together and wait for them one after the other: stages of a pipeline under 1F1B,
// and others that send to each other. Who is slow is named, never for certain, and at what it costs, however long
// messages take and in whichever order they are waited for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/detect/comm_hang.h"
#include "lockstep/detect/exchange_job.h"
#include "lockstep/detect/telemetry_job.h"

namespace lockstep::detect {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr double kForward = 0.03, kBackward = 0.06;
constexpr uint64_t kActivations = 16'000'000;
const std::vector<Order> kOrders = {Order::kSendsFirst, Order::kReceivesFirst, Order::kSendsLater};

// `meet_bytes`: of a collective of all stages that ends a step; 0: there is none.
std::vector<Program> OneForwardOneBackward(int stages, Order order, uint64_t meet_bytes) {
  constexpr int kMicrobatches = 8;
  std::vector<Program> programs;
  for (int stage = 0; stage < stages; ++stage) {
    ProgramOf own(order, kActivations);
    const int next = stage < stages - 1 ? stage + 1 : -1, before = stage - 1;
    const int ahead = std::min(kMicrobatches, stages - stage - 1), rest = kMicrobatches - ahead;
    for (int i = 0; i < ahead; ++i) own.Exchange(-1, before).Work(kForward).Exchange(next, -1);
    if (rest > 0) own.Exchange(-1, before);
    for (int i = 0; i < rest; ++i)
      own.Work(kForward).Exchange(next, next).Work(kBackward).Exchange(before, i < rest - 1 ? before : -1);
    for (int i = 0; i < ahead; ++i) own.Exchange(-1, next).Work(kBackward).Exchange(before, -1);
    own.WaitForAll().Work(0.02);
    if (meet_bytes > 0) own.Meet(meet_bytes);
    programs.push_back(own.acts());
  }
  return programs;
}

// Each rank hands what it has to the next of its ring, layer by layer, and sums its gradients with all others.
std::vector<Program> RingAttention(int ranks, Order order, uint64_t bytes, uint64_t bucket) {
  constexpr int kLayers = 8, kBuckets = 6;
  std::vector<Program> programs;
  for (int rank = 0; rank < ranks; ++rank) {
    ProgramOf own(order, bytes);
    for (const double seconds : {0.01, 0.02})
      for (int layer = 0; layer < kLayers; ++layer)
        for (int i = 0; i < ranks; ++i) {
          own.Work(seconds);
          if (i < ranks - 1) own.Exchange((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        }
    own.WaitForAll();
    for (int i = 0; i < kBuckets; ++i) own.Meet(bucket);
    programs.push_back(own.Work(0.01).acts());
  }
  return programs;
}

struct Case {
  std::vector<Program> programs;
  double wire_s;
  std::string text;
};

double LostBy(const Case& job, int slow, double factor, CommDiagnosis& diagnosis) {
  const int ranks = static_cast<int>(job.programs.size());
  ExchangeJob healthy(ranks, job.wire_s), other(ranks, job.wire_s, slow, factor);
  healthy.Steps(job.programs, 60);
  other.Steps(job.programs, 60);
  diagnosis = DiagnoseCommunication(other.log());
  return 1 - healthy.step_s() / other.step_s();
}

void ExpectHealthy(const Case& job) {
  ExchangeJob healthy(static_cast<int>(job.programs.size()), job.wire_s);
  healthy.Steps(job.programs, 60);
  const CommDiagnosis diagnosis = DiagnoseCommunication(healthy.log());
  EXPECT_THAT(diagnosis.findings, IsEmpty()) << job.text << TextOf(diagnosis.findings);
  EXPECT_EQ(diagnosis.too_short, "") << job.text;
}

// Where others are soon on the way that the job waits for, it gains less than what lies on it.
constexpr double kMostOfSlack = 2.2;

void ExpectNamed(const Case& job, int slow, double factor, double most = 1.25) {
  CommDiagnosis diagnosis;
  const double lost = LostBy(job, slow, factor, diagnosis);
  ASSERT_EQ(diagnosis.findings.size(), 1u)
      << job.text << " slow " << slow << " lost " << lost << diagnosis.too_short << TextOf(diagnosis.findings);
  EXPECT_EQ(diagnosis.findings[0].syndrome, incident::Syndrome::kNonCommunicationSlow);
  EXPECT_THAT(NamesOf(diagnosis.findings[0]), ElementsAre(std::to_string(slow))) << job.text;
  EXPECT_FALSE(diagnosis.findings[0].certain) << job.text;
  EXPECT_GE(diagnosis.findings[0].price.share, 0.75 * lost) << job.text << " slow " << slow;
  EXPECT_LE(diagnosis.findings[0].price.share, most * lost) << job.text << " slow " << slow;
}

std::vector<Case> Pipelines() {
  std::vector<Case> all;
  for (const int stages : {2, 4, 8})
    for (const double wire_s : {2e-5, 1e-4, 1e-3, 2e-2})
      for (const Order order : kOrders)
        for (const uint64_t meet_bytes : {0, 4}) {
          if (stages == 8 && wire_s != 1e-3) continue;  // one is enough of what takes longest
          all.push_back(
              {OneForwardOneBackward(stages, order, meet_bytes), wire_s,
               fmt::format("stages {} wire {} order {} meet {}", stages, wire_s, static_cast<int>(order), meet_bytes)});
        }
  return all;
}

TEST(SlowExchange, AStageIsNamedAtWhatItCosts) {
  for (const Case& job : Pipelines()) {
    const bool has_slack = job.programs.size() > 4 || job.wire_s > 1e-3;
    for (int slow = 0; slow < static_cast<int>(job.programs.size()); ++slow)
      if (job.programs.size() <= 4 || slow % 7 == 0) ExpectNamed(job, slow, 1.5, has_slack ? kMostOfSlack : 1.25);
  }
}

TEST(SlowExchange, OfStagesThatAreWellThereIsNone) {
  for (const Case& job : Pipelines()) ExpectHealthy(job);
}

// Of more sends and receives than are looked at for what comes again.
TEST(SlowExchange, OfALongRecordTheNewestTell) {
  ExchangeJob job(2, 1e-3, 1, 1.5);
  job.Steps(OneForwardOneBackward(2, Order::kSendsFirst, 0), 1'500);
  const CommDiagnosis diagnosis = DiagnoseCommunication(job.log());
  ASSERT_EQ(diagnosis.findings.size(), 1u) << diagnosis.too_short;
  EXPECT_THAT(NamesOf(diagnosis.findings[0]), ElementsAre("1"));
}

// The first stage and the last sum the gradients of an embedding that both have: more than they send, and no proof that
// they do alike.
TEST(SlowExchange, StagesThatShareAnEmbeddingAreStages) {
  for (const Order order : kOrders) {
    const Case job{OneForwardOneBackward(2, order, 500'000'000), 1e-3,
                   fmt::format("order {}", static_cast<int>(order))};
    ExpectHealthy(job);
    for (const int slow : {0, 1})
      for (const double factor : {1.2, 2.0}) ExpectNamed(job, slow, factor);
  }
}

// Whether what they send is more than a bucket of gradients tells nothing.
TEST(SlowExchange, ARankOfARingIsNamedAtWhatItCosts) {
  for (const int ranks : {2, 4})
    for (const uint64_t bytes : {10'000'000, 67'000'000})
      for (const double wire_s : {1e-4, 2e-3})
        for (const Order order : {Order::kSendsFirst, Order::kReceivesFirst}) {
          const Case job{
              RingAttention(ranks, order, bytes, 25'000'000), wire_s,
              fmt::format("ring of {} bytes {} wire {} order {}", ranks, bytes, wire_s, static_cast<int>(order))};
          ExpectHealthy(job);
          ExpectNamed(job, ranks / 2, 1.3);
        }
}

// Who sends does something else than who receives: neither tells what is usual for the other.
TEST(SlowExchange, ThoseThatSendOneWayAreNotCompared) {
  std::vector<Program> programs;
  for (int rank = 0; rank < 8; ++rank) {
    ProgramOf own(Order::kSendsFirst, 4'000'000);
    for (int i = 0; i < 4; ++i) {
      if (rank % 2 == 0)
        own.Work(0.02).Exchange(rank + 1, -1);
      else
        own.Exchange(-1, rank - 1).Work(0.01);
    }
    programs.push_back(own.Meet(100'000'000).acts());
  }
  ExpectHealthy({programs, 1e-3, "pairs"});
}

}  // namespace
}  // namespace lockstep::detect
