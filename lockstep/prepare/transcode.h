// Rewrites a JPEG without loss, as baseline with a restart marker every few MCUs and a tile index (tiles.h): the same
// coefficients, so the same pixels bit for bit, for every decoder; markers of other kinds (EXIF, ICC, Adobe) are kept.
#pragma once

#include "lockstep/prepare/tiles.h"

namespace lockstep::prepare {

// MCUs of a tile for rows of so many: the divisor of them that is nearest to four and at most eight, else one; larger
// where the index would not fit into its marker.
int TileWidth(const Size& mcus);

// kUnimplemented: no index can be made of it (why, says the text); kDataLoss: it is damaged, and would not stay the
// same.
absl::Status AddTileIndex(Bytes jpeg, const JpegHead& head, Buffer& out);

}  // namespace lockstep::prepare
