/* Copies memory with non-temporal stores, which leave the caches to the training job, and computes CRC32C in the same
 * pass. AVX-512, AVX2 or SSE2 stores and the crc32 instruction in three interleaved streams, chosen at run time; a
 * table without them. Thread-safe. Cost: bench/copy_rate.cc prints it against the plain copies of the same run.
 *
 * The checksums themselves, ls_crc32c() and ls_copy_crc32c(), are declared in client.h.
 */
#ifndef LOCKSTEP_CLIENT_COPY_H_
#define LOCKSTEP_CLIENT_COPY_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ls_isa { LS_ISA_PORTABLE = 0, LS_ISA_SSE2 = 1, LS_ISA_AVX2 = 2, LS_ISA_AVX512 = 3, LS_ISA_VPCLMUL = 4 };

/* The best of this machine. */
enum ls_isa ls_copy_best_isa(void);
/* As ls_copy_crc32c(), with the instructions asked for; for tests. Not above ls_copy_best_isa(). */
uint32_t ls_copy_crc32c_with(enum ls_isa, uint32_t crc, void* to, const void* from, uint64_t bytes);
/* The CRC32C of what has `before`, followed by `bytes` that alone have `after`. A few microseconds. */
uint32_t ls_crc32c_join(uint32_t before, uint32_t after, uint64_t bytes);
/* Non-temporal copy without CRC: the baseline of the benchmark. */
void ls_copy_nontemporal(void* to, const void* from, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
