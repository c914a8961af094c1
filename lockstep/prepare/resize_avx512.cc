// AVX-512 (BW): four rows at once across, sixteen pixels at once down. Compiled for every x86-64, called only where it
// runs.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/prepare/resize_kernels.h"

#define LS_AVX512 __attribute__((target("avx512f,avx512bw")))

namespace lockstep::prepare {
namespace {

using FourIn = std::array<const uint8_t*, 4>;
using FourOut = std::array<uint8_t*, 4>;

LS_AVX512 inline __m512i Pair(const int16_t* weights) {
  int32_t pair;
  std::memcpy(&pair, weights, sizeof pair);
  return _mm512_set1_epi32(pair);
}

LS_AVX512 inline __m128i Load16(const uint8_t* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }

LS_AVX512 inline __m512i FourRows(const FourIn& rows, ptrdiff_t at) {
  __m512i all = _mm512_castsi128_si512(Load16(rows[0] + at));
  all = _mm512_inserti32x4(all, Load16(rows[1] + at), 1);
  all = _mm512_inserti32x4(all, Load16(rows[2] + at), 2);
  return _mm512_inserti32x4(all, Load16(rows[3] + at), 3);
}

// Of three bytes each, pixels k and k + 1 as 16-bit pairs (r r, g g, b b), in each of four rows.
LS_AVX512 inline __m512i PairOfPixels(char k) {
  const char r = static_cast<char>(3 * k), n = -1;
  const auto at = [r](int i) { return static_cast<char>(r + i); };
  return _mm512_broadcast_i32x4(_mm_setr_epi8(at(0), n, at(3), n, at(1), n, at(4), n, at(2), n, at(5), n, n, n, n, n));
}

LS_AVX512 inline __m512i Weighed(__m512i pixels, __m512i which, const int16_t* weights) {
  return _mm512_madd_epi16(_mm512_shuffle_epi8(pixels, which), Pair(weights));
}

// Of four rows: one output pixel, a 32-bit number per channel. kTaps: 2, 4, 6 or, for any multiple of four, 0.
template <int kTaps>
LS_AVX512 inline __m512i OnePixel(const FourIn& rows, ptrdiff_t at, const Weights& weights) {
  const __m512i first = PairOfPixels(0), second = PairOfPixels(2);
  const __m512i fifth =
      _mm512_broadcast_i32x4(_mm_setr_epi8(12, -1, -1, -1, 13, -1, -1, -1, 14, -1, -1, -1, -1, -1, -1, -1));
  __m512i sum = _mm512_set1_epi32(1 << (weights.bits - 1));
  for (int i = 0; i < (kTaps == 0 ? weights.taps : 1); i += 4) {
    const __m512i pixels = FourRows(rows, at + i * 3);
    sum = _mm512_add_epi32(sum, Weighed(pixels, first, weights.values + i));
    if constexpr (kTaps != 2) sum = _mm512_add_epi32(sum, Weighed(pixels, second, weights.values + i + 2));
    if constexpr (kTaps == 6) sum = _mm512_add_epi32(sum, Weighed(pixels, fifth, weights.values + 4));
  }
  return _mm512_srl_epi32(sum, _mm_cvtsi32_si128(weights.bits));
}

LS_AVX512 inline void Store16(uint8_t* at, __m128i four) { _mm_storeu_si128(reinterpret_cast<__m128i*>(at), four); }

template <int kTaps>
LS_AVX512 void AcrossFour(const FourIn& in, const Axis& axis, const FourOut& out) {
  const auto pixel = [&](int x) LS_AVX512 {
    const ptrdiff_t at = static_cast<ptrdiff_t>(axis.first[static_cast<size_t>(x)]) * 3;
    return OnePixel<kTaps>(in, at, {axis.Of(x), axis.taps, axis.bits});
  };
  const int last = axis.count() - 1;
  for (int x = 0; x <= last; x += 4) {  // behind the last comes room up to a block, where the last is repeated
    const __m512i left = _mm512_packs_epi32(pixel(x), pixel(std::min(x + 1, last)));
    const __m512i right = _mm512_packs_epi32(pixel(std::min(x + 2, last)), pixel(std::min(x + 3, last)));
    const __m512i four = _mm512_packus_epi16(left, right);
    Store16(out[0] + x * 4, _mm512_castsi512_si128(four));
    Store16(out[1] + x * 4, _mm512_extracti32x4_epi32(four, 1));
    Store16(out[2] + x * 4, _mm512_extracti32x4_epi32(four, 2));
    Store16(out[3] + x * 4, _mm512_extracti32x4_epi32(four, 3));
  }
}

auto KernelFor(int taps) {
  return taps == 2 ? AcrossFour<2> : taps == 4 ? AcrossFour<4> : taps == 6 ? AcrossFour<6> : AcrossFour<0>;
}

void Across(Rows in, const Axis& axis, uint8_t* out) {
  const size_t stride = FourByteStride(axis.count());
  const auto across_four = KernelFor(axis.taps);
  for (int y = 0; y < in.count; y += 4) {
    FourIn from;
    FourOut to;
    for (int i = 0; i < 4; ++i) {
      const auto row = static_cast<size_t>(std::min(y + i, in.count - 1));
      from[static_cast<size_t>(i)] = in.data + row * in.stride;
      to[static_cast<size_t>(i)] = out + row * stride;
    }
    across_four(from, axis, to);
  }
}

// Sixteen pixels of four bytes.
LS_AVX512 inline __m512i SixteenDown(const uint8_t* in, size_t stride, const Weights& weights) {
  const __m512i zero = _mm512_setzero_si512(), half = _mm512_set1_epi32(1 << (weights.bits - 1));
  const __m128i shift = _mm_cvtsi32_si128(weights.bits);
  __m512i a = half, b = half, c = half, d = half;
  for (int i = 0; i < weights.taps; i += 2, in += 2 * stride) {
    const __m512i upper = _mm512_loadu_si512(in), lower = _mm512_loadu_si512(in + stride),
                  pair = Pair(weights.values + i);
    const __m512i low = _mm512_unpacklo_epi8(upper, lower), high = _mm512_unpackhi_epi8(upper, lower);
    a = _mm512_add_epi32(a, _mm512_madd_epi16(_mm512_unpacklo_epi8(low, zero), pair));
    b = _mm512_add_epi32(b, _mm512_madd_epi16(_mm512_unpackhi_epi8(low, zero), pair));
    c = _mm512_add_epi32(c, _mm512_madd_epi16(_mm512_unpacklo_epi8(high, zero), pair));
    d = _mm512_add_epi32(d, _mm512_madd_epi16(_mm512_unpackhi_epi8(high, zero), pair));
  }
  const __m512i left = _mm512_packs_epi32(_mm512_srl_epi32(a, shift), _mm512_srl_epi32(b, shift));
  const __m512i right = _mm512_packs_epi32(_mm512_srl_epi32(c, shift), _mm512_srl_epi32(d, shift));
  return _mm512_packus_epi16(left, right);
}

LS_AVX512 void Down(const uint8_t* in, const Weights& weights, int width, uint8_t* out) {
  const size_t stride = FourByteStride(width);
  const __m512i drop_fourth =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
  const __m512i close_up = _mm512_setr_epi32(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 7, 11, 15);
  for (int x = 0; x < width; x += 16) {
    const __m512i four = SixteenDown(in + x * 4, stride, weights);
    const __m512i three = _mm512_permutexvar_epi32(close_up, _mm512_shuffle_epi8(four, drop_fourth));
    const __mmask64 bytes = (__mmask64{1} << (std::min(width - x, 16) * 3)) - 1;
    _mm512_mask_storeu_epi8(out + x * 3, bytes, three);
  }
}

}  // namespace

const ResizeKernels kAvx512Kernels{"avx512", Across, Down};

}  // namespace lockstep::prepare
#endif
