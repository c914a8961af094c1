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
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
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

int ls_stage_need(const void* argument, const char* what) {
  return argument != NULL ? LS_STAGE_OK : ls_stage_fail(LS_STAGE_REFUSED, "%s is NULL", what);
}

/* All that were given out: so that who looks for lost memory finds them. */
static struct ls_segment* last_handle;

void ls_handle_open(struct ls_segment* handle, enum ls_segment_kind kind) {
  __atomic_store_n(&handle->open_as, (uint32_t)kind, __ATOMIC_RELEASE);
  handle->before = __atomic_load_n(&last_handle, __ATOMIC_RELAXED);
  while (
      !__atomic_compare_exchange_n(&last_handle, &handle->before, handle, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
  }
}
void ls_handle_close(struct ls_segment* handle) { __atomic_store_n(&handle->open_as, 0, __ATOMIC_RELEASE); }
bool ls_handle_is(const void* handle, enum ls_segment_kind kind) {
  const struct ls_segment* segment = handle;
  return segment != NULL && __atomic_load_n(&segment->open_as, __ATOMIC_ACQUIRE) == (uint32_t)kind;
}

int ls_file_allowed(uint64_t bytes) {
  struct rlimit limit;
  const bool any = getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY;
  return any || bytes <= limit.rlim_cur ? 0 : EFBIG;
}

int64_t ls_stage_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
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
  const char state = field[2];
  uint64_t threads = 0;
  for (int number = 3; number <= 22; ++number) {
    field = strchr(field + 1, ' ');
    if (field == NULL) return kUnknown;
    if (number == 20) threads = strtoull(field, NULL, 10);
  }
  /* The first thread of a process may have left the others to go on. */
  if (state == 'X' || (state == 'Z' && threads <= 1)) return 0;
  return strtoull(field, NULL, 10);
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
  __atomic_store_n(&member->state, state, __ATOMIC_RELAXED);
  member->began = since;
  __atomic_store_n(&member->pid, getpid(), __ATOMIC_RELEASE);
  return LS_STAGE_OK;
}
void ls_member_die(struct ls_member* member) { __atomic_store_n(&member->began, 0, __ATOMIC_RELEASE); }
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

/* Not below $XDG_RUNTIME_DIR: that goes at logout, and a trainer may have another one than the simulation, or none. */
static const char kDefault[] = "/dev/shm/lockstep-stage-";

static int name_folder(char folder[LS_FOLDER]) {
  const char* own = getenv("LOCKSTEP_STAGE_DIR");
  char here[LS_FOLDER] = "";
  int length;
  if (own == NULL || *own == '\0') {
    length = snprintf(folder, LS_FOLDER, "%s%u", kDefault, getuid());
  } else if (*own == '/') {
    length = snprintf(folder, LS_FOLDER, "%s", own);
  } else {
    length = getcwd(here, sizeof here) == NULL ? LS_FOLDER : snprintf(folder, LS_FOLDER, "%s/%s", here, own);
  }
  if (length < LS_FOLDER) return LS_STAGE_OK;
  return ls_stage_fail(LS_STAGE_REFUSED, "LOCKSTEP_STAGE_DIR is %.200s: expected a folder of less than %d bytes", own,
                       LS_FOLDER);
}

