#include "lockstep/detect/comm_slow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "lockstep/base/test_folder.h"
#include "lockstep/detect/comm_hang.h"
#include "lockstep/detect/diagnosis.h"

namespace lockstep::detect {
namespace {

using incident::Finding;
using incident::Suspect;
using incident::Syndrome;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

constexpr double kMs = 1e6;

// A job that computes and then all-reduces over rings, as gloo does: in step s of a ring of n, each member gets from
// the next what that one had got in step s - 1; it takes 2 (n - 1) steps. A message leaves when the receiver's word
// that it is ready has come.
class RingJob {
 public:
  explicit RingJob(int ranks, uint32_t seed = 1) : ranks_(ranks), now_(static_cast<size_t>(ranks)), chance_(seed) {
    log_.functions = {"all_reduce"};
    for (int rank = 0; rank < ranks; ++rank) log_.reported.push_back(rank);
  }
  void AddRing(std::vector<int> members) { log_.communicators.push_back({"", "", std::move(members)}); }
  void Compute(int rank, double ms) { compute_[rank] = ms; }
  // Before it computes, in each step, as it tells itself.
  void WaitForData(int rank, double ms) { data_[rank] = ms; }
  void Delay(int from, int to, double ms) { delay_[{from, to}] = ms; }
  void DelayAll(int rank, bool sends, double ms) {
    for (int other = 0; other < ranks_; ++other) Delay(sends ? rank : other, sends ? other : rank, ms);
  }
  void Step() {
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto own = compute_.find(rank);
      if (const auto waits = data_.find(rank); waits != data_.end()) Wait(rank, waits->second * kMs);
      At(rank) += (own == compute_.end() ? 100 : own->second) * kMs + Noise();
    }
    for (const auto& [from, to] : sends_) Send(from, to);
    for (uint32_t ring = 0; ring < log_.communicators.size(); ++ring) AllReduce(ring);
    ++sequence_;
    if (!single_values_) return;
    for (uint32_t ring = 0; ring < log_.communicators.size(); ++ring) AllReduceOne(ring);
    ++sequence_;
  }
  void ReduceSingleValuesToo() { single_values_ = true; }
  void SendToo(int from, int to) { sends_.emplace_back(from, to); }  // before the collectives, outside of them
  void Steps(int count) {
    while (count-- > 0) Step();
  }
  trace::CommLog& log() { return log_; }
  std::vector<Finding> Find() const { return JudgeSlowness(log_, {}).findings; }

 private:
  double& At(int rank) { return now_[static_cast<size_t>(rank)]; }
  double Noise() { return std::exponential_distribution<double>(1 / (0.2 * kMs))(chance_); }

  void Wait(int rank, double ns) {
    At(rank) += ns;
    trace::DataWait wait;
    wait.rank = rank;
    wait.data_set = "photos";
    wait.end_ns = static_cast<int64_t>(At(rank));
    wait.parts.decode_ns = static_cast<int64_t>(ns);
    wait.threads = 2;
    wait.busy = 1;
    log_.data_waits.push_back(wait);
  }

  double Passage(int from, int to) {
    const auto delay = delay_.find({from, to});
    return 0.2 * kMs + Noise() + (delay == delay_.end() ? 0 : delay->second * kMs);
  }

  void Send(int from, int to) {
    const double sent = At(from), came = At(to), both = std::max(sent, came);
    At(from) = both + Noise();
    At(to) = both + Passage(from, to);
    RecordSend(from, to, trace::Direction::kSend, sent);
    RecordSend(to, from, trace::Direction::kReceive, came);
  }

  // Whoever comes waits from then on.
  void RecordSend(int rank, int peer, trace::Direction direction, double came) {
    trace::CommOp op;
    op.rank = rank;
    op.peer = peer;
    op.direction = direction;
    op.state = trace::OpState::kCompleted;
    op.order = op.created_ns = static_cast<int64_t>(came);
    op.duration_ns = op.held_up_ns = static_cast<int64_t>(At(rank) - came);
    op.bytes = 1 << 20;
    log_.ops.push_back(op);
    if (const auto left = left_.find(rank); left != left_.end()) left->second += At(rank) - came;
  }

  // Of one element, say a mean loss: it goes once around, and its sum once more. Who has not heard it has nothing to
  // send.
  void AllReduceOne(uint32_t ring) {
    const std::vector<int>& members = log_.communicators[ring].ranks;
    const size_t n = members.size();
    std::vector<double> came, first(n, -1);
    std::vector<uint32_t> pieces(n);
    for (const int rank : members) came.push_back(At(rank));
    std::vector<double> got = came;
    for (size_t step = 0; step < 2 * (n - 1); ++step) {
      const size_t sender = (2 * n - 1 - step) % n, i = (sender + n - 1) % n;
      const double there = std::max(got[i], got[sender] + Passage(members[sender], members[i]));
      if (first[i] < 0) first[i] = there - came[i];
      got[i] = there;
      ++pieces[i];
    }
    Record(ring, came, got, first, pieces, sizeof(float));
  }

