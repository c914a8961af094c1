#include "lockstep/prepare/source.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "lockstep/base/test_limit.h"
#include "lockstep/prepare/records.h"
#include "lockstep/prepare/tar.h"
#include "lockstep/prepare/test_directory.h"
#include "lockstep/prepare/test_tar.h"

namespace lockstep::prepare {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

std::string ReadItem(const Source& source, uint64_t index) {
  Buffer bytes;
  const absl::Status status = source.Read(index, bytes);
  if (!status.ok()) return std::string(status.message());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

using Folder = Directory;

TEST_F(Folder, ClassesAndFilesAreInOrder) {
  for (const char* name : {"dog/b.JPG", "dog/a.png", "cat/x/1.jpeg", "cat/2.webp", "cat/notes.txt", "stray.jpg"})
    Write(name, name);
  const auto source = Open({.path = root_});
  ASSERT_EQ(source->size(), 4U);
  EXPECT_EQ(source->classes(), (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(source->item(0).key, "cat/2.webp");
  EXPECT_EQ(source->item(1).key, "cat/x/1.jpeg");
  EXPECT_EQ(source->item(2).key, "dog/a.png");
  EXPECT_EQ(source->item(3).label, 1);
  EXPECT_EQ(ReadItem(*source, 3), "dog/b.JPG");
  EXPECT_THAT(source->counters(), testing::UnorderedElementsAre(testing::Pair("images_outside_of_classes", 1U),
                                                                testing::Pair("files_of_other_kinds", 1U)));
}

// What a list names, as "label key" each.
std::string ItemsOf(const Source& source) {
  std::string items;
  for (uint64_t i = 0; i < source.size(); ++i) {
    const Item item = source.item(i);
    items += fmt::format("{} {}, ", item.label, item.key);
  }
  return items;
}

TEST_F(Folder, ClassesOfAListDontDependOnHowItsPathAndNamesAreWritten) {
  Write("set/cat/0.jpg", "c");
  Write("set/dog/0.jpg", "d");
  fs::create_directory_symlink(root_ + "/set", root_ + "/link");
  const std::string expected = "0 cat/0.jpg, 1 dog/0.jpg, ", set = root_ + "/set/", link = root_ + "/link/";
  Write("set/plain.txt", "cat/0.jpg\ndog/0.jpg\n");
  Write("set/find.txt", "./cat/0.jpg\n./dog/0.jpg\n");
  Write("set/absolute.txt", set + "cat/0.jpg\n" + set + "./dog/0.jpg\n");
  Write("set/linked.txt", link + "cat/0.jpg\n" + set + "../link/dog/0.jpg\n");
  const std::string before = fs::current_path().string();
  for (const char* name : {"plain.txt", "find.txt", "absolute.txt", "linked.txt"}) {
    EXPECT_EQ(ItemsOf(*Open({.path = set + name})), expected) << name;
    EXPECT_EQ(ItemsOf(*Open({.path = link + name})), expected) << name;
    fs::current_path(set + "cat");
    const auto from_below = Open({.path = std::string("../") + name});
    fs::current_path(set);
    const auto from_here = Open({.path = name});
    fs::current_path(before);
    EXPECT_EQ(ItemsOf(*from_below), expected) << name;
    EXPECT_EQ(ItemsOf(*from_here), expected) << name;
    EXPECT_EQ(ReadItem(*from_below, 1) + ReadItem(*from_here, 0), "dc");
  }
}

TEST_F(Folder, WhatAListNamesElsewhereIsOfNoClass) {
  Write("set/cat/0.jpg", "c");
  const std::string there_and_back = Write("set/back.txt", "cat/../dog/0.jpg\ncat/0.jpg\n");
  EXPECT_EQ(ItemsOf(*Open({.path = there_and_back})), "0 cat/0.jpg, 1 dog/0.jpg, ");
  const std::string above = Write("lists/up.txt", "../set/cat/0.jpg\n");
  EXPECT_EQ(ItemsOf(*Open({.path = above})), "-1 ../set/cat/0.jpg, ");
  EXPECT_EQ(ReadItem(*Open({.path = above}), 0), "c");
  const auto whole = Open({.path = Write("lists/whole.txt", root_ + "/set/cat/0.jpg\n")});
  EXPECT_EQ(ItemsOf(*whole), "-1 " + root_ + "/set/cat/0.jpg, ");
}

TEST_F(Folder, AFileThatIsNamedTwiceIsRefused) {
  Write("set/cat/0.jpg", "c");
  fs::create_directory_symlink(root_ + "/set", root_ + "/link");
  EXPECT_THAT(ErrorOf({.path = Write("set/link.txt", "cat/0.jpg\n" + root_ + "/link/cat/0.jpg\n")}),
              HasSubstr("/set/: the list names cat/0.jpg twice"));
  EXPECT_THAT(ErrorOf({.path = Write("set/line.txt", "cat/0.jpg\n./cat/0.jpg\n")}),
              HasSubstr("line.txt: line 2 names " + root_ + "/set/cat/0.jpg, as line 1 does"));
  EXPECT_THAT(ErrorOf({.path = root_ + "/set/{cat,cat}/0.jpg"}),
              HasSubstr("{cat,cat}/0.jpg: it stands for " + root_ + "/set/cat/0.jpg twice"));
}

TEST_F(Folder, BracesStandForFilesBelowWhatIsBeforeThem) {
  for (const char* name : {"cat/0.jpg", "dog/0.jpg", "dog/br{1}.jpg"}) Write(name, name);
  const auto source = Open({.path = root_ + "/{cat,dog}/{0..0}.jpg"});
  EXPECT_EQ(ItemsOf(*source), "0 cat/0.jpg, 1 dog/0.jpg, ");
  const std::string before = fs::current_path().string();
  fs::current_path(root_);
  const auto from_here = Open({.path = "{cat,dog}/0.jpg"});
  fs::current_path(before);
  EXPECT_EQ(ItemsOf(*from_here), ItemsOf(*source));
  EXPECT_EQ(ReadItem(*source, 1) + ReadItem(*from_here, 0), "dog/0.jpgcat/0.jpg");
  EXPECT_EQ(ReadItem(*Open({.path = Write("list.txt", "dog/br{1}.jpg\n")}), 0), "dog/br{1}.jpg");
}

TEST_F(Folder, AFileThatVanishesIsAnErrorOfItsItem) {
  Write("a.jpg", "aa");
  const std::string gone = Write("b.jpg", "bb");
  const auto source = Open({.path = root_});
  fs::remove(gone);
  EXPECT_EQ(ReadItem(*source, 0), "aa");
  EXPECT_THAT(ReadItem(*source, 1), HasSubstr("b.jpg: No such file"));
}

TEST_F(Folder, AClassWithoutItemsIsRefused) {
  for (const char* name : {"cat/0.jpg", "dog/0.jpg", "cow/notes.txt"}) Write(name, name);
  EXPECT_THAT(ErrorOf({.path = root_}), HasSubstr(root_ + "/cow: no image in it: each folder is a class"));
  EXPECT_THAT(ErrorOf({.path = Write("list.txt", "cat/0.jpg\ncow/notes.txt\ndog/0.jpg\n")}),
              HasSubstr("/cow: no image"));
  Write("cow/0.wav", "moo");
  EXPECT_THAT(ErrorOf({.path = root_}), HasSubstr("/cow: no image"));
  Write("cow/0.jpg", "moo");
  fs::create_directory(root_ + "/.ipynb_checkpoints");
  EXPECT_THAT(ErrorOf({.path = root_}), HasSubstr("/.ipynb_checkpoints: no image"));
  fs::remove(root_ + "/.ipynb_checkpoints");
  EXPECT_EQ(ItemsOf(*Open({.path = root_})), "0 cat/0.jpg, 1 cow/0.jpg, 2 dog/0.jpg, ");
}

TEST_F(Folder, ALinkToAFolderAboveItLeadsNowhere) {
  Write("set/a/1.jpg", "1");
  Write("set/b/c/2.jpg", "2");
  fs::create_directory_symlink(".", root_ + "/set/a/loop");
  fs::create_directory_symlink("..", root_ + "/set/b/c/up");
  fs::create_directory_symlink(root_ + "/set", root_ + "/set/root");
  fs::create_directory_symlink("../../a", root_ + "/set/b/c/other");  // is none
  const auto source = Open({.path = root_ + "/set"});
  EXPECT_EQ(ItemsOf(*source), "0 a/1.jpg, 1 b/c/2.jpg, 1 b/c/other/1.jpg, ");
  EXPECT_EQ(source->classes(), (std::vector<std::string>{"a", "b"}));
  EXPECT_THAT(source->counters(), testing::Contains(testing::Pair("links_to_folders_above", 4U)));
}

TEST_F(Folder, WhatIsNotThereIsSaid) {
  EXPECT_THAT(ErrorOf({.path = root_ + "/none"}), HasSubstr("none: No such file"));
  EXPECT_THAT(ErrorOf({.path = root_}), HasSubstr("no image in it"));
  EXPECT_THAT(ErrorOf({.path = Write("what.xyz", "?")}), HasSubstr("expected a directory of images"));
}

const std::string kTarEnd(1024, '\0');

using Tar = Directory;

TEST_F(Folder, OfSoundsOrElseOfImages) {
  for (const char* name : {"a/1.flac", "a/2.WAV", "b/3.wav", "b/4.txt"}) Write(name, name);
  const auto sounds = Open({.path = root_});
  ASSERT_EQ(sounds->size(), 3U);
  EXPECT_EQ(sounds->format().kind, ItemKind::kSound);
  EXPECT_EQ(sounds->item(2).label, 1);
  for (const char* name : {"a/0.png", "b/5.png"}) Write(name, name);
  const auto images = Open({.path = root_});
  ASSERT_EQ(images->size(), 2U);
  EXPECT_EQ(images->format().kind, ItemKind::kImage);
  EXPECT_THAT(images->counters(), testing::Contains(testing::Pair("files_of_other_kinds", 4U)));
}

TEST_F(Tar, SamplesOfSound) {
  const auto source = Open({.path = Write("a.tar", TarEntry("1.flac", "one") + TarEntry("1.cls", "4") +
                                                       TarEntry("2.txt", "two") + TarEntry("3.wav", "three"))});
  ASSERT_EQ(source->size(), 2U);
  EXPECT_EQ(source->format().kind, ItemKind::kSound);
  EXPECT_EQ(source->item(0).label, 4);
  EXPECT_EQ(ReadItem(*source, 1), "three");
  EXPECT_THAT(source->counters(), testing::Contains(testing::Pair("samples_without_sound", 1U)));
}

TEST_F(Tar, WhatLiesBesideShardsIsCounted) {
  Write("a.tar", TarEntry("1.jpg", "one") + kTarEnd);
  EXPECT_THAT(Open({.path = root_})->counters(), testing::Each(testing::Pair(testing::_, 0U)));
  for (const char* name : {"cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "index.json", "3.jpg"}) Write(name, name);
  const auto source = Open({.path = root_});
  EXPECT_EQ(source->size(), 1U);
  EXPECT_THAT(source->counters(), testing::Contains(testing::Pair("files_and_folders_beside_shards", 4U)));
}

TEST_F(Tar, ShardsByBracesAndByAList) {
  for (int i = 8; i < 11; ++i) Write(fmt::format("t-{:02}.tar", i), TarEntry("1.jpg", std::to_string(i)));
  const auto braces = Open({.path = root_ + "/t-{08..10}.tar"});
  ASSERT_EQ(braces->size(), 3U);
  EXPECT_EQ(ReadItem(*braces, 2), "10");
  const auto list = Open({.path = Write("shards.txt", "t-10.tar\nt-09.tar\n")});
  ASSERT_EQ(list->size(), 2U);
  EXPECT_EQ(list->item(0).key, "t-10.tar/1.jpg");
  EXPECT_THAT(ErrorOf({.path = root_ + "/t-{10..11}.tar"}), HasSubstr("t-11.tar: No such file"));
}

TEST_F(Tar, NeighboursOfOneNameAreASample) {
  const std::string path = Write("a.tar", TarEntry("d/", "", '5') + TarEntry("d/1.jpg", "one") +
                                              TarEntry("d/1.cls", "7\n") + TarEntry("d/2.cls", "3") +
                                              TarEntry("d/2.seg.png", "two") + TarEntry("d/3.txt", "three") + kTarEnd);
  const auto source = Open({.path = path});
  ASSERT_EQ(source->size(), 2U);
  EXPECT_EQ(source->item(0).label, 7);
  EXPECT_EQ(source->item(1).label, 3);
  EXPECT_EQ(source->item(0).key, "a.tar/d/1.jpg");
  EXPECT_EQ(ReadItem(*source, 0), "one");
  EXPECT_EQ(ReadItem(*source, 1), "two");
  EXPECT_THAT(source->counters(), testing::UnorderedElementsAre(testing::Pair("members_of_other_kinds", 1U),
                                                                testing::Pair("samples_without_image", 1U)));
}

// With the next sample of the same name its image would get that one's label.
TEST_F(Tar, TwoMembersOfOneNameInASampleAreRefused) {
  const std::string one = TarEntry("a.jpg", "one") + TarEntry("a.cls", "1");
  EXPECT_THAT(ErrorOf({.path = Write("same.tar", one + TarEntry("a.jpg", "two") + TarEntry("a.cls", "2"))}),
              HasSubstr("same.tar: a.jpg follows another member of that name"));
  EXPECT_THAT(ErrorOf({.path = Write("label.tar", one + TarEntry("a.cls", "2"))}),
              HasSubstr("label.tar: a.cls follows another member of that name"));
  EXPECT_THAT(ErrorOf({.path = Write("apart.tar", one + TarEntry("b.jpg", "b") + one)}),
              HasSubstr("apart.tar: members of sample a lie apart"));
}

// As it would be with tar -r, or with all labels behind all images: these would be of nobody.
TEST_F(Tar, ASampleInTwoPiecesIsRefused) {
  const std::string a = TarEntry("d/a.jpg", "a"), b = TarEntry("d/b.jpg", "b");
  for (const std::string& second : {a, TarEntry("d/a.cls", "7"), TarEntry("d/a.png", "p")})
    EXPECT_THAT(ErrorOf({.path = Write("a.tar", a + b + second)}),
                HasSubstr("a.tar: members of sample d/a lie apart, with others between them"));
  const std::string text = TarEntry("d/a.txt", "t");  // which says nothing of it here
  EXPECT_EQ(Open({.path = Write("b.tar", a + b + text)})->size(), 2U);
  Write("shards/0.tar", a);
  Write("shards/1.tar", a);
  EXPECT_EQ(Open({.path = root_ + "/shards"})->size(), 2U);
}

TEST_F(Tar, AShardThatIsNamedTwiceIsRefusedByWhateverWay) {
  Write("set/0.tar", TarEntry("a.jpg", "a"));
  Write("set/1.tar", TarEntry("a.jpg", "a"));
  fs::create_symlink("0.tar", root_ + "/set/2.tar");
  EXPECT_THAT(ErrorOf({.path = Write("set/list.txt", "0.tar\n1.tar\n../set/0.tar\n")}),
              HasSubstr("list.txt: line 3 names " + root_ + "/set/../set/0.tar, as line 1 does"));
  EXPECT_THAT(ErrorOf({.path = root_ + "/set/{0..2}.tar"}), HasSubstr("it stands for " + root_ + "/set/2.tar twice"));
  EXPECT_EQ(Open({.path = root_ + "/set/{0..1}.tar"})->size(), 2U);
}

TEST_F(Tar, SamplesWithoutLabelAreCountedWhereOthersHaveOne) {
  const std::string a = TarEntry("a.jpg", "a"), b = TarEntry("b.jpg", "b");
  const auto some = Open({.path = Write("some.tar", a + TarEntry("a.CLS", "-1") + b)});
  EXPECT_EQ(some->item(0).label, -1);
  EXPECT_THAT(some->counters(), testing::Contains(testing::Pair("samples_without_label", 1U)));
  const auto all = Open({.path = Write("all.tar", a + TarEntry("a.CLS", "4") + b + TarEntry("b.cls", "5"))});
  EXPECT_EQ(ItemsOf(*all), "4 all.tar/a.jpg, 5 all.tar/b.jpg, ");
  const auto none = Open({.path = Write("none.tar", a + b)});
  for (const Source* source : {all.get(), none.get()})
    EXPECT_THAT(source->counters(), testing::Not(testing::Contains(testing::Key("samples_without_label"))));
  EXPECT_THAT(ErrorOf({.path = Write("both.tar", a + TarEntry("a.cls", "1") + TarEntry("a.CLS", "2"))}),
              HasSubstr("a.CLS follows another member of that name"));
}

TEST_F(Tar, FurtherImagesOfASampleAreCountedAsThat) {
  const auto source =
      Open({.path = Write("a.tar", TarEntry("a.jpg", "a") + TarEntry("a.depth.png", "d") + TarEntry("a.txt", "t"))});
  EXPECT_EQ(source->size(), 1U);
  EXPECT_THAT(source->counters(), testing::IsSupersetOf({testing::Pair("further_images", 1U),
                                                         testing::Pair("members_of_other_kinds", 1U)}));
}

// As macOS writes them, before each member; and such as have no other name.
TEST_F(Tar, HiddenMembersAreOfNoSample) {
  const auto source =
      Open({.path = Write("a.tar", TarEntry("./._1.cls", "x") + TarEntry("./1.cls", "3") + TarEntry("./._1.jpg", "y") +
                                       TarEntry("./1.jpg", "one") + TarEntry(".a.jpg", "a") + TarEntry(".a.cls", "4") +
                                       TarEntry(".b.jpg", "b") + TarEntry(".d/2.jpg", "two"))});
  EXPECT_EQ(ItemsOf(*source), "3 a.tar/./1.jpg, -1 a.tar/.d/2.jpg, ");
  EXPECT_THAT(source->counters(), testing::Contains(testing::Pair("members_of_other_kinds", 5U)));
}

TEST_F(Tar, ALabelIsWhatPythonsIntReads) {
  const auto label = [&](const std::string& text) {
    const auto source = OpenSource({.path = Write("l.tar", TarEntry("1.jpg", "") + TarEntry("1.cls", text))});
    return source.ok() ? std::to_string((*source)->item(0).label) : Message(source.status());
  };
  for (const char* three : {"3", " 3\n", "\t3", "+3", "\r\n 03 "}) EXPECT_EQ(label(three), "3") << three;
  EXPECT_EQ(label("-3"), "-3");
  EXPECT_THAT(label("1.0"), HasSubstr("l.tar: 1.cls: expected a number, found \"1.0\""));
  EXPECT_THAT(label("3\x01\n"), HasSubstr("found \"3\\x01\\n\""));
  EXPECT_THAT(label(std::string(40, ' ') + "3"), HasSubstr("found 41 bytes"));
  for (const char* none : {"", " ", "+-3", "+", "3 4", "99999999999999999999"})
    EXPECT_THAT(label(none), HasSubstr("expected a number")) << none;
}

TEST_F(Tar, AMemberThatIsTooLargeIsAnErrorOfItsItem) {
  constexpr uint64_t kBytes = kMaxItemBytes + 512;
  std::string head = TarEntry("a.jpg", "");
  head.replace(124, 11, fmt::format("{:011o}", kBytes));
  head.replace(148, 8, "        ");
  unsigned sum = 0;
  for (const char c : head) sum += static_cast<uint8_t>(c);
  head.replace(148, 8, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
  const std::string path = Write("a.tar", head);
  fs::resize_file(path, head.size() + kBytes);  // without content
  std::ofstream(path, std::ios::binary | std::ios::app) << TarEntry("b.jpg", "b");
  const auto source = Open({.path = path});
  ASSERT_EQ(source->size(), 2U);
  EXPECT_THAT(ReadItem(*source, 0), HasSubstr("a.tar: a.jpg: 1073742336 bytes: the limit of an item is 1073741824"));
  EXPECT_EQ(ReadItem(*source, 1), "b");
}

TEST_F(Tar, LinksAreCounted) {
  const auto source = Open({.path = Write("a.tar", TarEntry("d/", "", '5') + TarEntry("d/1.jpg", "one") +
                                                       TarEntry("d/2.jpg", "", '1') + TarEntry("d/3.jpg", "", '2'))});
  EXPECT_EQ(source->size(), 1U);
  EXPECT_THAT(source->counters(), testing::Contains(testing::Pair("links_and_devices", 2U)));
}

TEST_F(Tar, LongNamesAreThoseOfPaxAndGnu) {
  const std::string gnu = std::string(150, 'g') + ".jpg", pax = std::string(200, 'p') + ".jpg";
  const std::string line = fmt::format("{} path={}\n", 3 + 1 + 5 + pax.size() + 1, pax);
  const std::string path = Write("a.tar", TarEntry("././@LongLink", gnu + '\0', 'L') + TarEntry(gnu, "G") +
                                              TarEntry("PaxHeaders", line, 'x') + TarEntry("short", "P"));
  Files files;
  const absl::StatusOr<DataFile> file = files.Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  NearReader near(*file);
  const absl::StatusOr<TarList> list = ListTar(near);
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->members.size(), 2U);
  EXPECT_EQ(list->members[0].name, gnu);
  EXPECT_EQ(list->members[1].name, pax);
}

TEST_F(Tar, WhatIsDamagedIsSaidWithItsPlace) {
  const std::string good = TarEntry("1.jpg", "one") + TarEntry("2.jpg", std::string(2000, 'x'));
  std::string bent = good;
  bent[1024 + 3] ^= 1;
  EXPECT_THAT(ErrorOf({.path = Write("bent.tar", bent)}), HasSubstr("a wrong sum in the header at byte 1024"));
  EXPECT_THAT(ErrorOf({.path = Write("cut.tar", good.substr(0, 2000))}), HasSubstr("it is truncated"));
  EXPECT_THAT(ErrorOf({.path = Write("head.tar", good.substr(0, 1300))}), HasSubstr("the end of the file"));
  for (const size_t cut : {good.size() - 1, good.size() - 48})  // of 2,048 bytes, 48 are padding
    EXPECT_THAT(
        ErrorOf({.path = Write("padding.tar", good.substr(0, cut))}),
        HasSubstr(
            "a member whose padding goes beyond the end of the file: it is truncated in the header at byte 1024"));
  EXPECT_THAT(ErrorOf({.path = Write("text.tar", std::string(2000, 'x'))}), HasSubstr("no tar archive"));
  EXPECT_THAT(ErrorOf({.path = Write("label.tar", TarEntry("1.jpg", "") + TarEntry("1.cls", "seven"))}),
              HasSubstr("expected a number"));
}

// Else whatever follows would be left out in silence.
TEST_F(Tar, BehindItsEndAreZerosAndNothingElse) {
  const std::string one = TarEntry("1.jpg", "one"), two = TarEntry("2.jpg", "two"), block(512, '\0');
  for (const size_t zeros : {0, 1, 2, 21}) {  // 21: one before the end of a record, so that a second was begun
    const std::string path = Write("a.tar", one + two + std::string(zeros * 512, '\0'));
    const auto source = Open({.path = path});
    EXPECT_EQ(source->size(), 2U) << zeros;
    const std::pair<std::string, uint64_t> endless{"shards_without_end", 1};  // it may have been cut short, or not
    EXPECT_EQ(std::ranges::count(source->counters(), endless), zeros == 0 ? 1 : 0) << zeros;
  }
  const auto error = [&](const std::string& content) { return ErrorOf({.path = Write("b.tar", content)}); };
  std::string zeroed = one + two;
  std::fill_n(zeroed.begin() + 1024, 512, '\0');
  EXPECT_THAT(error(zeroed),
              HasSubstr("b.tar: a block of zeros at byte 1024 ends the archive, but byte 1536 is not 0"));
  EXPECT_THAT(error(one + kTarEnd + two), HasSubstr("byte 1024 ends the archive, but byte 2048 is not 0"));
  const std::string padding(21 * 512, '\0');
  EXPECT_THAT(error(one + padding + two), HasSubstr("byte 1024 ends the archive, but byte 11776 is not 0"));
  EXPECT_THAT(error(one + padding + block),
              HasSubstr("b.tar: 11264 bytes of zeros from byte 1024 on: expected at most 10752"));
  EXPECT_THAT(error(one + padding + block + two), HasSubstr("truncate --size=2048"));
}

// Its map may take more blocks than its size says, and its content is without the zeros.
TEST_F(Tar, SparseMembersAreRefused) {
  const std::string one = TarEntry("1.jpg", "one");
  EXPECT_THAT(ErrorOf({.path = Write("gnu.tar", one + TarEntry("d/2.jpg", "two", 'S'))}),
              HasSubstr("gnu.tar: d/2.jpg is sparse"));
  EXPECT_THAT(ErrorOf({.path = Write("pax.tar", one + TarEntry("x", "22 GNU.sparse.major=1\n", 'x') +
                                                    TarEntry("GNUSparseFile.7/2.jpg", "two"))}),
              HasSubstr("pax.tar: GNUSparseFile.7/2.jpg is sparse"));
}

// What was another file when it was opened: labels and places are that one's.
TEST_F(Tar, AShardThatChangesIsAnErrorOfItsItems) {
  const auto shard = [](const std::string& first, const std::string& second) {
    return TarEntry("1.jpg", first) + TarEntry("1.cls", first) + TarEntry("2.jpg", second) + TarEntry("2.cls", second);
  };
  const std::string path = Write("a.tar", shard("1", "2"));
  const fs::file_time_type written = fs::last_write_time(path);
  const auto source = Open({.path = path});
  EXPECT_EQ(ReadItem(*source, 0) + ReadItem(*source, 1), "12");
  const auto expect_changed = [&](const std::string& how) {
    for (uint64_t item : {0U, 1U})
      EXPECT_THAT(ReadItem(*source, item), HasSubstr("a.tar: it has changed since it was opened")) << how;
  };
  const std::string other = Write("b", shard("2", "1"));
  fs::last_write_time(other, written + std::chrono::nanoseconds(1));
  fs::rename(other, path);
  expect_changed("replaced");
  Write("a.tar", shard("2", "1"));
  fs::last_write_time(path, written - std::chrono::seconds(1));
  expect_changed("written in place, by the clock of another machine");
  Write("a.tar", shard("1", "2"));
  fs::last_write_time(path, written);
  EXPECT_EQ(ReadItem(*source, 0) + ReadItem(*source, 1), "12");
  for (const uint64_t size : {uint64_t{1100}, uint64_t{8192}}) {
    fs::resize_file(path, size);
    fs::last_write_time(path, written);
    expect_changed(size == 1100 ? "cut short" : "appended to");
  }
}

TEST_F(Tar, MoreShardsThanAProcessMayOpenFiles) {
  for (int i = 0; i < 300; ++i) Write(fmt::format("{:03}.tar", i), TarEntry("1.jpg", std::to_string(i)));
  const TestLimit few(RLIMIT_NOFILE, 64);
  const auto source = Open({.path = root_});
  ASSERT_EQ(source->size(), 300U);
  for (uint64_t i = 0; i < 300; ++i) EXPECT_EQ(ReadItem(*source, i), std::to_string(i));
}

using RecordFile = Directory;

std::string Npy(const std::string& dict, const std::string& data) {
  const std::string padded = dict + std::string(63 - (10 + dict.size()) % 64, ' ') + "\n";
  std::string text = "\x93NUMPY\x01";
  text += '\0';
  text += static_cast<char>(padded.size() & 255);
  text += static_cast<char>(padded.size() >> 8);
  return text + padded + data;
}

TEST_F(RecordFile, RowsOfAnArrayAreItems) {
  const auto source = Open(
      {.path = Write("a.npy", Npy("{'descr': '<u2', 'fortran_order': False, 'shape': (3, 2), }", "aabbccddeeff"))});
  ASSERT_EQ(source->size(), 3U);
  EXPECT_EQ(source->format(), (ItemFormat{ItemKind::kArray, "<u2", {2}, 4}));
  EXPECT_EQ(ReadItem(*source, 1), "ccdd");
  EXPECT_EQ(source->item(1).key, "a.npy/1");
  EXPECT_EQ(source->BytesOf(1), 4U);
}

TEST_F(RecordFile, AHeaderMayBeWrittenOtherwiseThanByNumPyOfToday) {
  for (const char* dict : {"{'descr': '<u2', 'fortran_order': False, 'shape': (3L, 2L), }",
                           R"({"descr": "<u2", "fortran_order": False, "shape": (3, 2), })",
                           "{'shape' : (3,2),'fortran_order' :False, 'descr'  :  '<u2'}"}) {
    const auto source = Open({.path = Write("a.npy", Npy(dict, "aabbccddeeff"))});
    EXPECT_EQ(source->size(), 3U);
    EXPECT_EQ(source->format(), (ItemFormat{ItemKind::kArray, "<u2", {2}, 4})) << dict;
    EXPECT_EQ(ReadItem(*source, 2), "eeff");
  }
}

TEST_F(RecordFile, ArraysThatCannotBeReadAreRefused) {
  const auto error = [&](const std::string& dict, const std::string& data) {
    return ErrorOf({.path = Write("b.npy", Npy(dict, data))});
  };
  EXPECT_THAT(error("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", "aaaa"), HasSubstr("little-endian"));
  EXPECT_THAT(error("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "aaaa"),
              HasSubstr("elements of type |O"));
  EXPECT_THAT(error("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 1), }", "aaaa"), HasSubstr("fortran_order"));
  EXPECT_THAT(error("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "aaaa"), HasSubstr("truncated"));
  EXPECT_THAT(error("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 99999999999, 99999999999), }", ""),
              HasSubstr("items of more than"));
  EXPECT_THAT(error("{'descr': '<f4', 'fortran_order': False, 'shape': (), }", "aaaa"), HasSubstr("single number"));
  EXPECT_THAT(error("{'descr': '<f4', 'fortran_order': False, 'shape': (1K,), }", "aaaa"), HasSubstr("than numbers"));
  EXPECT_THAT(error("{'descr\": '<f4', 'fortran_order': False, 'shape': (1,), }", "aaaa"), HasSubstr("lacks descr"));
  EXPECT_THAT(error("{'descr': '<f4', 'fortran_order', 'shape': (1,), }", "aaaa"), HasSubstr("lacks descr"));
  EXPECT_THAT(ErrorOf({.path = Write("c.npy", "nonsense and more")}), HasSubstr("no .npy"));
}

std::string Safetensors(const std::string& json, const std::string& data) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(json.size() >> (8 * i) & 255);
  return text + json + data;
}

TEST_F(RecordFile, RowsOfATensorAreItems) {
  const std::string json =
      R"({"__metadata__":{"a":"b"},"x":{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]},"y":{"dtype":"F32","shape":[1],"data_offsets":[6,10]}})";
  const std::string path = Write("a.safetensors", Safetensors(json, "abcdef0123"));
  const auto source = Open({.path = path, .tensor = "x"});
  ASSERT_EQ(source->size(), 2U);
  EXPECT_EQ(ReadItem(*source, 1), "def");
  EXPECT_EQ(source->BytesOf(1), 3U);
  EXPECT_THAT(ErrorOf({.path = path}), HasSubstr("several tensors, such as x and y: name one by --tensor"));
  EXPECT_THAT(ErrorOf({.path = path, .tensor = "z"}), HasSubstr("no tensor \"z\""));
  EXPECT_THAT(ErrorOf({.path = Write("b.safetensors", Safetensors(json, "abc")), .tensor = "x"}),
              HasSubstr("truncated"));
  EXPECT_THAT(ErrorOf({.path = Write("c.safetensors", "12345678")}), HasSubstr("a header of"));
}

TEST_F(RecordFile, OfNumbersOfEightBitsTheBitsAreItems) {
  for (const char* type : {"F8_E4M3", "F8_E5M2"}) {
    const std::string json = fmt::format(R"({{"x":{{"dtype":"{}","shape":[2,3],"data_offsets":[0,6]}}}})", type);
    const auto source = Open({.path = Write("a.safetensors", Safetensors(json, "abcdef"))});
    EXPECT_EQ(source->format(), (ItemFormat{ItemKind::kArray, "|u1", {3}, 3}));
    EXPECT_EQ(ReadItem(*source, 1), "def");
  }
}

TEST_F(RecordFile, TokensComeInWindowsThatShareOne) {
  std::string text;
  for (char i = 0; i < 10; ++i) text += {i, '\0'};
  const std::string path = Write("a.bin", text);
  const auto source = Open({.path = path, .tokens_per_item = 4});
  ASSERT_EQ(source->size(), 2U);  // 0 1 2 3 4 and 4 5 6 7 8
  Buffer bytes;
  ASSERT_TRUE(source->Read(1, bytes).ok());
  std::vector<int64_t> tokens(5);
  WidenTokens(bytes.bytes(), 2, tokens);
  EXPECT_EQ(tokens, (std::vector<int64_t>{4, 5, 6, 7, 8}));
  EXPECT_THAT(ErrorOf({.path = Write("odd.bin", "12345"), .tokens_per_item = 1}),
              HasSubstr("no whole number of tokens"));
  EXPECT_THAT(ErrorOf({.path = path, .tokens_per_item = 10}), HasSubstr("an item takes"));
  EXPECT_THAT(ErrorOf({.path = path}), HasSubstr("tokens per item"));
  fs::resize_file(path, 9);
  EXPECT_THAT(ReadItem(*source, 1), HasSubstr("a.bin: it has changed since it was opened"));
}

}  // namespace
}  // namespace lockstep::prepare
