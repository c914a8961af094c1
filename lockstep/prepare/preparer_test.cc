#include "lockstep/prepare/preparer.h"

#include <gmock/gmock.h>
#include <malloc.h>
#include <png.h>
#include <webp/encode.h>

#include "lockstep/prepare/test_images.h"
#include "lockstep/prepare/transcode.h"

namespace lockstep::prepare {
namespace {

using testing::HasSubstr;

std::vector<uint8_t> Prepared(Preparer& preparer, const std::string& image, const Recipe& recipe,
                              const AugmentKey& key) {
  std::vector<uint8_t> out(recipe.bytes());
  const absl::Status status = preparer.Prepare(BytesOf(image), recipe, key, out);
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

std::string MakePng(uint32_t format, int width, int height) {
  const std::vector<uint8_t> pixels = TestPixels(width, height, static_cast<int>(PNG_IMAGE_SAMPLE_CHANNELS(format)));
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = format;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string text(size, '\0');
  EXPECT_NE(png_image_write_to_memory(&image, text.data(), &size, 0, pixels.data(), 0, nullptr), 0) << image.message;
  text.resize(size);
  return text;
}

// Of the same pixels, with what png_image does not write: interlaced, or with so many texts of 4 MB each.
std::string WritePng(int width, int height, int interlace, int texts) {
  const std::vector<uint8_t> pixels = TestPixels(width, height, 3);
  std::string text;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &text,
      [](png_structp to, png_bytep data, size_t size) {
        static_cast<std::string*>(png_get_io_ptr(to))->append(reinterpret_cast<char*>(data), size);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), 8, PNG_COLOR_TYPE_RGB,
               interlace, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  std::string blanks(4 << 20, ' '), key = "Comment";
  png_text one{};
  one.compression = PNG_TEXT_COMPRESSION_zTXt;
  one.key = key.data();
  one.text = blanks.data();
  one.text_length = blanks.size();
  for (int i = 0; i < texts; ++i) png_set_text(png, info, &one, 1);
  png_write_info(png, info);
  std::vector<png_bytep> rows;
  for (int y = 0; y < height; ++y)
    rows.push_back(const_cast<uint8_t*>(pixels.data()) + static_cast<ptrdiff_t>(y) * width * 3);
  png_write_image(png, rows.data());
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return text;
}

std::string MakeInterlacedPng(int width, int height) { return WritePng(width, height, PNG_INTERLACE_ADAM7, 0); }

std::string MakeWebp(int width, int height) {
  const std::vector<uint8_t> pixels = TestPixels(width, height, 3);
  uint8_t* data = nullptr;
  const size_t size = WebPEncodeLosslessRGB(pixels.data(), width, height, width * 3, &data);
  std::string text(reinterpret_cast<char*>(data), size);
  WebPFree(data);
  return text;
}

TEST(Preparer, ASharedDecodeGivesWhatEachJobGetsAlone) {
  Preparer preparer;
  const std::vector<Recipe> recipes = {{}, {.size = {96, 64}}, {.crop = CropRule::kCenter}};
  for (const JpegShape& shape : std::vector<JpegShape>{{500, 375}, {131, 77, 2, 1}, {200, 300, 1, 1, JCS_GRAYSCALE}}) {
    const std::string jpeg = MakeJpeg(shape);
    Image whole;
    ASSERT_TRUE(preparer.Decode(BytesOf(jpeg), whole).ok());
    for (uint64_t job = 0; job < 8; ++job) {
      const Recipe& recipe = recipes[job % recipes.size()];
      const AugmentKey key{3, 1, 17, job};
      std::vector<uint8_t> shared(recipe.bytes());
      preparer.Augment(whole.view, recipe, key, shared);
      EXPECT_EQ(Prepared(preparer, jpeg, recipe, key), shared) << job;
    }
  }
}

TEST(Preparer, ASharedDecodeOfOtherFormatsToo) {
  Preparer preparer;
  for (const std::string& file :
       {MakePng(PNG_FORMAT_RGB, 301, 222), MakePng(PNG_FORMAT_GA, 40, 300), MakeInterlacedPng(301, 222),
        MakeWebp(301, 222), MakeJpeg({101, 77, 1, 1, JCS_CMYK}), MakeJpeg({500, 375, 2, 2, JCS_RGB, true})}) {
    Image whole;
    ASSERT_TRUE(preparer.Decode(BytesOf(file), whole).ok());
    for (uint64_t job = 0; job < 8; ++job) {
      std::vector<uint8_t> shared(Recipe{}.bytes());
      preparer.Augment(whole.view, {}, {3, 1, 17, job}, shared);
      EXPECT_EQ(Prepared(preparer, file, {}, {3, 1, 17, job}), shared) << job;
    }
  }
}

// Looks at what is allocated whenever rows come: then a decoder has all that it will ever have.
class MemoryWatcher final : public RowTaker {
 public:
  void Begin() override {}
  void Take(const ImageView&) override { most = std::max(most, Allocated()); }
  static uint64_t Allocated() {  // 0 with a sanitizer
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  }

  uint64_t most = 0;
};

TEST(ImageDecoder, TakesNoMoreMemoryThanItSays) {
  for (const std::string& file : {MakeJpeg({1800, 1300}), MakeJpeg({1800, 1300, 2, 2, JCS_RGB, true}),
                                  MakeJpeg({1800, 1300, 1, 1, JCS_RGB, true}), MakeJpeg({1800, 1300, 1, 1, JCS_CMYK}),
                                  MakeJpeg({1800, 1300, 1, 1, JCS_GRAYSCALE}), MakePng(PNG_FORMAT_RGB, 1800, 1300),
                                  MakePng(PNG_FORMAT_RGBA, 1800, 1300), MakeInterlacedPng(1800, 1300),
                                  WritePng(90, 70, PNG_INTERLACE_NONE, 8), MakeWebp(1800, 1300)}) {
    const ImageHead head = *ReadImageHead(BytesOf(file));
    const DecodeMemory need = MemoryToDecode(head);
    const uint64_t before = MemoryWatcher::Allocated();
    MemoryWatcher watcher;
    ImageDecoder decoder;
    ASSERT_TRUE(decoder.Decode(BytesOf(file), head, Whole(head.size), watcher).ok());
    EXPECT_LE(watcher.most, before + need.by_rows + kDecoderKeeps);
    EXPECT_LE(MemoryWatcher::Allocated(), before + kDecoderKeeps);
    Image whole;
    ASSERT_TRUE(decoder.Decode(BytesOf(file), head, Whole(head.size), whole).ok());
    EXPECT_LE(whole.buffer.capacity(), need.kept);
  }
  const uint64_t pixels = 1800 * 1300 * 3;
  EXPECT_LE(MemoryToDecode(*ReadImageHead(BytesOf(MakeJpeg({1800, 1300})))).by_rows, pixels / 10);
  EXPECT_LE(MemoryToDecode(*ReadImageHead(BytesOf(MakePng(PNG_FORMAT_RGB, 1800, 1300)))).by_rows, pixels / 10);
}

TEST(Preparer, ATileIndexChangesNothing) {
  const std::string jpeg = MakeJpeg({500, 375});
  Buffer tiled;
  ASSERT_TRUE(AddTileIndex(BytesOf(jpeg), *ReadJpegHead(BytesOf(jpeg)), tiled).ok());
  const std::string with(reinterpret_cast<const char*>(tiled.data()), tiled.size());
  Preparer preparer;
  for (uint64_t item = 0; item < 50; ++item)
    EXPECT_EQ(Prepared(preparer, with, {}, {.item = item}), Prepared(preparer, jpeg, {}, {.item = item})) << item;
  EXPECT_EQ(preparer.counters().by_tiles, 50U);
  EXPECT_EQ(preparer.counters().decoded, 100U);
}

TEST(Preparer, JobsCropTheSameItemDifferently) {
  Preparer preparer;
  const std::string jpeg = MakeJpeg({300, 200});
  EXPECT_NE(Prepared(preparer, jpeg, {}, {.job = 1}), Prepared(preparer, jpeg, {}, {.job = 2}));
  EXPECT_EQ(Prepared(preparer, jpeg, {}, {.job = 1}), Prepared(preparer, jpeg, {}, {.job = 1}));
}

TEST(Preparer, OtherFormatsAreKnownByTheirBytes) {
  Preparer preparer;
  Image image;
  ASSERT_TRUE(preparer.Decode(BytesOf(MakePng(PNG_FORMAT_RGB, 31, 22)), image).ok());
  EXPECT_EQ(PixelsOf(image.view), TestPixels(31, 22, 3));
  ASSERT_TRUE(preparer.Decode(BytesOf(MakeInterlacedPng(31, 22)), image).ok());
  EXPECT_EQ(PixelsOf(image.view), TestPixels(31, 22, 3));
  ASSERT_TRUE(preparer.Decode(BytesOf(MakeWebp(31, 22)), image).ok());
  EXPECT_EQ(PixelsOf(image.view), TestPixels(31, 22, 3));
}

// Of gray and alpha: gray three times, whatever alpha says.
TEST(Preparer, TransparencyIsDropped) {
  Preparer preparer;
  Image image;
  ASSERT_TRUE(preparer.Decode(BytesOf(MakePng(PNG_FORMAT_GA, 9, 5)), image).ok());
  const std::vector<uint8_t> mine = PixelsOf(image.view), pixels = TestPixels(9, 5, 2);
  for (size_t i = 0; i < 45; ++i)
    for (size_t c = 0; c < 3; ++c) EXPECT_EQ(mine[i * 3 + c], pixels[i * 2]) << i;
}

TEST(Preparer, WhatIsTooLargeIsRefusedByItsHeader) {
  Preparer preparer({.max_pixels = 100});
  Image image;
  for (const std::string& bomb : {MakeJpeg({101, 1}), MakePng(PNG_FORMAT_RGB, 101, 1), MakeWebp(101, 1)}) {
    const absl::Status status = preparer.Decode(BytesOf(bomb).first(bomb.size() - 4), image);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("101 x 1"));
  }
  EXPECT_EQ(preparer.counters().too_large, 3U);
  EXPECT_EQ(image.buffer.capacity(), 0U);  // nothing was reserved
}

TEST(Preparer, ALineOfPixelsIsRefusedWhereItCannotBeScaled) {
  Preparer preparer;
  const Recipe recipe{.size = {9, 7}, .crop = CropRule::kCenter, .shorter = 16'384};
  std::vector<uint8_t> out(recipe.bytes());
  const absl::Status refused = preparer.Prepare(BytesOf(MakePng(PNG_FORMAT_RGB, 1, 200'000)), recipe, {}, out);
  EXPECT_THAT(Message(refused), HasSubstr("the image has 1 x 200000 pixels"));
  EXPECT_EQ(preparer.counters().refused, 1U);
  EXPECT_TRUE(preparer.Prepare(BytesOf(MakePng(PNG_FORMAT_RGB, 1, 60'000)), recipe, {}, out).ok());
}

// The sum of the chunk is, that of the pixels isn't: as PIL takes it. Other chunks' sums, and damaged pixels, are
// errors.
TEST(Preparer, APngWithAWrongSumOfSoundPixelsIsCounted) {
  for (const std::string& png : {MakePng(PNG_FORMAT_RGB, 64, 48), MakeInterlacedPng(64, 48)}) {
    Recipe recipe;
    recipe.size = {16, 16};
    std::vector<uint8_t> expected(recipe.bytes()), out(recipe.bytes());
    Preparer preparer;
    ASSERT_TRUE(preparer.Prepare(BytesOf(png), recipe, {}, expected).ok());
    std::string bent = png;
    bent[png.rfind("IEND") - 5] ^= 1;  // the last byte of the chunk before it
    ASSERT_TRUE(preparer.Prepare(BytesOf(bent), recipe, {}, out).ok());
    EXPECT_EQ(out, expected);
    Image image;
    EXPECT_TRUE(preparer.Decode(BytesOf(bent), image).ok());
    EXPECT_EQ(preparer.counters().damaged, 2U);
    bent[png.rfind("IEND") - 9] ^= 1;  // the last byte of the pixels' sum
    EXPECT_FALSE(preparer.Prepare(BytesOf(bent), recipe, {}, out).ok());
    std::string head = png;
    head[32] ^= 1;  // the last byte of the first chunk
    EXPECT_FALSE(preparer.Prepare(BytesOf(head), recipe, {}, out).ok());
    EXPECT_EQ(preparer.counters().damaged, 2U);
  }
}

TEST(Preparer, WhatIsDamagedIsAnErrorAndTheNextIsFine) {
  Preparer preparer;
  Image image;
  const std::vector<std::string> good = {MakeJpeg({64, 64}), MakePng(PNG_FORMAT_RGB, 64, 64), MakeWebp(64, 64)};
  uint64_t refused = 0;
  for (const std::string& text : good) {
    for (size_t size = 0; size < text.size(); size += 1 + text.size() / 60) {
      if (size + 16 >= text.size()) continue;  // a PNG is whole without its last chunk
      EXPECT_FALSE(preparer.Decode(BytesOf(text).first(size), image).ok()) << size << " of " << text.size();
      ++refused;
    }
    EXPECT_TRUE(preparer.Decode(BytesOf(text), image).ok());
  }
  EXPECT_FALSE(preparer.Decode(BytesOf("GIF89a"), image).ok());
  EXPECT_EQ(preparer.counters().refused, refused + 1);
  EXPECT_EQ(preparer.counters().decoded, 3U);
}

}  // namespace
}  // namespace lockstep::prepare