  void AllReduce(uint32_t ring) {
    const std::vector<int>& members = log_.communicators[ring].ranks;
    const size_t n = members.size();
    std::vector<double> came, first(n);
    for (const int rank : members) came.push_back(At(rank));
    std::vector<double> got = came;
    for (size_t step = 0; step < 2 * (n - 1); ++step) {
      std::vector<double> next(n);
      for (size_t i = 0; i < n; ++i) {
        const size_t sender = (i + 1) % n;
        const double ready = got[i] + Passage(members[i], members[sender]);
        next[i] = std::max(got[sender], ready) + Passage(members[sender], members[i]);
      }
      if (step == 0)
        for (size_t i = 0; i < n; ++i) first[i] = next[i] - came[i];
      got = next;
    }
    Record(ring, came, got, first, std::vector<uint32_t>(n, static_cast<uint32_t>(2 * (n - 1))), 1 << 20);
  }

  // By member: when it came, when it had all, how long it waited for the first piece, how many there were.
  void Record(uint32_t ring, const std::vector<double>& came, const std::vector<double>& got,
              const std::vector<double>& first, const std::vector<uint32_t>& pieces, uint64_t bytes) {
    const std::vector<int>& members = log_.communicators[ring].ranks;
    const size_t n = members.size();
    for (size_t i = 0; i < n; ++i) {
      At(members[i]) = got[i];
      trace::CommOp op;
      op.communicator = ring;
      op.rank = members[i];
      op.sequence = sequence_;
      op.order = static_cast<int64_t>(came[i]);
      op.created_ns = static_cast<int64_t>(came[i]);
      op.duration_ns = static_cast<int64_t>(got[i] - came[i]);
      const auto left = left_.find(members[i]);
      op.alone_ns = left == left_.end() ? -1 : static_cast<int64_t>(came[i] - left->second);
      left_[members[i]] = got[i];
      op.state = trace::OpState::kCompleted;
      op.bytes = bytes;
      log_.ops.push_back(op);
      trace::CommTransfer heard;
      heard.communicator = ring;
      heard.sequence = sequence_;
      heard.rank = members[i];
      heard.peer = members[(i + 1) % n];
      heard.direction = trace::Direction::kReceive;
      heard.count = pieces[i];
      heard.first_ns = static_cast<int64_t>(first[i]);
      log_.transfers.push_back(heard);
    }
  }

  int ranks_;
  std::vector<double> now_;
  std::mt19937 chance_;
  std::map<int, double> compute_, data_, left_;
  std::map<std::pair<int, int>, double> delay_;
  trace::CommLog log_;
  int64_t sequence_ = 0;
  bool single_values_ = false;
  std::vector<std::pair<int, int>> sends_;
};

std::set<std::string> Suspected(const Finding& finding) {
  std::set<std::string> names;
  for (const auto& list : {finding.suspects, finding.ambiguous_with})
    for (const Suspect& suspect : list) names.insert(suspect.name);
  return names;
}

TEST(Slowness, AHealthyJobHasNone) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    RingJob job(8, seed);
    job.AddRing({0, 1, 2, 3, 4, 5, 6, 7});
    job.AddRing({0, 2, 4, 6});
    job.Steps(40);
    EXPECT_THAT(job.Find(), IsEmpty()) << seed;
  }
}

std::vector<std::pair<Syndrome, std::set<std::string>>> Told(const std::vector<Finding>& findings) {
  std::vector<std::pair<Syndrome, std::set<std::string>>> told;
  for (const Finding& finding : findings) told.emplace_back(finding.syndrome, Suspected(finding));
  return told;
}
using Names = std::set<std::string>;

RingJob DataJob(uint32_t seed) {
  RingJob job(8, seed);
  job.AddRing({0, 1, 2, 3, 4, 5, 6, 7});
  return job;
}

// 40 of 140 ms.
TEST(Slowness, ARankThatWaitsForDataIsNotSlow) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    RingJob job = DataJob(seed);
    job.WaitForData(3, 40);
    job.Steps(60);
    const std::vector<Finding> findings = job.Find();
    ASSERT_THAT(Told(findings), ElementsAre(std::pair(Syndrome::kDataSlow, Names{"3"}))) << seed;
    EXPECT_TRUE(findings[0].certain);
    EXPECT_NEAR(0.27, findings[0].price.share, 0.03);
    EXPECT_THAT(findings[0].evidence[0],
                HasSubstr("rank 3 waited for data set photos: decoding (2 of 2 threads busy)"));
    EXPECT_THAT(incident::Headline(findings[0]), HasSubstr("rank 3 waits for its data: "));
  }
}

TEST(Slowness, AJobThatWaitsForDataHasNoSuspects) {
  RingJob job = DataJob(1);
  for (int rank = 0; rank < 8; ++rank) job.WaitForData(rank, 40);
  job.Steps(60);
  const std::vector<Finding> findings = job.Find();
  ASSERT_THAT(Told(findings), ElementsAre(std::pair(Syndrome::kDataSlow, Names{})));
  EXPECT_NEAR(0.27, findings[0].price.share, 0.03);
  EXPECT_FALSE(findings[0].price.at_least);
  EXPECT_THAT(incident::Headline(findings[0]), HasSubstr("the job waits for its data: "));
}

