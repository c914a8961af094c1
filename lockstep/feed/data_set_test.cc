#include "lockstep/feed/data_set.h"

#include <gmock/gmock.h>

#include "lockstep/prepare/test_directory.h"
#include "lockstep/prepare/test_tar.h"

namespace lockstep::feed {
namespace {

using testing::HasSubstr;

class DataSetTest : public prepare::Directory {
 protected:
  // How many items are meant, or the error.
  static std::string Found(const DataSet& data, const Subset& where) {
    const auto set = data.SetOf(where);
    return set.ok() ? std::to_string(set->size()) : Message(set.status());
  }
  static std::string Named(const DataSet& data, const std::vector<std::string>& names) {
    return Found(data, {.names = names});
  }
  static std::string Labelled(const DataSet& data, const std::vector<uint64_t>& labels) {
    return Found(data, {.labels = labels});
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
  EXPECT_EQ(Labelled(*data, {3U}), "2");
  EXPECT_EQ(Labelled(*data, {70000U, 3U}), "3");
  EXPECT_THAT(Labelled(*data, {4U}), HasSubstr("no item"));
  EXPECT_THAT(Labelled(*data, {UINT64_MAX}), HasSubstr("no label 18446744073709551615; it has numbers"));
  EXPECT_THAT(Named(*data, {"3"}), HasSubstr("no label \"3\"; it has numbers"));
}

TEST_F(DataSetTest, LabelsOfFoldersAreNamesOrTheirNumbers) {
  for (const char* name : {"cat/1.jpg", "cat/2.jpg", "cat/3.jpg", "dog/1.jpg"})
    Write(std::string("set/") + name, "no image");
  const auto folder = DataSet::Open("set", {.path = root_ + "/set"});
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(Named(*folder, {"cat"}), "3");
  EXPECT_EQ(Labelled(*folder, {1U}), "1");
  EXPECT_EQ(Found(*folder, {.names = {"cat"}, .labels = {1}}), "4");
  EXPECT_THAT(Labelled(*folder, {2U}), HasSubstr("no label 2; it has 2, such as cat, number 0"));
  EXPECT_THAT(Named(*folder, {"1"}), HasSubstr("no label \"1\""));
}

// Folders are numbered by their names as texts: 10 comes before 2.
TEST_F(DataSetTest, AFolderThatIsCalledANumberIsNotThatNumber) {
  for (const char* name : {"0/1.jpg", "10/1.jpg", "10/2.jpg", "2/1.jpg", "2/2.jpg", "2/3.jpg"})
    Write(std::string("set/") + name, "no image");
  const auto folder = DataSet::Open("set", {.path = root_ + "/set"});
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(Named(*folder, {"2"}), "3");
  EXPECT_EQ(Labelled(*folder, {2U}), "3");
  EXPECT_EQ(Named(*folder, {"10"}), "2");
  EXPECT_EQ(Labelled(*folder, {1U}), "2");
  EXPECT_THAT(Labelled(*folder, {10U}), HasSubstr("no label 10"));
}

TEST_F(DataSetTest, ItemsThatAreNotThereAreAnError) {
  for (const char* name : {"1.jpg", "2.jpg", "3.jpg"}) Write(std::string("set/") + name, "no image");
  const auto data = DataSet::Open("set", {.path = root_ + "/set"});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(Found(*data, {.begin = 1, .end = 3}), "2");
  EXPECT_THAT(Found(*data, {.begin = 1, .end = 4}), HasSubstr("from 1 to before 4: expected some of the 3"));
  EXPECT_THAT(Found(*data, {.begin = 1, .end = 1}), HasSubstr("from 1 to before 1"));
  EXPECT_THAT(Found(*data, {.listed = {{0, 3}}}), HasSubstr("item 3 is beyond"));
  EXPECT_EQ(Found(*data, {.listed = {{0, 2}}, .mask = 3}), "2");
  EXPECT_THAT(Found(*data, {.listed = {{0, 1}}, .mask = 2}), HasSubstr("a mask of 2 items, and set has 3"));
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
