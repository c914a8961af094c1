#include "lockstep/prepare/decode.h"

#include <algorithm>
#include <string_view>

#include "lockstep/prepare/png.h"
#include "lockstep/prepare/webp.h"

namespace lockstep::prepare {
namespace {

bool Holds(Bytes bytes, size_t at, std::string_view text) {
  return bytes.size() >= at + text.size() && std::equal(text.begin(), text.end(), bytes.begin() + static_cast<long>(at),
                                                        [](char a, uint8_t b) { return static_cast<uint8_t>(a) == b; });
}

absl::StatusOr<ImageHead> ReadHead(Bytes bytes) {
  ImageHead head;
  if (bytes.empty()) return InvalidArgument("the file is empty");
  if (Holds(bytes, 0, "\xFF\xD8\xFF")) {
    LS_ASSIGN_OR_RETURN(head.jpeg, ReadJpegHead(bytes));
    head.size = head.jpeg.size;
    return head;
  }
  if (Holds(bytes, 0, "\x89PNG\r\n\x1A\n")) {
    head.codec = Codec::kPng;
    LS_ASSIGN_OR_RETURN(head.size, ReadPngSize(bytes));
    return head;
  }
  if (Holds(bytes, 0, "RIFF") && Holds(bytes, 8, "WEBP")) {
    head.codec = Codec::kWebp;
    LS_ASSIGN_OR_RETURN(head.size, ReadWebpSize(bytes));
    return head;
  }
  return InvalidArgument("no image: expected a JPEG, a PNG or a WebP");
}

}  // namespace

absl::StatusOr<ImageHead> ReadImageHead(Bytes bytes, const Limits& limits) {
  LS_ASSIGN_OR_RETURN(ImageHead head, ReadHead(bytes));
  if (head.size.pixels() > limits.max_pixels)
    return MakeError(absl::StatusCode::kResourceExhausted,
                     fmt::format("the image has {} x {} pixels: the limit is {} in all (max_pixels)", head.size.width,
                                 head.size.height, limits.max_pixels));
  return head;
}

absl::Status ImageDecoder::Decode(Bytes bytes, const ImageHead& head, const Region& crop, Image& image) {
  traits_ = {};
  if (head.codec == Codec::kJpeg) {
    const absl::Status status = jpeg_.Decode(bytes, head.jpeg, crop, image);
    traits_ = jpeg_.traits();
    return status;
  }
  LS_RETURN_IF_ERROR(head.codec == Codec::kPng ? DecodePng(bytes, head.size, image)
                                               : DecodeWebp(bytes, head.size, image));
  image.view = image.view.Crop(crop);
  return absl::OkStatus();
}

}  // namespace lockstep::prepare
