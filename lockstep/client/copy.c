#include "lockstep/client/copy.h"

#include <pthread.h>
#include <string.h>

#include "lockstep/client/client.h"

/* Registers and polynomials are bit-reflected: bit 31 is x^0. A checksum is the complement of its register. */
enum { kLine = 64, kStream = 4096, kRound = 3 * kStream, kFold = 4 * kLine, kSmall = 1024 };
static const uint32_t kPolynomial = 0x82f63b78; /* Castagnoli, reflected */
static const uint32_t kOne = 0x80000000;        /* x^0 */

static uint32_t table[8][256];
static uint64_t shift_one, shift_two; /* x^(8n-33) for n = one and two streams; see shift_register() */
static uint64_t fold_low, fold_high;  /* for a distance of kFold bytes; see fold() */
static enum ls_isa best_isa;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* a * b modulo the polynomial. */
static uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = b & 1 ? b >> 1 ^ kPolynomial : b >> 1;
  }
  return product;
}

/* x^n modulo the polynomial, by squaring. */
static uint32_t power_of_x(uint64_t n) {
  uint32_t result = kOne;
  for (uint32_t square = kOne >> 1; n != 0; n >>= 1, square = multiply(square, square)) {
    if (n & 1) result = multiply(result, square);
  }
  return result;
}

static void fill_tables(void) {
  for (uint32_t i = 0; i < 256; ++i) table[0][i] = multiply(i, kOne >> 8);
  for (int k = 1; k < 8; ++k) {
    for (uint32_t i = 0; i < 256; ++i) table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
  }
  shift_one = power_of_x(8ull * kStream - 33);
  shift_two = power_of_x(16ull * kStream - 33);
  fold_low = (uint64_t)power_of_x(8 * kFold + 63) << 32;
  fold_high = (uint64_t)power_of_x(8 * kFold - 1) << 32;
}

static enum ls_isa detect_isa(void) {
#ifdef __x86_64__
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul")) return LS_ISA_PORTABLE;
  if (__builtin_cpu_supports("avx512f")) {
    return __builtin_cpu_supports("vpclmulqdq") ? LS_ISA_VPCLMUL : LS_ISA_AVX512;
  }
  return __builtin_cpu_supports("avx2") ? LS_ISA_AVX2 : LS_ISA_SSE2;
#else
  return LS_ISA_PORTABLE;
#endif
}

static void initialise(void) {
  fill_tables();
  best_isa = detect_isa();
}

enum ls_isa ls_copy_best_isa(void) {
  pthread_once(&once, initialise);
  return best_isa;
}

/* ---- portable: eight bytes at a time by table ---- */

static uint32_t register_portable(uint32_t reg, const uint8_t* from, uint64_t bytes) {
  for (; bytes >= 8; bytes -= 8, from += 8) {
    uint64_t word;
    memcpy(&word, from, 8);
    word ^= reg;
    reg = 0;
    for (int k = 0; k < 8; ++k) reg ^= table[7 - k][word >> (8 * k) & 255];
  }
  for (; bytes > 0; --bytes) reg = reg >> 8 ^ table[0][(reg ^ *from++) & 255];
  return reg;
}

#ifdef __x86_64__
#include <immintrin.h>

#define CRC_TARGET "sse4.2,pclmul"
#define INLINE_FOR(isa) static inline __attribute__((always_inline, target(isa)))

INLINE_FOR(CRC_TARGET) uint64_t word_at(const uint8_t* from) {
  uint64_t word;
  memcpy(&word, from, 8);
  return word;
}

__attribute__((target(CRC_TARGET))) static uint32_t register_sse42(uint32_t reg, const uint8_t* from, uint64_t bytes) {
  uint64_t wide = reg;
  for (; bytes >= 8; bytes -= 8, from += 8) wide = _mm_crc32_u64(wide, word_at(from));
  reg = (uint32_t)wide;
  for (; bytes > 0; --bytes) reg = _mm_crc32_u8(reg, *from++);
  return reg;
}

/* The register as if the bytes of one or two streams, all zero, had followed. The carry-less product of reflected
 * values is reflected with one bit to spare, and the crc32 instruction multiplies by x^32 as it reduces: hence
 * x^(8n-33). */
INLINE_FOR(CRC_TARGET) uint32_t shift_register(uint64_t reg, uint64_t shift) {
  const __m128i product =
      _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)reg), _mm_cvtsi64_si128((long long)shift), 0);
  return (uint32_t)_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

