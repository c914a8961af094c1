#include "lockstep/prepare/resize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/prepare/draws.h"
#include "lockstep/prepare/test_images.h"

namespace lockstep::prepare {
namespace {

// The formula of axis.h once more, in floating point, with a byte between the passes.
double Weight(int in, double centre, double support) {
  return std::max(0.0, 1 - std::abs(in + 0.5 - centre) / support);
}

std::vector<double> Along(const std::vector<double>& line, int scaled) {
  const int in = static_cast<int>(line.size());
  const double step = static_cast<double>(in) / scaled, support = std::max(step, 1.0);
  std::vector<double> out;
  for (int x = 0; x < scaled; ++x) {
    const double centre = (x + 0.5) * step;
    double sum = 0, weights = 0;
    for (int i = 0; i < in; ++i) {
      sum += Weight(i, centre, support) * line[static_cast<size_t>(i)];
      weights += Weight(i, centre, support);
    }
    out.push_back(std::floor(sum / weights + 0.5));
  }
  return out;
}

std::vector<double> Reference(const std::vector<uint8_t>& rgb, const Size& from, const Size& to) {
  const auto at = [](int x, int y, int c, int width) { return static_cast<size_t>((y * width + x) * 3 + c); };
  std::vector<double> between(static_cast<size_t>(to.width * from.height * 3));
  std::vector<double> out(static_cast<size_t>(to.width * to.height * 3));
  for (int c = 0; c < 3; ++c) {
    for (int y = 0; y < from.height; ++y) {
      std::vector<double> row;
      for (int x = 0; x < from.width; ++x) row.push_back(rgb[at(x, y, c, from.width)]);
      const std::vector<double> scaled = Along(row, to.width);
      for (int x = 0; x < to.width; ++x) between[at(x, y, c, to.width)] = scaled[static_cast<size_t>(x)];
    }
    for (int x = 0; x < to.width; ++x) {
      std::vector<double> column;
      for (int y = 0; y < from.height; ++y) column.push_back(between[at(x, y, c, to.width)]);
      const std::vector<double> scaled = Along(column, to.height);
      for (int y = 0; y < to.height; ++y) out[at(x, y, c, to.width)] = scaled[static_cast<size_t>(y)];
    }
  }
  return out;
}

std::vector<uint8_t> Resized(const ResizeKernels& kernels, const std::vector<uint8_t>& rgb, const Scaling& scaling) {
  Resizer resizer(kernels);
  resizer.Plan(scaling);
  Buffer buffer;
  buffer.Assign(rgb);
  const ImageView all{buffer.data(), scaling.source, static_cast<size_t>(scaling.source.width) * 3};
  constexpr size_t kGuard = 64;
  std::vector<uint8_t> out(static_cast<size_t>(scaling.kept.width * scaling.kept.height) * 3 + kGuard, 0xA5);
  resizer.Run(all.Crop(resizer.needed()), out.data());
  EXPECT_TRUE(std::all_of(out.end() - kGuard, out.end(), [](uint8_t byte) { return byte == 0xA5; })) << "wrote behind";
  out.erase(out.end() - kGuard, out.end());
  return out;
}

std::vector<uint8_t> Resized(const std::vector<uint8_t>& rgb, const Size& from, const Size& to, bool flip = false) {
  return Resized(kPortableKernels, rgb, {from, to, Whole(to), flip});
}

const std::vector<std::pair<Size, Size>>& Cases() {
  static const std::vector<std::pair<Size, Size>> cases = {
      {{100, 80}, {224, 224}}, {{300, 290}, {224, 224}}, {{500, 375}, {64, 96}},   {{1, 1}, {17, 5}},
      {{3, 2}, {224, 1}},      {{37, 640}, {30, 31}},    {{224, 224}, {224, 224}}, {{900, 5}, {7, 7}}};
  return cases;
}

TEST(Resize, IsTheFormulaWithinOne) {
  for (const auto& [from, to] : Cases()) {
    const std::vector<uint8_t> rgb = TestPixels(from.width, from.height, 3);
    const std::vector<uint8_t> mine = Resized(rgb, from, to);
    const std::vector<double> exact = Reference(rgb, from, to);
    ASSERT_EQ(mine.size(), exact.size());
    size_t other = 0;
    for (size_t i = 0; i < mine.size(); ++i) {
      ASSERT_LE(std::abs(mine[i] - exact[i]), 1) << from.width << " " << from.height << ": " << i;
      other += mine[i] != exact[i] ? 1 : 0;
    }
    EXPECT_LE(other, mine.size() / 50) << from.width;  // weights of 14 bits round the other way now and then
  }
}

TEST(Resize, IsTheSameOnEveryProcessor) {
  EXPECT_EQ(AvailableKernels().back(), &kPortableKernels);
  for (const ResizeKernels* kernels : AvailableKernels()) {
    for (const auto& [from, to] : Cases()) {
      const std::vector<uint8_t> rgb = TestPixels(from.width, from.height, 3);
      for (const bool flip : {false, true})
        EXPECT_EQ(Resized(*kernels, rgb, {from, to, Whole(to), flip}), Resized(rgb, from, to, flip))
            << kernels->name << ", " << from.width << " x " << from.height;
    }
  }
}

// Rows that come some at a time, twice, the first time in vain; of images much higher than what is kept, too.
TEST(Resize, RowsMayComeInPieces) {
  std::vector<std::pair<Size, Size>> cases = Cases();
  cases.push_back({{5, 3000}, {5, 7}});
  cases.push_back({{40, 500}, {40, 499}});
  for (const auto& [from, to] : cases) {
    const std::vector<uint8_t> rgb = TestPixels(from.width, from.height, 3);
    Buffer buffer;
    buffer.Assign(rgb);
    const ImageView all{buffer.data(), from, static_cast<size_t>(from.width) * 3};
    for (const int piece : {1, 3, 16, 1000}) {
      std::vector<uint8_t> out(static_cast<size_t>(to.width * to.height) * 3);
      Resizer resizer;
      resizer.Plan({from, to, Whole(to), false});
      resizer.Into(out.data());
      resizer.Begin();
      resizer.Take(all.Crop({0, 0, from.width, 1}));
      resizer.Begin();
      for (int y = 0; y < from.height; y += piece)
        resizer.Take(all.Crop({0, y, from.width, std::min(piece, from.height - y)}));
      EXPECT_EQ(out, Resized(rgb, from, to)) << from.width << " x " << from.height << ", " << piece;
    }
  }
}

TEST(Resize, WhatIsFlatStaysFlat) {
  for (int value : {0, 1, 127, 254, 255}) {
    const std::vector<uint8_t> rgb(51 * 43 * 3, static_cast<uint8_t>(value));
    EXPECT_EQ(Resized(rgb, {51, 43}, {20, 90}), std::vector<uint8_t>(20 * 90 * 3, static_cast<uint8_t>(value)));
  }
}

TEST(Resize, WithoutScalingNothingChanges) {
  const std::vector<uint8_t> rgb = TestPixels(61, 33, 3);
  EXPECT_EQ(Resized(rgb, {61, 33}, {61, 33}), rgb);
}

TEST(Resize, AFlipIsTheMirrorOfTheRows) {
  const std::vector<uint8_t> rgb = TestPixels(100, 50, 3);
  const std::vector<uint8_t> plain = Resized(rgb, {100, 50}, {30, 20}),
                             flipped = Resized(rgb, {100, 50}, {30, 20}, true);
  for (size_t y = 0; y < 20; ++y)
    for (size_t x = 0; x < 30; ++x)
      for (size_t c = 0; c < 3; ++c) EXPECT_EQ(flipped[(y * 30 + x) * 3 + c], plain[(y * 30 + 29 - x) * 3 + c]);
}

TEST(Resize, APartIsThatPartOfTheWhole) {
  const std::vector<uint8_t> rgb = TestPixels(300, 200, 3);
  const std::vector<uint8_t> whole = Resized(rgb, {300, 200}, {90, 60});
  for (const ResizeKernels* kernels : AvailableKernels()) {
    const std::vector<uint8_t> part = Resized(*kernels, rgb, {{300, 200}, {90, 60}, {11, 7, 33, 21}, false});
    const ImageView view{whole.data(), {90, 60}, 270};
    EXPECT_EQ(part, PixelsOf(view.Crop({11, 7, 33, 21}))) << kernels->name;
  }
}

}  // namespace
}  // namespace lockstep::prepare