TEST(Slowness, WaitingForDataHidesNoSlowRank) {
  RingJob job = DataJob(1);
  job.WaitForData(3, 40);
  job.Compute(5, 140);
  job.Steps(60);
  EXPECT_THAT(Told(job.Find()), UnorderedElementsAre(std::pair(Syndrome::kDataSlow, Names{"3"}),
                                                     std::pair(Syndrome::kNonCommunicationSlow, Names{"5"})));
  RingJob same = DataJob(1);
  same.WaitForData(3, 25);
  same.Compute(3, 140);
  same.Steps(60);
  EXPECT_THAT(Told(same.Find()), UnorderedElementsAre(std::pair(Syndrome::kDataSlow, Names{"3"}),
                                                      std::pair(Syndrome::kNonCommunicationSlow, Names{"3"})));
}

TEST(Slowness, WaitsThatCostNothingAreNotTold) {
  RingJob job = DataJob(1);
  job.WaitForData(2, 40);  // and the others compute for longer
  for (int rank = 0; rank < 8; ++rank) job.Compute(rank, rank == 2 ? 100 : 140);
  job.Steps(60);
  EXPECT_THAT(job.Find(), IsEmpty());
  RingJob little = DataJob(1);
  little.WaitForData(2, 3);
  little.Steps(60);
  EXPECT_THAT(little.Find(), IsEmpty());
}

// The delay of one way shows in the first messages of all that come behind it there.
TEST(Slowness, WhereOneElementGoesRoundNobodyElseIsNamedForASlowLink) {
  for (int from = 0; from < 4; ++from) {
    RingJob job(4, static_cast<uint32_t>(from));
    job.AddRing({0, 1, 2, 3});
    job.ReduceSingleValuesToo();
    const int to = (from + 3) % 4;
    job.Delay(from, to, 50);
    job.Steps(40);
    const std::vector<Finding> findings = job.Find();
    ASSERT_EQ(findings.size(), 1u) << from;
    EXPECT_EQ(findings[0].syndrome, Syndrome::kCommunicationSlow);
    EXPECT_EQ(Suspected(findings[0]),
              (std::set<std::string>{std::to_string(from), std::to_string(to),
                                     fmt::format("{}<->{}", std::min(from, to), std::max(from, to))}));
  }
}

TEST(Slowness, TooFewRoundsSayNothing) {
  RingJob job(4);
  job.AddRing({0, 1, 2, 3});
  job.Compute(2, 300);
  job.Steps(10);
  EXPECT_THAT(job.Find(), IsEmpty());
}

TEST(Slowness, ASlowRankIsNamedWhereverItSits) {
  for (int slow = 0; slow < 8; ++slow) {
    RingJob job(8, static_cast<uint32_t>(slow));
    job.AddRing({0, 1, 2, 3});  // as tensor parallel groups, then data parallel pairs: who is late there waited before
    job.AddRing({4, 5, 6, 7});
    for (int i = 0; i < 4; ++i) job.AddRing({i, i + 4});
    job.Compute(slow, 115);
    job.Steps(30);
    const std::vector<Finding> findings = job.Find();
    ASSERT_EQ(findings.size(), 1u) << slow;
    EXPECT_EQ(findings[0].syndrome, Syndrome::kNonCommunicationSlow);
    EXPECT_THAT(findings[0].suspects, ElementsAre(incident::SuspectRank(RankId(slow))));
    EXPECT_TRUE(findings[0].certain);
    EXPECT_GT(findings[0].since.value, 0);
  }
}

TEST(Slowness, WhereTheLogMayHideWaitingNobodyIsNamedForCertain) {
  RingJob job(4);
  job.AddRing({0, 1, 2, 3});
  job.Compute(2, 130);
  job.Steps(30);
  job.log().doubt = "whether the job has a pipeline";
  const std::vector<Finding> findings = job.Find();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_FALSE(findings[0].certain);
  EXPECT_EQ(findings[0].probe, "whether the job has a pipeline");
}

