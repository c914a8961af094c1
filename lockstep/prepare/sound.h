// Sound files as samples: FLAC (by libFLAC) and WAV (whole numbers of 8 to 32 bits, floats), told apart by their first
// bytes. A sample is a finite float; a whole number of b bits is divided by 2^(b-1), so that it lies in [-1, 1), a
// float of a WAV is as it is. Any part is decoded alone, with the same result as that part of the whole. A frame is one
// sample of each channel.
//
//   LS_ASSIGN_OR_RETURN(const SoundHead head, ReadSoundHead(file));
//   std::vector<float> planes(head.channels * count);
//   LS_RETURN_IF_ERROR(DecodeSound(file, head, begin, count, planes));
#pragma once

#include <span>

#include "lockstep/base/status.h"
#include "lockstep/prepare/buffer.h"

namespace lockstep::prepare {

enum class SoundCodec : uint8_t { kFlac, kWav };

struct SoundHead {
  SoundCodec codec = SoundCodec::kFlac;
  bool floats = false;  // of WAV: not whole numbers
  uint32_t rate = 0;    // frames per second
  uint32_t channels = 0, bits = 0;
  uint64_t frames = 0;
  uint64_t offset = 0;                                                  // of WAV: of the first frame, in the file
  uint64_t bytes() const { return frames * channels * sizeof(float); }  // of all samples
};

// All numbers are plausible: the file can hold that many frames, so what is allocated for them is bounded.
absl::StatusOr<SoundHead> ReadSoundHead(Bytes file);

// Frames [begin, begin + count), which there are; out: channel after channel, each of `count` samples. Damage in the
// part is an error; elsewhere it goes unnoticed.
absl::Status DecodeSound(Bytes file, const SoundHead& head, uint64_t begin, uint64_t count, std::span<float> out);

// The two codecs.
absl::StatusOr<SoundHead> ReadFlacHead(Bytes file);
absl::Status DecodeFlac(Bytes file, const SoundHead& head, uint64_t begin, uint64_t count, std::span<float> out);
absl::StatusOr<SoundHead> ReadWavHead(Bytes file);
absl::Status DecodeWav(Bytes file, const SoundHead& head, uint64_t begin, uint64_t count, std::span<float> out);

}  // namespace lockstep::prepare
