#include "lockstep/prepare/jpeg.h"

#include <gmock/gmock.h>

#include "lockstep/prepare/draws.h"
#include "lockstep/prepare/test_images.h"
#include "lockstep/prepare/transcode.h"

namespace lockstep::prepare {
namespace {

using testing::HasSubstr;

std::vector<JpegShape> Shapes() {
  std::vector<JpegShape> shapes;
  for (const auto& [across, down] : {std::pair{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}})
    for (const auto& [width, height] : {std::pair{130, 97}, {64, 48}, {333, 40}})
      for (const bool progressive : {false, true})
        shapes.push_back({width, height, across, down, JCS_RGB, progressive});
  shapes.push_back({101, 77, 1, 1, JCS_GRAYSCALE});
  shapes.push_back({101, 77, 1, 1, JCS_CMYK});
  shapes.push_back({1, 1});
  shapes.push_back({3, 200});
  return shapes;
}

std::string NameOf(const JpegShape& shape) {
  return fmt::format("{} x {}, {} x {}, color {}{}", shape.width, shape.height, shape.across, shape.down,
                     static_cast<int>(shape.color), shape.progressive ? ", progressive" : "");
}

std::vector<uint8_t> Decoded(JpegDecoder& decoder, Bytes jpeg, const Region& crop) {
  const absl::StatusOr<JpegHead> head = ReadJpegHead(jpeg);
  EXPECT_TRUE(head.ok()) << head.status();
  Image image;
  const absl::Status status = decoder.Decode(jpeg, *head, crop, image);
  EXPECT_TRUE(status.ok()) << status;
  return PixelsOf(image.view);
}

// By libjpeg alone.
std::vector<uint8_t> Reference(Bytes jpeg, const Size& size) {
  JpegDecoder decoder;
  decoder.set_own_entropy(false);
  decoder.set_use_tiles(false);
  return Decoded(decoder, jpeg, Whole(size));
}

// Crops of all sizes, at borders too.
std::vector<Region> CropsOf(const Size& size) {
  Draws draws({.seed = 7, .item = size.pixels()});
  std::vector<Region> crops = {Whole(size), {0, 0, 1, 1}, {size.width - 1, size.height - 1, 1, 1}};
  for (int i = 0; i < 40; ++i) {
    Region crop;
    crop.width = 1 + static_cast<int>(draws.Below(static_cast<uint32_t>(size.width)));
    crop.height = 1 + static_cast<int>(draws.Below(static_cast<uint32_t>(size.height)));
    crop.x = static_cast<int>(draws.Below(static_cast<uint32_t>(size.width - crop.width + 1)));
    crop.y = static_cast<int>(draws.Below(static_cast<uint32_t>(size.height - crop.height + 1)));
    crops.push_back(crop);
  }
  return crops;
}

std::vector<uint8_t> Cut(const std::vector<uint8_t>& pixels, const Size& size, const Region& crop) {
  return PixelsOf(ImageView{pixels.data(), size, static_cast<size_t>(size.width) * 3}.Crop(crop));
}

TEST(Jpeg, ACropIsBitIdenticalWithCuttingTheWhole) {
  JpegDecoder decoder;
  for (const JpegShape& shape : Shapes()) {
    const std::string jpeg = MakeJpeg(shape);
    const Size size{shape.width, shape.height};
    const std::vector<uint8_t> whole = Reference(BytesOf(jpeg), size);
    for (const Region& crop : CropsOf(size))
      ASSERT_EQ(Decoded(decoder, BytesOf(jpeg), crop), Cut(whole, size, crop))
          << NameOf(shape) << ": " << crop.x << " " << crop.y << " " << crop.width << " " << crop.height;
    EXPECT_EQ(decoder.traits().own_entropy, !shape.progressive) << NameOf(shape);
  }
}

TEST(Jpeg, RowsThatAreTakenAsTheyComeAreThoseOfTheImage) {
  JpegDecoder decoder;
  for (const JpegShape& shape : Shapes()) {
    const std::string jpeg = MakeJpeg(shape);
    const JpegHead head = *ReadJpegHead(BytesOf(jpeg));
    for (const Region& crop : CropsOf({shape.width, shape.height})) {
      Gatherer gatherer;
      ASSERT_TRUE(decoder.Decode(BytesOf(jpeg), head, crop, gatherer).ok());
      ASSERT_EQ(gatherer.pixels, Decoded(decoder, BytesOf(jpeg), crop)) << NameOf(shape);
      ASSERT_LE(gatherer.most_rows, 16);
    }
  }
}

// All qualities, so that codes and values of all lengths come up.
TEST(Jpeg, OwnEntropyDecodingIsThatOfLibjpeg) {
  JpegDecoder decoder;
  for (int quality = 1; quality <= 100; quality += 3) {
    const std::string jpeg = MakeJpeg({150, 90, 2, 2, JCS_RGB, false, quality});
    ASSERT_EQ(Decoded(decoder, BytesOf(jpeg), {0, 0, 150, 90}), Reference(BytesOf(jpeg), {150, 90})) << quality;
    EXPECT_TRUE(decoder.traits().own_entropy);
  }
}

struct Outcome {
  bool ok, damaged;
  std::string message;
  std::vector<uint8_t> pixels;
  bool operator==(const Outcome&) const = default;
};
Outcome OutcomeOf(JpegDecoder& decoder, Bytes jpeg, const JpegHead& head, const Region& crop) {
  Image image;
  const absl::Status status = decoder.Decode(jpeg, head, crop, image);
  return {status.ok(), decoder.traits().damaged, std::string(status.message()),
          status.ok() ? PixelsOf(image.view) : std::vector<uint8_t>{}};
}

// With restart markers and without: whatever libjpeg makes of damage, ours gives the same.
TEST(Jpeg, DamageMeansWhatItMeansToLibjpeg) {
  const std::string plain = MakeJpeg({150, 90});
  Buffer tiled;
  ASSERT_TRUE(AddTileIndex(BytesOf(plain), *ReadJpegHead(BytesOf(plain)), tiled).ok());
  JpegDecoder own, library;
  library.set_own_entropy(false);
  for (JpegDecoder* decoder : {&own, &library}) decoder->set_use_tiles(false);
  Draws draws({.seed = 3});
  int repaired = 0, by_own = 0;
  for (const Bytes& whole : {BytesOf(plain), tiled.bytes()}) {
    const JpegHead head = *ReadJpegHead(whole);
    for (int i = 0; i < 1500; ++i) {
      Buffer bent;
      bent.Assign(whole);
      const auto at = head.entropy_at + draws.Below(static_cast<uint32_t>(whole.size() - head.entropy_at));
      bent.data()[at] = static_cast<uint8_t>(i % 3 == 0 ? 0xFF : draws.Below(256));
      const Region crop = i % 2 == 0 ? Whole(head.size) : Region{40, 30, 60, 50};
      const Outcome expected = OutcomeOf(library, bent.bytes(), head, crop);
      ASSERT_EQ(OutcomeOf(own, bent.bytes(), head, crop), expected) << i;
      repaired += expected.damaged ? 1 : 0;
      by_own += own.traits().own_entropy ? 1 : 0;
    }
  }
  EXPECT_GT(repaired, 100);
  EXPECT_GT(by_own, 100);
}

TEST(Jpeg, ACropByTilesIsBitIdenticalWithCuttingTheWhole) {
  JpegDecoder decoder;
  int indexed = 0;
  for (const JpegShape& shape : Shapes()) {
    const std::string jpeg = MakeJpeg(shape);
    const Size size{shape.width, shape.height};
    const std::vector<uint8_t> whole = Reference(BytesOf(jpeg), size);
    Buffer tiled;
    ASSERT_TRUE(AddTileIndex(BytesOf(jpeg), *ReadJpegHead(BytesOf(jpeg)), tiled).ok()) << NameOf(shape);
    decoder.set_use_tiles(false);
    ASSERT_EQ(Decoded(decoder, tiled.bytes(), Whole(size)), whole) << NameOf(shape);
    decoder.set_use_tiles(true);
    for (const Region& crop : CropsOf(size)) {
      ASSERT_EQ(Decoded(decoder, tiled.bytes(), crop), Cut(whole, size, crop))
          << NameOf(shape) << ": " << crop.x << " " << crop.y << " " << crop.width << " " << crop.height;
      indexed += decoder.traits().by_tiles ? 1 : 0;
    }
  }
  EXPECT_GT(indexed, 1000);
}

TEST(Jpeg, ADamagedIndexIsNotUsed) {
  const std::string jpeg = MakeJpeg({130, 97});
  Buffer tiled;
  ASSERT_TRUE(AddTileIndex(BytesOf(jpeg), *ReadJpegHead(BytesOf(jpeg)), tiled).ok());
  const absl::StatusOr<JpegHead> head = ReadJpegHead(tiled.bytes());
  ASSERT_TRUE(head.ok());
  JpegDecoder decoder;
  const std::vector<uint8_t> whole = Reference(BytesOf(jpeg), {130, 97});
  const size_t begin = static_cast<size_t>(head->tile_marker.data() - tiled.data());
  for (size_t i = 8; i < head->tile_marker.size(); ++i) {
    Buffer bent;
    bent.Assign(tiled.bytes());
    bent.data()[begin + i] ^= 0x05;
    EXPECT_EQ(Decoded(decoder, bent.bytes(), {20, 30, 50, 60}), Cut(whole, {130, 97}, {20, 30, 50, 60})) << i;
    EXPECT_TRUE(decoder.traits().bad_index) << i;
  }
}

// The middle of what is cut short is gray in other decoders; here it is an error, as in PIL.
TEST(Jpeg, ATruncatedFileIsAnError) {
  const std::string jpeg = MakeJpeg({130, 97});
  JpegDecoder decoder;
  Image image;
  int refused = 0;
  for (size_t size = 0; size < jpeg.size() - 2; size += 7) {
    const Bytes part = BytesOf(jpeg).first(size);
    const absl::StatusOr<JpegHead> head = ReadJpegHead(part);
    const absl::Status status = head.ok() ? decoder.Decode(part, *head, Whole(head->size), image) : head.status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << size << ": " << status;
    ++refused;
  }
  EXPECT_GT(refused, 100);
  EXPECT_EQ(Decoded(decoder, BytesOf(jpeg), {0, 0, 130, 97}).size(), 130U * 97 * 3);  // and the decoder goes on
}

// R = (255 - K) - C * (255 - K) / 255 of the inverted values that the file holds.
TEST(Jpeg, CmykIsTurnedIntoRgbAsByPil) {
  JpegDecoder decoder;
  const std::vector<uint8_t> rgb =
      Decoded(decoder, BytesOf(MakeJpeg({16, 16, 1, 1, JCS_CMYK, false, 100})), {0, 0, 16, 16});
  const std::vector<uint8_t> cmyk = TestPixels(16, 16, 4);
  for (size_t i = 0; i < 256; ++i)
    for (size_t c = 0; c < 3; ++c) EXPECT_NEAR(rgb[i * 3 + c], cmyk[i * 4 + c] * cmyk[i * 4 + 3] / 255.0, 6) << i;
}

TEST(JpegHead, SaysWhatIsWrong) {
  EXPECT_THAT(std::string(ReadJpegHead(BytesOf("")).status().message()), HasSubstr("no JPEG"));
  EXPECT_THAT(std::string(ReadJpegHead(BytesOf("\xFF\xD8\xFF\xE0")).status().message()), HasSubstr("truncated"));
}

// Divisors of the MCUs in a row, so that no tile goes over its end.
TEST(Transcode, TilesAreAWholeNumberInARow) {
  EXPECT_EQ(TileWidth({32, 24}), 4);
  EXPECT_EQ(TileWidth({21, 24}), 3);
  EXPECT_EQ(TileWidth({25, 24}), 5);
  EXPECT_EQ(TileWidth({22, 24}), 2);
  EXPECT_EQ(TileWidth({31, 24}), 1);
  EXPECT_EQ(TileWidth({1, 1}), 1);
  EXPECT_EQ(TileWidth({500, 400}), 20);  // 50,000 tiles would be too many
}

}  // namespace
}  // namespace lockstep::prepare