// Two pipelines of two stages, 0 -> 1 and 2 -> 3, whose first stage works on at the end: rank 0 takes 130 ms instead of
// 100, and rank 1 waits for it. price = 30 / (130 + 10) = 0.21, though all wait 10 ms for it at the end as they ever
// do.
TEST(Slowness, OfAPipelineTheOthersOfItPassOnWhatItCosts) {
  trace::CommLog log;
  log.functions = {"all_reduce", "send"};
  log.communicators = {{"", "", {0, 2}}, {"", "", {1, 3}}, {"", "", {0, 1, 2, 3}}};
  log.reported = {0, 1, 2, 3};
  const auto ms = [](int64_t count) { return count * static_cast<int64_t>(kMs); };
  for (int64_t step = 0; step < 100; ++step)
    for (int rank = 0; rank < 4; ++rank) {
      const bool is_late = rank < 2, is_first = rank % 2 == 0;
      const int64_t begin = step * 140, came = is_late ? 130 : 100, came_last = is_first ? 140 : 130;
      trace::CommOp op;
      op.rank = rank, op.state = trace::OpState::kCompleted, op.sequence = step;
      op.communicator = is_first ? 0 : 1;
      op.created_ns = ms(begin + came), op.duration_ns = ms(130 - came), op.alone_ns = ms(rank == 0 ? 130 : 100);
      log.ops.push_back(op);
      op.communicator = 2;
      op.created_ns = ms(begin + came_last), op.duration_ns = ms(140 - came_last), op.alone_ns = ms(came_last - 130);
      log.ops.push_back(op);
      op.direction = is_first ? trace::Direction::kSend : trace::Direction::kReceive;
      op.function = 1, op.peer = is_first ? rank + 1 : rank - 1, op.alone_ns = -1;
      op.created_ns = ms(begin + 50), op.duration_ns = ms(is_late ? 80 : 50);
      log.ops.push_back(op);
    }
  const std::vector<Finding> findings = JudgeSlowness(log, {}).findings;
  ASSERT_THAT(findings, Not(IsEmpty()));
  EXPECT_THAT(findings[0].suspects, ElementsAre(incident::SuspectRank(RankId(0))));
  EXPECT_NEAR(findings[0].price.share, 0.21, 0.01);
}

// Its processes are gone, or of other hosts: it was running for all that is known, and somebody is always behind.
TEST(Slowness, ComesFirstInAJobThatMayHaveBeenRunning) {
  for (const int behind : {2, 1}) {
    RingJob job(4);
    job.AddRing({0, 1, 2, 3});
    job.Compute(2, 130);
    job.Steps(30);
    for (int rank = 0; rank < 4; ++rank) {
      job.log().counts.push_back({0, rank, 1000, 999});
      trace::CommOp op = job.log().ops.back();
      op.rank = rank, op.sequence = 1000, op.state = trace::OpState::kStarted, op.duration_ns = -1;
      if (rank == behind)
        job.log().counts.back().enqueued = 999;
      else
        job.log().ops.push_back(op);
    }
    EXPECT_EQ(DiagnoseCommunication(job.log()).findings.at(0).syndrome, Syndrome::kNonCommunicationHang);
    job.log().moving = true;
    const std::vector<Finding> findings = DiagnoseCommunication(job.log()).findings;
    ASSERT_EQ(findings.size(), behind == 2 ? 1u : 2u) << "that one is behind is explained by its slowness";
    EXPECT_EQ(findings[0].syndrome, Syndrome::kNonCommunicationSlow);
    EXPECT_THAT(findings[0].suspects, ElementsAre(incident::SuspectRank(RankId(2))));
    EXPECT_TRUE(findings[0].certain);
    EXPECT_FALSE(findings.back().certain && behind == 1);
  }
}

// A checkpoint, a garbage collection, a user's Ctrl-Z.
TEST(Slowness, AStallIsNoSlowness) {
  RingJob job(4);
  job.AddRing({0, 1, 2, 3});
  job.Steps(20);
  job.Compute(2, 3000);
  job.Step();
  job.Compute(2, 100);
  job.Steps(10);
  EXPECT_THAT(job.Find(), IsEmpty());
}

TEST(Slowness, SinceWhenARankIsSlow) {
  RingJob job(4);
  job.AddRing({0, 1, 2, 3});
  job.Steps(15);
  job.Compute(2, 150);
  job.Steps(30);
  const std::vector<Finding> findings = job.Find();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_NEAR(static_cast<double>(findings[0].since.value) / 1e9, 1.5, 1.0);
}

TEST(Slowness, TwoSlowRanksAreBothNamedTheSlowerFirst) {
  RingJob job(8);
  job.AddRing({0, 1, 2, 3, 4, 5, 6, 7});
  job.Compute(3, 115);
  job.Compute(6, 130);
  job.Steps(30);
  const std::vector<Finding> findings = job.Find();
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_THAT(findings[0].suspects, ElementsAre(incident::SuspectRank(RankId(6))));
  EXPECT_THAT(findings[1].suspects, ElementsAre(incident::SuspectRank(RankId(3))));
}

// It is late by itself in the one group, and then in the other: each waits for the same.
TEST(Slowness, WhatGroupsWaitBesideEachOtherIsToldOnce) {
  RingJob job(8);
  for (const std::vector<int>& group : {std::vector<int>{0, 1, 2, 3}, {4, 5, 6, 7}, {0, 4}, {1, 5}, {2, 6}, {3, 7}})
    job.AddRing(group);
  job.Compute(3, 150);
  job.Steps(40);
  const std::vector<Finding> findings = job.Find();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].evidence[1], HasSubstr("% of the time others waited for it"));
  EXPECT_NEAR(std::stod(findings[0].evidence[1]), 100 * findings[0].price.share, 1);
}

