#include "lockstep/prepare/webp.h"

#include <webp/decode.h>

namespace lockstep::prepare {

absl::StatusOr<Size> ReadWebpSize(Bytes webp) {
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(webp.data(), webp.size(), &features) != VP8_STATUS_OK)
    return DataLoss("the WebP ends before its header, or has none");
  if (features.has_animation != 0) return InvalidArgument("it is an animated WebP: expected a single image");
  return Size{features.width, features.height};
}

absl::Status DecodeWebp(Bytes webp, const Size& size, Image& image) {
  const size_t stride = static_cast<size_t>(size.width) * 3;
  image.buffer.Resize(stride * static_cast<size_t>(size.height));
  // It takes what an image holds, and fails rather than write behind the end.
  const uint8_t* done =
      WebPDecodeRGBInto(webp.data(), webp.size(), image.buffer.data(), image.buffer.size(), static_cast<int>(stride));
  if (done == nullptr) return DataLoss("the WebP is truncated or damaged");
  image.view = {image.buffer.data(), size, stride};
  return absl::OkStatus();
}

}  // namespace lockstep::prepare