/* Stores to `to` bypass the caches; `to` is aligned to a line. */
INLINE_FOR("sse2") void line_sse2(uint8_t* to, const uint8_t* from) {
  for (int i = 0; i < kLine; i += 16) _mm_stream_si128((__m128i*)(to + i), _mm_loadu_si128((const __m128i*)(from + i)));
}
INLINE_FOR("avx2") void line_avx2(uint8_t* to, const uint8_t* from) {
  for (int i = 0; i < kLine; i += 32) {
    _mm256_stream_si256((__m256i*)(to + i), _mm256_loadu_si256((const __m256i*)(from + i)));
  }
}
INLINE_FOR("avx512f") void line_avx512(uint8_t* to, const uint8_t* from) {
  _mm512_stream_si512((__m512i*)to, _mm512_loadu_si512(from));
}

/* Whole rounds of three streams: the crc32 instruction takes three cycles and can start every cycle. Returns the
 * register. */
#define DEFINE_ROUNDS(name, isa, copy_line)                                                                        \
  __attribute__((target(isa "," CRC_TARGET))) static uint32_t name(uint32_t reg, uint8_t* to, const uint8_t* from, \
                                                                   uint64_t rounds) {                              \
    for (; rounds > 0; --rounds, to += kRound, from += kRound) {                                                   \
      uint64_t a = reg, b = 0, c = 0;                                                                              \
      for (uint64_t i = 0; i < kStream; i += kLine) {                                                              \
        copy_line(to + i, from + i);                                                                               \
        copy_line(to + kStream + i, from + kStream + i);                                                           \
        copy_line(to + 2 * kStream + i, from + 2 * kStream + i);                                                   \
        for (uint64_t k = i; k < i + kLine; k += 8) {                                                              \
          a = _mm_crc32_u64(a, word_at(from + k));                                                                 \
          b = _mm_crc32_u64(b, word_at(from + kStream + k));                                                       \
          c = _mm_crc32_u64(c, word_at(from + 2 * kStream + k));                                                   \
        }                                                                                                          \
      }                                                                                                            \
      reg = shift_register(a, shift_two) ^ shift_register(b, shift_one) ^ (uint32_t)c;                             \
    }                                                                                                              \
    return reg;                                                                                                    \
  }
INLINE_FOR("sse2") void no_line(uint8_t* to, const uint8_t* from) { (void)to, (void)from; }
DEFINE_ROUNDS(rounds_sse2, "sse2", line_sse2)
DEFINE_ROUNDS(rounds_avx2, "avx2", line_avx2)
DEFINE_ROUNDS(rounds_avx512, "avx512f", line_avx512)
DEFINE_ROUNDS(rounds_read, "sse2", no_line)

/* What `sum` is worth kFold bytes further on, plus the line there. Per 128-bit lane the low half stands 64 powers of x
 * above the high one, and a carry-less product of reflected values has one bit to spare: hence x^(D+63) and x^(D-1) for
 * a distance of D bits. */
INLINE_FOR("avx512f,vpclmulqdq") __m512i fold(__m512i sum, __m512i factors, __m512i line) {
  const __m512i low = _mm512_clmulepi64_epi128(sum, factors, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(sum, factors, 0x11);
  return _mm512_ternarylogic_epi64(low, high, line, 0x96);
}
/* The line at `offset`, copied unless `to` is NULL. */
INLINE_FOR("avx512f") __m512i take_line(uint8_t* to, const uint8_t* from, uint64_t offset) {
  const __m512i line = _mm512_loadu_si512(from + offset);
  if (to != NULL) _mm512_stream_si512((__m512i*)(to + offset), line);
  return line;
}

/* A multiple of kFold bytes, not none. Four running sums hold the message modulo the polynomial; their 256 bytes at the
 * end have the register of the whole. */
INLINE_FOR("avx512f,vpclmulqdq," CRC_TARGET)
uint32_t fold_lines(uint32_t reg, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  const __m512i factors = _mm512_broadcast_i32x4(_mm_set_epi64x((long long)fold_high, (long long)fold_low));
  __m512i sum[4];
  for (uint64_t k = 0; k < 4; ++k) sum[k] = take_line(to, from, k * kLine);
  sum[0] = _mm512_xor_si512(sum[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)reg)));
  for (uint64_t i = kFold; i < bytes; i += kFold) {
    for (uint64_t k = 0; k < 4; ++k) sum[k] = fold(sum[k], factors, take_line(to, from, i + k * kLine));
  }
  uint8_t sums[kFold];
  for (uint64_t k = 0; k < 4; ++k) _mm512_storeu_si512(sums + k * kLine, sum[k]);
  return register_sse42(0, sums, kFold);
}
__attribute__((target("avx512f,vpclmulqdq," CRC_TARGET))) static uint32_t fold_copy(uint32_t reg, uint8_t* to,
                                                                                    const uint8_t* from,
                                                                                    uint64_t bytes) {
  return fold_lines(reg, to, from, bytes);
}
__attribute__((target("avx512f,vpclmulqdq," CRC_TARGET))) static uint32_t fold_read(uint32_t reg, const uint8_t* from,
                                                                                    uint64_t bytes) {
  return fold_lines(reg, NULL, from, bytes);
}

