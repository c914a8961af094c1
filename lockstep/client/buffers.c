#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "lockstep/client/session.h"
#include "lockstep/client/starter.h"

uint64_t ls_slot_capacity(const struct ls_client* c) { return c->buffers.base != NULL ? c->buffers.slot_bytes : 0; }

char* ls_slot_base(const struct ls_client* c, int slot) {
  return c->buffers.base + (uint64_t)slot * ls_slot_stride(c->buffers.slot_bytes);
}

void ls_buffers_free(struct ls_client* c) {
  struct ls_buffers* buffers = &c->buffers;
  if (buffers->base == NULL) return;
  if (buffers->pinned) c->cuda->unpin(c->cuda, buffers->base);
  munmap(buffers->base, buffers->mapped);
  *buffers = (struct ls_buffers){0};
}

static int map_buffers(struct ls_client* c, int fd, uint64_t slot_bytes) {
  const uint64_t mapped = LS_SLOTS * ls_slot_stride(slot_bytes);
  struct stat info;
  /* A shorter object would kill the worker with SIGBUS at the first copy. */
  if (fd < 0 || fstat(fd, &info) != 0 || (uint64_t)info.st_size < mapped) {
    return ls_fail(LS_REFUSED, "the starter sent no buffers of 2 x %llu bytes", (unsigned long long)slot_bytes);
  }
  void* memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (memory == MAP_FAILED) {
    return ls_fail(LS_REFUSED, "mapping %llu bytes of checkpoint buffers: %s", (unsigned long long)mapped,
                   strerror(errno));
  }
  /* Children (data loaders) need neither the mapping nor its page tables. */
  madvise(memory, mapped, MADV_DONTFORK);
  ls_buffers_free(c);
  c->buffers = (struct ls_buffers){.base = memory, .slot_bytes = slot_bytes, .mapped = mapped};
  return LS_OK;
}

static int ask_for_buffers(struct ls_client* c, uint64_t bytes) {
  struct ls_join_message request = {.kind = LS_JOIN_BUFFERS, .version = LS_JOIN_VERSION, .bytes = bytes};
  request.rank = (int32_t)c->rank;
  request.pid = c->pid;
  request.epoch = c->epoch;
  struct ls_answer answer;
  const int error = ls_starter_ask(c->socket, &request, &answer);
  if (error != 0) return ls_fail(LS_REFUSED, "the starter did not answer: %s", strerror(error));
  int result = LS_OK;
  if (answer.message.kind != LS_JOIN_OK) {
    result = ls_fail(LS_REFUSED, "%s", answer.message.text);
  } else if (answer.message.bytes < bytes) {
    result = ls_fail(LS_REFUSED, "the starter gave buffers smaller than asked for");
  } else {
    result = map_buffers(c, answer.fd[0], answer.message.bytes);
  }
  ls_answer_close(&answer);
  return result;
}

int ls_buffers(struct ls_client* c, uint64_t bytes) {
  if (!ls_is_joined(c)) return LS_NOT_JOINED;
  const int waited = ls_save_wait(c);
  if (waited == LS_TIMEOUT) return waited; /* the copy thread may still write into the old ones */
  if (bytes > ls_slot_capacity(c) || c->buffers.base == NULL) {
    const int result = ask_for_buffers(c, bytes);
    if (result != LS_OK) return result;
  }
  const int error = ls_copier_start(c);
  return error == 0 ? LS_OK : ls_fail(LS_REFUSED, "starting the copy thread: %s", strerror(error));
}
