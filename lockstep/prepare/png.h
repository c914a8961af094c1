// PNG by libpng: 8-bit RGB of whatever it holds (decode.h says how). What is behind the image is not looked at.
#pragma once

#include "lockstep/base/status.h"
#include "lockstep/prepare/image.h"

namespace lockstep::prepare {

// From the first chunk.
absl::StatusOr<Size> ReadPngSize(Bytes png);
// All of it; `size` is what ReadPngSize said.
absl::Status DecodePng(Bytes png, const Size& size, Image& image);

}  // namespace lockstep::prepare
