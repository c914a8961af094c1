#include "lockstep/trace/kineto.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/trace/test_trace.h"

namespace lockstep::trace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Write(const std::string& name, const std::string& events, const std::string& members = "") {
  const std::string path = TempPath(name);
  std::ofstream(path) << "{\"traceEvents\": [" << events << "]" << members << "}";
  return path;
}

// A launch, its NCCL kernel without metadata, and what record_param_comms said of it.
constexpr char kOldStyle[] = R"json(
  {"ph":"X","cat":"cpu_op","name":"record_param_comms","pid":9,"tid":9,"ts":1,"dur":2,"args":{"External id":5,"Collective name":"allreduce",
   "Process Group Name":"1","Process Group Ranks":"[2, 3, ...]","Global rank start":2,"Global rank stride":2,"Group size":3,"In msg nelems":8}},
  {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":2.5,"dur":1,"args":{"correlation":77}},
  {"ph":"X","cat":"kernel","name":"ncclKernel_AllReduce_RING_LL_Sum_float(x)","pid":0,"tid":20,"ts":10,"dur":3,"args":{"External id":5,"correlation":77}},
  {"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":4,"dur":-2,"args":{"correlation":78}},
  {"ph":"X","cat":"user_annotation","name":"ProfilerStep#12","pid":9,"tid":9,"ts":0,"dur":20})json";

TEST(Kineto, ReadsWorkLaunchesStepsAndWithWhomItCommunicates) {
  const auto read = ReadKineto(
      Write("a-rank2.json", kOldStyle,
            R"(,"baseTimeNanoseconds":1000000,"distributedInfo":{"backend":"nccl","rank":2,"world_size":8})"));
  ASSERT_TRUE(read.ok()) << Message(read.status());
  EXPECT_EQ(read->rank, 2);
  EXPECT_EQ(read->world_size, 8);
  ASSERT_EQ(read->steps.size(), 1U);
  EXPECT_EQ(read->steps[0].number, 12);
  ASSERT_EQ(read->ops.size(), 2U);
  const DeviceOp& communication = read->ops[0].collective != kNoIndex ? read->ops[0] : read->ops[1];
  EXPECT_EQ(communication.begin_ns, 1'010'000);
  EXPECT_EQ(communication.launch_ns, 1'002'500);
  EXPECT_THAT(read->kernels.at(communication.kernel), HasSubstr("nccl"));
  const Collective& collective = read->collectives.at(communication.collective);
  EXPECT_EQ(collective.name, "allreduce");
  EXPECT_EQ(collective.elements_in, 8);
  EXPECT_THAT(read->groups.at(collective.group).ranks, ElementsAre(2, 4, 6));
  std::string counters;
  for (const Counter& counter : read->counters) counters += fmt::format("{}={} ", counter.name, counter.count);
  EXPECT_EQ(counters, "ops_without_launch=1 negative_durations=1 ");
}

// The other end is told by its place in the group; a number beyond the group is a rank of the job.
TEST(Kineto, ReadsWithWhomATransferIs) {
  const auto event = [](const std::string& name, const std::string& end, int begin) {
    const std::string begins =
        R"json({"ph":"X","cat":"kernel","name":"ncclDevKernel_SendRecv(x)","pid":0,"tid":20,"dur":3)json";
    const std::string group =
        R"json("Process Group Name":"7","Process Group Ranks":"[0, 4, 8, 12]","Group size":4)json";
    return fmt::format(R"json({},"ts":{},"args":{{"Collective name":"{}",{},{}}}}})json", begins, begin, name, end,
                       group);
  };
  const auto read = ReadKineto(
      Write("p-rank4.json", event("send", R"("Dst Rank":2)", 10) + "," + event("recv", R"("Src Rank":0)", 20) + "," +
                                event("recv", R"("Src Rank":12)", 30) + "," + event("coalesced", R"("Rank":1)", 40)));
  ASSERT_TRUE(read.ok()) << Message(read.status());
  std::vector<int> peers;
  for (const DeviceOp& op : read->ops) peers.push_back(read->collectives.at(op.collective).peer);
  EXPECT_THAT(peers, ElementsAre(8, 0, 12, -1));
  EXPECT_TRUE(read->collectives.at(read->ops.front().collective).sends);
}