TEST(Slowness, AllEquallySlowIsNobodysFault) {
  RingJob job(4);
  job.AddRing({0, 1, 2, 3});
  for (int rank = 0; rank < 4; ++rank) job.Compute(rank, 200);
  job.Steps(30);
  EXPECT_THAT(job.Find(), IsEmpty());
}

// A ring alone can't tell a link from its two ends.
TEST(Slowness, InOneRingALinkAndItsEndsAreEquallyGood) {
  RingJob job(8);
  job.AddRing({0, 1, 2, 3, 4, 5, 6, 7});
  job.Delay(3, 2, 20);
  job.Steps(30);
  const std::vector<Finding> findings = job.Find();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].syndrome, Syndrome::kCommunicationSlow);
  EXPECT_FALSE(findings[0].certain);
  EXPECT_THAT(Suspected(findings[0]), UnorderedElementsAre("2<->3", "2", "3"));
  EXPECT_THAT(findings[0].probe, HasSubstr("another rank"));
  EXPECT_TRUE(findings[0].price.at_least);  // of its messages only the first was measured
}

TEST(Slowness, ASecondRingTellsThemApart) {
  const auto find = [](auto fault) {
    RingJob job(8);
    job.AddRing({0, 1, 2, 3, 4, 5, 6, 7});
    job.AddRing({0, 3, 6, 1, 4, 7, 2, 5});
    fault(job);
    job.Steps(30);
    return job.Find();
  };
  const auto link = find([](RingJob& job) { job.Delay(3, 2, 20); });
  ASSERT_EQ(link.size(), 1u);
  EXPECT_EQ(link[0].suspects.front().name, "2<->3");
  EXPECT_TRUE(link[0].certain);
  const auto sender = find([](RingJob& job) { job.DelayAll(3, true, 20); });
  ASSERT_EQ(sender.size(), 1u);
  EXPECT_THAT(sender[0].suspects, ElementsAre(incident::SuspectRank(RankId(3))));
  EXPECT_TRUE(sender[0].certain);
  EXPECT_THAT(sender[0].evidence.back(), HasSubstr("transmit side of rank 3"));
  const auto receiver = find([](RingJob& job) { job.DelayAll(3, false, 20); });
  ASSERT_EQ(receiver.size(), 1u);
  EXPECT_THAT(receiver[0].suspects, ElementsAre(incident::SuspectRank(RankId(3))));
  EXPECT_THAT(receiver[0].evidence.back(), HasSubstr("receive side of rank 3"));
}

// A pipeline of two stages over gloo.
RingJob Pipeline(uint32_t seed) {
  RingJob job(8, seed);
  job.AddRing({0, 1, 2, 3});
  job.AddRing({4, 5, 6, 7});
  job.AddRing({0, 1, 2, 3, 4, 5, 6, 7});
  for (int rank = 0; rank < 4; ++rank) job.SendToo(rank, rank + 4);
  return job;
}

TEST(Slowness, AWayThatOnlySendsUseIsNamed) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    RingJob healthy = Pipeline(seed);
    healthy.Steps(40);
    EXPECT_THAT(healthy.Find(), IsEmpty()) << seed;
    RingJob job = Pipeline(seed);
    job.Delay(1, 5, 30);
    job.Steps(40);
    const std::vector<Finding> findings = job.Find();
    ASSERT_EQ(findings.size(), 1u) << seed;
    EXPECT_EQ(findings[0].syndrome, Syndrome::kCommunicationSlow);
    EXPECT_EQ(findings[0].suspects.front().name, "1<->5");
    EXPECT_TRUE(findings[0].certain);
    // Of a fifth of the sends and receives the other end is lost.
    std::mt19937 chance(seed);
    std::erase_if(job.log().ops, [&](const trace::CommOp& op) {
      return op.direction != trace::Direction::kCollective && chance() % 5 == 0;
    });
    const std::vector<Finding> weaker = job.Find();
    ASSERT_EQ(weaker.size(), 1u) << seed;
    EXPECT_EQ(weaker[0].suspects.front().name, "1<->5");
  }
}

// Those that sum their gradients are no stages of a pipeline, whatever they send to each other.
TEST(Slowness, ARankThatSendsToAReplicaOfItsOwnIsSlowForCertain) {
  RingJob job(4);
  job.AddRing({0, 1, 2, 3});
  job.SendToo(0, 1);
  job.Compute(1, 150);
  job.Steps(40);
  const std::vector<Finding> findings = job.Find();
  ASSERT_THAT(Told(findings), ElementsAre(std::pair(Syndrome::kNonCommunicationSlow, Names{"1"})));
  EXPECT_TRUE(findings[0].certain);
}

TEST(Slowness, ASlowWayBetweenPairsAloneIsNamed) {
  RingJob job = Pipeline(1);
  job.Delay(1, 5, 30);
  job.Steps(40);
  std::erase_if(job.log().ops, [](const trace::CommOp& op) { return op.direction == trace::Direction::kCollective; });
  job.log().transfers.clear();
  const std::vector<Finding> findings = job.Find();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].syndrome, Syndrome::kCommunicationSlow);
  EXPECT_EQ(findings[0].suspects.front().name, "1<->5");
}

