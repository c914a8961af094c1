#include "lockstep/prepare/recipe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace lockstep::prepare {
namespace {

// Known answers of Random123's own test (kat_vectors, philox4x32 10).
TEST(Draws, IsPhilox) {
  EXPECT_EQ(Philox({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Draws, EveryPartOfTheKeyMatters) {
  std::set<uint32_t> first;
  for (const AugmentKey& key : std::vector<AugmentKey>{{1, 2, 3, 4},
                                                       {9, 2, 3, 4},
                                                       {1, 9, 3, 4},
                                                       {1, 2, 9, 4},
                                                       {1, 2, 3, 9},
                                                       {uint64_t{1} << 32, 2, 3, 4},
                                                       {1, 2, uint64_t{3} << 32, 4}})
    first.insert(Draws(key).Next());
  EXPECT_EQ(first.size(), 7U);
  Draws again({1, 2, 3, 4});
  EXPECT_EQ(again.Next(), Draws({1, 2, 3, 4}).Next());
}

// chi2 with 9 degrees of freedom: 27.9 at p = 0.001.
TEST(Draws, BelowIsUniform) {
  Draws draws({.seed = 5});
  std::vector<double> counts(10);
  for (int i = 0; i < 100'000; ++i) ++counts[draws.Below(10)];
  double chi2 = 0;
  for (const double count : counts) chi2 += (count - 1e4) * (count - 1e4) / 1e4;
  EXPECT_LT(chi2, 27.9);
}

TEST(Recipe, CropsAreWithinTheirLimits) {
  const Recipe recipe;
  const Size size{500, 375};
  double share = 0, flips = 0, x = 0;
  constexpr int kCrops = 20'000;
  for (uint64_t item = 0; item < kCrops; ++item) {
    const Placement placement = Place(recipe, size, {.item = item});
    const Region& crop = placement.source;
    ASSERT_TRUE(Within(crop, size));
    const double area = static_cast<double>(crop.width) * crop.height / static_cast<double>(size.pixels());
    ASSERT_GT(area, 0.078);
    const double ratio = static_cast<double>(crop.width) / crop.height;
    ASSERT_GT(ratio, 0.74);
    ASSERT_LT(ratio, 1.36);
    share += area / kCrops;
    flips += placement.flip ? 1.0 / kCrops : 0;
    x += (crop.x + crop.width / 2.0) / size.width / kCrops;
  }
  EXPECT_NEAR(flips, 0.5, 0.015);
  EXPECT_NEAR(x, 0.5, 0.01);
  // torchvision 0.14.1, 20,000 draws of get_params for this size: 0.432. (Below the mean of [.08, 1]: what is too wide
  // or too high is drawn again.)
  EXPECT_NEAR(share, 0.432, 0.01);
}

// Where ten tries can't fit, the largest allowed part of the middle.
TEST(Recipe, OfANarrowImageTheMiddleIsTaken) {
  const Recipe recipe{.scale_low = 1};
  const Placement wide = Place(recipe, {1000, 10}, {});
  EXPECT_EQ(wide.source, (Region{493, 0, 13, 10}));
  const Placement high = Place(recipe, {9, 1000}, {});
  EXPECT_EQ(high.source, (Region{0, 494, 9, 12}));
  EXPECT_EQ(Place(recipe, {1, 1}, {}).source, (Region{0, 0, 1, 1}));
}

// torchvision: Resize(256), CenterCrop(224).
TEST(Recipe, CenterIsThatOfTorchvision) {
  const Placement placement = Place({.crop = CropRule::kCenter}, {500, 375}, {});
  EXPECT_EQ(placement.scaled, (Size{341, 256}));
  EXPECT_EQ(placement.kept, (Region{58, 16, 224, 224}));
  EXPECT_EQ(placement.source, (Region{0, 0, 500, 375}));
}

TEST(Recipe, AnyCropIsMirroredByTheChanceThatWasAskedFor) {
  for (const CropRule crop : {CropRule::kRandomResized, CropRule::kCenter}) {
    const auto flips = [&](double chance) {
      int count = 0;
      for (uint64_t item = 0; item < 1000; ++item)
        count += Place({.crop = crop, .flip = chance}, {500, 375}, {.item = item}).flip ? 1 : 0;
      return count;
    };
    EXPECT_EQ(flips(0), 0);
    EXPECT_EQ(flips(1), 1000);
    EXPECT_NEAR(flips(0.3), 300, 60);
  }
}

// 16384 * 1,000,000 is more than an int holds.
TEST(Recipe, ALineOfPixelsIsNotScaledBeyondLimits) {
  const Recipe recipe{.crop = CropRule::kCenter, .shorter = 16'384};
  EXPECT_EQ(Message(CheckSize(recipe, {1, 1'000'000})),
            "the image has 1 x 1000000 pixels: with a shorter side of 16384 the other one has 16384000000, expected "
            "1073741824 at most");
  EXPECT_TRUE(CheckSize(recipe, {1, 60'000}).ok());
  EXPECT_EQ(Place(recipe, {60'000, 1}, {}).kept, (Region{491'519'888, 8080, 224, 224}));
  EXPECT_TRUE(CheckSize({}, {1, 1'000'000}).ok());
}

TEST(Recipe, WhatCannotBeIsRefused) {
  EXPECT_TRUE(Validate(Recipe{}).ok());
  EXPECT_FALSE(Validate({.size = {0, 224}}).ok());
  EXPECT_FALSE(Validate({.scale_low = 0.5, .scale_high = 0.4}).ok());
  EXPECT_FALSE(Validate({.flip = NAN}).ok());
  EXPECT_FALSE(Validate({.crop = CropRule::kCenter, .shorter = 100}).ok());
}

}  // namespace
}  // namespace lockstep::prepare
