#include "lockstep/prepare/lmdb.h"

#include <gmock/gmock.h>
#include <lmdb.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "lockstep/base/file.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/prepare/data_file.h"

namespace lockstep::prepare {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// Written by liblmdb itself.
class Lmdb : public testing::Test {
 protected:
  void Write(size_t count, unsigned flags = 0, const char* name = nullptr) {
    MDB_env* env = nullptr;
    ASSERT_EQ(mdb_env_create(&env), 0);
    mdb_env_set_mapsize(env, size_t{1} << 28);
    mdb_env_set_maxdbs(env, 2);
    ASSERT_EQ(mdb_env_open(env, root_.path().c_str(), 0, 0600), 0);
    MDB_txn* txn = nullptr;
    ASSERT_EQ(mdb_txn_begin(env, nullptr, 0, &txn), 0);
    MDB_dbi database = 0;
    ASSERT_EQ(mdb_dbi_open(txn, name, flags | MDB_CREATE, &database), 0);
    for (size_t i = 0; i < count; ++i) {
      const std::string text = KeyOf(i), content = ValueOf(i);
      MDB_val key{text.size(), const_cast<char*>(text.data())},
          value{content.size(), const_cast<char*>(content.data())};
      ASSERT_EQ(mdb_put(txn, database, &key, &value, 0), 0);
    }
    ASSERT_EQ(mdb_txn_commit(txn), 0);
    mdb_env_close(env);
  }
  static std::string KeyOf(size_t i) { return fmt::format("{:08}", i); }
  // Some within their page, some on pages of their own.
  static std::string ValueOf(size_t i) {
    return std::string(i % 3 == 0 ? 9000 + i : i % 50, static_cast<char>('a' + i % 26));
  }

  const TestFolder root_;
  const std::string file_ = root_ / "data.mdb";
};

TEST_F(Lmdb, IsReadAsLiblmdbWroteIt) {
  constexpr size_t kCount = 3000;
  Write(kCount);
  absl::StatusOr<std::unique_ptr<Source>> source = OpenSource({.path = root_.path()});
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_EQ((*source)->size(), kCount);
  Buffer bytes;
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ((*source)->item(i).key, KeyOf(i));
    ASSERT_EQ((*source)->BytesOf(i), ValueOf(i).size());
    ASSERT_TRUE((*source)->Read(i, bytes).ok());
    ASSERT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), ValueOf(i)) << i;
  }
}

absl::StatusOr<std::vector<LmdbEntry>> Listed(const std::string& path) {
  Files files;
  LS_ASSIGN_OR_RETURN(const DataFile file, files.Open(path));
  return ListLmdb(file);
}

TEST_F(Lmdb, TheLastCommitCounts) {
  for (size_t count : {10, 11, 12}) Write(count);
  const auto entries = Listed(file_);
  ASSERT_TRUE(entries.ok()) << entries.status();
  EXPECT_EQ(entries->size(), 12U);
}

TEST_F(Lmdb, WhatIsNotKeysWithOneValueIsRefused) {
  Write(3, 0, "named");
  EXPECT_THAT(std::string(Listed(file_).status().message()), HasSubstr("named databases"));
}

// A hundred nodes of one page, behind 16 bytes of header the pointers to them; the 49th is the largest.
TEST_F(Lmdb, NodesThatOverlapAreRefused) {
  constexpr size_t kCount = 100, kPage = 4096, kPointers = 16;
  Write(kCount);
  const std::string whole = *ReadFile(file_);
  const std::string head{2, 0, static_cast<char>(kPointers + kCount * 2), 0};
  size_t leaf = 2 * kPage;
  while (leaf < whole.size() && whole.compare(leaf + 10, head.size(), head) != 0) leaf += kPage;
  ASSERT_LT(leaf, whole.size());
  const auto error = [&](const std::string& pointer) {
    std::string bent = whole;
    for (size_t i = 0; i < kCount; ++i) bent.replace(leaf + kPointers + 2 * i, 2, pointer);
    std::ofstream(file_, std::ios::binary) << bent;
    return Message(Listed(file_).status());
  };
  EXPECT_THAT(error(whole.substr(leaf + kPointers + 2 * 49, 2)), HasSubstr("entries that overlap"));
  EXPECT_THAT(error(std::string{kPointers, 0}), HasSubstr("a damaged entry"));
}

TEST_F(Lmdb, AValueThatIsTooLargeIsAnErrorOfItsItem) {
  Write(3);
  std::string whole = *ReadFile(file_);
  const std::string rest = std::string{1, 0, 8, 0} + KeyOf(0);  // of its node, behind the value's size
  const auto too_large = static_cast<uint32_t>(kMaxItemBytes + 1);
  const size_t node = whole.find(rest);
  ASSERT_NE(node, std::string::npos);
  std::memcpy(whole.data() + node - sizeof too_large, &too_large, sizeof too_large);
  std::ofstream(file_, std::ios::binary) << whole;
  fs::resize_file(file_, whole.size() + too_large);  // without content
  absl::StatusOr<std::unique_ptr<Source>> source = OpenSource({.path = file_});
  ASSERT_TRUE(source.ok()) << source.status();
  Buffer bytes;
  EXPECT_THAT(Message((*source)->Read(0, bytes)),
              HasSubstr("data.mdb: 00000000: 1073741825 bytes: the limit of an item is 1073741824"));
  EXPECT_TRUE((*source)->Read(1, bytes).ok());
}

TEST_F(Lmdb, WhatIsCutShortIsAnErrorOnly) {
  Write(500);
  const auto whole = fs::file_size(file_);
  absl::StatusOr<std::unique_ptr<Source>> source = OpenSource({.path = file_});
  ASSERT_TRUE(source.ok());
  Buffer bytes;
  int lost = 0;
  for (uint64_t size = whole; size > 0; size -= std::min<uint64_t>(size, 40'000)) {
    fs::resize_file(file_, size);
    const auto entries = Listed(file_);
    EXPECT_EQ(entries.ok(), size == whole) << size;
    for (uint64_t i = 0; i < (*source)->size(); i += 50) lost += (*source)->Read(i, bytes).ok() ? 0 : 1;
  }
  EXPECT_GT(lost, 50);  // ten items are read at each size
  std::ofstream(file_) << "nonsense";
  EXPECT_FALSE(Listed(file_).ok());
}

}  // namespace
}  // namespace lockstep::prepare
