// AVX2: two rows at once across, eight pixels at once down. Compiled for every x86-64, called only where it runs.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "lockstep/prepare/resize_kernels.h"

#define LS_AVX2 __attribute__((target("avx2")))

namespace lockstep::prepare {
namespace {

LS_AVX2 inline __m256i Pair(const int16_t* weights) {
  int32_t pair;
  std::memcpy(&pair, weights, sizeof pair);
  return _mm256_set1_epi32(pair);
}

LS_AVX2 inline __m256i TwoRows(const uint8_t* upper, const uint8_t* lower) {
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(upper));
  const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(lower));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
}

// Of three bytes each, pixels k and k + 1 as 16-bit pairs (r r, g g, b b), in both rows.
LS_AVX2 inline __m256i PairOfPixels(char k) {
  const char r = static_cast<char>(3 * k), n = -1;
  const auto at = [r](int i) { return static_cast<char>(r + i); };
  return _mm256_broadcastsi128_si256(
      _mm_setr_epi8(at(0), n, at(3), n, at(1), n, at(4), n, at(2), n, at(5), n, n, n, n, n));
}

LS_AVX2 inline __m256i Weighed(__m256i pixels, __m256i which, const int16_t* weights) {
  return _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, which), Pair(weights));
}

// Of both rows: one output pixel, a 32-bit number per channel. kTaps: 2, 4, 6 or, for any multiple of four, 0.
template <int kTaps>
LS_AVX2 inline __m256i OnePixel(const uint8_t* upper, const uint8_t* lower, const Weights& weights) {
  const __m256i first = PairOfPixels(0), second = PairOfPixels(2);
  const __m256i fifth =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(12, -1, -1, -1, 13, -1, -1, -1, 14, -1, -1, -1, -1, -1, -1, -1));
  __m256i sum = _mm256_set1_epi32(1 << (weights.bits - 1));
  for (int i = 0; i < (kTaps == 0 ? weights.taps : 1); i += 4) {
    const __m256i pixels = TwoRows(upper + i * 3, lower + i * 3);
    sum = _mm256_add_epi32(sum, Weighed(pixels, first, weights.values + i));
    if constexpr (kTaps != 2) sum = _mm256_add_epi32(sum, Weighed(pixels, second, weights.values + i + 2));
    if constexpr (kTaps == 6) sum = _mm256_add_epi32(sum, Weighed(pixels, fifth, weights.values + 4));
  }
  return _mm256_srl_epi32(sum, _mm_cvtsi32_si128(weights.bits));
}

struct TwoIn {
  const uint8_t *upper, *lower;
};
struct TwoOut {
  uint8_t *upper, *lower;
};

template <int kTaps>
LS_AVX2 void AcrossTwo(TwoIn in, const Axis& axis, TwoOut out) {
  const auto pixel = [&](int x) LS_AVX2 {
    const ptrdiff_t at = static_cast<ptrdiff_t>(axis.first[static_cast<size_t>(x)]) * 3;
    return OnePixel<kTaps>(in.upper + at, in.lower + at, {axis.Of(x), axis.taps, axis.bits});
  };
  const int last = axis.count() - 1;
  for (int x = 0; x <= last; x += 4) {  // behind the last comes room up to a block, where the last is repeated
    const __m256i left = _mm256_packs_epi32(pixel(x), pixel(std::min(x + 1, last)));
    const __m256i right = _mm256_packs_epi32(pixel(std::min(x + 2, last)), pixel(std::min(x + 3, last)));
    const __m256i four = _mm256_packus_epi16(left, right);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out.upper + x * 4), _mm256_castsi256_si128(four));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out.lower + x * 4), _mm256_extracti128_si256(four, 1));
  }
}

auto KernelFor(int taps) {
  return taps == 2 ? AcrossTwo<2> : taps == 4 ? AcrossTwo<4> : taps == 6 ? AcrossTwo<6> : AcrossTwo<0>;
}

void Across(Rows in, const Axis& axis, uint8_t* out) {
  const size_t stride = FourByteStride(axis.count());
  const auto across_two = KernelFor(axis.taps);
  for (int y = 0; y < in.count; y += 2) {
    const auto upper = static_cast<size_t>(y), lower = static_cast<size_t>(std::min(y + 1, in.count - 1));
    across_two({in.data + upper * in.stride, in.data + lower * in.stride}, axis,
               {out + upper * stride, out + lower * stride});
  }
}

LS_AVX2 inline __m256i Load(const uint8_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }

// Eight pixels of four bytes.
LS_AVX2 inline __m256i EightDown(const uint8_t* in, size_t stride, const Weights& weights) {
  const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(1 << (weights.bits - 1));
  const __m128i shift = _mm_cvtsi32_si128(weights.bits);
  __m256i a = half, b = half, c = half, d = half;
  for (int i = 0; i < weights.taps; i += 2, in += 2 * stride) {
    const __m256i upper = Load(in), lower = Load(in + stride), pair = Pair(weights.values + i);
    const __m256i low = _mm256_unpacklo_epi8(upper, lower), high = _mm256_unpackhi_epi8(upper, lower);
    a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), pair));
    b = _mm256_add_epi32(b, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), pair));
    c = _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), pair));
    d = _mm256_add_epi32(d, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), pair));
  }
  const __m256i left = _mm256_packs_epi32(_mm256_srl_epi32(a, shift), _mm256_srl_epi32(b, shift));
  const __m256i right = _mm256_packs_epi32(_mm256_srl_epi32(c, shift), _mm256_srl_epi32(d, shift));
  return _mm256_packus_epi16(left, right);
}

LS_AVX2 void Down(const uint8_t* in, const Weights& weights, int width, uint8_t* out) {
  const size_t stride = FourByteStride(width);
  const __m256i drop_fourth =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
  const __m256i close_up = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 3, 7);
  for (int x = 0; x < width; x += 8) {
    const __m256i four = EightDown(in + x * 4, stride, weights);
    const __m256i three = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(four, drop_fourth), close_up);
    alignas(32) uint8_t bytes[32];
    _mm256_store_si256(reinterpret_cast<__m256i*>(bytes), three);
    std::memcpy(out + x * 3, bytes, static_cast<size_t>(std::min(width - x, 8)) * 3);
  }
}

}  // namespace

const ResizeKernels kAvx2Kernels{"avx2", Across, Down};

}  // namespace lockstep::prepare
#endif
