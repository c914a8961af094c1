#include "lockstep/prepare/sound.h"

#include <algorithm>
#include <string_view>

#include "lockstep/base/check.h"

namespace lockstep::prepare {
namespace {

constexpr uint32_t kMaxChannels = 64, kMaxRate = 1'000'000;
constexpr uint64_t kMaxFrames = uint64_t{1} << 36;  // FLAC's own limit

bool Holds(Bytes bytes, size_t at, std::string_view text) {
  return bytes.size() >= at + text.size() &&
         std::equal(text.begin(), text.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at),
                    [](char a, uint8_t b) { return static_cast<uint8_t>(a) == b; });
}

absl::StatusOr<SoundHead> ReadAnyHead(Bytes file) {
  if (file.empty()) return InvalidArgument("the file is empty");
  if (Holds(file, 0, "fLaC")) return ReadFlacHead(file);
  if (Holds(file, 0, "RIFF") && Holds(file, 8, "WAVE")) return ReadWavHead(file);
  return InvalidArgument("no sound: expected a FLAC or a WAV");
}

}  // namespace

absl::StatusOr<SoundHead> ReadSoundHead(Bytes file) {
  LS_ASSIGN_OR_RETURN(const SoundHead head, ReadAnyHead(file));
  if (head.channels < 1 || head.channels > kMaxChannels || head.rate < 1 || head.rate > kMaxRate)
    return InvalidArgument("{} channels of {} samples per second: expected 1 to {}, of 1 to {}", head.channels,
                           head.rate, kMaxChannels, kMaxRate);
  if (head.frames == 0) return InvalidArgument("it has no samples, or doesn't say how many");
  if (head.frames > kMaxFrames) return InvalidArgument("{} samples: the limit is {}", head.frames, kMaxFrames);
  return head;
}

absl::Status DecodeSound(Bytes file, const SoundHead& head, uint64_t begin, uint64_t count, std::span<float> out) {
  LS_CHECK(begin <= head.frames && count <= head.frames - begin, "{} {} {}", begin, count, head.frames);
  LS_CHECK(out.size() == count * head.channels, "{} {}", out.size(), count);
  if (count == 0) return absl::OkStatus();
  if (head.codec == SoundCodec::kFlac) return DecodeFlac(file, head, begin, count, out);
  return DecodeWav(file, head, begin, count, out);
}

}  // namespace lockstep::prepare
