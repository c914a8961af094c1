// PNG by libpng: 8-bit RGB of whatever it holds (decode.h says how). What is behind the image is not looked at.
#pragma once

#include "lockstep/base/status.h"
#include "lockstep/prepare/image.h"

namespace lockstep::prepare {

// From the first chunk.
absl::StatusOr<Size> ReadPngSize(Bytes png);
// Do its rows come several times, so that it must be held whole?
bool IsInterlaced(Bytes png);
// All of it; `size` is what ReadPngSize said. True: a sum of its pixels is wrong, and they are all there (PIL takes
// them, too).
absl::StatusOr<bool> DecodePng(Bytes png, const Size& size, Image& image);
// The rows of a part of one that is not interlaced, as they come; all of it is read. What was taken is void unless this
// succeeds. `strip` is what they lie in.
absl::StatusOr<bool> DecodePng(Bytes png, const Size& size, const Region& crop, Image& strip, RowTaker& taker);

}  // namespace lockstep::prepare
