// Decoded pixels: RGB, one byte each, row by row.
#pragma once

#include "lockstep/prepare/buffer.h"

namespace lockstep::prepare {

struct Size {
  int width = 0, height = 0;
  uint64_t pixels() const { return static_cast<uint64_t>(width) * static_cast<uint64_t>(height); }
  bool operator==(const Size&) const = default;
};

struct Region {
  int x = 0, y = 0, width = 0, height = 0;
  bool operator==(const Region&) const = default;
};

inline Region Whole(const Size& size) { return {0, 0, size.width, size.height}; }
// Is it not empty, and inside?
inline bool Within(const Region& region, const Size& size) {
  return region.x >= 0 && region.y >= 0 && region.width > 0 && region.height > 0 &&
         region.width <= size.width - region.x && region.height <= size.height - region.y;
}

// Does not own. Buffer::kSlack bytes behind the last row can be read.
struct ImageView {
  const uint8_t* rgb = nullptr;
  Size size;
  size_t stride = 0;  // bytes from row to row

  const uint8_t* Row(int y) const { return rgb + static_cast<size_t>(y) * stride; }
  ImageView Crop(const Region& region) const {
    return {Row(region.y) + static_cast<size_t>(region.x) * 3, {region.width, region.height}, stride};
  }
};

// Is given an image in pieces: a few whole rows at a time, from the top.
class RowTaker {
 public:
  // Once, or again if what came before is void.
  virtual void Begin() = 0;
  virtual void Take(const ImageView& rows) = 0;

 protected:
  ~RowTaker() = default;
};

// Owns. Rows may be wider than the view: a decoder begins at whole blocks.
struct Image {
  Buffer buffer;
  ImageView view;  // into the buffer
};

}  // namespace lockstep::prepare
