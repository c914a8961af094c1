/* The trail of a process: what its communication did, in a file that outlives it. The newest records (64-byte cells,
 * overwritten in a circle), what is under way right now (places), and the communicators it belongs to. One file per
 * process, mapped by its writer; readers map it too, while it is written or years later. Byte-exact layout:
 * docs/formats/record.md.
 *
 * Invariants: writers never wait, for readers or for each other: a cell is claimed by one addition, and whoever reads
 * finds out by its stamp whether it was complete and whether it has been overwritten. What finds no room is counted. A
 * handle is valid once: a late, foreign or repeated one changes nothing. Threads: any number write and read, in any
 * processes. Cost: a push is two atomic operations and 64 bytes (docs/models/detect.md has it measured).
 *
 *   struct ls_trail* trail = ls_trail_create(path, &origin, 4096);         // NULL: errno says why
 *   ls_handle op = ls_trail_open(trail, &record);                         // 0: no place; harmless below
 *   ls_trail_set(trail, op, &record);                                     // it has come further
 *   if (ls_trail_close(trail, op)) ls_trail_push(trail, &record);         // it ended
 */
#ifndef LOCKSTEP_RECORD_TRAIL_H_
#define LOCKSTEP_RECORD_TRAIL_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lockstep/record/record.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LS_TRAIL_MAGIC 0x31304c495254534cULL /* "LSTRIL01" in memory, little endian */
#define LS_TRAIL_COMMUNICATORS 512u
#define LS_TRAIL_PLACES 256u
#define LS_NO_KEY UINT64_MAX

/* A communicator that the process belongs to; communicators keep their entry for good. */
struct ls_communicator {
  uint64_t id;        /* the same in all its members; 0: the entry is not filled yet */
  uint64_t launched;  /* collectives */
  uint64_t ended;     /* of them, in whatever order */
  int64_t created_ns; /* CLOCK_BOOTTIME */
  uint64_t key;       /* what the writer knows it by, in its process; 0: the entry is free */
  uint32_t rank;      /* the writer's, in the communicator */
  uint32_t size;
  uint32_t tags;  /* the highest tag of a collective, and 1; 0: none has one */
  uint32_t epoch; /* in which it was made; 0: not known */
  char name[72];  /* terminated; "": it has none */
};
LS_RECORD_ASSERT(sizeof(struct ls_communicator) == 128, "docs/formats/record.md");

/* By which a process may wait for others, and which say nothing to this trail: bits. */
enum ls_library {
  LS_LIBRARY_OF_DEVICES = 1, /* NCCL, RCCL and whatever else needs the driver of devices */
};

/* Who writes. */
struct ls_origin {
  uint32_t rank; /* of the job */
  uint32_t world;
  uint32_t epoch; /* the last that its process entered */
  uint32_t pid;
  char host[64];   /* terminated */
  char source[16]; /* terminated; "gloo", "nccl" */
};
LS_RECORD_ASSERT(sizeof(struct ls_origin) == 96, "docs/formats/record.md");

/* The file's beginning; accessed with the __atomic builtins where it changes. */
struct ls_trail {
  uint64_t magic;
  uint32_t capacity;      /* cells, a power of two */
  uint32_t places;        /* LS_TRAIL_PLACES */
  uint32_t communicators; /* LS_TRAIL_COMMUNICATORS */
  uint32_t reserved0;
  int64_t wall_minus_boot_ns; /* of the clocks, when the file was made */
  struct ls_origin origin;
  uint8_t reserved1[128];
  uint64_t head; /* cells ever claimed */
  /* When the process last left a collective, CLOCK_BOOTTIME, later by what it has waited for messages since; 0: never.
   */
  int64_t left_ns;
  uint64_t no_op;     /* calls about an op that is over, never began, or is another process's */
  uint64_t libraries; /* enum ls_library, that the process had loaded when it was last looked at */
  uint64_t reserved2[4];
  uint64_t used[LS_TRAIL_PLACES / 64]; /* one bit per place */
  uint64_t no_place;                   /* ops that found none */
  uint64_t no_communicator; /* ops on communicators that found no entry, or whose object was not understood */
  uint64_t no_peer;         /* messages whose peer found no room in the sums of their op */
  uint64_t no_cell;         /* records whose cell another thread was still writing, a whole lap behind */
  struct ls_communicator communicator[LS_TRAIL_COMMUNICATORS];
  uint32_t generation[LS_TRAIL_PLACES]; /* odd: in use; goes up when it is taken and given back */
  uint32_t changes[LS_TRAIL_PLACES];    /* odd: being changed */
  struct ls_record place[LS_TRAIL_PLACES];
};
LS_RECORD_ASSERT(offsetof(struct ls_trail, head) == 256 && offsetof(struct ls_trail, communicator) == 384,
                 "docs/formats/record.md");
/* Behind it: `capacity` cells, then a stamp (uint32_t) for each: 1 + the number of its lap; 0: being written. */

typedef uint64_t ls_handle; /* of something under way; 0: of nothing */

size_t ls_trail_bytes(uint32_t capacity);

/* Makes and maps a new file, its blocks reserved, so that a full disk is met here and never by a write. NULL: errno. */
struct ls_trail* ls_trail_create(const char* path, const struct ls_origin*, uint32_t capacity);
/* NULL: these are not the bytes of a trail. Valid for reading and writing alike. */
struct ls_trail* ls_trail_attach(void* memory, size_t bytes);

void ls_trail_push(struct ls_trail*, const struct ls_record*);

/* Something begins: readers see the record from here on. */
ls_handle ls_trail_open(struct ls_trail*, const struct ls_record*);
/* What is under way as it was last told; false: handle not valid. */
bool ls_trail_get(const struct ls_trail*, ls_handle, struct ls_record*);
/* It has come further; false: handle not valid, or another thread is telling the same at this moment. */
bool ls_trail_set(struct ls_trail*, ls_handle, const struct ls_record*);
/* It ended: gives the place back, and the writer pushes how. False: handle not valid. */
bool ls_trail_close(struct ls_trail*, ls_handle);

/* Index of the new communicator; whatever had this key before has it no longer. -1: no room. */
int ls_trail_add_communicator(struct ls_trail*, uint64_t key);
/* Index of the communicator that has this key now; -1: none. */
int ls_trail_find_communicator(const struct ls_trail*, uint64_t key);

/* ---- readers ---- */

/* Copies up to `capacity` records from position `*at` (0 at first), which it moves on, and adds to `*missed` those that
 * were overwritten before they could be read. Returns how many; 0: there is nothing new. */
size_t ls_trail_read(const struct ls_trail*, uint64_t* at, uint64_t* missed, struct ls_record* records,
                     size_t capacity);
/* Copies what is under way: at most LS_TRAIL_PLACES records. */
size_t ls_trail_under_way(const struct ls_trail*, struct ls_record* records);

#ifdef __cplusplus
}
#endif
#endif
