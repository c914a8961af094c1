// A directory of images once more, its JPEGs with tile indices. What can't have one (another format, too large,
// damaged, or an exotic layout) is copied as it is and counted: the same names in the same order, so the same items
// with the same pixels.
#pragma once

#include <string>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/prepare/buffer.h"
#include "lockstep/prepare/decode.h"

namespace lockstep::prepare {

struct IndexCounts {
  uint64_t images = 0, indexed = 0, copied = 0, damaged = 0;  // copied: damaged ones among them
  uint64_t not_taken = 0;  // files that are no images, or lie outside of the classes' folders: not written
  uint64_t bytes_before = 0, bytes_after = 0;
};
// Of one file: the bytes to write, those of `converted` or its own.
Bytes WithTileIndex(Bytes file, const Limits& limits, Buffer& converted, IndexCounts& counts);
// `to` must not lie within `from`; it is made, and files in it are replaced. An error if some image can't be read, at
// the end: all others are there then.
absl::StatusOr<IndexCounts> IndexFolder(const std::string& from, const std::string& to, const Limits& limits = {});
Json ToJson(const IndexCounts& counts);

}  // namespace lockstep::prepare
