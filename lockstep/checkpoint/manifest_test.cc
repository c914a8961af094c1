#include "lockstep/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/base/json_text.h"

namespace lockstep::checkpoint {
namespace {

using testing::HasSubstr;

Manifest Sample() {
  Manifest manifest{{EpochId(2), StepId(123)}, "demo", "2026-01-01T00:00:00Z", R"({"dp":2})", {}};
  for (size_t rank = 0; rank < 2; ++rank)
    manifest.files.push_back({RankFileName(rank), 1000 + rank, 0xfedcba98, 900, 100, 7});
  return manifest;
}

TEST(Manifest, ReadsBackWhatItWrote) {
  const Manifest sample = Sample();
  const Manifest back = ManifestFromJson(RenderJson(ToJson(sample))).value();
  EXPECT_EQ(ToJson(back), ToJson(sample));
  EXPECT_EQ(back.point, sample.point);
  EXPECT_EQ(back.files[1].crc32c, 0xfedcba98);
}

TEST(Manifest, SaysWhetherItsRanksAreReplicas) {
  Manifest manifest = Sample();
  EXPECT_FALSE(AreReplicas(manifest)) << "as those that were written before it was said";
  for (ManifestFile& file : manifest.files) file.tensors = "00ff";
  EXPECT_TRUE(AreReplicas(ManifestFromJson(RenderJson(ToJson(manifest))).value()));
  manifest.files[1].tensors = "00fe";
  EXPECT_FALSE(AreReplicas(manifest));
  for (ManifestFile& file : manifest.files) file.replica = true;
  EXPECT_TRUE(AreReplicas(ManifestFromJson(RenderJson(ToJson(manifest))).value())) << "by the script's word";
  manifest.files[0].replica = false;
  EXPECT_FALSE(AreReplicas(manifest)) << "of all, or of none";
  EXPECT_EQ(FilesFromText(FilesText(manifest.files))->at(1).tensors, "00fe");
}

TEST(Manifest, SaysWhetherTheScriptCutsItAnew) {
  Manifest manifest = Sample();
  EXPECT_FALSE(AreCutAnew(manifest));
  for (ManifestFile& file : manifest.files) file.cut = true;
  EXPECT_TRUE(AreCutAnew(ManifestFromJson(RenderJson(ToJson(manifest))).value()));
  EXPECT_FALSE(AreReplicas(manifest));
  manifest.files[0].cut = false;
  EXPECT_FALSE(AreCutAnew(manifest)) << "of all, or of none";
}

TEST(Manifest, AnythingThatChangedInItIsFoundOut) {
  const std::string text = RenderJson(ToJson(Sample()));
  size_t read = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    std::string flipped = text;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    const auto manifest = ManifestFromJson(flipped);
    // One without a sum under its name is an older one.
    if (!manifest.ok()) continue;
    EXPECT_EQ(ToJson(*manifest), ToJson(Sample())) << at;
    ++read;
  }
  EXPECT_EQ(read, 6U);
  Json old = ToJson(Sample());
  old.erase("crc32c");
  EXPECT_TRUE(ManifestFromJson(OneLine(old)).ok());
  old["version"] = 0;
  EXPECT_THAT(Message(ManifestFromJson(OneLine(old)).status()), HasSubstr("there is no format version 0"));
}

TEST(Manifest, APartsFilesTravelAsText) {
  const auto files = FilesFromText(FilesText(Sample().files));
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(FilesText(*files), FilesText(Sample().files));
  EXPECT_THAT(Message(FilesFromText("{").status()), HasSubstr("not a JSON array"));
  EXPECT_FALSE(FilesFromText(R"([{"name": 3}])").ok());
}

TEST(Manifest, NamesAreReadStrictly) {
  EXPECT_EQ(DirectoryName({EpochId(2), StepId(123)}), "step_000000000123_epoch_2");
  EXPECT_EQ(PointOf("step_000000000123_epoch_2"), (Point{EpochId(2), StepId(123)}));
  const Point late{EpochId(2), StepId(1'234'567'890'123)};  // of more digits than a name has zeros for
  EXPECT_EQ(PointOf("step_1234567890123_epoch_2"), late);
  EXPECT_EQ(DirectoryName(late), "step_1234567890123_epoch_2");
  for (const char* name : {"", "step_123_epoch_2", "step_0123456789012_epoch_2", "step_000000000123_epoch_02",
                           "step_000000000123_epoch_2.old", ".incoming_step_000000000123_epoch_2", "step_000000000123",
                           "step_00000000012x_epoch_2"})
    EXPECT_EQ(PointOf(name), std::nullopt) << name;
}

TEST(Manifest, SaysWhatIsWrong) {
  const auto error = [](const std::string& field, const Json& value) {
    Json json = ToJson(Sample());
    json.erase("crc32c");  // what is said where somebody else wrote it
    json[field] = value;
    return Message(ManifestFromJson(OneLine(json)).status());
  };
  EXPECT_EQ(error("version", 2), "it has format version 2, this Lockstep reads 1: use the newer Lockstep");
  EXPECT_THAT(error("format", "zip"), HasSubstr("its format is not \"lockstep checkpoint\""));
  EXPECT_THAT(error("world_size", 3), HasSubstr("world_size does not fit the 2 files"));
  EXPECT_THAT(error("step", "x"), HasSubstr("type must be number"));
  EXPECT_THAT(error("files", Json::array()), HasSubstr("0 files"));
  EXPECT_EQ(Message(ManifestFromJson("{").status()), "byte 2: not JSON");
}

// A script's path is bytes; JSON is UTF-8.
TEST(Manifest, AJobOfANameThatIsNoTextHasOne) {
  Manifest manifest = Sample();
  manifest.job = "tr\xe9";
  const auto read = ManifestFromJson(RenderJson(ToJson(manifest)));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->job, "tr\xef\xbf\xbd");
}

// What a layout is, is not ours to say, but that it can be written out again is.
TEST(Manifest, RefusesALayoutOfBracketsAlone) {
  Json json = ToJson(Sample());
  for (const char* field : {"layout", "crc32c"}) json.erase(field);
  const std::string rest = OneLine(json).substr(1);
  const auto with = [&](int depth) {
    return R"({"layout":["\"[",)" + std::string(static_cast<size_t>(depth - 2), '[') +
           std::string(static_cast<size_t>(depth - 1), ']') + "," + rest;
  };
  EXPECT_TRUE(ManifestFromJson(with(kDeepestJson)).ok());
  const absl::Status deep = ManifestFromJson(with(200'000)).status();
  EXPECT_TRUE(absl::IsDataLoss(deep));
  EXPECT_EQ(Message(deep), "nested more than 128 deep");
}

}  // namespace
}  // namespace lockstep::checkpoint
