#include "lockstep/prepare/shard_list.h"

#include <gmock/gmock.h>

#include "lockstep/http/test_server.h"
#include "lockstep/prepare/source.h"
#include "lockstep/prepare/test_tar.h"

namespace lockstep::prepare {
namespace {

using http::AnswerText;
using http::GoodAnswer;
using http::TestServer;
using testing::ElementsAre;
using testing::HasSubstr;
using Names = std::vector<std::string>;

Names Expanded(const std::string& path) {
  const absl::StatusOr<Names> names = ExpandBraces(path);
  return names.ok() ? *names : Names{std::string(names.status().message())};
}

Names Listed(const std::string& path, const std::string& text) {
  const absl::StatusOr<Names> names = ParseShardList(path, text);
  return names.ok() ? *names : Names{std::string(names.status().message())};
}

TEST(ShardList, BracesAreExpandedAsAShellDoes) {
  EXPECT_THAT(Expanded("a.tar"), ElementsAre("a.tar"));
  EXPECT_THAT(Expanded("a-{008..010}.tar"), ElementsAre("a-008.tar", "a-009.tar", "a-010.tar"));
  EXPECT_THAT(Expanded("a-{9..11}.tar"), ElementsAre("a-9.tar", "a-10.tar", "a-11.tar"));
  EXPECT_THAT(Expanded("http://h/{train,val}-{0..1}.tar"),
              ElementsAre("http://h/train-0.tar", "http://h/train-1.tar", "http://h/val-0.tar", "http://h/val-1.tar"));
  EXPECT_THAT(Expanded("a{"), ElementsAre("a{"));
  EXPECT_THAT(Expanded("br{1}-{0,1}{}.jpg"), ElementsAre("br{1}-0{}.jpg", "br{1}-1{}.jpg"));
  EXPECT_EQ(Expanded("{000000..999999}").size(), 1'000'000U);
}

TEST(ShardList, WhatComesBeforeBracesEndsWhereTheyAreExpanded) {
  EXPECT_EQ(BeforeBraces("/d/v{2}/{cat,dog}/0.png"), "/d/v{2}/");
  EXPECT_EQ(BeforeBraces("/d/a-{0..1}.tar"), "/d/a-");
  EXPECT_EQ(BeforeBraces("/d/a{1}{"), "/d/a{1}{");
}

TEST(ShardList, BracesThatMeanNothingAreRefused) {
  for (const char* bad : {"a{3..1}.tar", "a{x..y}.tar", "a{..}", "a{0..1000000}.tar", "a{0..99999999999}"})
    EXPECT_THAT(Expanded(bad)[0], HasSubstr("expected {FIRST..LAST}")) << bad;
  EXPECT_THAT(Expanded("{0..999999}{0..9}")[0], HasSubstr("more than 1000000 files"));
}

TEST(ShardList, NamesCountFromWhereTheListLies) {
  EXPECT_THAT(Listed("/data/shards.txt", "# ours\na.tar\r\n\n  b/{0..1}.tar \n/other/c.tar\nhttp://h/d.tar"),
              ElementsAre("/data/a.tar", "/data/b/0.tar", "/data/b/1.tar", "/other/c.tar", "http://h/d.tar"));
  EXPECT_THAT(Listed("http://h:1/x/shards.txt?key=2", "a.tar\n/y/b.tar\nhttps://other/c.tar"),
              ElementsAre("http://h:1/x/a.tar", "http://h:1/y/b.tar", "https://other/c.tar"));
  EXPECT_THAT(Listed("http://h/index.json", R"({"shardlist": [{"url": "a.tar", "nsamples": 3}, {"url": "b.tar"}]})"),
              ElementsAre("http://h/a.tar", "http://h/b.tar"));
}

TEST(ShardList, ADotOnTheWayIsNoFolder) {
  EXPECT_THAT(Listed("/data/./l.txt", "./a/0.jpg\n.//a/./1.jpg\n../b/.c.jpg\n/x/./y.jpg\na/..b/2.jpg"),
              ElementsAre("/data/a/0.jpg", "/data/a/1.jpg", "/data/../b/.c.jpg", "/x/y.jpg", "/data/a/..b/2.jpg"));
  EXPECT_THAT(Listed("http://h/x/l.txt", "./a/0.jpg\n./a/1.jpg?k=./b"),
              ElementsAre("http://h/x/a/0.jpg", "http://h/x/a/1.jpg?k=./b"));
}

TEST(ShardList, AByteOrderMarkIsNoPartOfTheFirstName) {
  EXPECT_THAT(Listed("/l.txt", "\xEF\xBB\xBF# ours\na.tar"), ElementsAre("/a.tar"));
  EXPECT_THAT(Listed("/l.txt", "\xEF\xBB\xBFnew.tar\r\na.tar"), ElementsAre("/new.tar", "/a.tar"));
}

// It would be two items of one key.
TEST(ShardList, ANameThatComesTwiceIsRefused) {
  EXPECT_EQ(Listed("/d/l.txt", "# ours\nb.tar\n\na.tar\n./b.tar\na.tar")[0],
            "/d/l.txt: line 5 names /d/b.tar, as line 2 does: expected each file once");
  EXPECT_THAT(Listed("/d/l.txt", "a-{0..9}.tar\n/d/a-7.tar")[0], HasSubstr("line 2 names /d/a-7.tar, as line 1 does"));
  EXPECT_THAT(Listed("/d/l.txt", "{a,a}.tar")[0], HasSubstr("line 1 names /d/a.tar, as line 1 does"));
  EXPECT_EQ(Listed("http://h/i.json", R"({"shardlist": [{"url": "a.tar?s=1"}, {"url": "http://h/a.tar?s=1"}]})")[0],
            "http://h/i.json: entry 2 names http://h/a.tar, as entry 1 does: expected each file once");
  EXPECT_THAT(Listed("http://h/l.txt", "a.jpg?id=1\na.jpg?id=2"),
              ElementsAre("http://h/a.jpg?id=1", "http://h/a.jpg?id=2"));
}

TEST(ShardList, NamesOfFilesAreEscapedInUrls) {
  EXPECT_THAT(
      Listed("http://h/x y/l.txt", "c at/\xC3\xBC#%20{1}.jpg\n/b c.tar?k=a%2F\nhttp://h/%20.tar"),
      ElementsAre("http://h/x y/c%20at/%C3%BC%23%2520%7B1%7D.jpg", "http://h/b%20c.tar?k=a%2F", "http://h/%20.tar"));
  EXPECT_THAT(Listed("http://h/i.json", R"({"shardlist": [{"url": "a%20b.tar"}]})"), ElementsAre("http://h/a%20b.tar"));
}

TEST(ShardList, WhatIsNoListIsRefused) {
  EXPECT_THAT(Listed("a.json", R"({"shardlist": [{}]})")[0], HasSubstr(R"(a.json: expected {"shardlist")"));
  EXPECT_THAT(Listed("a.json", "[")[0], HasSubstr(R"(a.json: expected {"shardlist")"));
  EXPECT_THAT(Listed("a.txt", "# nothing\n\n")[0], HasSubstr("no name in it"));
}

// ---- over HTTP ----

class Shards : public testing::Test {
 protected:
  static std::string Path(const std::string& request) {
    const size_t begin = request.find(' ') + 1;
    return request.substr(begin, request.find(' ', begin) - begin);
  }
  std::string Answer(const std::string& request) {
    const auto found = files_.find(Path(request));
    return found == files_.end() ? AnswerText("404 Not Found", "", "") : GoodAnswer(request, found->second, "v1");
  }
  std::string Open(const std::string& path) {
    absl::StatusOr<std::unique_ptr<Source>> source =
        OpenSource({.path = server_.Url(path), .tokens_per_item = 2, .patience = Seconds{0}});
    if (!source.ok()) return std::string(source.status().message());
    std::string all;
    for (uint64_t i = 0; i < (*source)->size(); ++i) {
      Buffer bytes;
      const absl::Status status = (*source)->Read(i, bytes);
      if (!status.ok()) return std::string(status.message());
      all +=
          (*source)->item(i).key + "=" + std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) + " ";
    }
    return all;
  }

  std::map<std::string, std::string> files_ = {{"/a-0.tar", TarEntry("1.jpg", "one") + TarEntry("1.cls", "1")},
                                               {"/a-1.tar", TarEntry("2.jpg", "two") + TarEntry("2.txt", "x")}};
  TestServer server_{[this](const std::string& request) { return Answer(request); }};
};

TEST_F(Shards, OfBracesAListAndAnIndex) {
  const std::string both = "a-0.tar/1.jpg=one a-1.tar/2.jpg=two ";
  EXPECT_EQ(Open("/a-{0..1}.tar"), both);
  EXPECT_EQ(Open("/a-1.tar"), "a-1.tar/2.jpg=two ");
  EXPECT_THAT(Open("/"), HasSubstr("neither an index.json nor a shards.txt"));
  files_["/shards.txt"] = "a-{0..1}.tar\n";
  EXPECT_EQ(Open("/"), both);
  EXPECT_EQ(Open("/shards.txt"), both);
  files_["/index.json"] = R"({"shardlist": [{"url": "a-0.tar"}]})";
  EXPECT_EQ(Open("/"), "a-0.tar/1.jpg=one ");
  EXPECT_THAT(Open("/a-{0..2}.tar"), HasSubstr("/a-2.tar: the server has no such file (status 404)"));
  EXPECT_THAT(Open("/a.{bin,npy}"), HasSubstr("all must be .tar"));
  EXPECT_THAT(Open("/a"), HasSubstr("expected a directory of images"));
}

TEST_F(Shards, AListOfImagesIsAFolder) {
  files_ = {{"/d/list.txt", "cat/1.jpg\ndog/b/2.jpg?key=secret\ncat/0.jpg\nREADME\n9.jpg\n"},
            {"/d/cat/0.jpg", "c0"},
            {"/d/cat/1.jpg", "c1"},
            {"/d/dog/b/2.jpg?key=secret", "d2"}};
  EXPECT_EQ(Open("/d/list.txt"), "cat/0.jpg=c0 cat/1.jpg=c1 dog/b/2.jpg=d2 ");
  const auto source = *OpenSource({.path = server_.Url("/d/list.txt"), .patience = Seconds{0}});
  EXPECT_THAT(source->classes(), ElementsAre("cat", "dog"));
  EXPECT_EQ(source->item(1).label, 0);
  EXPECT_EQ(source->item(2).label, 1);
  EXPECT_THAT(source->counters(),
              ElementsAre(testing::Pair("images_outside_of_classes", 1), testing::Pair("files_of_other_kinds", 1)));
  files_["/flat.txt"] = "2.wav\n1.wav\n";
  files_["/1.wav"] = "one";
  EXPECT_THAT(Open("/flat.txt"), HasSubstr("/2.wav: the server has no such file (status 404)"));
  files_["/2.wav"] = "two";
  EXPECT_EQ(Open("/flat.txt"), "1.wav=one 2.wav=two ");
  files_["/l/elsewhere.txt"] = server_.Url("/d/cat/1.jpg") + "\n" + server_.Url("/d/cat/0.jpg") + "\n";
  EXPECT_THAT(Open("/l/elsewhere.txt"), HasSubstr("/d/cat/0.jpg=c0 "));
}

// The one that `find` has made is read here and behind HTTP alike.
TEST_F(Shards, OfFilesWithOddNames) {
  files_ = {{"/l.txt", "./c at/a b.jpg\n./c at/a!b.jpg\n./d/\xC3\xBC.jpg\n./d/p%20q#.jpg\n"},
            {"/c%20at/a%20b.jpg", "1"},
            {"/c%20at/a!b.jpg", "2"},
            {"/d/%C3%BC.jpg", "3"},
            {"/d/p%2520q%23.jpg", "4"}};
  EXPECT_EQ(Open("/l.txt"), "c at/a b.jpg=1 c at/a!b.jpg=2 d/p%20q#.jpg=4 d/\xC3\xBC.jpg=3 ");
  EXPECT_THAT((*OpenSource({.path = server_.Url("/l.txt")}))->classes(), ElementsAre("c at", "d"));
  files_["/urls.txt"] = "x%20y.tar\n";
  EXPECT_THAT(Open("/urls.txt"),
              HasSubstr("/x%2520y.tar: the server has no such file (status 404); names in a list that "
                        "is a text are those of files, and each \"%\" in them is escaped"));
}

TEST_F(Shards, AFewRequestsOpenAShard) {
  std::string tar;
  for (int i = 0; i < 20; ++i)
    tar += TarEntry(std::to_string(i) + ".cls", "7") + TarEntry(std::to_string(i) + ".jpg", std::string(60'000, 'x'));
  files_["/b.tar"] = tar;
  const auto source = OpenSource({.path = server_.Url("/b.tar")});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->size(), 20U);
  EXPECT_LE(server_.requests(), 22);
}

TEST_F(Shards, TokensAndArraysLieBehindHttpToo) {
  files_["/t.bin"] = std::string("a\0b\0c\0", 6);
  EXPECT_EQ(Open("/t.bin"), std::string("t.bin/0=a\0b\0c\0 ", 15));
  const std::string dict = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }";
  files_["/r.npy"] = std::string("\x93NUMPY\x01\0", 8) + static_cast<char>(dict.size()) + '\0' + dict + "abcdef";
  EXPECT_EQ(Open("/r.npy"), "r.npy/0=abc r.npy/1=def ");
  const std::string json = R"({"x":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]}})";
  files_["/s.safetensors"] = std::string(1, static_cast<char>(json.size())) + std::string(7, '\0') + json + "abcd";
  EXPECT_EQ(Open("/s.safetensors"), "s.safetensors/0=ab s.safetensors/1=cd ");
}

}  // namespace
}  // namespace lockstep::prepare
