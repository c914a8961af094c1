#define _GNU_SOURCE
#include "lockstep/stage/segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lockstep/stage/stage.h"

static __thread char last_error[768];

int ls_stage_fail(int result, const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(last_error, sizeof last_error, format, values);
  va_end(values);
  return result;
}
const char* ls_stage_last_error(void) { return last_error; }

int64_t ls_stage_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

double ls_stage_left(int64_t deadline) {
  const int64_t left = deadline - ls_stage_now_ns();
  return left > 0 ? (double)left * 1e-9 : 0;
}

int64_t ls_stage_deadline(double timeout_s) {
  const double most = 1e9;
  return ls_stage_now_ns() + (int64_t)((timeout_s > 0 ? (timeout_s < most ? timeout_s : most) : 0) * 1e9);
}

/* A core that has gone idle takes up to 100 us to come back, in a virtual machine: who is fed at short intervals looks
 * for a moment before it sleeps. */
static bool changes_at_once(const uint32_t* word, uint32_t seen, int64_t begin, int64_t nanos) {
  const int64_t end = begin + (nanos < LS_LOOK_NS ? nanos : LS_LOOK_NS);
  do {
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != seen) return true;
  } while (ls_stage_now_ns() < end);
  return false;
}

void ls_stage_wait(uint32_t* word, uint32_t seen, int64_t deadline, int64_t slice) {
  const int64_t begin = ls_stage_now_ns();
  int64_t nanos = deadline - begin;
  if (nanos > slice) nanos = slice;
  if (nanos <= 0 || changes_at_once(word, seen, begin, nanos)) return;
  const struct timespec limit = {.tv_sec = nanos / 1000000000, .tv_nsec = nanos % 1000000000};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, NULL, 0);
}
void ls_stage_wake(uint32_t* word) {
  __atomic_fetch_add(word, 1, __ATOMIC_RELEASE);
  syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* ---- processes ---- */

static const uint64_t kUnknown = UINT64_MAX;

/* When it began; 0: no such process, or only its zombie; kUnknown: it can't be told now, for descriptors are short. */
static uint64_t began(int pid) {
  char path[40], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT || errno == ESRCH ? 0 : kUnknown;
  const ssize_t got = read(fd, text, sizeof text - 1);
  const int error = errno;
  close(fd);
  if (got <= 0) return got < 0 && error == ESRCH ? 0 : kUnknown;
  text[got] = '\0';
  const char* field = strrchr(text, ')'); /* the name before it may hold anything */
  if (field == NULL || field[1] == '\0') return kUnknown;
  if (field[2] == 'Z' || field[2] == 'X') return 0;
  for (int number = 2; number < 22 && field != NULL; ++number) field = strchr(field + 1, ' ');
  return field == NULL ? kUnknown : strtoull(field, NULL, 10);
}

static uint64_t pid_namespace(void) {
  struct stat info;
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

bool ls_member_alive(const struct ls_member* member) {
  const int pid = __atomic_load_n(&member->pid, __ATOMIC_ACQUIRE);
  if (pid == 0) return false;
  const uint64_t since = began(pid);
  return since == kUnknown || (since != 0 && since == member->began);
}
int ls_member_enter(struct ls_member* member, uint32_t state) {
  const uint64_t since = began(getpid());
  if (since == 0 || since == kUnknown) {
    return ls_stage_fail(LS_STAGE_REFUSED, "/proc/%d/stat, by which others know us, cannot be read: %s", getpid(),
                         strerror(errno));
  }
  member->state = state;
  member->began = since;
  __atomic_store_n(&member->pid, getpid(), __ATOMIC_RELEASE);
  return LS_STAGE_OK;
}
struct ls_member* ls_member_free(struct ls_segment_head* head, uint32_t first, uint32_t count) {
  for (uint32_t i = first; i < first + count; ++i) {
    if (!ls_member_alive(&head->member[i])) return &head->member[i];
  }
  return NULL;
}

/* Who needs the file's name. */
static bool anybody(const struct ls_segment_head* head) {
  for (uint32_t i = 0; i < head->members; ++i) {
    if (head->member[i].state != LS_MEMBER_LEAVES && ls_member_alive(&head->member[i])) return true;
  }
  return false;
}

/* ---- the folder ---- */

static void name_folder(char folder[LS_FOLDER]) {
  const char* own = getenv("LOCKSTEP_STAGE_DIR");
  const char* runtime = getenv("XDG_RUNTIME_DIR");
  if (own != NULL && *own != '\0') {
    snprintf(folder, LS_FOLDER, "%s", own);
  } else if (runtime != NULL && *runtime != '\0') {
    snprintf(folder, LS_FOLDER, "%s/lockstep-stage", runtime);
  } else {
    snprintf(folder, LS_FOLDER, "/dev/shm/lockstep-stage-%u", getuid());
  }
}

/* The folder may have been removed between open() and flock(): then it has no name any more. */
static bool still_there(int room, const char* folder) {
  struct stat held, named;
  return fstat(room, &held) == 0 && stat(folder, &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

static int refuse_folder(int room, const char* folder) {
  struct stat info;
  if (room < 0) return ls_stage_fail(-1, "%s: %s; LOCKSTEP_STAGE_DIR names another folder", folder, strerror(errno));
  if (fstat(room, &info) == 0 && info.st_uid == getuid() && (info.st_mode & 022) == 0) return room;
  close(room);
  return ls_stage_fail(-1, "%s belongs to another user, or others may write to it: it must be yours alone", folder);
}

/* A room that is locked, -1 with errno EWOULDBLOCK if another has it, or -1 for good. */
static int try_enter(const char* folder) {
  if (mkdir(folder, 0700) != 0 && errno != EEXIST) return refuse_folder(-1, folder);
  const int room = refuse_folder(open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC), folder);
  if (room < 0) {
    errno = EACCES;
    return -1;
  }
  if (flock(room, LOCK_EX | LOCK_NB) == 0 && still_there(room, folder)) return room;
  close(room);
  errno = EWOULDBLOCK;
  return -1;
}

/* The head of any file of ours; NULL: it has none. */
static struct ls_segment_head* map_head(int fd, size_t* bytes) {
  struct stat info;
  if (fstat(fd, &info) != 0 || (size_t)info.st_size < sizeof(struct ls_segment_head)) return NULL;
  *bytes = (size_t)info.st_size;
  void* memory = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

static bool makes_sense(const struct ls_segment_head* head, size_t bytes) {
  return head->magic == LS_SEGMENT_MAGIC && head->bytes == bytes &&
         sizeof *head + head->members * sizeof(struct ls_member) <= bytes;
}

/* Whoever was making it died before he had written the magic: all zeros. The room is locked, so nobody makes it now. */
static bool is_half_made(const struct ls_segment_head* head) {
  static const struct ls_segment_head nothing;
  return memcmp(head, &nothing, sizeof nothing) == 0;
}

/* Head and members lie alike in all versions; of another namespace nothing is known. What is not ours is left alone:
 * the folder may be one that the user named, and has other files in. */
static bool is_stale(int fd) {
  struct stat info;
  if (fstat(fd, &info) == 0 && info.st_size == 0) return true;
  size_t bytes = 0;
  struct ls_segment_head* head = map_head(fd, &bytes);
  if (head == NULL) return false;
  const bool ours = head->magic == LS_SEGMENT_MAGIC, sense = makes_sense(head, bytes);
  const bool foreign = sense && head->pid_namespace != pid_namespace();
  const bool stale = is_half_made(head) || (ours && !sense) || (sense && !foreign && !anybody(head));
  munmap(head, bytes);
  return stale;
}

static bool is_ours(const char* file) {
  const char* end = strrchr(file, '.');
  return end != NULL && (strcmp(end, ".stream") == 0 || strcmp(end, ".model") == 0);
}

static void sweep(int room) {
  const int copy = openat(room, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* entries = copy < 0 ? NULL : fdopendir(copy);
  if (entries == NULL) return;
  for (struct dirent* entry; (entry = readdir(entries)) != NULL;) {
    if (!is_ours(entry->d_name)) continue;
    const int fd = openat(room, entry->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) continue;
    if (is_stale(fd)) unlinkat(room, entry->d_name, 0);
    close(fd);
  }
  closedir(entries);
}

int ls_room_enter(char folder[LS_FOLDER], double timeout_s) {
  const double moment = 0.1; /* others are in and out in less: no timeout is too short for that */
  const int64_t deadline = ls_stage_deadline(timeout_s > moment ? timeout_s : moment);
  const struct timespec pause = {.tv_nsec = 1000000};
  name_folder(folder);
  int room;
  while ((room = try_enter(folder)) < 0 && errno == EWOULDBLOCK) {
    if (ls_stage_now_ns() > deadline) return ls_stage_fail(-1, "%s is locked by another process", folder);
    nanosleep(&pause, NULL);
  }
  if (room >= 0) sweep(room);
  return room;
}
void ls_room_leave(int room, const char* folder) {
  rmdir(folder); /* if it is empty */
  close(room);
}

/* ---- files ---- */

static int name_file(const char* folder, const char* name, enum ls_segment_kind kind, struct ls_segment* segment) {
  static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  const size_t length = name == NULL ? 0 : strlen(name);
  if (length == 0 || length > LS_STAGE_NAME || strspn(name, allowed) != length) {
    return ls_stage_fail(LS_STAGE_REFUSED, "\"%.60s\" is no name: expected 1 to %d letters, digits, _ and -",
                         name == NULL ? "" : name, LS_STAGE_NAME);
  }
  const char* ending = kind == LS_SEGMENT_STREAM ? "stream" : "model";
  snprintf(segment->path, sizeof segment->path, "%s/%s.%s", folder, name, ending);
  return LS_STAGE_OK;
}

static int check(const struct ls_segment* segment, enum ls_segment_kind kind) {
  const struct ls_segment_head* head = segment->head;
  if (head->magic == LS_SEGMENT_MAGIC && head->version != LS_SEGMENT_VERSION) {
    return ls_stage_fail(LS_STAGE_REFUSED,
                         "%s has version %u, this library %d: both sides need the liblockstep-stage.so of one release",
                         segment->path, head->version, LS_SEGMENT_VERSION);
  }
  if (!makes_sense(head, segment->bytes) || head->kind != kind) {
    return ls_stage_fail(LS_STAGE_REFUSED, "%s is damaged: remove it", segment->path);
  }
  if (head->pid_namespace == pid_namespace()) return LS_STAGE_OK;
  return ls_stage_fail(LS_STAGE_REFUSED,
                       "%s is of another container: nobody could tell here who is alive there; use one pid namespace",
                       segment->path);
}

int ls_segment_open(const char* folder, const char* name, enum ls_segment_kind kind, struct ls_segment* segment) {
  const int named = name_file(folder, name, kind, segment);
  if (named != LS_STAGE_OK) return named;
  const int fd = open(segment->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0 && errno == ENOENT) return LS_STAGE_ABSENT;
  segment->head = fd < 0 ? NULL : map_head(fd, &segment->bytes);
  const int error = errno;
  if (fd >= 0) close(fd);
  if (segment->head == NULL) return ls_stage_fail(LS_STAGE_REFUSED, "%s: %s", segment->path, strerror(error));
  const int result = check(segment, kind);
  if (result != LS_STAGE_OK) ls_segment_unmap(segment);
  return result;
}

/* posix_fallocate: on a full tmpfs a first write would otherwise be a SIGBUS in the simulation. */
static int make_file(const char* path, size_t bytes, void** memory) {
  if (bytes > INT64_MAX) return EFBIG;
  const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return errno;
  int error = posix_fallocate(fd, 0, (off_t)bytes);
  if (error == 0) {
    *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (*memory == MAP_FAILED) error = errno;
  }
  close(fd);
  if (error != 0) unlink(path);
  return error;
}

int ls_segment_create(const char* folder, const char* name, enum ls_segment_kind kind, uint32_t members, size_t bytes,
                      struct ls_segment* segment) {
  const int named = name_file(folder, name, kind, segment);
  if (named != LS_STAGE_OK) return named;
  void* memory = NULL;
  const int error = make_file(segment->path, bytes, &memory);
  if (error != 0) {
    return ls_stage_fail(LS_STAGE_REFUSED, "%s, of %.1f MB: %s; LOCKSTEP_STAGE_DIR names another folder", segment->path,
                         (double)bytes * 1e-6, strerror(error));
  }
  segment->head = memory;
  segment->bytes = bytes;
  struct ls_segment_head* head = segment->head;
  head->version = LS_SEGMENT_VERSION;
  head->kind = kind;
  head->bytes = bytes;
  head->pid_namespace = pid_namespace();
  head->members = members;
  snprintf(head->name, sizeof head->name, "%s", name);
  __atomic_store_n(&head->magic, LS_SEGMENT_MAGIC, __ATOMIC_RELEASE);
  return LS_STAGE_OK;
}

void ls_segment_unmap(struct ls_segment* segment) {
  munmap(segment->head, segment->bytes);
  segment->head = NULL;
}

/* A room that can't be had in a second is no reason to wait on: the next one who comes sweeps. */
void ls_segment_depart(struct ls_segment* segment, struct ls_member* member) {
  char folder[LS_FOLDER];
  const int room = ls_room_enter(folder, 1.0);
  __atomic_store_n(&member->pid, 0, __ATOMIC_RELEASE);
  if (room >= 0 && !anybody(segment->head)) unlink(segment->path);
  ls_segment_unmap(segment);
  if (room >= 0) ls_room_leave(room, folder);
}
void ls_segment_forsake(const struct ls_segment* segment, struct ls_member* member) {
  char folder[LS_FOLDER];
  const int room = ls_room_enter(folder, 1.0);
  if (room < 0) return;
  member->state = LS_MEMBER_LEAVES;
  if (!anybody(segment->head)) unlink(segment->path);
  ls_room_leave(room, folder);
}