// Of those over InfiniBand, say: they tell nothing of the ways that gloo sends use.
TEST(Slowness, SendsOfAnotherTransportHideNoSlowWay) {
  RingJob job = Pipeline(1);
  job.Delay(1, 5, 30);
  job.Steps(40);
  trace::CommTransfer sent;
  sent.communicator = static_cast<uint32_t>(job.log().communicators.size());
  sent.sequence = trace::CommTransfer::kAlone;
  sent.rank = 0;
  sent.peer = 1;
  sent.direction = trace::Direction::kSend;
  sent.count = 1;
  sent.bytes = 1000;
  sent.wire_ns = 10'000;
  sent.ended_ns = job.log().ops[job.log().ops.size() / 2].created_ns;
  job.log().communicators.push_back({"", "", {0, 1}});
  job.log().transfers.push_back(sent);
  const std::vector<Finding> findings = job.Find();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].suspects.front().name, "1<->5");
}

// What was there before anybody waited for it took nobody's time, and nobody knows when it came.
TEST(Slowness, SendsThatNobodyWaitsForTellNothing) {
  RingJob job = Pipeline(1);
  job.Delay(1, 5, 30);
  job.Steps(40);
  for (trace::CommOp& op : job.log().ops)
    if (op.direction == trace::Direction::kReceive) op.held_up_ns = 0;
  EXPECT_THAT(job.Find(), IsEmpty());
}

// A job of experts: in an all-to-all the messages to five others share one port, in a ring each has it to itself. By
// size alone they would be alike.
TEST(Slowness, AWayIsComparedWithThoseOfTheSameCollectiveAlone) {
  constexpr int kRanks = 18, kExperts = 6, kSteps = 40;
  for (const bool slow : {false, true}) {
    trace::CommLog log;
    log.functions = {"all_gather", "all_to_all"};
    std::vector<int> world(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      world[static_cast<size_t>(rank)] = rank;
      log.reported.push_back(rank);
    }
    log.communicators.push_back({"", "", world});
    for (int first = 0; first < kExperts; ++first)
      log.communicators.push_back({"", "", {first, first + kExperts, first + 2 * kExperts}});
    const auto rings = static_cast<uint32_t>(log.communicators.size());
    for (int first = 0; first < kRanks; first += kExperts)
      log.communicators.push_back({"", "", {world.begin() + first, world.begin() + first + kExperts}});
    std::mt19937 chance(1);
    std::uniform_real_distribution<double> spread(0.9, 1.1);
    for (int step = 0; step < kSteps; ++step)
      for (uint32_t i = 0; i < log.communicators.size(); ++i) {
        const auto begin = static_cast<int64_t>((step * 200 + 50 * (i == 0 ? 0 : i < rings ? 1 : 2)) * kMs);
        const std::vector<int>& members = log.communicators[i].ranks;
        const size_t to = i < rings ? 1 : members.size() - 1;  // so many each
        for (size_t from = 0; from < members.size(); ++from) {
          trace::CommOp op;
          op.communicator = i;
          op.rank = members[from];
          op.function = i < rings ? 0 : 1;
          op.sequence = step;
          op.order = op.created_ns = begin;
          op.duration_ns = static_cast<int64_t>(40 * kMs);
          op.alone_ns = static_cast<int64_t>(10 * kMs);
          op.bytes = 1 << 20;
          op.state = trace::OpState::kCompleted;
          log.ops.push_back(op);
          for (size_t next = 1; next <= to; ++next) {
            trace::CommTransfer sent;
            sent.communicator = i;
            sent.sequence = step;
            sent.rank = members[from];
            sent.peer = members[(from + next) % members.size()];
            sent.count = 1;
            sent.bytes = 1 << 20;
            const bool hit = slow && sent.rank == 0 && sent.peer == 2;
            sent.wire_ns = static_cast<int64_t>(static_cast<double>(to) * kMs * spread(chance) * (hit ? 6 : 1));
            log.transfers.push_back(sent);
          }
        }
      }
    const std::vector<Finding> findings = JudgeSlowness(log, {}).findings;
    if (!slow) {
      EXPECT_THAT(findings, IsEmpty());
      continue;
    }
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_THAT(findings[0].suspects, ElementsAre(Suspect{Suspect::Kind::kLink, "0<->2"}));
  }
}

// A bad spine: no port's or rank's doing, and not a hundred incidents.
TEST(Slowness, VeryManySlowWaysAreOneFindingThatNamesNobody) {
  constexpr int kRanks = 240;
  RingJob job(kRanks);
  for (int rank = 0; rank < kRanks; rank += 2) {
    job.AddRing({rank, rank + 1});
    if (rank % 3 != 0) continue;
    job.Delay(rank, rank + 1, 20);
    job.Delay(rank + 1, rank, 20);
  }
  job.Steps(30);
  const std::vector<Finding> findings = job.Find();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].suspects, IsEmpty());
  EXPECT_FALSE(findings[0].certain);
  EXPECT_EQ(findings[0].evidence.front(), "80 of 240 ways are slow");
}

