// From the bytes of an image to a tensor of one size: unsigned bytes, rows of RGB pixels (H x W x 3). What comes out is
// a pure function of (bytes, recipe, key): it does not depend on who asks, nor on whether the decode was shared:
// Prepare(bytes, ...) gives what Decode(bytes) and Augment(...) give, bit for bit, and is faster where one asks alone.
// Of a damaged file Decode may be an error where Prepare, which looks at less of it, is none.
// One preparer per thread; it keeps its buffers, of about one MB. What else it takes MemoryToDecode says (decode.h).
//
//   Preparer preparer;
//   LS_RETURN_IF_ERROR(source.Read(item, bytes));
//   LS_RETURN_IF_ERROR(preparer.Prepare(bytes.bytes(), recipe, {seed, epoch, item, job}, slot));   // one job
//   LS_RETURN_IF_ERROR(preparer.Decode(bytes.bytes(), image));                                     // several
//   for (...) preparer.Augment(image.view, recipes[job], {seed, epoch, item, job}, slots[job]);
#pragma once

#include <utility>

#include "lockstep/prepare/decode.h"
#include "lockstep/prepare/recipe.h"
#include "lockstep/prepare/resize.h"

namespace lockstep::prepare {

// What happened, by name; nothing is repaired or refused in silence.
struct PrepareCounters {
  uint64_t decoded = 0;
  uint64_t by_tiles = 0;   // of these, those that a tile index made cheaper
  uint64_t damaged = 0;    // of these, those that libjpeg or libpng made good (as PIL does)
  uint64_t bad_index = 0;  // had a tile index that is wrong, and were decoded without it
  uint64_t refused = 0;    // an error was returned
  uint64_t too_large = 0;  // of these, those beyond Limits::max_pixels

  void Add(const PrepareCounters& other);
};

class Preparer {
 public:
  explicit Preparer(const Limits& limits = {}) : limits_(limits) {}

  // `recipe` is valid; `out` has recipe.bytes() bytes. Errors say what is wrong with the image, not which it is.
  absl::Status Prepare(Bytes encoded, const Recipe& recipe, const AugmentKey& key, std::span<uint8_t> out);
  absl::Status Decode(Bytes encoded, Image& whole);
  // What the two take. An error of it is one of theirs.
  absl::StatusOr<DecodeMemory> MemoryFor(Bytes encoded);
  // Of an image whose size the recipe takes (CheckSize).
  void Augment(const ImageView& whole, const Recipe& recipe, const AugmentKey& key, std::span<uint8_t> out);

  const PrepareCounters& counters() const { return counters_; }
  PrepareCounters TakeCounters() { return std::exchange(counters_, {}); }
  void set_use_tiles(bool use) { decoder_.set_use_tiles(use); }

 private:
  // Tells the resizer; returns the part of the image that it will need.
  Region PlanFor(const Size& size, const Recipe& recipe, const AugmentKey& key);
  // What a decode has come to.
  absl::Status Counted(absl::Status status);
  absl::Status Refused(absl::Status status);

  Limits limits_;
  ImageDecoder decoder_;
  Resizer resizer_;
  PrepareCounters counters_;
};

}  // namespace lockstep::prepare
