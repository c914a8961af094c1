// What a job wants of each item. Of an image: which part becomes the tensor, and how: a pure function of its size and a
// key.
//
//   const Placement placement = Place(recipe, {500, 375}, key);
//   // decode placement.source, scale that to placement.scaled, keep placement.kept of it, mirror it if placement.flip
#pragma once

#include <optional>

#include "lockstep/base/status.h"
#include "lockstep/prepare/clip.h"
#include "lockstep/prepare/draws.h"
#include "lockstep/prepare/scaling.h"

namespace lockstep::prepare {

enum class CropRule : uint8_t {
  kRandomResized,  // torchvision's RandomResizedCrop
  kCenter,         // torchvision's Resize(shorter) and CenterCrop
};

struct Recipe {
  Size size{224, 224};  // of the result
  CropRule crop = CropRule::kRandomResized;
  double scale_low = 0.08, scale_high = 1;           // share of the image's area
  double ratio_low = 3.0 / 4, ratio_high = 4.0 / 3;  // width : height
  double flip = 0.5;                                 // chance of being mirrored (RandomHorizontalFlip)
  int shorter = 256;                                 // kCenter: the shorter side is scaled to that
  std::optional<Clip> clip = {};                     // of sounds, in place of all the above
  uint64_t bytes() const { return clip ? clip->bytes() : size.pixels() * 3; }
};
absl::Status Validate(const Recipe& recipe);

struct Placement {
  Region source;  // of the image
  Size scaled;    // what it would be scaled to, as a whole
  Region kept;    // of that; its size is the recipe's
  bool flip = false;

  Scaling scaling() const { return {{source.width, source.height}, scaled, kept, flip}; }
  // A part of the source, as a part of the image.
  Region Below(const Region& part) const { return {source.x + part.x, source.y + part.y, part.width, part.height}; }
};
// Of a valid recipe: can an image of so many pixels be scaled as it says? One that is long and thin may not.
absl::Status CheckSize(const Recipe& recipe, const Size& size);
// `size` has pixels, and was checked.
Placement Place(const Recipe& recipe, const Size& size, const AugmentKey& key);

// torchvision's RandomResizedCrop.get_params, by draws of ours: ten tries, then the middle.
Region RandomResizedCrop(const Recipe& recipe, const Size& size, Draws& draws);

}  // namespace lockstep::prepare
