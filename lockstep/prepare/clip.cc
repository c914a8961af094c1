#include "lockstep/prepare/clip.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/base/check.h"

namespace lockstep::prepare {
namespace {

constexpr uint32_t kMaxFrames = 1 << 26, kMaxChannels = 64;
constexpr uint64_t kPiece = 1 << 18;  // samples that are decoded at once: a megabyte, whatever the clip

// A piece of a clip.
struct Planes {
  const float* samples = nullptr;
  uint64_t stride = 0;    // from channel to channel
  uint32_t channels = 0;  // in the file
  uint64_t at = 0;        // of its first frame, in the clip
  uint64_t count = 0;     // of frames
};

float Mixed(const Planes& planes, uint64_t frame) {
  float sum = 0;
  for (size_t channel = 0; channel < planes.channels; ++channel) sum += planes.samples[channel * planes.stride + frame];
  return sum / static_cast<float>(planes.channels);
}

int16_t ToInt16(float sample) {
  return static_cast<int16_t>(std::lrint(std::clamp(sample * 32'768.0F, -32'768.0F, 32'767.0F)));
}

template <typename Sample, typename Convert>
void WriteClip(const Planes& planes, const Clip& clip, std::span<uint8_t> out, const Convert& convert) {
  const bool mixes = clip.channels == 1 && planes.channels != 1;
  for (size_t channel = 0; channel < clip.channels; ++channel) {
    uint8_t* to = out.data() + (channel * clip.frames + planes.at) * sizeof(Sample);
    for (uint64_t frame = 0; frame < planes.count; ++frame, to += sizeof(Sample)) {
      const Sample sample = convert(mixes ? Mixed(planes, frame) : planes.samples[channel * planes.stride + frame]);
      std::memcpy(to, &sample, sizeof sample);
    }
  }
}

void Write(const Planes& planes, const Clip& clip, std::span<uint8_t> out) {
  if (clip.int16) return WriteClip<int16_t>(planes, clip, out, ToInt16);
  WriteClip<float>(planes, clip, out, [](float sample) { return sample; });
}

// How many frames of a sound a clip has. What it lacks is 0, of either type.
uint64_t FramesOf(const SoundHead& head, const Clip& clip, std::span<uint8_t> out) {
  if (head.frames < clip.frames) std::ranges::fill(out, uint8_t{0});
  return std::min<uint64_t>(clip.frames, head.frames);
}

absl::Status Fits(const SoundHead& head, const Clip& clip) {
  if (head.rate != clip.rate)
    return InvalidArgument("{} samples per second, expected {}: nothing is resampled here", head.rate, clip.rate);
  if (clip.channels != 1 && head.channels != clip.channels)
    return InvalidArgument("{} channels, expected {}", head.channels, clip.channels);
  return absl::OkStatus();
}

bool KeepsSamples(const SoundHead& head) { return head.bytes() <= Clipper::kMaxKept; }

}  // namespace

absl::Status Validate(const Clip& clip) {
  if (clip.frames < 1 || clip.frames > kMaxFrames || clip.channels < 1 || clip.channels > kMaxChannels ||
      clip.rate < 1 || uint64_t{clip.frames} * clip.channels > kMaxFrames)
    return InvalidArgument(
        "a clip of {} samples of {} channels at {} per second: expected 1 to {} samples in all, 1 to {} channels",
        clip.frames, clip.channels, clip.rate, kMaxFrames, kMaxChannels);
  return absl::OkStatus();
}

uint64_t ClipBegin(const Clip& clip, uint64_t frames, const AugmentKey& key) {
  if (frames <= clip.frames) return 0;
  const uint64_t last = frames - clip.frames;
  if (!clip.random) return last / 2;
  Draws draws(key);
  return std::min(static_cast<uint64_t>(draws.Uniform(0, static_cast<double>(last + 1))), last);
}

absl::Status Clipper::Prepare(Bytes file, const Clip& clip, const AugmentKey& key, std::span<uint8_t> out) {
  LS_CHECK(out.size() == clip.bytes(), "{} {}", out.size(), clip.bytes());
  LS_ASSIGN_OR_RETURN(const SoundHead head, ReadSoundHead(file));
  LS_RETURN_IF_ERROR(Fits(head, clip));
  const uint64_t frames = FramesOf(head, clip, out), begin = ClipBegin(clip, head.frames, key);
  for (uint64_t at = 0, count = 0; at < frames; at += count) {
    count = std::min(frames - at, kPiece / head.channels);
    planes_.resize(count * head.channels);
    LS_RETURN_IF_ERROR(DecodeSound(file, head, begin + at, count, planes_));
    Write({planes_.data(), count, head.channels, at, count}, clip, out);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Clipper::KeptBytes(Bytes file) const {
  LS_ASSIGN_OR_RETURN(const SoundHead head, ReadSoundHead(file));
  return sizeof head + (KeepsSamples(head) ? head.bytes() : file.size());
}

absl::Status Clipper::Keep(Bytes file, Buffer& kept) const {
  LS_ASSIGN_OR_RETURN(const SoundHead head, ReadSoundHead(file));
  kept.Resize(sizeof head + (KeepsSamples(head) ? head.bytes() : file.size()));
  std::memcpy(kept.data(), &head, sizeof head);
  uint8_t* const behind = kept.data() + sizeof head;
  if (KeepsSamples(head))
    return DecodeSound(file, head, 0, head.frames, {reinterpret_cast<float*>(behind), head.frames * head.channels});
  std::memcpy(behind, file.data(), file.size());
  return absl::OkStatus();
}

absl::Status Clipper::Cut(Bytes kept, const Clip& clip, const AugmentKey& key, std::span<uint8_t> out) {
  LS_CHECK(out.size() == clip.bytes(), "{} {}", out.size(), clip.bytes());
  SoundHead head;
  std::memcpy(&head, kept.data(), sizeof head);
  const Bytes behind = kept.subspan(sizeof head);
  if (!KeepsSamples(head)) return Prepare(behind, clip, key, out);
  LS_RETURN_IF_ERROR(Fits(head, clip));
  const auto* samples = reinterpret_cast<const float*>(behind.data());
  const uint64_t frames = FramesOf(head, clip, out);
  Write({samples + ClipBegin(clip, head.frames, key), head.frames, head.channels, 0, frames}, clip, out);
  return absl::OkStatus();
}

}  // namespace lockstep::prepare
