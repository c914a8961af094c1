#include "lockstep/prepare/pack.h"

#include <gmock/gmock.h>

#include <map>

#include "lockstep/prepare/records.h"
#include "lockstep/prepare/test_directory.h"

namespace lockstep::prepare {
namespace {

using testing::HasSubstr;
using Ends = std::vector<uint64_t>;

std::string Text(const Packing& packing) {
  std::string text;
  for (uint64_t row = 0; row < packing.size(); ++row) {
    for (const Piece& piece : packing.Row(row)) text += fmt::format("{}+{} ", piece.begin, piece.count);
    text += "| ";
  }
  return text;
}

TEST(Pack, BestFitPutsEachWhereLeastRoomIsLeft) {
  // Documents of 3, 5, 2, 6 and 4 tokens in rows of 8: 6 and 2, 5 and 3, 4.
  EXPECT_EQ(Text(PackBestFit(Ends{3, 8, 10, 16, 20}, 8)), "10+6 8+2 | 3+5 0+3 | 16+4 | ");
}

TEST(Pack, ADocumentThatIsTooLongIsCutIntoPiecesThatShareAToken) {
  EXPECT_EQ(Text(PackBestFit(Ends{10}, 4)), "0+4 | 3+4 | 6+4 | ");
  EXPECT_EQ(Text(PackBestFit(Ends{11}, 4)), "0+4 | 3+4 | 6+4 | 9+2 | ");
}

TEST(Pack, ChunksAreFullRows) {
  EXPECT_EQ(Text(PackChunks(Ends{3, 8, 10, 16, 20}, 8)), "0+3 3+5 | 8+2 10+6 | 16+4 | ");
  EXPECT_EQ(Text(PackChunks(Ends{10, 12}, 4)), "0+4 | 3+4 | 6+4 | 10+2 | ");
  EXPECT_EQ(Text(PackChunks(Ends{3, 6}, 4)), "0+3 | 3+3 | ") << "one place would take a token without its next";
  EXPECT_EQ(Text(PackChunks(Ends{3, 4}, 4)), "0+3 3+1 | ");
}

// Each pair of neighbours of a document lies in exactly one row, each token in one at least, no row is too long.
void CheckPacking(const Packing& packing, const Ends& ends, uint64_t capacity) {
  std::vector<int> pairs(ends.back()), tokens(ends.back());
  for (uint64_t row = 0; row < packing.size(); ++row) {
    uint64_t count = 0;
    ASSERT_FALSE(packing.Row(row).empty());
    for (const Piece& piece : packing.Row(row)) {
      count += piece.count;
      for (uint64_t i = 0; i < piece.count; ++i) ++tokens[piece.begin + i];
      for (uint64_t i = 0; i + 1 < piece.count; ++i) ++pairs[piece.begin + i];
    }
    ASSERT_LE(count, capacity);
  }
  size_t document = 0;
  for (uint64_t i = 0; i < ends.back(); ++i) {
    if (ends[document] == i) ++document;
    ASSERT_EQ(pairs[i], i + 1 == ends[document] ? 0 : 1) << i;
    ASSERT_GE(tokens[i], 1) << i;
  }
}

TEST(Pack, EachPairComesExactlyOnce) {
  uint32_t chance = 1;
  const auto below = [&](uint32_t count) { return (chance = chance * 1664525 + 1013904223) % 65'521 % count; };
  for (const uint64_t capacity : {2U, 3U, 17U, 129U})
    for (int round = 0; round < 20; ++round) {
      Ends ends;
      for (uint64_t end = 0; ends.size() < 300;) ends.push_back(end += 1 + below(round % 2 == 0 ? 20 : 400));
      CheckPacking(PackBestFit(ends, capacity), ends, capacity);
      CheckPacking(PackChunks(ends, capacity), ends, capacity);
    }
}

TEST(Pack, BestFitCutsNothingThatFitsAndFillsRows) {
  uint32_t chance = 7;
  Ends ends;
  for (uint64_t end = 0; ends.size() < 5000;)
    ends.push_back(end += 1 + ((chance = chance * 1664525 + 1013904223) >> 16) % 512);
  const Packing packing = PackBestFit(ends, 512);
  EXPECT_EQ(packing.pieces.size(), ends.size());
  EXPECT_LE(packing.size() * 512, ends.back() * 103 / 100);
  EXPECT_EQ(Text(packing), Text(PackBestFit(ends, 512)));
}

TEST(Pack, OffsetsMayBeBeginningsOrEnds) {
  const auto ends = [](std::vector<int64_t> offsets) { return *EndsFromOffsets(offsets, 20); };
  const Ends expected{3, 8, 20};
  EXPECT_EQ(ends({0, 3, 8}), expected);
  EXPECT_EQ(ends({3, 8, 20}), expected);
  EXPECT_EQ(ends({0, 3, 3, 8, 20, 20}), expected);
  EXPECT_EQ(ends({}), Ends{20});
  for (const std::vector<int64_t>& bad : {std::vector<int64_t>{-1}, {5, 3}, {21}})
    EXPECT_THAT(std::string(EndsFromOffsets(bad, 20).status().message()),
                HasSubstr("expected ascending places up to 20"));
}

// ---- files ----

using PackedFile = Directory;

template <typename Token>
std::string FileOf(std::initializer_list<Token> tokens) {
  return {reinterpret_cast<const char*>(std::data(tokens)), tokens.size() * sizeof(Token)};
}

std::vector<int64_t> RowOf(const Source& source, uint64_t row) {
  Buffer bytes;
  const absl::Status status = source.Read(row, bytes);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<int64_t> values(bytes.size() / 8);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST_F(PackedFile, ARowHasTokensPiecesAndPlaces) {
  const uint32_t large = 4'000'000'000;
  const std::string path = Write("t.bin", FileOf<uint32_t>({5, 6, 0, 1 << 25, 0, large, 7, 8, 9, 0}));
  const auto source =
      Open({.path = path, .token_bytes = 4, .tokens_per_item = 5, .pack = PackRule::kBestFit, .end_token = 0});
  EXPECT_EQ(source->BytesOf(0), 3U * 6 * 8 + 6 * 4);  // the row, and tokens as they lie there
  EXPECT_EQ(source->format(), (ItemFormat{ItemKind::kTokens, "<i8", {3, 6}, 144}));
  ASSERT_EQ(source->size(), 2U);
  EXPECT_EQ(RowOf(*source, 0), (std::vector<int64_t>{large, 7, 8, 9, 0, 0, 1, 1, 1, 1, 1, 0, 0, 1, 2, 3, 4, 0}));
  EXPECT_EQ(RowOf(*source, 1), (std::vector<int64_t>{5, 6, 0, 1 << 25, 0, 0, 1, 1, 1, 2, 2, 0, 0, 1, 2, 0, 1, 0}));
}

TEST_F(PackedFile, DocumentsMayBeListed) {
  const std::string path = Write("t.bin", FileOf<uint16_t>({1, 2, 3, 4, 5, 6, 7}));
  std::string dict = "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }";
  dict += std::string(118 - dict.size(), ' ');
  const std::string list = Write("t.npy", std::string("\x93NUMPY\x01\0\x76\0", 10) + dict + FileOf<int64_t>({0, 3}));
  const auto source = Open({.path = path, .tokens_per_item = 3, .pack = PackRule::kChunk, .documents = list});
  ASSERT_EQ(source->size(), 2U);
  EXPECT_EQ(RowOf(*source, 0), (std::vector<int64_t>{1, 2, 3, 0, 1, 1, 1, 0, 0, 1, 2, 0}));
  EXPECT_EQ(RowOf(*source, 1), (std::vector<int64_t>{4, 5, 6, 7, 1, 1, 1, 1, 0, 1, 2, 3}));
  EXPECT_THAT(
      ErrorOf({.path = Write("s.bin", "ab"), .tokens_per_item = 3, .pack = PackRule::kChunk, .documents = list}),
      HasSubstr("t.npy: number 1 is 3"));
  std::filesystem::resize_file(path, 9);
  Buffer bytes;
  EXPECT_THAT(std::string(source->Read(1, bytes).message()), HasSubstr("it has changed since it was opened"));
}

TEST_F(PackedFile, WhatCannotBePackedIsSaid) {
  const std::string path = Write("t.bin", FileOf<uint16_t>({1, 2, 3}));
  const SourceSpec good{.path = path, .tokens_per_item = 3, .pack = PackRule::kChunk, .end_token = 3};
  EXPECT_EQ(Open(good)->size(), 1U);
  const auto error = [&](auto change) {
    SourceSpec spec = good;
    change(spec);
    return ErrorOf(spec);
  };
  EXPECT_THAT(error([](SourceSpec& spec) { spec.end_token = 9; }), HasSubstr("no document in it ends with token 9"));
  EXPECT_THAT(error([](SourceSpec& spec) { spec.end_token = 1 << 16; }), HasSubstr("no token of 2 bytes is 65536"));
  EXPECT_THAT(error([](SourceSpec& spec) { spec.end_token.reset(); }),
              HasSubstr("say either the token that ends each"));
  EXPECT_THAT(error([](SourceSpec& spec) { spec.documents = "x.npy"; }), HasSubstr("say either"));
  EXPECT_THAT(error([](SourceSpec& spec) { spec.pack = PackRule::kNone; }), HasSubstr("only if they are packed"));
  EXPECT_THAT(error([](SourceSpec& spec) { spec.tokens_per_item = 0; }), HasSubstr("0 tokens per item"));
  EXPECT_THAT(error([](SourceSpec& spec) { spec.tokens_per_item = 1 << 28; }), HasSubstr("packed ones have"));
  EXPECT_THAT(error([&](SourceSpec& spec) { spec.path = Write("odd.bin", "abc"); }),
              HasSubstr("no whole number of tokens"));
  EXPECT_THAT(error([&](SourceSpec& spec) { spec.path = Write("empty.bin", ""); }), HasSubstr("no document"));
}

}  // namespace
}  // namespace lockstep::prepare
