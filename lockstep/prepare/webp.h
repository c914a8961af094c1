// WebP by libwebp, lossy and lossless; animations are refused.
#pragma once

#include "lockstep/base/status.h"
#include "lockstep/prepare/image.h"

namespace lockstep::prepare {

absl::StatusOr<Size> ReadWebpSize(Bytes webp);
// All of it; `size` is what ReadWebpSize said.
absl::Status DecodeWebp(Bytes webp, const Size& size, Image& image);

}  // namespace lockstep::prepare
