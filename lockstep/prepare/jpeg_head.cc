#include "lockstep/prepare/jpeg_head.h"

#include <algorithm>

#include "lockstep/prepare/tiles.h"

namespace lockstep::prepare {
namespace {

enum Marker : uint8_t {
  kSof0 = 0xC0,
  kDht = 0xC4,
  kJpg = 0xC8,
  kSof15 = 0xCF,
  kDac = 0xCC,
  kRst0 = 0xD0,
  kSoi = 0xD8,
  kEoi = 0xD9,
  kSos = 0xDA,
  kDri = 0xDD,
  kTem = 0x01
};

bool IsFrame(uint8_t marker) {
  return marker >= kSof0 && marker <= kSof15 && marker != kDht && marker != kJpg && marker != kDac;
}
bool IsAlone(uint8_t marker) { return marker == kTem || (marker >= kRst0 && marker <= kSoi); }

int Big16(Bytes bytes, size_t at) { return bytes[at] << 8 | bytes[at + 1]; }

// Length, precision, height, width, components; then of each: id, sampling, table.
absl::Status TakeFrame(Bytes segment, uint8_t marker, size_t at, JpegHead& head) {
  if (segment.size() < 8) return DataLoss("the frame header has {} bytes", segment.size());
  head.size = {Big16(segment, 5), Big16(segment, 3)};
  head.components = segment[7];
  head.progressive = marker > kSof0 + 1;
  head.frame_size_at = at + 3;
  const auto components = static_cast<size_t>(head.components);
  if (components == 0 || segment.size() < 8 + 3 * components)
    return DataLoss("the frame header has {} bytes for {} components", segment.size(), components);
  if (head.size.width == 0 || head.size.height == 0)
    return DataLoss("the image is {} x {} pixels", head.size.width, head.size.height);
  int across = 1, down = 1, blocks = 0;
  for (size_t i = 0; i < components; ++i) {
    const uint8_t sampling = segment[8 + 3 * i + 1];
    across = std::max(across, sampling >> 4);
    down = std::max(down, sampling & 15);
    blocks += (sampling >> 4) * (sampling & 15);
  }
  // A scan of one component has no interleaving: its units are blocks.
  head.mcu = components == 1 ? Size{8, 8} : Size{8 * across, 8 * down};
  head.blocks = components == 1 ? 1 : blocks;
  return absl::OkStatus();
}

absl::Status TakeSegment(Bytes segment, uint8_t marker, size_t at, JpegHead& head) {
  if (IsFrame(marker)) return TakeFrame(segment, marker, at, head);
  if (marker == kDri && segment.size() >= 4) head.restart_interval = Big16(segment, 2);
  if (marker == kTileMarker && IsTileMarker(segment.subspan(2))) head.tile_marker = segment.subspan(2);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<JpegHead> ReadJpegHead(Bytes jpeg) {
  if (jpeg.size() < 4 || jpeg[0] != 0xFF || jpeg[1] != kSoi) return DataLoss("this is no JPEG");
  JpegHead head;
  size_t at = 2;
  while (at + 4 <= jpeg.size()) {
    if (jpeg[at] != 0xFF) {  // libjpeg skips what lies between segments
      ++at;
      continue;
    }
    const uint8_t marker = jpeg[at + 1];
    if (marker == 0xFF || marker == 0) {
      ++at;
      continue;
    }
    if (marker == kEoi) break;
    at += 2;
    if (IsAlone(marker)) continue;
    const auto length = static_cast<size_t>(Big16(jpeg, at));
    if (length < 2 || length > jpeg.size() - at) break;
    LS_RETURN_IF_ERROR(TakeSegment(jpeg.subspan(at, length), marker, at, head));
    if (marker == kSos) {
      if (head.components == 0) return DataLoss("a scan begins before the frame header");
      head.components_of_scan = length > 2 ? jpeg[at + 2] : 0;
      head.scan_at = at - 2;
      head.entropy_at = at + length;
      return head;
    }
    at += length;
  }
  return DataLoss("the file ends before the first scan: it is truncated ({} bytes)", jpeg.size());
}

}  // namespace lockstep::prepare
