#include "lockstep/trace/job_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/base/file.h"
#include "lockstep/trace/kineto_name.h"
#include "lockstep/trace/test_trace.h"

namespace lockstep::trace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class JobFilesTest : public testing::Test {
 protected:
  void Write(const std::string& name) {
    ASSERT_TRUE(MakeDirectory(std::filesystem::path(root_ + "/" + name).parent_path()).ok());
    ASSERT_TRUE(WriteFileAtomically(root_ + "/" + name, "").ok());
  }
  std::string Path(const std::string& name) const { return root_ + "/" + name; }

  const std::string root_ = TempPath("job_files");
};

TEST_F(JobFilesTest, PairsDifferInOneWord) {
  for (const char* name : {"a/trace.csv", "a/meta.yaml", "a/metadata.yaml", "a/traces.csv", "b/trace-X.csv.gz",
                           "b/trace-X.parquet", "b/meta-X.yml", "b/result-X.json", "b/labels.json"})
    Write(name);
  const auto jobs = FindJobs({root_});
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 2U);
  EXPECT_EQ((*jobs)[0].trace, Path("a/trace.csv"));
  EXPECT_EQ((*jobs)[0].meta, Path("a/meta.yaml"));
  EXPECT_EQ((*jobs)[1].id, Path("b/trace-X.parquet")) << "before the same rows as text";
}

TEST_F(JobFilesTest, HalfAPairIsKept) {
  Write("trace-X.csv");
  Write("meta-Y.yaml");
  const auto jobs = FindJobs({root_});
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 2U);
  EXPECT_EQ((*jobs)[0].id, Path("meta-Y.yaml"));
  EXPECT_EQ((*jobs)[0].trace, "");
  EXPECT_EQ((*jobs)[1].meta, "");
}

TEST_F(JobFilesTest, ProfilerFilesOfADirectoryAreOneJob) {
  for (const char* name :
       {"k/rank-0.json.gz", "k/rank-1.json.gz", "k/config.json", "t/h_x-1_4711.1700000000000000001.pt.trace.json",
        "t/h_x-1_4711.1700000000000000002.pt.trace.json", "t/h2_9.1700000000000000000.pt.trace.json"})
    Write(name);
  const auto jobs = FindJobs({root_ + "/k", root_ + "/t", root_ + "/k/"});
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 2U);
  EXPECT_THAT((*jobs)[0].kineto, ElementsAre(Path("k/rank-0.json.gz"), Path("k/rank-1.json.gz")));
  EXPECT_THAT((*jobs)[1].kineto, ElementsAre(Path("t/h2_9.1700000000000000000.pt.trace.json"),
                                             Path("t/h_x-1_4711.1700000000000000002.pt.trace.json")))
      << "the newest of each process";
}

TEST_F(JobFilesTest, SaysWhatIsNotThere) {
  EXPECT_THAT(Message(FindJobs({root_ + "/none"}).status()), HasSubstr("none: "));
  Write("notes.txt");
  EXPECT_THAT(Message(FindJobs({root_}).status()), HasSubstr("no traces; expected trace-X.parquet"));
}

TEST(KinetoNameTest, TellsRankOrHost) {
  EXPECT_EQ(ParseKinetoName("a/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz").rank, 34);
  EXPECT_EQ(ParseKinetoName("trace_8_rank_1.json").rank, 1);
  EXPECT_EQ(ParseKinetoName("run_3.json").rank, 3);
  EXPECT_FALSE(ParseKinetoName("worker_20241126.json").rank) << "a date";
  EXPECT_FALSE(ParseKinetoName("rank-18446744073709551615.json").rank);
  const KinetoName before_2_0 = ParseKinetoName("vm_4242.1695835535123.pt.trace.json");
  EXPECT_FALSE(before_2_0.rank);
  EXPECT_EQ(before_2_0.host, "vm");
  EXPECT_EQ(before_2_0.time, 1695835535123000000);
  const KinetoName own = ParseKinetoName("gpu-node_7_4711.1700000000000000001.pt.trace.json");
  EXPECT_EQ(own.host, "gpu-node_7");
  EXPECT_EQ(own.rank, std::nullopt) << "4711 is a process";
}

}  // namespace
}  // namespace lockstep::trace
