#include "lockstep/trace/kineto_pipelines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "lockstep/trace/kineto_told.h"

namespace lockstep::trace {
namespace {

using testing::ElementsAre;

// The transfers of ranks, as "who does what with whom".
class Job {
 public:
  explicit Job(size_t ranks) : transfers_(ranks) {}
  Job& Sends(size_t rank, int peer) { return Add(rank, peer, "send"); }
  Job& Receives(size_t rank, int peer) { return Add(rank, peer, "recv"); }
  Job& Exchanges(size_t rank, int peer) { return Add(rank, peer, kExchange); }
  std::optional<Pipelines> Find(const std::vector<int>& numbers) const { return Pipelines::Find(numbers, transfers_); }
  const Collective& Last() const { return all_.back(); }

 private:
  Job& Add(size_t rank, int peer, const char* name) {
    all_.push_back({.name = name, .peer = peer, .sends = std::string_view(name) != "recv"});
    transfers_[rank].push_back(&all_.back());
    return *this;
  }
  std::deque<Collective> all_;
  std::vector<Transfers> transfers_;
};

// Ranks 10 -> 30 -> 20, and back.
Job Three() {
  Job job(3);
  job.Sends(0, 30).Receives(0, 30);
  job.Receives(2, 10).Sends(2, 20).Receives(2, 20).Sends(2, 10);
  job.Receives(1, 30).Sends(1, 30);
  return job;
}

TEST(Pipelines, AreFoundByWhomTheySendTo) {
  const auto found = Three().Find({10, 20, 30});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->stages(), 3);
  EXPECT_THAT(found->ranks(), ElementsAre(ElementsAre(0, 2, 1)));
  EXPECT_EQ(found->StageOf(1), 2);
}

TEST(Pipelines, TellTheDirectionOfATransfer) {
  Job job = Three();
  job.Sends(1, 10);  // around the end, where model chunks wrap
  const auto found = job.Find({10, 20, 30});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->TypeOf(1, job.Last()), OpType::kForwardSend);
  EXPECT_EQ(found->TypeOf(0, Three().Receives(0, 30).Last()), OpType::kBackwardRecv);
  EXPECT_EQ(found->TypeOf(2, Three().Sends(2, 10).Last()), OpType::kBackwardSend);
  EXPECT_EQ(found->TypeOf(2, Three().Receives(2, 10).Last()), OpType::kForwardRecv);
  EXPECT_EQ(found->TypeOf(2, Three().Exchanges(2, 20).Last()), OpType::kForwardSend);
  EXPECT_EQ(found->TypeOf(2, Three().Exchanges(2, 10).Last()), OpType::kForwardRecv);
  EXPECT_FALSE(found->TypeOf(2, Three().Sends(2, 40).Last())) << "to somebody of whom nothing is known";
}

TEST(Pipelines, OfDifferentLengthAreNone) {
  Job job(5);
  job.Sends(0, 1).Receives(1, 0);
  job.Sends(2, 3).Receives(3, 2).Sends(3, 4).Receives(4, 3);
  EXPECT_FALSE(job.Find({0, 1, 2, 3, 4}));
}

TEST(Pipelines, WithoutAFirstStageAreNone) {
  Job job(2);  // of the first stage no file was given
  job.Receives(0, 9).Sends(0, 1).Receives(1, 0);
  EXPECT_FALSE(job.Find({0, 1}));
  EXPECT_FALSE(Job(2).Find({0, 1})) << "no transfers at all";
}

TEST(Microbatches, AreThoseOfTheTransfersAround) {
  constexpr auto kNone = ~size_t{0};
  // A middle stage: two microbatches forward, each in two segments, then backward; then the optimizer.
  EXPECT_THAT(MicrobatchesOf(7, {{OpType::kForwardRecv, kNone, 0},
                                 {OpType::kForwardSend, 1, kNone},
                                 {OpType::kForwardRecv, 1, 2},
                                 {OpType::kForwardSend, 3, kNone},
                                 {OpType::kBackwardRecv, 3, 4},
                                 {OpType::kBackwardSend, 4, kNone},
                                 {OpType::kBackwardRecv, 4, 5},
                                 {OpType::kBackwardSend, 5, kNone}}),
              ElementsAre(0, 0, 1, 1, 0, 1, -1));
  // A first stage: a backward and the next forward are one segment.
  EXPECT_THAT(MicrobatchesOf(3, {{OpType::kForwardSend, 0, kNone},
                                 {OpType::kBackwardRecv, 0, 1},
                                 {OpType::kForwardSend, 1, kNone},
                                 {OpType::kBackwardRecv, 1, 2}}),
              ElementsAre(0, -1, 1));
}

Told Transfer(const char* name, int64_t peer, const char* group = "7") {
  Told told;
  told.collective.name = name;
  (told.collective.name == "send" ? told.destination : told.source) = peer;
  told.group_name = group;
  return told;
}

TEST(FusedTransfers, AreAnExchangeOfTheirGroup) {
  FusedTransfers fused;
  fused.Add(50, Transfer("send", 4));  // as profilers write them: in no order
  fused.Add(10, Transfer("send", 2));
  fused.Add(20, Transfer("send", 2));
  fused.Add(21, Transfer("recv", 2));
  fused.Add(30, Transfer("send", 2));
  fused.Add(31, Transfer("recv", 3));
  fused.Add(40, Transfer("allreduce", 2));
  const auto single = fused.Between(0, 10), exchange = fused.Between(10, 25), last = fused.Between(40, 60);
  ASSERT_TRUE(single && exchange && last);
  EXPECT_EQ(single->collective.name, "send");
  EXPECT_EQ(single->destination, 2);
  EXPECT_EQ(exchange->collective.name, kExchange);
  EXPECT_EQ(exchange->destination, 2);
  EXPECT_EQ(last->destination, 4);
  const auto with_two = fused.Between(25, 35);
  ASSERT_TRUE(with_two) << "as around a ring";
  EXPECT_EQ(with_two->collective.name, kExchange);
  EXPECT_EQ(with_two->group_name, "7");
  EXPECT_EQ(std::pair(with_two->source, with_two->destination), std::pair(int64_t{-1}, int64_t{-1}));
  fused.Add(32, Transfer("send", 2, "8"));
  EXPECT_FALSE(fused.Between(25, 35)) << "of two groups";
  EXPECT_FALSE(fused.Between(35, 45)) << "no transfer";
}

}  // namespace
}  // namespace lockstep::trace
