// What stands before a JPEG's first scan, found without libjpeg and without an allocation by size: so that a limit on
// pixels holds before anything is reserved, and a crop can be drawn before it is known how to decode.
#pragma once

#include <optional>

#include "lockstep/base/status.h"
#include "lockstep/prepare/image.h"

namespace lockstep::prepare {

struct JpegHead {
  Size size;
  int components = 0;
  Size mcu{8, 8};              // pixels of a minimum coded unit
  int blocks = 1;              // of a minimum coded unit
  bool progressive = false;    // or anything else but baseline and extended Huffman
  size_t frame_size_at = 0;    // offset of the frame header's height and width, two bytes each
  int components_of_scan = 0;  // of the first one
  int restart_interval = 0;    // in MCUs; 0: none
  Bytes tile_marker;           // of the marker that holds a tile index, if there is one (tiles.h)
  size_t scan_at = 0;          // offset of the first scan's marker
  size_t entropy_at = 0;       // offset of its entropy-coded data

  // Must a decoder keep the coefficients of the whole image, since they come in several scans?
  bool in_scans() const { return progressive || components_of_scan < components; }
  Size mcus() const { return {(size.width + mcu.width - 1) / mcu.width, (size.height + mcu.height - 1) / mcu.height}; }
};

absl::StatusOr<JpegHead> ReadJpegHead(Bytes jpeg);

}  // namespace lockstep::prepare
