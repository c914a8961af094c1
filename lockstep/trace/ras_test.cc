#include "lockstep/trace/ras.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lockstep::trace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Json Rank(int rank, int process, const Json& counts, const Json& status = Json::object()) {
  return {{"rank", rank},        {"host", "10.0.0.1"}, {"pid", 1000 + process},
          {"cuda_dev", process}, {"status", status},   {"collective_counts", counts}};
}

// Four ranks, of which the second pair has a communicator of its own, with other numbers.
Json Status(const Json& counts_of_3, const Json& counts_of_3_in_pair) {
  const Json all = {{"AllReduce", 10}, {"AllGather", 4}}, pair = {{"ReduceScatter", 7}};
  return {{"nccl_version", "2.28.7"},
          {"communicators",
           {{{"hash", "0xb"}, {"size", 2}, {"ranks", {Rank(0, 2, pair), Rank(1, 3, counts_of_3_in_pair)}}},
            {{"hash", "0xa"},
             {"size", 4},
             {"ranks", {Rank(0, 0, all), Rank(1, 1, all), Rank(2, 2, all), Rank(3, 3, counts_of_3)}}}}}};
}

TEST(Ras, WhoLaunchedMoreIsInItsNewestCollective) {
  const auto log = ReadRas(Status({{"AllReduce", 9}, {"AllGather", 4}}, {{"ReduceScatter", 7}}));
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_THAT(log->reported, ElementsAre(0, 1, 2, 3));
  ASSERT_EQ(log->ops.size(), 3U);
  for (const CommOp& op : log->ops) {
    EXPECT_EQ(log->functions[op.function], "AllReduce");
    EXPECT_EQ(op.sequence, 10);
  }
  EXPECT_TRUE(log->moving) << "a status is of a moment";
  EXPECT_THAT(log->blind_spot, HasSubstr("launches alone"));
}

TEST(Ras, RanksAreKnownByTheirProcessesInOtherCommunicators) {
  const auto log = ReadRas(Status({{"AllReduce", 10}, {"AllGather", 4}}, {{"ReduceScatter", 6}}));
  ASSERT_EQ(log->ops.size(), 1U);
  EXPECT_EQ(log->ops[0].rank, 2);
  EXPECT_THAT(log->communicators[log->ops[0].communicator].ranks, ElementsAre(2, 3));
  Json stranger = Status({{"AllReduce", 10}}, {{"ReduceScatter", 7}});
  stranger["communicators"][0]["ranks"][1]["pid"] = 1;
  EXPECT_EQ(ReadRas(stranger)->counters.at(0).name, "ranks_outside_of_the_largest_communicator");
}

TEST(Ras, WhoIsMissingKeepsOthersWaiting) {
  Json status = Status({{"AllReduce", 10}, {"AllGather", 4}}, {{"ReduceScatter", 7}});
  Json& all = status["communicators"][1];
  Json gone = all["ranks"][3];
  gone["status"] = {{"considered_dead", true}, {"unresponsive", true}};
  all["ranks"].erase(3);
  all["missing_ranks"] = {gone};
  status["communicators"].erase(0);
  const auto log = ReadRas(status);
  EXPECT_THAT(log->reported, ElementsAre(0, 1, 2));
  EXPECT_EQ(log->ops.size(), 6U) << "three ranks, two functions";
  EXPECT_THAT(log->remarks.at(3), HasSubstr("considered dead"));
}

TEST(Ras, WhereSomeAreMissingWhoIsBehindMayWaitForThem) {
  Json status = Status({{"AllReduce", 9}, {"AllGather", 4}}, {{"ReduceScatter", 7}});
  status["communicators"].erase(0);
  Json& all = status["communicators"][0];
  all["missing_ranks"] = {all["ranks"][0]};
  all["ranks"].erase(0);
  const auto log = ReadRas(status);
  EXPECT_THAT(log->may_wait, ElementsAre(3));
  EXPECT_EQ(log->ops.size(), 4U) << "two ranks, two functions: where rank 3 is, is not known";
  for (const CommOp& op : log->ops) EXPECT_NE(op.rank, 3);
}

