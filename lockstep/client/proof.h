/* The freshness proof of a checkpoint. CRCs say that a copy is what was copied; this says that what was copied is the
 * state after that step. In step(), before anything else runs, the training thread notes 64 short samples of the
 * tensors that are still to be copied: 32 at places that (epoch, step) choose among all bytes, 32 in tensors of their
 * choice, so that small ones count too. A copy that differs from them was written to meanwhile, past the version
 * counters of torch, and never becomes DONE. The hash of the samples at the first 32 places, of the copy that agreed
 * with them, and of (epoch, step) is the slot's `proof`: whoever holds a copy, in a peer's memory or read from a disk,
 * can compute it anew (ls_proof() in client.h), and a copy of another step, or under another name, does not pass.
 *
 * Cost: 64 cache misses in step(), as many beside the copy, 32 in a check. Samples of CUDA tensors are not taken in
 * step(), which would wait for the device: there the proof binds the copy to its name.
 */
#ifndef LOCKSTEP_CLIENT_PROOF_H_
#define LOCKSTEP_CLIENT_PROOF_H_

#include <stdbool.h>
#include <stdint.h>

#include "lockstep/client/commit.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LS_PROOF_PLACES = 32, LS_PROOF_BYTES = 64 };

struct ls_sample {
  uint64_t offset; /* in the slot */
  uint32_t bytes;
  unsigned char seen[LS_PROOF_BYTES];
};

/* What step() saw. */
struct ls_witness {
  struct ls_sample sample[2 * LS_PROOF_PLACES];
  uint32_t samples;
};

/* The k-th choice of (epoch, step) out of `among` > 0. */
uint64_t ls_proof_choice(struct ls_checkpoint, uint32_t k, uint64_t among);
/* The k-th place in a slot of `bytes` > 0: a multiple of LS_PROOF_BYTES. */
uint64_t ls_proof_place(struct ls_checkpoint, uint32_t k, uint64_t bytes);
/* ls_proof() of what stands at these places, LS_PROOF_BYTES at each, fewer at the end of the slot. */
uint32_t ls_proof_of(struct ls_checkpoint, uint64_t bytes, const void* const sample[LS_PROOF_PLACES]);

void ls_witness_add(struct ls_witness*, uint64_t offset, const void* source, uint64_t bytes);
/* The copy has what was seen. */
bool ls_witness_agrees(const struct ls_witness*, const char* copy);

#ifdef __cplusplus
}
#endif

#endif
