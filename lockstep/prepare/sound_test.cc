#include "lockstep/prepare/sound.h"

#include <gmock/gmock.h>
#include <malloc.h>

#include <set>

#include "lockstep/prepare/clip.h"
#include "lockstep/prepare/test_sounds.h"

namespace lockstep::prepare {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const std::string& file) { return std::string(ReadSoundHead(BytesIn(file)).status().message()); }

// Frames [begin, begin + count), frame after frame, as whole numbers of so many bits.
std::vector<int32_t> Decoded(const std::string& file, uint64_t begin, uint64_t count, uint32_t bits) {
  const absl::StatusOr<SoundHead> head = ReadSoundHead(BytesIn(file));
  EXPECT_TRUE(head.ok()) << head.status();
  if (!head.ok()) return {};
  std::vector<float> planes(head->channels * count);
  const absl::Status status = DecodeSound(BytesIn(file), *head, begin, count, planes);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<int32_t> samples;
  for (uint64_t frame = 0; frame < count; ++frame)
    for (uint32_t channel = 0; channel < head->channels; ++channel)
      samples.push_back(static_cast<int32_t>(std::ldexp(planes[channel * count + frame], static_cast<int>(bits) - 1)));
  return samples;
}

std::vector<int32_t> PartOf(const TestSound& sound, uint64_t begin, uint64_t count) {
  const auto at = [&](uint64_t frame) {
    return sound.samples.begin() + static_cast<std::ptrdiff_t>(frame * sound.channels);
  };
  return {at(begin), at(begin + count)};
}