// By the kernel's name, or by what it tells; a copy may tell the same, of a group of one.
TEST(Kineto, KnowsWhatCommunicates) {
  const auto event = [](const char* category, const char* name, const char* args, int begin) {
    return fmt::format(R"json({{"ph":"X","cat":"{}","name":"{}","pid":0,"tid":20,"ts":{},"dur":3,"args":{{{}}}}})json",
                       category, name, begin, args);
  };
  const char* const kTold = R"("Collective name":"allreduce","In msg nelems":8)";
  const auto read = ReadKineto(
      Write("rank4.json", event("kernel", "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(x)", "", 10) + "," +
                              event("kernel", "ncclSymDevKernel_AllGather_LL(x)", "", 20) + "," +
                              event("kernel", "multimem_all_reduce(x)", kTold, 30) + "," +
                              event("gpu_memcpy", "Memcpy DtoD", kTold, 40) + "," + event("kernel", "gemm", "", 50)));
  ASSERT_TRUE(read.ok()) << Message(read.status());
  std::vector<std::string> names;
  for (const DeviceOp& op : read->ops)
    names.push_back(op.collective == kNoIndex ? "" : read->collectives.at(op.collective).name);
  EXPECT_THAT(names, ElementsAre("allreduce", "allgather", "allreduce", "", ""));
}

