/* A file of shared memory with a name and the list of who uses it. The last who leaves unlinks it; one that was left by
 * processes that were killed is unlinked by whoever comes next, to whatever name.
 * A file and no memfd over a socket: that would need somebody who answers the socket, a thread in the simulation or a
 * process beside it, which may die too. The price: after kill -9 of all, the file stays until the next one comes.
 *
 * Folder: $LOCKSTEP_STAGE_DIR, else /dev/shm/lockstep-stage-UID, wherever a process was started from; mode 01700, and
 * the last who leaves removes it; one that the user made stays. Who enters or leaves holds flock() on it. A process is
 * known by its pid and the time at which it began.
 */
#ifndef LOCKSTEP_STAGE_SEGMENT_H_
#define LOCKSTEP_STAGE_SEGMENT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LS_SEGMENT_MAGIC 0x3130474154534c53ULL /* "SLSTAG01" in memory, little endian */
enum { LS_SEGMENT_VERSION = 1, LS_STAGE_NAME = 48, LS_FOLDER = 256 };
enum ls_segment_kind { LS_SEGMENT_STREAM = 1, LS_SEGMENT_MODEL = 2 };

struct ls_member { /* pid 0: free */
  int32_t pid;
  uint32_t state;
  uint64_t began; /* clock ticks after boot */
  uint64_t epoch; /* writers: of which start of the simulation */
  int64_t cursor; /* writers: the last step; readers: the last index */
  uint32_t shard, shards;
  uint64_t skipped;
  uint64_t reserved[2];
};

enum { LS_MEMBER_LEAVES = 4 }; /* a state: its process ends, and it needs the file's name no more */

struct ls_segment_head {
  uint64_t magic;
  uint32_t version, kind;
  uint64_t bytes, pid_namespace;
  uint32_t members, reserved0;
  uint64_t reserved1[3];
  char name[64];
  struct ls_member member[];
};

struct ls_segment {          /* what every handle begins with */
  uint32_t open_as;          /* a kind; 0: closed */
  struct ls_segment* before; /* the handle that was given out before this one */
  struct ls_segment_head* head;
  size_t bytes;
  uint64_t device, inode; /* its name may be another file's by now */
  char path[320];
};

/* Says why, in a text of this thread, and returns `result`. */
int ls_stage_fail(int result, const char* format, ...) __attribute__((format(printf, 2, 3)));

/* LS_STAGE_REFUSED if it is NULL. */
int ls_stage_need(const void* argument, const char* what);
/* The handle that begins with this is open from now on. It stays when it is closed, some 450 bytes, so that a call with
 * it is refused whatever was opened since. Any thread. */
void ls_handle_open(struct ls_segment*, enum ls_segment_kind);
void ls_handle_close(struct ls_segment*);
/* Of NULL, and of one that is closed or of another kind: false. A child of fork() knows those of its parent. */
bool ls_handle_is(const void* handle, enum ls_segment_kind);
/* 0, or EFBIG: a file of so many bytes is beyond `ulimit -f`, and writing it would end the process (SIGXFSZ). */
int ls_file_allowed(uint64_t bytes);

int64_t ls_stage_now_ns(void);
int64_t ls_stage_deadline(double timeout_s);
/* Waits while *word == seen, at most until `deadline`, and at most `slice` nanoseconds; awake at first. */
enum { LS_LOOK_NS = 50 * 1000 };
void ls_stage_wait(uint32_t* word, uint32_t seen, int64_t deadline, int64_t slice);
/* Adds one and wakes all who wait. */
void ls_stage_wake(uint32_t* word);

/* Opens and locks the folder, which it makes, and sweeps it. Others are in and out in less than LS_ROOM_NS: so much
 * more than its limit it waits. Below 0: ls_stage_last_error(). */
enum { LS_ROOM_NS = 100 * 1000 * 1000 };
int ls_room_enter(char folder[LS_FOLDER], int64_t deadline);
/* Removes the folder if it is empty. */
void ls_room_leave(int room, const char* folder);

/* With the room locked, as all up to ls_segment_drop(). LS_STAGE_ABSENT: no such file, and no text. */
int ls_segment_open(const char* folder, const char* name, enum ls_segment_kind, struct ls_segment*);
/* All zero behind the head, and all of its memory there. */
int ls_segment_create(const char* folder, const char* name, enum ls_segment_kind, uint32_t members, size_t bytes,
                      struct ls_segment*);
/* Unmaps, and unlinks if nobody is there. */
void ls_segment_drop(struct ls_segment*);
/* Takes `member` out, unmaps, and unlinks if nobody else is there. NULL: what it has, the others take back. A room that
 * can't be had by then is no reason to wait on: the next one who comes sweeps. */
void ls_segment_depart(struct ls_segment*, struct ls_member* member, int64_t deadline);
/* Unlinks if nobody else is there, or leaves that to who departs last; `member` reads on until its process ends. */
void ls_segment_forsake(const struct ls_segment*, struct ls_member* member);

/* Also while it can't be told, at the limit of open files. */
bool ls_member_alive(const struct ls_member*);
/* Of this process. pid is written last, and what else the caller wants in it before. Refused if others could not tell
 * that it lives. */
int ls_member_enter(struct ls_member*, uint32_t state);
/* From now on it counts as dead, as if its process had been killed. */
void ls_member_die(struct ls_member*);
/* NULL: all of them are taken by living processes. */
struct ls_member* ls_member_free(struct ls_segment_head*, uint32_t first, uint32_t count);

#ifdef __cplusplus
}
#endif
#endif