/* The folder may have been removed between open() and flock(): then it has no name any more. */
static bool still_there(int room, const char* folder) {
  struct stat held, named;
  return fstat(room, &held) == 0 && stat(folder, &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

static int refuse_folder(int result, const char* folder) {
  return ls_stage_fail(result, "%s: %s; LOCKSTEP_STAGE_DIR names another folder", folder, strerror(errno));
}

static bool is_mine_alone(int room) {
  struct stat info;
  return fstat(room, &info) == 0 && info.st_uid == getuid() && (info.st_mode & 022) == 0;
}

enum { kAgain = -2 };
/* Of a folder, by which whoever leaves it last knows that it is not one that the user made. To us it means nothing
 * else. */
enum { kMadeByUs = S_ISVTX };

/* A room that is locked; kAgain if another has it, or has just removed it, and -1 for good: ls_stage_last_error(). */
static int try_enter(const char* folder) {
  if (mkdir(folder, 0700 | kMadeByUs) != 0 && errno != EEXIST) return refuse_folder(-1, folder);
  /* Where anybody may make names, ours may lead to another folder of this user. */
  const int follow = strncmp(folder, kDefault, strlen(kDefault)) == 0 ? O_NOFOLLOW : 0;
  const int room = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | follow);
  if (room < 0) return refuse_folder(errno == ENOENT ? kAgain : -1, folder);
  if (is_mine_alone(room)) {
    if (flock(room, LOCK_EX | LOCK_NB) == 0 && still_there(room, folder)) return room;
    close(room);
    return ls_stage_fail(kAgain, "%s is locked by another process", folder);
  }
  close(room);
  return ls_stage_fail(-1,
                       "%s belongs to another user, or others may write to it: it must be yours alone; "
                       "LOCKSTEP_STAGE_DIR names another folder",
                       folder);
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

/* Head and members lie alike in all versions; of another namespace nothing is known. What is not ours is left alone,
 * and not mapped: the folder may be one that the user named, and has files in that others write. */
static bool is_stale(int fd) {
  uint64_t magic = 0;
  if (pread(fd, &magic, sizeof magic, 0) != (ssize_t)sizeof magic || magic != LS_SEGMENT_MAGIC) return false;
  size_t bytes = 0;
  struct ls_segment_head* head = map_head(fd, &bytes);
  if (head == NULL) return false;
  const bool sense = makes_sense(head, bytes);
  const bool stale = !sense || (head->pid_namespace == pid_namespace() && !anybody(head));
  munmap(head, bytes);
  return stale;
}

static bool is_ours(const char* file) {
  const char* end = strrchr(file, '.');
  return end != NULL && (strcmp(end, ".stream") == 0 || strcmp(end, ".model") == 0);
}

/* What is being made has a name of its own until it is whole. The room is locked, so nobody makes it now. */
static const char kNew[] = ".lockstep-stage.new";

static void sweep(int room) {
  unlinkat(room, kNew, 0);
  const int copy = openat(room, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* entries = copy < 0 ? NULL : fdopendir(copy);
  if (entries == NULL) {
    if (copy >= 0) close(copy);
    return;
  }
  for (struct dirent* entry; (entry = readdir(entries)) != NULL;) {
    if (!is_ours(entry->d_name)) continue;
    const int fd = openat(room, entry->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    if (is_stale(fd)) unlinkat(room, entry->d_name, 0);
    close(fd);
  }
  closedir(entries);
}

static int enter(const char* folder, int64_t deadline) {
  const struct timespec pause = {.tv_nsec = 1000000};
  int room;
  while ((room = try_enter(folder)) == kAgain && ls_stage_now_ns() <= deadline) nanosleep(&pause, NULL);
  if (room >= 0) sweep(room);
  return room;
}
int ls_room_enter(char folder[LS_FOLDER], int64_t deadline) {
  return name_folder(folder) == LS_STAGE_OK ? enter(folder, deadline + LS_ROOM_NS) : -1;
}
void ls_room_leave(int room, const char* folder) {
  struct stat info;
  if (fstat(room, &info) == 0 && (info.st_mode & kMadeByUs) != 0) rmdir(folder); /* if it is empty */
  flock(room, LOCK_UN); /* a child that was forked meanwhile has it open, too */
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

static int refuse_damaged(const struct ls_segment* segment) {
  return ls_stage_fail(LS_STAGE_REFUSED, "%s is damaged: remove it", segment->path);
}

static int check(const struct ls_segment* segment, enum ls_segment_kind kind) {
  const struct ls_segment_head* head = segment->head;
  if (head->magic == LS_SEGMENT_MAGIC && head->version != LS_SEGMENT_VERSION) {
    return ls_stage_fail(LS_STAGE_REFUSED,
                         "%s has version %u, this library %d: both sides need the liblockstep-stage.so of one release",
                         segment->path, head->version, LS_SEGMENT_VERSION);
  }
  if (!makes_sense(head, segment->bytes) || head->kind != kind) return refuse_damaged(segment);
  if (head->pid_namespace == pid_namespace()) return LS_STAGE_OK;
  return ls_stage_fail(LS_STAGE_REFUSED,
                       "%s is of another container: nobody could tell here who is alive there; use one pid namespace",
                       segment->path);
}

static void unmap(struct ls_segment* segment) {
  munmap(segment->head, segment->bytes);
  segment->head = NULL;
}

static void know_file(struct ls_segment* segment, int fd) {
  struct stat info = {0};
  fstat(fd, &info);
  segment->device = info.st_dev;
  segment->inode = info.st_ino;
}

int ls_segment_open(const char* folder, const char* name, enum ls_segment_kind kind, struct ls_segment* segment) {
  const int named = name_file(folder, name, kind, segment);
  if (named != LS_STAGE_OK) return named;
  const int fd = open(segment->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT) return LS_STAGE_ABSENT;
  if (fd < 0) return ls_stage_fail(LS_STAGE_REFUSED, "%s: %s", segment->path, strerror(errno));
  segment->head = map_head(fd, &segment->bytes);
  know_file(segment, fd);
  close(fd);
  if (segment->head == NULL) return refuse_damaged(segment);
  const int result = check(segment, kind);
  if (result != LS_STAGE_OK) unmap(segment);
  return result;
}

/* posix_fallocate: on a full tmpfs a first write would otherwise be a SIGBUS in the simulation. A signal undoes all
 * that it has done: hence in pieces, which a profiler's signals make smaller, down to a page. */
static int reserve(int fd, uint64_t bytes) {
  const uint64_t page = 4096;
  uint64_t piece = 1 << 20;
  struct statvfs disk;
  if (bytes > INT64_MAX || ls_file_allowed(bytes) != 0) return EFBIG;
  if (fstatvfs(fd, &disk) == 0 && disk.f_blocks != 0 && (unsigned __int128)disk.f_bavail * disk.f_frsize < bytes) {
    return ENOSPC; /* at once, and not when it has taken all that there was */
  }
  for (uint64_t at = 0; at < bytes;) {
    const uint64_t length = bytes - at < piece ? bytes - at : piece;
    const int error = posix_fallocate(fd, (off_t)at, (off_t)length);
    if (error != 0 && error != EINTR) return error;
    if (error == 0) at += length;
    if (error == EINTR && piece > page) piece /= 2;
  }
  return 0;
}

static int make_file(const char* path, struct ls_segment* segment) {
  const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return errno;
  int error = reserve(fd, segment->bytes);
  if (error == 0) {
    segment->head = mmap(NULL, segment->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (segment->head == MAP_FAILED) error = errno;
  }
  know_file(segment, fd);
  close(fd);
  if (error == 0) return 0;
  segment->head = NULL;
  unlink(path);
  return error;
}

static void write_head(struct ls_segment* segment, const char* name, enum ls_segment_kind kind, uint32_t members) {
  struct ls_segment_head* head = segment->head;
  head->magic = LS_SEGMENT_MAGIC;
  head->version = LS_SEGMENT_VERSION;
  head->kind = kind;
  head->bytes = segment->bytes;
  head->pid_namespace = pid_namespace();
  head->members = members;
  snprintf(head->name, sizeof head->name, "%s", name);
}

int ls_segment_create(const char* folder, const char* name, enum ls_segment_kind kind, uint32_t members, size_t bytes,
                      struct ls_segment* segment) {
  const int named = name_file(folder, name, kind, segment);
  if (named != LS_STAGE_OK) return named;
  char fresh[sizeof segment->path];
  snprintf(fresh, sizeof fresh, "%s/%s", folder, kNew);
  segment->bytes = bytes;
  int error = make_file(fresh, segment);
  if (error == 0) {
    write_head(segment, name, kind, members);
    if (rename(fresh, segment->path) != 0) {
      error = errno;
      unlink(fresh);
      unmap(segment);
    }
  }
  if (error == 0) return LS_STAGE_OK;
  return ls_stage_fail(LS_STAGE_REFUSED, "%s, of %.1f MB: %s; LOCKSTEP_STAGE_DIR names another folder", segment->path,
                       (double)bytes * 1e-6, strerror(error));
}

/* ---- leaving ---- */

/* The file that we have, and not one that another made under its name after somebody had removed ours. */
static void unlink_if_nobody(const struct ls_segment* segment) {
  struct stat named;
  if (!anybody(segment->head) && lstat(segment->path, &named) == 0 && named.st_dev == segment->device &&
      named.st_ino == segment->inode) {
    unlink(segment->path);
  }
}

void ls_segment_drop(struct ls_segment* segment) {
  unlink_if_nobody(segment);
  unmap(segment);
}

/* The one that the file was made in, whatever the environment says by now. */
static int enter_again(const struct ls_segment* segment, char folder[LS_FOLDER], int64_t deadline) {
  const size_t length = (size_t)(strrchr(segment->path, '/') - segment->path);
  memcpy(folder, segment->path, length);
  folder[length] = '\0';
  return enter(folder, deadline);
}

void ls_segment_depart(struct ls_segment* segment, struct ls_member* member, int64_t deadline) {
  char folder[LS_FOLDER];
  const int room = enter_again(segment, folder, deadline);
  if (member != NULL) __atomic_store_n(&member->pid, 0, __ATOMIC_RELEASE);
  if (room < 0) {
    unmap(segment);
    return;
  }
  ls_segment_drop(segment);
  ls_room_leave(room, folder);
}
void ls_segment_forsake(const struct ls_segment* segment, struct ls_member* member) {
  char folder[LS_FOLDER];
  const int room = enter_again(segment, folder, ls_stage_deadline(1.0));
  if (room < 0) return;
  member->state = LS_MEMBER_LEAVES;
  unlink_if_nobody(segment);
  ls_room_leave(room, folder);
}
