// The tile index: where each restart interval of a baseline JPEG begins, in an APP11 marker of the JPEG itself
// (docs/formats/tiles.md). An interval is a tile of a few minimum coded units (MCUs) in one row of them; with the index
// a decoder reads only the tiles that a crop touches, and gets the same pixels bit for bit.
//
//   TileIndex index;
//   LS_RETURN_IF_ERROR(ParseTileIndex(jpeg, head, index));
//   if (AssembleTiles(jpeg, head, index, crop, small)) ... decode `small`, a JPEG of its own
#pragma once

#include <string>
#include <vector>

#include "lockstep/prepare/jpeg_head.h"

namespace lockstep::prepare {

inline constexpr uint8_t kTileMarker = 0xEB;  // APP11
bool IsTileMarker(Bytes content);

struct TileIndex {
  int across = 0, down = 0;     // tiles in a row, rows of tiles (one MCU high)
  int mcus = 0;                 // of a tile: the restart interval
  std::vector<uint32_t> begin;  // across * down + 1 offsets in the file: tiles and the end, markers included
};

// The content of the marker for tiles of these lengths (each with the two bytes of the marker behind it).
std::string RenderTileIndex(int across, int down, int mcus, const std::vector<uint32_t>& lengths);
// Everything that can be checked is: sizes against the frame, offsets against the file, a marker behind each tile.
absl::Status ParseTileIndex(Bytes jpeg, const JpegHead& head, TileIndex& index);

// Which part of the image the tiles cover that hold `crop` and the pixels beside it that upsampling looks at.
struct TileCover {
  int left = 0, top = 0, right = 0, bottom = 0;  // in tiles; right and bottom are one behind
  Region pixels;
};
TileCover Cover(const JpegHead& head, const TileIndex& index, const Region& crop);
// A JPEG of these tiles alone.
void AssembleTiles(Bytes jpeg, const JpegHead& head, const TileIndex& index, const TileCover& cover, Buffer& out);

}  // namespace lockstep::prepare
