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
    head.by_rows = !IsInterlaced(bytes);
    return head;
  }
  if (Holds(bytes, 0, "RIFF") && Holds(bytes, 8, "WEBP")) {
    head.codec = Codec::kWebp;
    LS_ASSIGN_OR_RETURN(head.size, ReadWebpSize(bytes));
    return head;
  }
  return InvalidArgument("no image: expected a JPEG, a PNG or a WebP");
}

// Rows that are on their way: sixteen of a strip, and about twice as many samples in libjpeg.
constexpr uint64_t kRowsOnTheWay = 64;

}  // namespace

DecodeMemory MemoryToDecode(const ImageHead& head) {
  const auto width = static_cast<uint64_t>(head.size.width);
  const uint64_t pixels = head.size.pixels(), rows = width * 3 * kRowsOnTheWay;
  switch (head.codec) {
    case Codec::kJpeg: {
      const uint64_t coefficients =
          head.jpeg.in_scans() ? head.jpeg.mcus().pixels() * static_cast<uint64_t>(head.jpeg.blocks) * 128 : 0;
      const uint64_t kept = pixels * (head.jpeg.components == 4 ? 4 : 3);
      return {.whole = kept + rows + coefficients, .kept = kept, .by_rows = rows + coefficients};
    }
    case Codec::kPng:
      return {.whole = pixels * 3 + rows, .kept = pixels * 3, .by_rows = head.by_rows ? rows : pixels * 3 + rows};
    case Codec::kWebp:  // a lossless one has four bytes of each pixel beside the result
      return {.whole = pixels * 7 + rows, .kept = pixels * 3, .by_rows = pixels * 7 + rows};
  }
  return {};
}

absl::StatusOr<ImageHead> ReadImageHead(Bytes bytes, const Limits& limits) {
  LS_ASSIGN_OR_RETURN(ImageHead head, ReadHead(bytes));
  if (head.size.pixels() > limits.max_pixels)
    return MakeError(absl::StatusCode::kResourceExhausted,
                     fmt::format("the image has {} x {} pixels: the limit is {} in all (--max-pixels)", head.size.width,
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
  if (head.codec == Codec::kPng) {
    LS_ASSIGN_OR_RETURN(traits_.damaged, DecodePng(bytes, head.size, image));
  } else {
    LS_RETURN_IF_ERROR(DecodeWebp(bytes, head.size, image));
  }
  image.view = image.view.Crop(crop);
  return absl::OkStatus();
}

absl::Status ImageDecoder::Decode(Bytes bytes, const ImageHead& head, const Region& crop, RowTaker& taker) {
  traits_ = {};
  absl::Status status;
  if (head.codec == Codec::kJpeg) {
    status = jpeg_.Decode(bytes, head.jpeg, crop, taker);
    traits_ = jpeg_.traits();
  } else if (head.by_rows) {
    const absl::StatusOr<bool> damaged = DecodePng(bytes, head.size, crop, scratch_, taker);
    status = damaged.status();
    traits_.damaged = damaged.ok() && *damaged;
  } else {
    status = Decode(bytes, head, crop, scratch_);
    if (status.ok()) taker.Begin();
    if (status.ok()) taker.Take(scratch_.view);
  }
  scratch_.buffer.Forget(kDecoderKeeps / 2);
  return status;
}

}  // namespace lockstep::prepare
