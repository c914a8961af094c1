// Sound files for tests.
#pragma once

#include <FLAC/stream_encoder.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/prepare/buffer.h"

namespace lockstep::prepare {

struct TestSound {
  uint32_t rate = 8000, channels = 2, bits = 16;
  std::vector<int32_t> samples = {};  // frame after frame
};

// A tone with some noise, which the codec can't leave out.
inline TestSound MakeSound(uint32_t rate, uint32_t channels, uint32_t bits, size_t frames) {
  TestSound sound{rate, channels, bits, {}};
  uint32_t noise = 12345;
  const double half = std::ldexp(1.0, static_cast<int>(bits) - 1);
  for (size_t frame = 0; frame < frames; ++frame)
    for (uint32_t channel = 0; channel < channels; ++channel) {
      noise = noise * 1664525 + 1013904223;
      const double value =
          0.7 * std::sin(static_cast<double>(frame) * (0.05 + channel * 0.02)) + (noise >> 16) * 0x1p-18;
      sound.samples.push_back(static_cast<int32_t>(value * (half - 1)));
    }
  return sound;
}

template <typename T>
void AppendLow(std::string& text, T value, size_t bytes = sizeof(T)) {
  text.append(reinterpret_cast<const char*>(&value), bytes);
}

inline std::string WavChunk(const std::string& name, const std::string& content) {
  std::string text = name;
  AppendLow(text, static_cast<uint32_t>(content.size()));
  return text + content + (content.size() % 2 == 1 ? std::string(1, '\0') : "");
}

inline std::string WavFormat(uint16_t kind, const TestSound& sound) {
  std::string text;
  AppendLow(text, kind);
  AppendLow(text, static_cast<uint16_t>(sound.channels));
  AppendLow(text, sound.rate);
  AppendLow(text, sound.rate * sound.channels * (sound.bits / 8));
  AppendLow(text, static_cast<uint16_t>(sound.channels * (sound.bits / 8)));
  AppendLow(text, static_cast<uint16_t>(sound.bits));
  return text;
}

inline std::string WavOf(const std::string& chunks) { return WavChunk("RIFF", "WAVE" + chunks); }

inline std::string WavFile(const TestSound& sound) {
  std::string data;
  for (const int32_t sample : sound.samples) AppendLow(data, sound.bits == 8 ? sample + 128 : sample, sound.bits / 8);
  return WavOf(WavChunk("fmt ", WavFormat(1, sound)) + WavChunk("LIST", "odd") + WavChunk("data", data));
}

struct FlacSink {
  std::string text;
  size_t at = 0;
};

inline std::string FlacFile(const TestSound& sound, uint32_t block = 512) {
  FlacSink sink;
  FLAC__StreamEncoder* encoder = FLAC__stream_encoder_new();
  FLAC__stream_encoder_set_channels(encoder, sound.channels);
  FLAC__stream_encoder_set_bits_per_sample(encoder, sound.bits);
  FLAC__stream_encoder_set_sample_rate(encoder, sound.rate);
  FLAC__stream_encoder_set_blocksize(encoder, block);
  const auto write = [](const FLAC__StreamEncoder*, const FLAC__byte bytes[], size_t count, uint32_t, uint32_t,
                        void* self) {
    auto& to = *static_cast<FlacSink*>(self);
    to.text.replace(to.at, count, reinterpret_cast<const char*>(bytes), count);
    to.at += count;
    return FLAC__STREAM_ENCODER_WRITE_STATUS_OK;
  };
  const auto seek = [](const FLAC__StreamEncoder*, FLAC__uint64 offset, void* self) {
    static_cast<FlacSink*>(self)->at = offset;
    return FLAC__STREAM_ENCODER_SEEK_STATUS_OK;
  };
  const auto tell = [](const FLAC__StreamEncoder*, FLAC__uint64* offset, void* self) {
    *offset = static_cast<FlacSink*>(self)->at;
    return FLAC__STREAM_ENCODER_TELL_STATUS_OK;
  };
  LS_CHECK(FLAC__stream_encoder_init_stream(encoder, write, seek, tell, nullptr, &sink) ==
               FLAC__STREAM_ENCODER_INIT_STATUS_OK,
           "{}", sound.bits);
  const auto frames = static_cast<uint32_t>(sound.samples.size() / sound.channels);
  LS_CHECK(FLAC__stream_encoder_process_interleaved(encoder, sound.samples.data(), frames) != 0, "{}", frames);
  FLAC__stream_encoder_finish(encoder);
  FLAC__stream_encoder_delete(encoder);
  return sink.text;
}

inline Bytes BytesIn(const std::string& text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

}  // namespace lockstep::prepare