TEST(Ras, TellsOfRanksThatAreNotKnownInTheJobWhatIsAmiss) {
  Json status = Status({{"AllReduce", 10}, {"AllGather", 4}}, {{"ReduceScatter", 6}});
  for (Json& rank : status["communicators"][0]["ranks"]) rank["host"] = "10.0.0.2";
  EXPECT_THAT(
      ReadRas(status)->blind_spot,
      HasSubstr("can't be seen; which ranks of the job these are is not told: rank 1 of communicator 0xb, GPU 3 of "
                "process 1003 on 10.0.0.2 (ReduceScatter up to 6, others up to 7)"));
  status["communicators"][0]["missing_ranks"] = {status["communicators"][0]["ranks"][1]};
  status["communicators"][0]["ranks"].erase(1);
  EXPECT_THAT(ReadRas(status)->blind_spot, HasSubstr("on 10.0.0.2 (tells nothing)"));
}

// No communicator spans the job: a place in the largest one says nothing to anybody.
TEST(Ras, WhereNoCommunicatorHasAllProcessesItSaysSo) {
  EXPECT_EQ(ReadRas(Status({{"AllReduce", 9}}, {{"ReduceScatter", 7}}))->numbered_in, "");
  Json status = Status({{"AllReduce", 9}, {"AllGather", 4}}, {{"ReduceScatter", 7}});
  status["communicators"][0]["size"] = 4;
  for (int i = 0; i < 4; ++i) status["communicators"][0]["ranks"][i] = Rank(i, 4 + i, {{"AllReduce", 10}});
  const auto log = ReadRas(status);
  EXPECT_EQ(log->numbered_in, "communicator 0xb");
  EXPECT_EQ(log->processes.at(3), "GPU 7 of process 1007 on 10.0.0.1");
  EXPECT_THAT(log->blind_spot, testing::EndsWith("; no communicator has all 8 processes: ranks are places in "
                                                 "communicator 0xb, which has 4"));
  for (Json& rank : status["communicators"][0]["ranks"]) rank.erase("pid");
  EXPECT_EQ(ReadRas(status)->numbered_in, "") << "nobody knows whether they are others";
}

TEST(Ras, RanksAreAList) {
  Json status = Status({{"AllReduce", 10}}, {{"ReduceScatter", 7}});
  status["communicators"][1]["missing_ranks"] = 7;
  EXPECT_THAT(Message(ReadRas(status).status()),
              HasSubstr("communicators[1]: \"missing_ranks\" is number; expected a list"));
  status["communicators"][0]["ranks"] = 5;
  EXPECT_THAT(Message(ReadRas(status).status()), HasSubstr("communicators[0]: \"ranks\" is number"));
}

// A container for each GPU: all are process 1, device 0 of the host.
TEST(Ras, RanksMayAllBeToldAsOneProcess) {
  Json status = Status({{"AllReduce", 9}, {"AllGather", 4}}, {{"ReduceScatter", 7}});
  for (Json& communicator : status["communicators"])
    for (Json& rank : communicator["ranks"]) rank["pid"] = 1, rank["cuda_dev"] = 0;
  const auto log = ReadRas(status);
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_THAT(log->reported, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(log->ops.size(), 3U) << "of rank 3 one is missing";
  std::map<std::string, uint64_t> counters;
  for (const Counter& counter : log->counters) counters[counter.name] = counter.count;
  EXPECT_EQ(counters["ranks_of_one_process"], 4U);
  EXPECT_EQ(counters["ranks_outside_of_the_largest_communicator"], 2U) << "nobody knows which the pair are";
}

TEST(Ras, NothingIsSeenWhereAllLaunchedTheSame) {
  const auto log = ReadRas(Status({{"AllReduce", 10}, {"AllGather", 4}}, {{"ReduceScatter", 7}}));
  EXPECT_THAT(log->ops, IsEmpty());
  EXPECT_THAT(Message(ReadRas({{"communicators", Json::array()}}).status()), HasSubstr("no communicators"));
}

}  // namespace
}  // namespace lockstep::trace
