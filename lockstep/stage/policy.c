#include <string.h>

#include "lockstep/stage/stream.h"

/* ---- reservoir: algorithm R (Vitter 1985) by a counter-based generator, SplitMix64 of seed and index ---- */

static uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

uint32_t ls_reservoir_place(uint64_t seed, uint64_t index, uint32_t k) {
  if (index < k) return (uint32_t)index;
  const uint64_t chance = mix(mix(seed) ^ mix(~index));
  const uint64_t place = (uint64_t)((unsigned __int128)chance * (index + 1) >> 64); /* of 0 .. index */
  return place < k ? (uint32_t)place : LS_NO_PLACE;
}

/* ---- what is visible ---- */

static void retire(struct ls_stage* s, struct ls_slot* slot) {
  if (slot->taken == 0) ++s->head->facts.unread;
  slot->state = slot->held != 0 ? LS_SLOT_RETIRED : LS_SLOT_FREE;
}

static struct ls_slot* oldest_shown(const struct ls_stage* s, uint32_t* count) {
  struct ls_slot* oldest = NULL;
  *count = 0;
  for (uint32_t i = 0; i < s->head->slots; ++i) {
    struct ls_slot* slot = &s->slots[i];
    if (slot->state != LS_SLOT_SHOWN) continue;
    ++*count;
    if (oldest == NULL || slot->index < oldest->index) oldest = slot;
  }
  return oldest;
}

static void keep_latest(struct ls_stage* s) {
  uint32_t count;
  struct ls_slot* oldest;
  while ((oldest = oldest_shown(s, &count)) != NULL && count > s->head->facts.k) retire(s, oldest);
}

/* One step per place, the newest; none without. */
static void keep_places(struct ls_stage* s, const struct ls_slot* newest) {
  for (uint32_t i = 0; i < s->head->slots; ++i) {
    struct ls_slot* slot = &s->slots[i];
    if (slot->state != LS_SLOT_SHOWN) continue;
    const bool replaced = slot->place == newest->place && slot->index < newest->index;
    if (slot->place == LS_NO_PLACE || replaced) retire(s, slot);
  }
}

static struct ls_slot* newest_shown(const struct ls_stage* s) {
  struct ls_slot* newest = NULL;
  for (uint32_t i = 0; i < s->head->slots; ++i) {
    struct ls_slot* slot = &s->slots[i];
    if (slot->state == LS_SLOT_SHOWN && (newest == NULL || slot->index > newest->index)) newest = slot;
  }
  return newest;
}

void ls_settle(struct ls_stage* s) {
  struct ls_stream_head* head = s->head;
  const struct ls_slot* newest = newest_shown(s);
  if (newest != NULL && newest->index >= head->next_index) {
    head->next_index = newest->index + 1;
    head->facts.visible = (uint64_t)head->next_index;
    if (newest->step > head->last_step) head->last_step = newest->step;
  }
  if (newest != NULL && head->facts.policy == LS_STAGE_RESERVOIR) keep_places(s, newest);
  if (head->facts.policy == LS_STAGE_LATEST || head->facts.policy == LS_STAGE_REPLAY) keep_latest(s);
  for (uint32_t i = 0; i < head->slots; ++i) {
    if (s->slots[i].state == LS_SLOT_RETIRED && s->slots[i].held == 0) s->slots[i].state = LS_SLOT_FREE;
  }
}

void ls_show(struct ls_stage* s, struct ls_slot* slot) {
  const struct ls_stream_head* head = s->head;
  const bool sampled = head->facts.policy == LS_STAGE_RESERVOIR;
  slot->index = head->next_index;
  slot->taken = 0;
  slot->held = 0;
  slot->place = sampled ? ls_reservoir_place(head->seed, (uint64_t)slot->index, head->facts.k) : 0;
  __atomic_store_n(&slot->state, LS_SLOT_SHOWN, __ATOMIC_RELEASE);
  ls_settle(s);
}

/* ---- room ---- */

/* Lossless: what all who are there have had makes room, the oldest first. */
static struct ls_slot* had_by_all(struct ls_stage* s) {
  struct ls_slot* found = NULL;
  if (s->head->readers_ever < s->head->readers_expected) return NULL;
  for (uint32_t i = 0; i < s->head->slots; ++i) {
    struct ls_slot* slot = &s->slots[i];
    if (slot->state != LS_SLOT_SHOWN || slot->held != 0 || ls_slot_wanted(s, slot)) continue;
    if (found == NULL || slot->index < found->index) found = slot;
  }
  if (found != NULL) retire(s, found);
  return found;
}

struct ls_slot* ls_room_for_step(struct ls_stage* s) {
  for (uint32_t i = 0; i < s->head->slots; ++i) {
    if (s->slots[i].state == LS_SLOT_FREE) return &s->slots[i];
  }
  return s->head->facts.policy == LS_STAGE_LOSSLESS ? had_by_all(s) : NULL;
}
