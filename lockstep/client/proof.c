#include "lockstep/client/proof.h"

#include <string.h>

#include "lockstep/client/client.h"

/* SplitMix64. */
static uint64_t mix(uint64_t value) {
  value += UINT64_C(0x9e3779b97f4a7c15);
  value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
  return value ^ (value >> 31);
}

uint64_t ls_proof_choice(struct ls_checkpoint id, uint32_t k, uint64_t among) {
  return mix(mix(mix(id.epoch) ^ (uint64_t)id.step) ^ k) % among;
}

uint64_t ls_proof_place(struct ls_checkpoint id, uint32_t k, uint64_t bytes) {
  const uint64_t blocks = (bytes + LS_PROOF_BYTES - 1) / LS_PROOF_BYTES;
  return ls_proof_choice(id, k, blocks) * LS_PROOF_BYTES;
}

static uint64_t at_most(uint64_t bytes) { return bytes < LS_PROOF_BYTES ? bytes : LS_PROOF_BYTES; }

void ls_witness_add(struct ls_witness* witness, uint64_t offset, const void* source, uint64_t bytes) {
  struct ls_sample* sample = &witness->sample[witness->samples++];
  sample->offset = offset;
  sample->bytes = (uint32_t)at_most(bytes);
  memcpy(sample->seen, source, sample->bytes);
}

bool ls_witness_agrees(const struct ls_witness* witness, const char* copy) {
  for (uint32_t i = 0; i < witness->samples; ++i) {
    const struct ls_sample* sample = &witness->sample[i];
    if (memcmp(copy + sample->offset, sample->seen, sample->bytes) != 0) return false;
  }
  return true;
}

uint32_t ls_proof_of(struct ls_checkpoint id, uint64_t bytes, const void* const sample[LS_PROOF_PLACES]) {
  uint32_t crc = ls_crc32c(0, &id.epoch, sizeof id.epoch);
  crc = ls_crc32c(crc, &id.step, sizeof id.step);
  crc = ls_crc32c(crc, &bytes, sizeof bytes);
  for (uint32_t k = 0; bytes > 0 && k < LS_PROOF_PLACES; ++k)
    crc = ls_crc32c(crc, sample[k], at_most(bytes - ls_proof_place(id, k, bytes)));
  return crc == 0 ? 1 : crc; /* 0 says that there is none */
}

uint32_t ls_proof(uint64_t epoch, int64_t step, const void* content, uint64_t bytes) {
  const struct ls_checkpoint id = {epoch, step};
  const void* sample[LS_PROOF_PLACES];
  for (uint32_t k = 0; bytes > 0 && k < LS_PROOF_PLACES; ++k)
    sample[k] = (const char*)content + ls_proof_place(id, k, bytes);
  return ls_proof_of(id, bytes, sample);
}
