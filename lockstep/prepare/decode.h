// Any image that training sets hold, by what its first bytes say, whatever its name: JPEG, PNG, WebP. As PIL's
// convert("RGB"): transparency is dropped, palettes and grayscale become RGB, of 16 bits the upper 8 are kept. EXIF
// orientation is not applied (torchvision's ImageFolder doesn't either).
// One decoder per thread.
//
//   LS_ASSIGN_OR_RETURN(const ImageHead head, ReadImageHead(bytes, limits));
//   LS_RETURN_IF_ERROR(decoder.Decode(bytes, head, {10, 10, 100, 100}, image));   // image.view: 100 x 100
#pragma once

#include "lockstep/prepare/jpeg.h"

namespace lockstep::prepare {

enum class Codec : uint8_t { kJpeg, kPng, kWebp };

struct Limits {
  // An image says how large it is before anything is reserved for it; one of more pixels is refused
  // (kResourceExhausted).
  uint64_t max_pixels = uint64_t{1} << 25;
};

struct ImageHead {
  Codec codec = Codec::kJpeg;
  Size size;
  bool by_rows = false;  // of a PNG: can it be decoded so?
  JpegHead jpeg;         // of a JPEG
};

// kInvalidArgument: no image that we know. kDataLoss: damaged. kResourceExhausted: too large.
absl::StatusOr<ImageHead> ReadImageHead(Bytes bytes, const Limits& limits = {});

// Bytes that decoding reserves, at most: for an Image of all of it, of which `kept` stay, or for a RowTaker. Beside it
// a decoder keeps less than kDecoderKeeps between images.
struct DecodeMemory {
  uint64_t whole = 0, kept = 0, by_rows = 0;
};
DecodeMemory MemoryToDecode(const ImageHead& head);
inline constexpr size_t kDecoderKeeps = 1 << 20;

class ImageDecoder {
 public:
  // Only a JPEG is decoded in part; of the others all is, and image.view is the crop.
  absl::Status Decode(Bytes bytes, const ImageHead& head, const Region& crop, Image& image);
  // The same rows, as they come where the format allows (MemoryToDecode says what it takes). What was taken is void
  // unless this succeeds.
  absl::Status Decode(Bytes bytes, const ImageHead& head, const Region& crop, RowTaker& taker);
  // Of the last Decode; of other images than JPEGs only whether it was damaged.
  const JpegTraits& traits() const { return traits_; }
  void set_use_tiles(bool use) { jpeg_.set_use_tiles(use); }

 private:
  JpegDecoder jpeg_;
  JpegTraits traits_;
  Image scratch_;  // what can't be taken row by row, or the rows of one that can
};

}  // namespace lockstep::prepare