TEST(Sound, WholeNumbersComeBackExactly) {
  for (const uint32_t bits : {8U, 16U, 24U})
    for (const uint32_t channels : {1U, 2U, 5U}) {
      const TestSound sound = MakeSound(44'100, channels, bits, 2000);
      EXPECT_EQ(Decoded(WavFile(sound), 0, 2000, bits), sound.samples) << bits;
      EXPECT_EQ(Decoded(FlacFile(sound), 0, 2000, bits), sound.samples) << bits;
    }
}

TEST(Sound, OfThirtyTwoBitsTheUpperTwentyFourAreExact) {
  TestSound sound = MakeSound(8000, 1, 24, 1000);
  const std::vector<int32_t> expected = sound.samples;
  for (int32_t& sample : sound.samples) sample *= 256;
  sound.bits = 32;
  EXPECT_EQ(Decoded(WavFile(sound), 0, 1000, 24), expected);
  EXPECT_EQ(Decoded(FlacFile(sound), 0, 1000, 24), expected);
}

TEST(Sound, WavMayHoldFloatsAndAnExtendedFormat) {
  TestSound sound{16'000, 1, 32, {}};
  std::string data;
  for (const float value : {0.5F, -1.0F, 0.25F}) AppendLow(data, value);
  const std::string plain = WavOf(WavChunk("fmt ", WavFormat(3, sound)) + WavChunk("data", data));
  EXPECT_EQ(Decoded(plain, 0, 3, 16), (std::vector<int32_t>{16'384, -32'768, 8192}));
  std::string extended = WavFormat(0xFFFE, sound);
  extended += std::string(8, '\0') + std::string("\x03\x00", 2) + std::string(14, '\0');
  EXPECT_EQ(Decoded(WavOf(WavChunk("fmt ", extended) + WavChunk("data", data)), 1, 2, 16),
            (std::vector<int32_t>{-32'768, 8192}));
  sound.bits = 64;
  data.clear();
  for (const double value : {0.5, -1.0}) AppendLow(data, value);
  EXPECT_EQ(Decoded(WavOf(WavChunk("fmt ", WavFormat(3, sound)) + WavChunk("data", data)), 0, 2, 16),
            (std::vector<int32_t>{16'384, -32'768}));
}

TEST(Sound, APartIsThatPartOfTheWhole) {
  const TestSound sound = MakeSound(8000, 2, 16, 10'000);
  const std::string flac = FlacFile(sound), wav = WavFile(sound);
  for (uint64_t begin = 0; begin < 10'000; begin += 487)
    for (const uint64_t count : {uint64_t{1}, uint64_t{700}, 10'000 - begin}) {
      if (count > 10'000 - begin) continue;
      ASSERT_EQ(Decoded(flac, begin, count, 16), PartOf(sound, begin, count)) << begin;
      ASSERT_EQ(Decoded(wav, begin, count, 16), PartOf(sound, begin, count)) << begin;
    }
}

TEST(Sound, HeadersSayWhatIsWrong) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("empty"));
  EXPECT_THAT(ErrorOf("GIF89a and more"), HasSubstr("expected a FLAC or a WAV"));
  EXPECT_THAT(ErrorOf("fLaC"), HasSubstr("damaged header"));
  EXPECT_THAT(ErrorOf(WavOf("")), HasSubstr("no samples in it"));
  const TestSound sound = MakeSound(8000, 2, 16, 100);
  const std::string format = WavChunk("fmt ", WavFormat(1, sound));
  EXPECT_THAT(ErrorOf(WavOf(format + WavChunk("data", ""))), HasSubstr("no samples, or doesn't say how many"));
  EXPECT_THAT(ErrorOf(WavOf(WavChunk("data", "1234") + format)), HasSubstr("before their format"));
  EXPECT_THAT(ErrorOf(WavOf(WavChunk("fmt ", WavFormat(85, sound)) + WavChunk("data", "1234"))), HasSubstr("kind 85"));
  TestSound odd = sound;
  odd.bits = 12;
  EXPECT_THAT(ErrorOf(WavOf(WavChunk("fmt ", WavFormat(1, odd)) + WavChunk("data", "1234"))), HasSubstr("12 bits"));
  odd = {0, 2, 16, {}};
  EXPECT_THAT(ErrorOf(WavOf(WavChunk("fmt ", WavFormat(1, odd)) + WavChunk("data", "1234"))),
              HasSubstr("0 samples per second"));
  odd = {8000, 0, 16, {}};
  EXPECT_THAT(ErrorOf(WavOf(WavChunk("fmt ", WavFormat(1, odd)) + WavChunk("data", "1234"))), HasSubstr("0 channels"));
}

TEST(Sound, LengthsThatCannotBeAreRefused) {
  const TestSound sound = MakeSound(8000, 2, 16, 3000);
  std::string wav = WavFile(sound);
  const size_t data = wav.find("data");
  wav.replace(data + 4, 4, "\xFE\xFF\xFF\xFF");
  EXPECT_THAT(ErrorOf(wav), HasSubstr("4294967294 bytes of samples at byte"));
  std::string flac = FlacFile(sound);
  constexpr size_t kTotal = 21;  // of 36 bits; 18 is where the rate begins, and 22 to 25 are its lower 32
  flac[kTotal] = static_cast<char>(flac[kTotal] | 0x0F);
  EXPECT_THAT(ErrorOf(flac), HasSubstr("it is truncated, or the header is damaged"));
  flac[kTotal] = static_cast<char>(flac[kTotal] & 0xF0);
  flac.replace(kTotal + 1, 4, std::string(4, '\0'));
  EXPECT_THAT(ErrorOf(flac), HasSubstr("doesn't say how many"));
}

TEST(Sound, OfAWavFromAPipeAllSamplesToItsEndAreMeant) {
  const TestSound sound = MakeSound(8000, 2, 16, 3000);
  const std::string whole = WavFile(sound);
  std::string piped = whole;
  piped.replace(4, 4, "\xFF\xFF\xFF\xFF");
  piped.replace(piped.find("data") + 4, 4, "\xFF\xFF\xFF\xFF");
  const absl::StatusOr<SoundHead> head = ReadSoundHead(BytesIn(piped));
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->frames, 3000U);
  std::vector<float> expected(6000), planes(6000);
  ASSERT_TRUE(DecodeSound(BytesIn(whole), *ReadSoundHead(BytesIn(whole)), 0, 3000, expected).ok());
  ASSERT_TRUE(DecodeSound(BytesIn(piped), *head, 0, 3000, planes).ok());
  EXPECT_EQ(planes, expected);
  piped.resize(piped.size() - 1);  // within a frame
  EXPECT_EQ(ReadSoundHead(BytesIn(piped))->frames, 2999U);
  piped.replace(piped.find("LIST") + 4, 4, "\xFF\xFF\xFF\xFF");
  EXPECT_THAT(ErrorOf(piped), HasSubstr("4294967295 bytes of a chunk"));
}

TEST(Sound, WhatIsCutShortIsAnErrorWhereItIsMissing) {
  const TestSound sound = MakeSound(8000, 1, 16, 5000);
  const std::string flac = FlacFile(sound), wav = WavFile(sound);
  for (size_t size = 0; size < wav.size(); size += 97) EXPECT_NE(ErrorOf(wav.substr(0, size)), "") << size;
  std::vector<float> planes(5000);
  int decoded = 0;
  for (size_t size = 0; size < flac.size(); size += 97) {
    const std::string cut = flac.substr(0, size);
    const absl::StatusOr<SoundHead> head = ReadSoundHead(BytesIn(cut));
    if (!head.ok()) continue;
    EXPECT_FALSE(DecodeSound(BytesIn(cut), *head, 0, 5000, planes).ok()) << size;
    decoded += DecodeSound(BytesIn(cut), *head, 0, 100, std::span(planes).first(100)).ok() ? 1 : 0;
  }
  EXPECT_GT(decoded, 10);
  std::string bent = flac;
  bent[bent.size() / 2] ^= 0x10;
  EXPECT_THAT(std::string(DecodeSound(BytesIn(bent), *ReadSoundHead(BytesIn(bent)), 0, 5000, planes).message()),
              HasSubstr("FLAC: damaged behind sample"));
}

// ---- clips ----

std::vector<float> Clipped(const std::string& file, const Clip& clip, const AugmentKey& key) {
  std::vector<uint8_t> bytes(clip.bytes());
  Clipper clipper;
  const absl::Status status = clipper.Prepare(BytesIn(file), clip, key, bytes);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<float> values;
  for (size_t i = 0; i < size_t{clip.frames} * clip.channels; ++i) {
    float value = 0;
    int16_t whole = 0;
    if (clip.int16) {
      std::memcpy(&whole, bytes.data() + i * 2, 2);
      value = whole;
    } else {
      std::memcpy(&value, bytes.data() + i * 4, 4);
      value *= 32'768;
    }
    values.push_back(value);
  }
  return values;
}

TEST(Clip, IsAPartOfEachChannel) {
  const TestSound sound = MakeSound(8000, 2, 16, 1000);
  for (const bool int16 : {false, true}) {
    const Clip clip{.rate = 8000, .frames = 300, .channels = 2, .int16 = int16};
    for (uint64_t item = 0; item < 50; ++item) {
      const AugmentKey key{.seed = 3, .item = item};
      const std::vector<float> found = Clipped(FlacFile(sound), clip, key);
      const uint64_t begin = ClipBegin(clip, 1000, key);
      ASSERT_LE(begin, 700U);
      for (size_t i = 0; i < 300; ++i)
        for (size_t channel = 0; channel < 2; ++channel)
          ASSERT_EQ(found[channel * 300 + i], static_cast<float>(sound.samples[(begin + i) * 2 + channel]));
    }
  }
}

TEST(Clip, OneChannelIsTheMean) {
  const TestSound sound{8000, 2, 16, {100, 300, -5, -5, 32'767, -32'768}};
  EXPECT_EQ(Clipped(WavFile(sound), {.rate = 8000, .frames = 3}, {}), (std::vector<float>{200, -5, -0.5}));
}

TEST(Clip, WhatIsShorterIsFollowedByZeros) {
  const TestSound sound{8000, 2, 16, {1, 2, 3, 4}};
  EXPECT_EQ(Clipped(FlacFile(sound), {.rate = 8000, .frames = 4, .channels = 2, .int16 = true}, {}),
            (std::vector<float>{1, 3, 0, 0, 2, 4, 0, 0}));
}

TEST(Clip, BeginsAnywhereOrInTheMiddle) {
  const Clip clip{.rate = 8000, .frames = 10};
  std::set<uint64_t> begins;
  for (uint64_t item = 0; item < 200; ++item) begins.insert(ClipBegin(clip, 15, {.item = item}));
  EXPECT_EQ(begins, (std::set<uint64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(ClipBegin({.rate = 8000, .frames = 10, .random = false}, 15, {}), 2U);
}

template <typename Number>
std::string FloatWav(uint32_t channels, std::initializer_list<Number> values) {
  std::string data;
  for (const Number value : values) AppendLow(data, value);
  return WavOf(WavChunk("fmt ", WavFormat(3, {8000, channels, sizeof(Number) * 8, {}})) + WavChunk("data", data));
}

TEST(Clip, FloatsBeyondOneComeAsTheyAreAndAreClippedToInt16) {
  const std::string wav = FloatWav(1, {2.0F, -7.5F, 1.0F, -1.0F});
  EXPECT_EQ(Clipped(wav, {.rate = 8000, .frames = 4}, {}),
            (std::vector<float>{65'536, -245'760, 32'768, -32'768}));  // times 32,768
  EXPECT_EQ(Clipped(wav, {.rate = 8000, .frames = 4, .int16 = true}, {}),
            (std::vector<float>{32'767, -32'768, 32'767, -32'768}));
}

TEST(Clip, ASampleThatIsNoFiniteNumberIsAnErrorOfWhatHasIt) {
  for (const bool int16 : {false, true}) {
    const auto error = [&](const std::string& wav, uint32_t frames) {
      const Clip clip{.rate = 8000, .frames = frames, .channels = 2, .random = false, .int16 = int16};
      std::vector<uint8_t> out(clip.bytes());
      return std::string(Clipper().Prepare(BytesIn(wav), clip, {}, out).message());
    };
    const std::string nan = FloatWav(2, {0.0F, 0.0F, 0.5F, 0.5F, 0.5F, 0.5F, 0.0F, std::nanf("")});
    EXPECT_EQ(error(nan, 4), "WAV: sample 3 is nan: expected a finite number");
    EXPECT_EQ(error(nan, 2), "");  // from the middle
    EXPECT_EQ(error(FloatWav(2, {0.0F, 0.0F, -INFINITY, 0.0F}), 2), "WAV: sample 1 is -inf: expected a finite number");
    EXPECT_EQ(error(FloatWav(2, {1e300, 0.0}), 1), "WAV: sample 0 is inf: expected a finite number");
  }
}

TEST(Clip, FromWhatIsKeptComesTheSame) {
  const Clip clip{.rate = 8000, .frames = 500, .channels = 2};
  // The second takes more than kMaxKept bytes.
  for (const size_t frames : {size_t{3000}, size_t{600'000}}) {
    const std::string file = FlacFile(MakeSound(8000, 2, 16, frames), 4096);
    Clipper clipper;
    Buffer kept;
    ASSERT_TRUE(clipper.Keep(BytesIn(file), kept).ok());
    EXPECT_EQ(*clipper.KeptBytes(BytesIn(file)), kept.size());
    EXPECT_LE(kept.size(), std::max<size_t>(Clipper::kMaxKept, file.size()) + sizeof(SoundHead));
    std::vector<uint8_t> alone(clip.bytes()), shared(clip.bytes());
    for (uint64_t item = 0; item < 20; ++item) {
      ASSERT_TRUE(clipper.Prepare(BytesIn(file), clip, {.item = item}, alone).ok());
      ASSERT_TRUE(clipper.Cut(kept.bytes(), clip, {.item = item}, shared).ok());
      ASSERT_EQ(alone, shared);
    }
  }
}

// A clip of 1.2 million samples would be 5 MB as floats. mallinfo2 is 0 with a sanitizer.
TEST(Clip, ALongOneTakesNoMoreMemory) {
  const TestSound sound = MakeSound(8000, 2, 16, 700'000);
  const std::string file = FlacFile(sound, 4096);
  const Clip clip{.rate = 8000, .frames = 600'000, .channels = 2, .int16 = true};
  std::vector<uint8_t> out(clip.bytes());
  const auto allocated = [] {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  Clipper clipper;
  const size_t before = allocated();
  ASSERT_TRUE(clipper.Prepare(BytesIn(file), clip, {.item = 1}, out).ok());
  EXPECT_LE(allocated(), before + (1 << 20) + 4096);
  const uint64_t begin = ClipBegin(clip, 700'000, {.item = 1});
  for (size_t i = 0; i < 600'000; ++i) {
    int16_t left = 0, right = 0;
    std::memcpy(&left, out.data() + i * 2, 2);
    std::memcpy(&right, out.data() + (600'000 + i) * 2, 2);
    ASSERT_EQ(left, sound.samples[(begin + i) * 2]);
    ASSERT_EQ(right, sound.samples[(begin + i) * 2 + 1]);
  }
}

TEST(Clip, WhatDoesNotFitIsSaid) {
  const std::string file = FlacFile(MakeSound(44'100, 2, 16, 100));
  const auto error = [&](const Clip& clip) {
    std::vector<uint8_t> out(clip.bytes());
    return std::string(Clipper().Prepare(BytesIn(file), clip, {}, out).message());
  };
  EXPECT_EQ(error({.rate = 16'000, .frames = 10}),
            "44100 samples per second, expected 16000: nothing is resampled here");
  EXPECT_EQ(error({.rate = 44'100, .frames = 10, .channels = 3}), "2 channels, expected 3");
  EXPECT_FALSE(Validate(Clip{.rate = 8000, .frames = 0}).ok());
  EXPECT_FALSE(Validate(Clip{.rate = 8000, .frames = 1 << 26, .channels = 2}).ok());
  EXPECT_TRUE(Validate(Clip{.rate = 8000, .frames = 16'000}).ok());
}

}  // namespace
}  // namespace lockstep::prepare
