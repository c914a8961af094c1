#include "lockstep/client/feed_wait.h"

#include <stdio.h>
#include <string.h>

#include "lockstep/record/clock.h"
#include "lockstep/record/own_trail.h"

enum { kCells = 1024 };

static struct ls_own_trail trail_of_process;

static struct ls_trail* make_trail(int rank, int world) {
  return ls_own_trail_make(&trail_of_process, "feed", "waits for data", rank, world, kCells);
}

static int64_t now_ns(void) { return ls_clock_ns(CLOCK_BOOTTIME); }

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t sooner(int64_t a, int64_t b) { return a < b ? a : b; }

static struct ls_record record_of(const struct ls_trail* trail, const char* data_set, int64_t time_ns) {
  struct ls_record record;
  memset(&record, 0, sizeof record);
  record.kind = LS_RECORD_DATA;
  record.epoch = __atomic_load_n(&trail->origin.epoch, __ATOMIC_RELAXED);
  record.time_ns = time_ns;
  record.body.data.rank = __atomic_load_n(&trail->origin.rank, __ATOMIC_RELAXED);
  record.body.data.waits = 1;
  snprintf(record.body.data.data_set, sizeof record.body.data.data_set, "%s", data_set);
  return record;
}

void ls_feed_wait_begin(struct ls_feed_wait* wait, const char* data_set, int rank, int world) {
  memset(wait, 0, sizeof *wait);
  struct ls_trail* trail = make_trail(rank, world);
  if (trail == NULL) return;
  snprintf(wait->data_set, sizeof wait->data_set, "%s", data_set);
  wait->begin_ns = now_ns();
  const struct ls_record record = record_of(trail, wait->data_set, wait->begin_ns);
  wait->place = ls_trail_open(trail, &record);
}

void ls_feed_wait_gone(struct ls_feed_wait* wait) {
  if (wait->begin_ns != 0 && wait->lost_ns == 0) wait->lost_ns = now_ns();
}

void ls_feed_wait_joined(struct ls_feed_wait* wait) {
  if (wait->lost_ns == 0) return;
  wait->joined_ns = now_ns();
  wait->gone_ns += wait->joined_ns - wait->lost_ns;
  wait->lost_ns = 0;
}

static const struct ls_feed_batch* batch_in(const struct ls_feed_ring* ring, int slot) {
  return (const struct ls_feed_batch*)((const char*)ring + LS_FEED_ALIGN + (uint64_t)slot * ring->slot_stride);
}

/* Of what the wait was for while the batch was being filled: its threads worked `busy_ns` for all, of that so long to
 * read this batch's items and to decode them. What was before it was begun, and what went into others' items, is
 * "behind". An item that several jobs want is work for each of them: then their sum may be more than all. */
static void set_parts(struct ls_record* record, const struct ls_feed_wait* wait, const struct ls_feed_batch* batch,
                      int64_t now) {
  const int64_t there = later(wait->begin_ns, wait->joined_ns); /* since then there is a service */
  const int64_t began = sooner(now, later(there, batch->began_ns));
  const double filling = (double)(now - began);
  const double own = (double)batch->read_ns + (double)batch->decode_ns;
  const double all = own > (double)batch->busy_ns ? own : (double)batch->busy_ns;
  const int64_t read = all > 0 ? (int64_t)(filling * (double)batch->read_ns / all) : 0;
  const int64_t decode = all > 0 ? (int64_t)(filling * (double)batch->decode_ns / all) : 0;
  const int64_t waited = now - wait->begin_ns;
  ls_data_set_parts(
      record,
      (struct ls_data_parts){
          .gone = wait->gone_ns, .behind = waited - wait->gone_ns - read - decode, .read = read, .decode = decode});
  const double room = (double)(batch->filled_ns - batch->began_ns) * (double)batch->threads;
  const double busy = room > 0 ? 100 * (double)batch->busy_ns / room : 0;
  record->body.data.busy = (uint8_t)(busy > 100 ? 100 : busy);
  record->body.data.relayed = batch->relayed != 0;
  record->body.data.threads = (uint16_t)(batch->threads > UINT16_MAX ? UINT16_MAX : batch->threads);
}

void ls_feed_wait_end(struct ls_feed_wait* wait, const struct ls_feed_ring* ring, int slot) {
  struct ls_trail* trail = wait->begin_ns == 0 ? NULL : ls_own_trail_made(&trail_of_process);
  if (trail == NULL) return;
  const int64_t now = now_ns();
  if (wait->place != 0) ls_trail_close(trail, wait->place);
  ls_feed_wait_joined(wait);
  struct ls_record record = record_of(trail, wait->data_set, now);
  if (slot >= 0)
    set_parts(&record, wait, batch_in(ring, slot), now);
  else
    ls_data_set_parts(&record,
                      (struct ls_data_parts){.gone = wait->gone_ns, .behind = now - wait->begin_ns - wait->gone_ns});
  ls_trail_push(trail, &record);
  wait->begin_ns = 0;
}

void ls_feed_functions_ran(const char* data_set, int rank, int world, int64_t ns) {
  struct ls_trail* trail = make_trail(rank, world);
  if (trail == NULL) return;
  struct ls_record record = record_of(trail, data_set, now_ns());
  record.body.data.waits = 0;
  ls_data_set_parts(&record, (struct ls_data_parts){.own = ns});
  ls_trail_push(trail, &record);
}
