// A sound as a tensor of one size: channels x frames, floats or whole numbers of 16 bits. A pure function of (bytes,
// clip, key): whoever cuts, from the file or from what Keep made of it, gets the same. Of a damaged file Keep may be an
// error where a clip of what is whole is none. One clipper per thread; it has a megabyte of its own.
//
//   Clipper clipper;
//   LS_RETURN_IF_ERROR(clipper.Prepare(file, clip, {seed, epoch, item, job}, slot));  // one job
//   LS_RETURN_IF_ERROR(clipper.Keep(file, kept));                                     // several
//   for (...) LS_RETURN_IF_ERROR(clipper.Cut(kept.bytes(), clips[job], {seed, epoch, item, job}, slots[job]));
#pragma once

#include <vector>

#include "lockstep/prepare/draws.h"
#include "lockstep/prepare/sound.h"

namespace lockstep::prepare {

// What a job wants of each sound. One that is shorter is followed by zeros.
struct Clip {
  uint32_t rate = 0;      // of the sounds: nothing is resampled, another rate is an error
  uint32_t frames = 0;    // of the result
  uint32_t channels = 1;  // 1: the mean of those there are; else as many as there are
  bool random = true;     // from anywhere; else the middle
  bool int16 = false;     // else float32
  uint64_t bytes() const { return uint64_t{frames} * channels * (int16 ? 2 : 4); }
  bool operator==(const Clip&) const = default;
};
absl::Status Validate(const Clip& clip);

// The first frame of the clip of a sound of so many.
uint64_t ClipBegin(const Clip& clip, uint64_t frames, const AugmentKey& key);

class Clipper {
 public:
  // `clip` is valid; `out` has clip.bytes() bytes. Errors say what is wrong with the sound, not which it is. Decodes
  // only what the clip needs.
  absl::Status Prepare(Bytes file, const Clip& clip, const AugmentKey& key, std::span<uint8_t> out);

  // For several clips of one sound: its samples or, if these take more than kMaxKept bytes, its file.
  static constexpr uint64_t kMaxKept = 4 << 20;
  absl::StatusOr<uint64_t> KeptBytes(Bytes file) const;
  absl::Status Keep(Bytes file, Buffer& kept) const;
  absl::Status Cut(Bytes kept, const Clip& clip, const AugmentKey& key, std::span<uint8_t> out);

 private:
  std::vector<float> planes_;  // of a piece of a clip, channels as in the file
};

}  // namespace lockstep::prepare