// The host's step is a second ahead of its copy on the device.
TEST(Kineto, TakesTheStepsOfTheHostAlone) {
  const auto read = ReadKineto(Write(
      "rank0.json",
      std::string(kOldStyle) +
          R"(,{"ph":"X","cat":"gpu_user_annotation","name":"ProfilerStep#12","pid":0,"tid":7,"ts":1000000,"dur":20})"));
  ASSERT_TRUE(read.ok()) << Message(read.status());
  ASSERT_EQ(read->steps.size(), 1U);
  EXPECT_EQ(read->steps[0].begin_ns, 0);
}

TEST(Kineto, TheRankMayStandInTheNameOrBeGiven) {
  EXPECT_EQ(ReadKineto(Write("job.rank-34.x.json", kOldStyle))->rank, 34);
  EXPECT_EQ(ReadKineto(Write("worker7.json", kOldStyle))->rank, 7);
  EXPECT_EQ(ReadKineto(Write("trace_8_rank_1.json", kOldStyle))->rank, 1);
  EXPECT_EQ(ReadKineto(Write("trace_3.json", kOldStyle))->rank, 3);
  EXPECT_EQ(ReadKineto(Write("trace.json", kOldStyle), 6)->rank, 6);
  EXPECT_THAT(Message(ReadKineto(Write("trace.json", kOldStyle)).status()),
              HasSubstr("trace.json: neither distributedInfo nor the file's name tells the rank"));
}

TEST(Kineto, ACutOffFileHasTheBaseOfTheOthers) {
  constexpr char kBase[] = R"(,"baseTimeNanoseconds":1760000000000000000)";
  const std::string whole = Write("rank-0.json", kOldStyle, kBase), cut = TempPath("rank-1.json");
  std::ofstream(cut) << "{\"traceEvents\": [" << kOldStyle << R"(,{"ph":"X","cat":"kernel","name":"ge)";
  const auto read = ReadKinetoFiles({whole, cut}, std::nullopt);
  ASSERT_TRUE(read.ok()) << Message(read.status());
  for (size_t i = 0; i < read->at(0).ops.size(); ++i) {
    EXPECT_EQ(read->at(1).ops.at(i).begin_ns, read->at(0).ops[i].begin_ns);
    EXPECT_EQ(read->at(1).ops.at(i).launch_ns, read->at(0).ops[i].launch_ns);
  }
  EXPECT_EQ(read->at(1).steps.at(0).begin_ns, read->at(0).steps.at(0).begin_ns);
  EXPECT_EQ(ReadKinetoFiles({cut}, std::nullopt)->at(0).steps.at(0).begin_ns, 0) << "nobody tells one";
}

TEST(Kineto, DistributedInfoMayBePythonInAString) {
  const auto read = ReadKineto(
      Write("x.json", kOldStyle, R"(,"distributedInfo":"{'backend': 'gloo', 'rank': 4, 'world_size': 300}")"));
  EXPECT_EQ(read->rank, 4);
  EXPECT_EQ(read->world_size, 300);
  const auto damaged = ReadKineto(Write("rank5.json", kOldStyle, R"(,"distributedInfo":"nothing")"));
  EXPECT_EQ(damaged->rank, 5);
  EXPECT_EQ(damaged->counters.at(0).name, "unreadable_distributed_info");
}

// gloo's threads carry out what the script hands over. Of the second step the profiler has not seen the last end.
TEST(Kineto, JoinsWhatWasHandedOverStepByStepWhereAnEndIsMissing) {
  const auto event = [](const char* category, const std::string& name, int begin, int duration) {
    return fmt::format(R"({{"ph":"X","cat":"{}","name":"{}","pid":9,"tid":9,"ts":{},"dur":{}}})", category, name, begin,
                       duration);
  };
  std::vector<std::string> events;
  for (const int begin : {0, 100, 200}) {
    events.push_back(event("user_annotation", fmt::format("ProfilerStep#{}", begin / 100), begin, 90));
    for (const int at : {begin + 10, begin + 30}) {
      events.push_back(event("cpu_op", "c10d::allreduce_", at, 3));
      if (at != 230) events.push_back(event("user_annotation", "gloo:all_reduce", at + 5, 40));
    }
  }
  const auto read = ReadKineto(Write("rank-0.json", fmt::format("{}", fmt::join(events, ","))));
  ASSERT_TRUE(read.ok()) << Message(read.status());
  std::vector<std::pair<int64_t, int64_t>> joined;  // µs
  for (const DeviceOp& op : read->ops)
    if (op.collective != kNoIndex)
      joined.emplace_back(op.begin_ns / 1000, op.launch_ns == kNoTime ? -1 : op.launch_ns / 1000);
  EXPECT_THAT(joined, ElementsAre(std::pair(15, 10), std::pair(35, 30), std::pair(115, 110), std::pair(135, 130),
                                  std::pair(215, -1)));
}

struct Real {
  const char* file;
  int rank;
  size_t ops, collectives, steps;
};
void PrintTo(const Real& real, std::ostream* out) { *out << real.file; }

class RealFiles : public testing::TestWithParam<Real> {};

// Counted by an independent look at the files: kernels, copies and fills; those of NCCL; ProfilerStep annotations. The
// last has no device: gloo's communications and four ops of the host.
TEST_P(RealFiles, AreReadWhole) {
  const std::string path = std::string(LOCKSTEP_DATA "/kineto/hta/") + GetParam().file;
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
  const auto read = ReadKineto(path, 0);
  ASSERT_TRUE(read.ok()) << Message(read.status());
  EXPECT_EQ(read->rank, GetParam().rank);
  EXPECT_EQ(read->ops.size(), GetParam().ops);
  const auto communicates = [](const DeviceOp& op) { return op.collective != kNoIndex; };
  EXPECT_EQ(std::count_if(read->ops.begin(), read->ops.end(), communicates), GetParam().collectives);
  EXPECT_EQ(read->steps.size(), GetParam().steps);
  for (const Counter& counter : read->counters) EXPECT_NE(counter.name, "damaged_events");
}
INSTANTIATE_TEST_SUITE_P(Hta, RealFiles,
                         testing::Values(Real{"nccl_data.json.gz", 0, 2700 + 960 + 114, 21, 3},
                                         Real{"df_index_resolver_rank1_of2.json.gz", 1, 19370 + 2040 + 880, 2020, 5},
                                         Real{"sampled_rank-0.json.gz", 0, 1154 + 40 + 10, 10, 2},
                                         Real{"negative_queue_rank0_of16.json.gz", 0, 6080 + 1390 + 277, 80, 5},
                                         Real{"ns_resolution_rank-0.json.gz", 0, 4350 + 1600 + 145, 0, 5},
                                         Real{"rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34, 10 + 4, 10, 1}));

}  // namespace
}  // namespace lockstep::trace
