#include "lockstep/feed/data_set.h"

#include <gmock/gmock.h>

#include "lockstep/prepare/test_directory.h"
#include "lockstep/prepare/test_tar.h"

namespace lockstep::feed {
namespace {

using testing::HasSubstr;

class DataSetTest : public prepare::Directory {
 protected:
  // How many items have these labels, or the error.
  static std::string Found(const DataSet& data, const std::vector<std::string>& labels) {
    Subset where;
    where.labels = labels;
    const auto set = data.SetOf(where);
    return set.ok() ? std::to_string(set->size()) : Message(set.status());
  }
};

TEST_F(DataSetTest, LabelsOfArchivesAreNumbers) {
  std::string archive;
  for (const char* item : {"a 3", "b 70000", "c 3", "d "}) {
    const std::string name(1, item[0]), label(item + 2);
    archive += prepare::TarEntry(name + ".jpg", "no image");
    if (!label.empty()) archive += prepare::TarEntry(name + ".cls", label);
  }
  const auto data = DataSet::Open("shard", {.path = Write("shard.tar", archive + std::string(1024, '\0'))});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(Found(*data, {"3"}), "2");
  EXPECT_EQ(Found(*data, {"70000", "3"}), "3");
  EXPECT_THAT(Found(*data, {"4"}), HasSubstr("no item"));
  EXPECT_THAT(Found(*data, {"-1"}), HasSubstr("no label \"-1\"; it has numbers"));
  EXPECT_THAT(Found(*data, {""}), HasSubstr("no label"));
  EXPECT_THAT(Found(*data, {"99999999999999999999"}), HasSubstr("no label"));
  EXPECT_THAT(Found(*data, {"3x"}), HasSubstr("no label \"3x\""));
}

TEST_F(DataSetTest, LabelsOfFoldersAreNamesOrTheirNumbers) {
  for (const char* name : {"cat/1.jpg", "cat/2.jpg", "cat/3.jpg", "dog/1.jpg"})
    Write(std::string("set/") + name, "no image");
  const auto folder = DataSet::Open("set", {.path = root_ + "/set"});
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(Found(*folder, {"cat"}), "3");
  EXPECT_EQ(Found(*folder, {"1"}), "1");
  EXPECT_THAT(Found(*folder, {"2"}), HasSubstr("it has 2, such as cat"));
}

// Nothing is kept of each item, where items have no labels.
TEST_F(DataSetTest, BillionsOfItemsTakeNoMemory) {
  constexpr uint64_t kItems = 2'000'000'000;
  const std::string path = Write("t.bin", "");
  std::filesystem::resize_file(path, (kItems + 1) * 2);  // without content
  const auto tokens = DataSet::Open("tokens", {.path = path, .tokens_per_item = 1});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->items(), kItems);
  EXPECT_EQ(tokens->label(kItems - 1), -1);
  EXPECT_EQ(tokens->SetOf({})->size(), kItems);
}

}  // namespace
}  // namespace lockstep::feed
