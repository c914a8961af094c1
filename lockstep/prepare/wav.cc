// "Multimedia Programming Interface and Data Specifications 1.0" (1991) and WAVE_FORMAT_EXTENSIBLE: RIFF, a length,
// WAVE, chunks of name, length and content; "fmt " says what the samples in "data" are.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "lockstep/base/check.h"
#include "lockstep/prepare/sound.h"

namespace lockstep::prepare {
namespace {

constexpr size_t kRiffHead = 12, kChunkHead = 8;
constexpr uint32_t kUnknown = 0xFFFFFFFF;  // of samples that were written into a pipe: all that follow
constexpr uint16_t kWholeNumbers = 1, kFloats = 3, kExtensible = 0xFFFE;

template <typename T>
T At(Bytes bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

absl::StatusOr<SoundHead> ParseFormat(Bytes format) {
  if (format.size() < 16) return DataLoss("WAV: its format has {} bytes, expected 16 at least", format.size());
  auto kind = At<uint16_t>(format, 0);
  if (kind == kExtensible && format.size() >= 26) kind = At<uint16_t>(format, 24);
  SoundHead head;
  head.codec = SoundCodec::kWav;
  head.channels = At<uint16_t>(format, 2);
  head.rate = At<uint32_t>(format, 4);
  head.bits = At<uint16_t>(format, 14);
  head.floats = kind == kFloats;
  const bool whole = kind == kWholeNumbers && (head.bits == 8 || head.bits == 16 || head.bits == 24 || head.bits == 32);
  if (!whole && !(head.floats && (head.bits == 32 || head.bits == 64)))
    return InvalidArgument(
        "WAV: samples of kind {} and {} bits: expected whole numbers of 8, 16, 24 or 32 bits, or floats of 32 or 64",
        kind, head.bits);
  if (const auto block = At<uint16_t>(format, 12); block != head.channels * (head.bits / 8))
    return DataLoss("WAV: blocks of {} bytes of {} channels of {} bits", block, head.channels, head.bits);
  return head;
}

// A whole number of so many bytes, little-endian. Eight bits are unsigned.
template <size_t kBytes>
float WholeSample(const uint8_t* at) {
  if constexpr (kBytes == 1) return (static_cast<float>(*at) - 128) / 128;
  uint32_t value = 0;  // in the upper bits
  std::memcpy(reinterpret_cast<uint8_t*>(&value) + (4 - kBytes), at, kBytes);
  return static_cast<float>(static_cast<int32_t>(value)) * 0x1p-31F;
}

template <typename Number>
float FloatSample(const uint8_t* at) {
  Number number;
  std::memcpy(&number, at, sizeof number);
  return static_cast<float>(number);
}

// From frame after frame to channel after channel.
template <size_t kBytes, float (*kSample)(const uint8_t*)>
void Spread(const uint8_t* from, size_t channels, uint64_t count, float* out) {
  for (size_t channel = 0; channel < channels; ++channel)
    for (uint64_t frame = 0; frame < count; ++frame) *out++ = kSample(from + (frame * channels + channel) * kBytes);
}

}  // namespace

absl::StatusOr<SoundHead> ReadWavHead(Bytes file) {
  std::optional<SoundHead> head;
  for (size_t at = kRiffHead; file.size() - at >= kChunkHead;) {
    const Bytes name = file.subspan(at, 4);
    uint64_t length = At<uint32_t>(file, at + 4);
    at += kChunkHead;
    const bool is_data = std::memcmp(name.data(), "data", 4) == 0;
    if (is_data && length == kUnknown) length = file.size() - at;
    if (length > file.size() - at)
      return DataLoss("WAV: {} bytes of {} at byte {}, and {} are left: it is truncated", length,
                      is_data ? "samples" : "a chunk", at, file.size() - at);
    if (std::memcmp(name.data(), "fmt ", 4) == 0) {
      LS_ASSIGN_OR_RETURN(head, ParseFormat(file.subspan(at, length)));
    }
    if (is_data) {
      if (!head) return DataLoss("WAV: samples before their format");
      head->offset = at;
      head->frames = head->channels == 0 ? 0 : length / (head->channels * (head->bits / 8));
      return *head;
    }
    at += length;
    at += (length & 1) != 0 && at < file.size() ? 1 : 0;
  }
  return DataLoss("WAV: there are no samples in it");
}

absl::Status DecodeWav(Bytes file, const SoundHead& head, uint64_t begin, uint64_t count, std::span<float> out) {
  const size_t width = head.bits / 8, block = width * head.channels;
  LS_CHECK(head.offset + (begin + count) * block <= file.size(), "{} {} {}", head.offset, begin, count);
  const auto spread = head.floats  ? (width == 4 ? Spread<4, FloatSample<float>> : Spread<8, FloatSample<double>>)
                      : width == 1 ? Spread<1, WholeSample<1>>
                      : width == 2 ? Spread<2, WholeSample<2>>
                      : width == 3 ? Spread<3, WholeSample<3>>
                                   : Spread<4, WholeSample<4>>;
  spread(file.data() + head.offset + begin * block, head.channels, count, out.data());
  if (!head.floats) return absl::OkStatus();
  // One of them in a batch makes whatever is trained with it none, too.
  const auto none = std::ranges::find_if(out, [](float sample) { return !std::isfinite(sample); });
  if (none == out.end()) return absl::OkStatus();
  return DataLoss("WAV: sample {} is {}: expected a finite number",
                  begin + static_cast<uint64_t>(none - out.begin()) % count, *none);
}

}  // namespace lockstep::prepare
