#include "lockstep/prepare/recipe.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep::prepare {
namespace {

constexpr int kTries = 10;        // torchvision's
constexpr int kMaxSide = 16'384;  // of a result
constexpr int64_t kMaxScaled = int64_t{1} << 30;

// Python's round: to the nearest, halves to the even one.
int Rounded(double value) { return static_cast<int>(std::nearbyint(value)); }

Region Middle(int width, int height, const Size& size) {
  return {(size.width - width) / 2, (size.height - height) / 2, width, height};
}

// The largest part in the middle whose ratio is allowed.
Region AllowedMiddle(const Recipe& recipe, const Size& size) {
  const double ratio = static_cast<double>(size.width) / size.height;
  int width = size.width, height = size.height;
  if (ratio < recipe.ratio_low) height = std::min(height, Rounded(width / recipe.ratio_low));
  if (ratio > recipe.ratio_high) width = std::min(width, Rounded(height * recipe.ratio_high));
  return Middle(std::max(width, 1), std::max(height, 1), size);
}

// What the longer side is scaled to. Of a line of pixels it may be more than an int holds.
int64_t Longer(const Recipe& recipe, const Size& size) {
  const auto [least, most] = std::minmax(size.width, size.height);
  return int64_t{recipe.shorter} * most / least;
}

Placement PlaceCenter(const Recipe& recipe, const Size& size) {
  const auto longer = static_cast<int>(Longer(recipe, size));
  Placement placement;
  placement.source = Whole(size);
  placement.scaled = size.width <= size.height ? Size{recipe.shorter, longer} : Size{longer, recipe.shorter};
  placement.kept = {Rounded((placement.scaled.width - recipe.size.width) / 2.0),
                    Rounded((placement.scaled.height - recipe.size.height) / 2.0), recipe.size.width,
                    recipe.size.height};
  return placement;
}

}  // namespace

absl::Status Validate(const Recipe& recipe) {
  if (recipe.clip) return Validate(*recipe.clip);
  const auto side = [](int pixels) { return pixels >= 1 && pixels <= kMaxSide; };
  if (!side(recipe.size.width) || !side(recipe.size.height) || !side(recipe.shorter))
    return InvalidArgument("a result of {} x {} pixels (shorter side {}): expected 1 to {} each", recipe.size.width,
                           recipe.size.height, recipe.shorter, kMaxSide);
  if (!(recipe.scale_low > 0 && recipe.scale_low <= recipe.scale_high && recipe.scale_high <= 1))
    return InvalidArgument("scale {} to {}: expected 0 < low <= high <= 1", recipe.scale_low, recipe.scale_high);
  if (!(recipe.ratio_low > 0 && recipe.ratio_low <= recipe.ratio_high && recipe.ratio_high < 1e4))
    return InvalidArgument("ratio {} to {}: expected 0 < low <= high", recipe.ratio_low, recipe.ratio_high);
  if (!(recipe.flip >= 0 && recipe.flip <= 1)) return InvalidArgument("flip {}: expected 0 to 1", recipe.flip);
  if (recipe.crop == CropRule::kCenter && recipe.shorter < std::max(recipe.size.width, recipe.size.height))
    return InvalidArgument("shorter side {}: a crop of {} x {} is larger", recipe.shorter, recipe.size.width,
                           recipe.size.height);
  return absl::OkStatus();
}

absl::Status CheckSize(const Recipe& recipe, const Size& size) {
  if (recipe.crop != CropRule::kCenter || Longer(recipe, size) <= kMaxScaled) return absl::OkStatus();
  return InvalidArgument(
      "the image has {} x {} pixels: with a shorter side of {} the other one has {}, expected {} at most", size.width,
      size.height, recipe.shorter, Longer(recipe, size), kMaxScaled);
}

Region RandomResizedCrop(const Recipe& recipe, const Size& size, Draws& draws) {
  const auto area = static_cast<double>(size.pixels());
  const double log_low = std::log(recipe.ratio_low), log_high = std::log(recipe.ratio_high);
  for (int i = 0; i < kTries; ++i) {
    const double target = area * draws.Uniform(recipe.scale_low, recipe.scale_high);
    const double ratio = std::exp(draws.Uniform(log_low, log_high));
    const int width = Rounded(std::sqrt(target * ratio)), height = Rounded(std::sqrt(target / ratio));
    if (width < 1 || width > size.width || height < 1 || height > size.height) continue;
    const auto y = static_cast<int>(draws.Below(static_cast<uint32_t>(size.height - height + 1)));
    const auto x = static_cast<int>(draws.Below(static_cast<uint32_t>(size.width - width + 1)));
    return {x, y, width, height};
  }
  return AllowedMiddle(recipe, size);
}

Placement Place(const Recipe& recipe, const Size& size, const AugmentKey& key) {
  Draws draws(key);
  Placement placement;
  if (recipe.crop == CropRule::kCenter) {
    placement = PlaceCenter(recipe, size);
  } else {
    placement.source = RandomResizedCrop(recipe, size, draws);
    placement.scaled = recipe.size;
    placement.kept = Whole(recipe.size);
  }
  placement.flip = draws.Uniform(0, 1) < recipe.flip;
  return placement;
}

}  // namespace lockstep::prepare