#define DEFINE_PLAIN(name, isa, copy_line)                                                          \
  __attribute__((target(isa))) static void name(uint8_t* to, const uint8_t* from, uint64_t bytes) { \
    for (uint64_t i = 0; i < bytes; i += kLine) copy_line(to + i, from + i);                        \
  }
DEFINE_PLAIN(plain_sse2, "sse2", line_sse2)
DEFINE_PLAIN(plain_avx2, "avx2", line_avx2)
DEFINE_PLAIN(plain_avx512, "avx512f", line_avx512)

static uint32_t rounds_with(enum ls_isa isa, uint32_t reg, uint8_t* to, const uint8_t* from, uint64_t rounds) {
  if (rounds == 0) return reg;
  if (isa == LS_ISA_VPCLMUL) return fold_copy(reg, to, from, rounds * kRound);
  if (isa == LS_ISA_AVX512) return rounds_avx512(reg, to, from, rounds);
  return isa == LS_ISA_AVX2 ? rounds_avx2(reg, to, from, rounds) : rounds_sse2(reg, to, from, rounds);
}

/* The register after `bytes`, copied by ordinary stores: heads, tails and what is small. */
static uint32_t small_copy(uint32_t reg, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  memcpy(to, from, bytes);
  return register_sse42(reg, from, bytes);
}

static uint64_t to_line_boundary(const uint8_t* to) { return (uint64_t)(-(uintptr_t)to) % kLine; }

static uint32_t copy_hardware(enum ls_isa isa, uint32_t reg, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  if (bytes < kSmall) return small_copy(reg, to, from, bytes);
  const uint64_t head = to_line_boundary(to);
  reg = small_copy(reg, to, from, head);
  const uint64_t rounds = (bytes - head) / kRound;
  reg = rounds_with(isa, reg, to + head, from + head, rounds);
  _mm_sfence(); /* non-temporal stores are not ordered by the release store that will say DONE */
  const uint64_t done = head + rounds * kRound;
  return small_copy(reg, to + done, from + done, bytes - done);
}

void ls_copy_nontemporal(void* to, const void* from, uint64_t bytes) {
  const enum ls_isa isa = ls_copy_best_isa();
  const uint64_t head = bytes < kSmall ? bytes : to_line_boundary(to);
  const uint64_t body = (bytes - head) / kLine * kLine;
  memcpy(to, from, head);
  uint8_t* body_to = (uint8_t*)to + head;
  const uint8_t* body_from = (const uint8_t*)from + head;
  (isa >= LS_ISA_AVX512 ? plain_avx512 : isa == LS_ISA_AVX2 ? plain_avx2 : plain_sse2)(body_to, body_from, body);
  _mm_sfence();
  memcpy(body_to + body, body_from + body, bytes - head - body);
}

static uint32_t read_hardware(uint32_t reg, const uint8_t* from, uint64_t bytes) {
  const uint64_t rounds = bytes / kRound;
  if (rounds > 0 && best_isa == LS_ISA_VPCLMUL) {
    reg = fold_read(reg, from, rounds * kRound);
  } else {
    reg = rounds_read(reg, (uint8_t*)(uintptr_t)from, from, rounds); /* no_line() leaves `to` alone */
  }
  return register_sse42(reg, from + rounds * kRound, bytes - rounds * kRound);
}
#else
static uint32_t copy_hardware(enum ls_isa isa, uint32_t reg, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  (void)isa;
  memcpy(to, from, bytes);
  return register_portable(reg, from, bytes);
}
static uint32_t read_hardware(uint32_t reg, const uint8_t* from, uint64_t bytes) {
  return register_portable(reg, from, bytes);
}
void ls_copy_nontemporal(void* to, const void* from, uint64_t bytes) { memcpy(to, from, bytes); }
#endif

uint32_t ls_crc32c(uint32_t crc, const void* data, uint64_t bytes) {
  const enum ls_isa isa = ls_copy_best_isa();
  return isa == LS_ISA_PORTABLE ? ~register_portable(~crc, data, bytes) : ~read_hardware(~crc, data, bytes);
}

uint32_t ls_crc32c_join(uint32_t before, uint32_t after, uint64_t bytes) {
  return multiply(before, power_of_x(8 * bytes)) ^ after;
}

uint32_t ls_copy_crc32c_with(enum ls_isa isa, uint32_t crc, void* to, const void* from, uint64_t bytes) {
  pthread_once(&once, initialise);
  if (bytes == 0) return crc;
  if (isa != LS_ISA_PORTABLE) return ~copy_hardware(isa, ~crc, to, from, bytes);
  memcpy(to, from, bytes);
  return ~register_portable(~crc, from, bytes);
}

uint32_t ls_copy_crc32c(uint32_t crc, void* to, const void* from, uint64_t bytes) {
  return ls_copy_crc32c_with(ls_copy_best_isa(), crc, to, from, bytes);
}