// Steps as long as before, in which a script leaves one of two collectives out.
TEST(Trend, FewerCollectivesPerStepAreNoSlowness) {
  trace::CommLog log;
  log.functions = {"all_reduce"};
  log.communicators = {{"", "", {0}}};
  int64_t sequence = 0;
  for (int step = 0; step < 80; ++step)
    for (const bool loss : {false, true}) {
      if (loss && step >= 40) continue;
      trace::CommOp op;
      op.sequence = ++sequence;
      op.rank = 0;
      op.bytes = loss ? 4 : 1 << 20;
      op.created_ns = 1 + static_cast<int64_t>((step * 500 + (loss ? 400 : 0)) * kMs);
      log.ops.push_back(op);
    }
  EXPECT_THAT(FindTrend(log, {}), IsEmpty());
}

// Where the host runs ahead, what was not seen to end has the host's times, what was the device's.
TEST(Trend, WhenTheHostLaunchedIsNoBeatOfTheDevice) {
  trace::CommLog log;
  log.functions = {"all_reduce"};
  log.communicators = {{"", "", {0}}};
  for (int step = 0; step < 200; ++step) {
    trace::CommOp op;
    op.sequence = step;
    op.rank = 0;
    const bool seen = step >= 90;
    op.created_ns = 1 + static_cast<int64_t>((seen ? 15 * step : step / 100.0) * kMs);
    op.duration_ns = seen ? kMs : -1;
    log.ops.push_back(op);
  }
  EXPECT_THAT(FindTrend(log, {}), IsEmpty());
}

TEST(Slowness, OrderAndRepetitionOfWhatIsToldDoNotMatter) {
  RingJob job(4);
  job.AddRing({0, 1, 2, 3});
  job.Compute(1, 120);
  job.Delay(3, 2, 20);
  job.Steps(30);
  const std::vector<Finding> before = job.Find();
  ASSERT_EQ(before.size(), 2u);
  trace::CommLog& log = job.log();
  log.ops.insert(log.ops.end(), log.ops.begin(), log.ops.begin() + 40);
  std::mt19937 chance(7);
  std::shuffle(log.ops.begin(), log.ops.end(), chance);
  std::shuffle(log.transfers.begin(), log.transfers.end(), chance);
  const std::vector<Finding> after = job.Find();
  ASSERT_EQ(after.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(after[i].suspects, before[i].suspects);
    EXPECT_EQ(after[i].evidence, before[i].evidence);
  }
}

// A fifth of what was told is lost: the same rank or nothing, never another.
TEST(Slowness, LossWeakensAVerdictAndNeverTurnsIt) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    RingJob job(4, seed);
    job.AddRing({0, 1, 2, 3});
    job.AddRing({0, 2, 1, 3});
    job.Compute(1, 120);
    job.Steps(60);
    std::mt19937 chance(seed);
    auto& ops = job.log().ops;
    ops.erase(std::remove_if(ops.begin(), ops.end(), [&](const trace::CommOp&) { return chance() % 5 == 0; }),
              ops.end());
    for (const Finding& finding : job.Find())
      EXPECT_THAT(finding.suspects, ElementsAre(incident::SuspectRank(RankId(1)))) << seed;
  }
}

RingJob Lossy(double loss) {
  constexpr int kRanks = 64;
  RingJob job(kRanks);
  std::vector<int> all(kRanks);
  std::iota(all.begin(), all.end(), 0);
  job.AddRing(all);
  job.Compute(13, 150);
  job.Steps(100);
  std::mt19937 chance(1);
  std::erase_if(job.log().ops,
                [&](const trace::CommOp&) { return std::uniform_real_distribution<double>(0, 1)(chance) < loss; });
  for (int rank = 0; rank < kRanks; ++rank) job.log().counts.push_back({0, rank, 100, 100});
  return job;
}

// Of all members together hardly a collective is known: 0.95^64 = 4 %.
TEST(Slowness, AFewLostRecordsOfEachCollectiveChangeLittle) {
  const double whole = Lossy(0).Find().at(0).price.share;
  for (const double loss : {0.005, 0.05, 0.1, 0.15}) {
    const std::vector<Finding> findings = Lossy(loss).Find();
    ASSERT_EQ(findings.size(), 1u) << loss;
    EXPECT_THAT(findings[0].suspects, ElementsAre(incident::SuspectRank(RankId(13)))) << loss;
    EXPECT_NEAR(findings[0].price.share, whole, 0.1 * whole) << loss;
  }
}

TEST(Slowness, WhereMostIsLostItIsNotKnown) {
  for (const double loss : {0.2, 0.3, 0.5, 0.7, 0.9, 1.0}) {
    RingJob job = Lossy(loss);
    const CommDiagnosis diagnosis = DiagnoseCommunication(job.log());
    const Json report = DiagnosisReport(diagnosis, job.log());
    EXPECT_NE(report["healthy"], true) << loss;
    EXPECT_EQ(diagnosis.findings.empty(), report["blind_spot"].is_string()) << loss;
  }
}

