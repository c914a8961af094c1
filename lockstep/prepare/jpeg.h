// Decodes a part of a JPEG, by libjpeg-turbo: only the columns and rows that are asked for, or only their tiles where
// the file has a tile index (tiles.h). The pixels are those of decoding the whole and cutting, bit for bit: columns are
// widened by what fancy upsampling looks at. Grayscale becomes RGB, CMYK and YCCK too, as by PIL's convert("RGB");
// EXIF orientation is not applied, as torchvision's ImageFolder does not.
// One decoder per thread. Cost: entropy decoding of all rows above the end of the crop, transforms of the crop alone.
#pragma once

#include <memory>

#include "lockstep/prepare/tiles.h"

namespace lockstep::prepare {

struct JpegTraits {
  bool damaged = false;      // libjpeg repaired something
  bool by_tiles = false;     // the tile index was used
  bool own_entropy = false;  // our own entropy decoding did it
  bool bad_index = false;    // there is one, and it is not right: it was not used
};

class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // `head` is of `jpeg`, and crop lies within head.size. On success image.view is the crop.
  absl::Status Decode(Bytes jpeg, const JpegHead& head, const Region& crop, Image& image);
  // The same rows, as they come. What was taken is void unless this succeeds.
  absl::Status Decode(Bytes jpeg, const JpegHead& head, const Region& crop, RowTaker& taker);
  // Of the last Decode.
  const JpegTraits& traits() const { return traits_; }
  void set_use_tiles(bool use) { use_tiles_ = use; }
  // Entropy decoding by our own code (entropy.h) or libjpeg's; the pixels are the same.
  void set_own_entropy(bool own) { own_entropy_ = own; }

 private:
  struct Library;

  // Of what is decoded, rows go to the taker as they come, `strip` at a time, or are left in the image together.
  struct Target {
    Image* image = nullptr;
    RowTaker* taker = nullptr;
    int strip = 0;
  };
  absl::Status DecodeTo(const Target& target, Bytes jpeg, const JpegHead& head, const Region& crop);
  // Of a JPEG without index, or made of tiles.
  absl::Status DecodePlain(const Target& target, Bytes jpeg, const Size& size, const Region& crop);
  absl::Status DecodeOnce(const Target& target, Bytes jpeg, const Size& size, const Region& crop, bool own_entropy);

  std::unique_ptr<Library> library_;
  TileIndex index_;
  Buffer assembled_;
  Image strip_;
  JpegTraits traits_;
  bool use_tiles_ = true, own_entropy_ = true;
};

}  // namespace lockstep::prepare
