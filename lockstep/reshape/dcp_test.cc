#include "lockstep/reshape/dcp.h"

#include <gmock/gmock.h>

#include "lockstep/reshape/open.h"
#include "lockstep/reshape/test_files.h"

namespace lockstep::reshape {
namespace {

using namespace lockstep::reshape::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// /dcp of PutDcp with another `.metadata`.
std::string ErrorWith(const std::string& metadata) {
  checkpoint::MemoryDisk disk;
  PutDcp(disk);
  EXPECT_TRUE(disk.RemoveFile("/dcp/.metadata").ok());
  Put(disk, "/dcp/.metadata", metadata);
  return Message(ReadDcp(disk, "/dcp").status());
}
std::string ErrorOf(const Chunk& chunk, const std::string& place) {
  return ErrorWith(Metadata({Text("weight"), TensorMetadata("float32", {4, 2}, {chunk})},
                            {Index("weight", Size(chunk.offsets)), place}));
}
// The same bytes with one place written over.
std::string Bent(std::string content, size_t at, const std::string& with) {
  return content.replace(at, with.size(), with);
}
std::string SecondFile() { return Place("__1_0.distcp", 0, static_cast<int64_t>(Floats({2, 2}, {4, 5, 6, 7}).size())); }

TEST(Dcp, SaysWhichRankHasWhat) {
  checkpoint::MemoryDisk disk;
  PutDcp(disk);
  const absl::StatusOr<Saved> saved = OpenSaved(disk, "/dcp/");
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->kind, "dcp");
  EXPECT_EQ(saved->world_size, 2);
  ASSERT_EQ(saved->tensors.size(), 1U);
  const SavedTensor& weight = saved->tensors.front();
  EXPECT_THAT(weight.shape, ElementsAre(4, 2));
  ASSERT_EQ(weight.shards.size(), 2U);
  EXPECT_EQ(Named(weight.shards[1].box), "[2:4, 0:2]");
  EXPECT_EQ(weight.shards[1].rank, 1);
  std::vector<float> elements(4);
  ASSERT_TRUE(disk.Read("/dcp/__1_0.distcp", weight.shards[1].at, std::as_writable_bytes(std::span(elements))).ok());
  EXPECT_THAT(elements, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(FindProblems(weight), IsEmpty());
  ASSERT_EQ(saved->values.size(), 1U);
  EXPECT_EQ(saved->values.front().json, "9");
}

TEST(Dcp, PathsStayInTheFolder) {
  for (const char* path : {"../__1_0.distcp", "/dcp/__1_0.distcp", "a/../../b", "", "./x", "a//b"})
    EXPECT_THAT(ErrorOf({{2, 0}, {2, 2}}, Place(path, 0, 10)), HasSubstr("which leaves the folder")) << path;
  EXPECT_THAT(ErrorOf({{2, 0}, {2, 2}}, Place("sub/x.distcp", 0, 10)), HasSubstr("/dcp/sub/x.distcp"));
}

TEST(Dcp, RefusesPlacesAndSizesThatAreWrong) {
  EXPECT_THAT(ErrorOf({{2, 0}, {2, 2}}, Place("__1_0.distcp", 1, INT64_MAX)), HasSubstr("weight should lie at 1 with"));
  EXPECT_THAT(ErrorOf({{2, 0}, {2, 2}}, Place("__1_0.distcp", -1, 4)), HasSubstr("the place of weight is damaged"));
  EXPECT_THAT(ErrorOf({{2, 0}, {2, 2}}, Place("__2_0.distcp", 0, 4)), HasSubstr("/dcp/__2_0.distcp"));
  EXPECT_THAT(ErrorOf({{3, 0}, {2, 2}}, SecondFile()),
              HasSubstr("the chunk at [3, 0] of weight leaves its shape [4, 2]"));
  EXPECT_THAT(ErrorOf({{INT64_MAX, 0}, {2, 2}}, SecondFile()), HasSubstr("leaves its shape"));
  EXPECT_THAT(ErrorOf({{2}, {2}}, SecondFile()), HasSubstr("leaves its shape"));
  EXPECT_THAT(ErrorOf({{2, 0}, {1, 2}}, SecondFile()),
              HasSubstr("is float32 of shape [2, 2], expected float32 of [1, 2]"));
  EXPECT_THAT(ErrorOf({{2, 0}, {2, 2}}, Place("__1_0.distcp", 1, 40)), HasSubstr("begins no zip"));
}

TEST(Dcp, RefusesWhatIsNotIts) {
  EXPECT_THAT(ErrorWith(Pickle(Call(Class("os", "system"), Tuple({Text("id")})))),
              HasSubstr("/dcp/.metadata: byte 2: GLOBAL os system is refused"));
  EXPECT_THAT(ErrorWith(Pickle(Call(Class("builtins", "getattr"), Tuple({Class("torch", "Size"), Text("x")})))),
              HasSubstr("/dcp/.metadata: getattr of torch.Size is refused"));
  EXPECT_THAT(ErrorWith(Pickle(Dict({}))), HasSubstr("it has no storage_data"));
  EXPECT_THAT(ErrorWith(Metadata({Text("weight"), TensorMetadata("float32", {4, 2}, {{{0, 0}, {2, 2}}})}, {})),
              HasSubstr("the part of weight at [0, 0] is in no file"));
  EXPECT_THAT(ErrorWith(Metadata({Text("x"), Text("y")}, {})), HasSubstr("x is neither a tensor nor bytes"));
  EXPECT_THAT(ErrorWith(Metadata({Text("w"), TensorMetadata("float32", {INT64_MAX, 9}, {})}, {})),
              HasSubstr("the size of w is damaged"));
}

// A value of a class that is not known takes nothing else with it.
TEST(Dcp, PassesOverValuesThatAreNotPlain) {
  checkpoint::MemoryDisk disk;
  const std::string value = Archive(Pickle(Call(Class("my", "Config"), ")")), {});
  ASSERT_TRUE(disk.MakeDirectory("/dcp").ok());
  Put(disk, "/dcp/__0_0.distcp", value);
  Put(disk, "/dcp/.metadata",
      Metadata({Text("config"), BytesMetadata()},
               {Index("config", "N"), Place("__0_0.distcp", 0, static_cast<int64_t>(value.size()))}));
  const absl::StatusOr<Saved> saved = OpenSaved(disk, "/dcp");
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_THAT(saved->passed_over, ElementsAre(HasSubstr("GLOBAL my Config is refused")));
}

// A value that is damaged is no value that is not plain.
TEST(Dcp, DamagedValuesAreErrors) {
  const std::string value = Archive(Pickle(Int(9)), {});
  for (const std::string& bent : {Bent(value, 0, "\xff"), Bent(value, 50, "\xff")}) {
    checkpoint::MemoryDisk disk;
    PutDcp(disk);
    std::string file(value.size() + Floats({2, 2}, {0, 1, 2, 3}).size(), '\0');
    ASSERT_TRUE(disk.Read("/dcp/__0_0.distcp", 0, std::as_writable_bytes(std::span(file))).ok());
    ASSERT_TRUE(disk.RemoveFile("/dcp/__0_0.distcp").ok());
    Put(disk, "/dcp/__0_0.distcp", bent + file.substr(value.size()));
    const absl::Status status = OpenSaved(disk, "/dcp").status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(Message(status), HasSubstr("step: /dcp/__0_0.distcp"));
  }
}

TEST(Dcp, NamesAreUtf8) {
  checkpoint::MemoryDisk disk;
  Put(disk, "/x.pt", Archive(Pickle(Dict({Text("a\xff"), Int(1)})), {}));
  EXPECT_EQ(Message(OpenSaved(disk, "/x.pt").status()), ": the name \"a\\xff\" is not UTF-8");
}

TEST(Dcp, AFolderOfNothingKnownSaysWhatIsExpected) {
  checkpoint::MemoryDisk disk;
  ASSERT_TRUE(disk.MakeDirectory("/empty").ok());
  EXPECT_THAT(Message(OpenSaved(disk, "/empty").status()),
              HasSubstr("expected a file of torch.save, or a folder with"));
}

// latest_checkpointed_iteration.txt, iter_0000100/mp_rank_00/*.pt: what can't be read of it is said.
TEST(Dcp, MegatronsOlderFormatIsFoldersOfFiles) {
  checkpoint::MemoryDisk disk;
  for (const char* folder : {"/m", "/m/iter_0000100", "/m/iter_0000100/mp_rank_00"})
    ASSERT_TRUE(disk.MakeDirectory(folder).ok());
  Put(disk, "/m/latest_checkpointed_iteration.txt", "100\n");
  const std::string part = "/m/iter_0000100/mp_rank_00/";
  Put(disk, part + "distrib_optim.pt",
      Archive(Pickle(Dict({Int(0), Dict({Text("param"), Tensor(Storage("FloatStorage", "0", 2), 0, {2}, {1})})})),
              {Storing<float>({1, 2})}));
  Put(disk, part + "model_optim_rng.pt", Archive(Pickle(Call(Class("megatron", "Args"), ")")), {}));
  Put(disk, part + "old.pt", "\x80\x02\x8a");
  Put(disk, part + "unsummed.pt", WithoutSums(Archive(Pickle(Int(1)), {})));
  const absl::StatusOr<Saved> saved = OpenSaved(disk, "/m");
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->step, 100);
  ASSERT_EQ(saved->tensors.size(), 1U);
  EXPECT_EQ(saved->tensors.front().name, "mp_rank_00.distrib_optim.0.param");
  EXPECT_THAT(saved->passed_over,
              ElementsAre(HasSubstr("GLOBAL megatron Args is refused"), HasSubstr("of before torch 1.6"),
                          HasSubstr("unsummed.pt: the sums of its tensors")));
}

// A part that is cut off, gone or no file is not passed over: the tensors in it would be missing.
TEST(Dcp, DamagedFilesOfMegatronAreErrors) {
  const std::string good = Archive(Pickle(Dict({Text("iteration"), Int(7)})), {});
  const auto error = [](const std::string& content) {
    checkpoint::MemoryDisk disk;
    PutDcp(disk);
    Put(disk, "/dcp/common.pt", content);
    for (const char* folder : {"/m", "/m/mp_rank_00"}) EXPECT_TRUE(disk.MakeDirectory(folder).ok());
    Put(disk, "/m/mp_rank_00/model_optim_rng.pt", content);
    const absl::Status common = OpenSaved(disk, "/dcp").status(), part = OpenSaved(disk, "/m").status();
    EXPECT_EQ(common.code(), part.code());
    return part;
  };
  EXPECT_TRUE(error(good).ok());
  EXPECT_TRUE(absl::IsDataLoss(error(good.substr(0, good.size() - 20))));
  EXPECT_TRUE(absl::IsDataLoss(error(good.substr(0, 1))));
  EXPECT_TRUE(absl::IsDataLoss(error(Bent(good, 50, "\xff"))));
  checkpoint::MemoryDisk disk;
  for (const char* folder : {"/m", "/m/mp_rank_00", "/m/mp_rank_00/x.pt"}) ASSERT_TRUE(disk.MakeDirectory(folder).ok());
  EXPECT_FALSE(OpenSaved(disk, "/m").ok());
}

}  // namespace
}  // namespace lockstep::reshape