// Records of one rank begin late, or end early, as those of a copied file do: it was there, and nobody knows how late.
TEST(Slowness, NothingIsJudgedWhereAMemberTellsNothingYetOrAnyMore) {
  for (const bool late : {true, false}) {
    RingJob job(8);
    job.AddRing({0, 1, 2, 3, 4, 5, 6, 7});
    job.Steps(60);
    job.Compute(3, 200);
    job.Steps(late ? 0 : 60);
    std::erase_if(job.log().ops, [&](const trace::CommOp& op) {
      return op.rank == 5 && (late ? op.sequence < 50 : op.sequence >= 60);
    });
    EXPECT_THAT(job.Find(), IsEmpty()) << late;
    EXPECT_EQ(JudgeSlowness(job.log(), {}).too_short.empty(), !late) << late;
  }
}

// Eight ranks in pairs, whose steps take 10 s: five collectives in each.
RingJob OfLongSteps(double factor) {
  RingJob job(8);
  for (int rank = 0; rank < 8; rank += 2) job.AddRing({rank, rank + 1});
  job.AddRing({0, 1, 2, 3, 4, 5, 6, 7});
  for (int rank = 0; rank < 8; ++rank) job.Compute(rank, 10'000);
  job.Compute(3, 10'000 * factor);
  return job;
}

TEST(Slowness, IsJudgedOverLongerWhereStepsTakeLong) {
  RingJob job = OfLongSteps(1.5);
  job.Steps(40);
  const std::vector<Finding> findings = job.Find();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].suspects, ElementsAre(incident::SuspectRank(RankId(3))));
  EXPECT_THAT(findings[0].evidence[1], HasSubstr("26 collectives in 185"));  // s, of 600: no longer than needed
}

// It is long, and comes up once: no measure of how far back to look.
TEST(Slowness, IsJudgedOverNoLongerForAPause) {
  RingJob job(8);
  job.AddRing({0, 1, 2, 3, 4, 5, 6, 7});
  for (int rank = 0; rank < 8; ++rank) job.Compute(rank, 100);
  job.Steps(100);
  for (int rank = 0; rank < 8; ++rank) job.Compute(rank, 900'000);
  job.Steps(1);
  for (int rank = 0; rank < 8; ++rank) job.Compute(rank, rank == 3 ? 150 : 100);
  job.Steps(600);
  EXPECT_EQ(JudgeSlowness(job.log(), {}).too_short, "");
  const std::vector<Finding> findings = job.Find();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].suspects, ElementsAre(incident::SuspectRank(RankId(3))));
}

TEST(Slowness, OfAShortLogIsNotKnown) {
  const CommThresholds thresholds;
  RingJob job = OfLongSteps(1);
  EXPECT_EQ(JudgeSlowness(job.log(), thresholds).too_short, "");  // who does not tell of times
  job.Steps(4);
  EXPECT_THAT(JudgeSlowness(job.log(), thresholds).too_short, HasSubstr("can't be told of fewer than 24"));
  job.Steps(3);
  EXPECT_THAT(JudgeSlowness(job.log(), thresholds).too_short, HasSubstr("can't be told of less than 12"));
  const CommDiagnosis diagnosis = DiagnoseCommunication(job.log(), thresholds);
  EXPECT_THAT(diagnosis.findings, IsEmpty());
  const Json report = DiagnosisReport(diagnosis, job.log());
  EXPECT_TRUE(report["healthy"].is_null());
  EXPECT_EQ(report["blind_spot"], JudgeSlowness(job.log(), thresholds).too_short);
  job.Steps(10);
  EXPECT_EQ(JudgeSlowness(job.log(), thresholds).too_short, "");
}

TEST(Thresholds, TheFileThatUsersCopyHasTheDefaults) {
  const auto read = ReadCommThresholds(LOCKSTEP_PRESETS "/detect.toml");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, CommThresholds{});
}

TEST(Thresholds, AFileMayHaveSomeOfThem) {
  const TestFolder folder;
  const std::string path = folder.Write("thresholds.toml", "slow_share = 0.5\n");
  EXPECT_EQ(ReadCommThresholds(path)->slow_share, 0.5);
  EXPECT_EQ(ReadCommThresholds(path)->window_ops, CommThresholds{}.window_ops);
  RingJob job(4);
  job.AddRing({0, 1, 2, 3});
  job.Compute(2, 130);
  job.Steps(30);
  EXPECT_EQ(job.Find().size(), 1u);
  EXPECT_THAT(JudgeSlowness(job.log(), *ReadCommThresholds(path)).findings, IsEmpty());
  folder.Write("thresholds.toml", "slow_shar = 0.5\n");
  EXPECT_THAT(Message(ReadCommThresholds(path).status()), HasSubstr("slow_share"));
}

}  // namespace
}  // namespace lockstep::detect
