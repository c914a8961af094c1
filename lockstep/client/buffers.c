#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "lockstep/client/session.h"
#include "lockstep/client/starter.h"

uint64_t ls_slot_capacity(const struct ls_client* c) { return c->buffers.slot_bytes; }

static void unmap_slots(const struct ls_buffers* buffers) {
  for (int i = 0; i < LS_SLOTS; ++i)
    if (buffers->slot[i] != NULL) munmap(buffers->slot[i], buffers->slot_bytes);
}

static void unpin_slots(struct ls_client* c, int slots) {
  for (int i = 0; i < slots; ++i) c->cuda->unpin(c->cuda, c->buffers.slot[i]);
}

void ls_buffers_pin(struct ls_client* c) {
  if (c->buffers.pin_tried) return; /* a driver that refused once would be asked for every tensor of every save */
  c->buffers.pin_tried = true;
  for (int i = 0; i < LS_SLOTS; ++i) {
    if (!c->cuda->pin(c->cuda, c->buffers.slot[i], c->buffers.slot_bytes)) return unpin_slots(c, i);
  }
  c->buffers.pinned = true;
}

void ls_buffers_free(struct ls_client* c) {
  if (c->buffers.pinned) unpin_slots(c, LS_SLOTS);
  unmap_slots(&c->buffers);
  c->buffers = (struct ls_buffers){0};
}

/* All its pages, for one that is missing when the copy comes to it would be a SIGBUS: vm.overcommit_memory=2 gives none
 * beyond its limit. Signals wait, since each would have it begin anew. 0, or an errno value. */
static int reserve(int fd, const struct stat* info, uint64_t bytes) {
  if ((uint64_t)info->st_blocks * 512 >= bytes) return 0; /* an earlier epoch did */
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = fallocate(fd, 0, 0, (off_t)bytes) == 0 ? 0 : errno;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error == EOPNOTSUPP || error == ENOSYS ? 0 : error;
}

static char* map_slot(int fd, uint64_t bytes) {
  struct stat info;
  /* A shorter object would kill the worker with SIGBUS at the first copy. */
  if (fd < 0 || fstat(fd, &info) != 0 || (uint64_t)info.st_size < bytes) {
    return ls_fail(0, "the starter sent no slot of %llu bytes", (unsigned long long)bytes), NULL;
  }
  const int error = reserve(fd, &info, bytes);
  if (error != 0) {
    return ls_fail(0, "the kernel has no memory for %llu bytes of checkpoint buffers: %s; see vm.overcommit_memory",
                   (unsigned long long)bytes, strerror(error)),
           NULL;
  }
  void* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (memory == MAP_FAILED) {
    return ls_fail(0, "mapping %llu bytes of checkpoint buffers: %s", (unsigned long long)bytes, strerror(errno)), NULL;
  }
  /* Children (data loaders) need neither the mapping nor its page tables. */
  madvise(memory, bytes, MADV_DONTFORK);
  return memory;
}

static int map_buffers(struct ls_client* c, const struct ls_answer* answer) {
  struct ls_buffers buffers = {.slot_bytes = answer->message.bytes};
  for (int i = 0; i < LS_SLOTS; ++i) {
    buffers.slot[i] = map_slot(answer->fd[i], buffers.slot_bytes);
    if (buffers.slot[i] == NULL) return unmap_slots(&buffers), LS_REFUSED;
  }
  ls_buffers_free(c);
  c->buffers = buffers;
  return LS_OK;
}

static int ask_for_buffers(struct ls_client* c, uint64_t bytes) {
  struct ls_join_message request = {.kind = LS_JOIN_BUFFERS, .version = LS_JOIN_VERSION, .bytes = bytes};
  request.rank = (int32_t)c->rank;
  request.pid = c->pid;
  request.epoch = c->epoch;
  struct ls_answer answer;
  const int error = ls_starter_ask(&c->socket, &request, &answer, LS_STARTER_TIMEOUT_MS);
  if (error != 0) return ls_fail(LS_REFUSED, "the starter did not answer: %s", strerror(error));
  int result = LS_OK;
  if (answer.message.kind != LS_JOIN_OK) {
    result = ls_fail(LS_REFUSED, "%s", answer.message.text);
  } else if (answer.message.bytes < bytes) {
    result = ls_fail(LS_REFUSED, "the starter gave buffers smaller than asked for");
  } else {
    result = map_buffers(c, &answer);
  }
  ls_answer_close(&answer);
  return result;
}

int ls_buffers(struct ls_client* c, uint64_t bytes) {
  if (!ls_is_joined(c)) return LS_NOT_JOINED;
  const int waited = ls_save_wait(c);
  if (waited == LS_TIMEOUT) return waited; /* the copy thread may still write into the old ones */
  if (bytes > ls_slot_capacity(c) || ls_slot_capacity(c) == 0) {
    const int result = ask_for_buffers(c, bytes);
    if (result != LS_OK) return result;
  }
  const int error = ls_copier_start(c);
  return error == 0 ? LS_OK : ls_fail(LS_REFUSED, "starting the copy thread: %s", strerror(error));
}
