#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "lockstep/client/client.h"
#include "lockstep/stage/spill.h"
#include "lockstep/stage/stream.h"

static int write_all(int fd, const void* from, uint64_t bytes, off_t at) {
  const char* next = from;
  while (bytes > 0) {
    const int allowed = ls_file_allowed((uint64_t)at + bytes);
    if (allowed != 0) return allowed;
    const ssize_t wrote = pwrite(fd, next, bytes, at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return wrote == 0 ? EIO : errno;
    next += wrote;
    at += wrote;
    bytes -= (uint64_t)wrote;
  }
  return 0;
}

static struct ls_spill_head head_of(const struct ls_stage_facts* facts) {
  struct ls_spill_head head = {.magic = LS_SPILL_MAGIC, .version = LS_SPILL_VERSION};
  head.dtype = facts->dtype;
  head.ndim = facts->ndim;
  head.ranks = facts->ranks;
  memcpy(head.shape, facts->shape, sizeof head.shape);
  head.part_bytes = facts->part_bytes;
  head.part_stride = facts->part_stride;
  head.record_stride = ls_spill_stride(facts->part_stride * (uint64_t)facts->ranks);
  return head;
}

int ls_spill_create(const char* path, const struct ls_stage_facts* facts) {
  const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) {
    return ls_stage_fail(-1, "spill file %s: %s%s", path, strerror(errno),
                         errno == EEXIST ? "; name another, or remove it" : "");
  }
  char page[LS_SPILL_PAGE] = {0};
  const struct ls_spill_head head = head_of(facts);
  memcpy(page, &head, sizeof head);
  const int error = write_all(fd, page, sizeof page, 0);
  if (error == 0) return fd;
  close(fd);
  unlink(path);
  return ls_stage_fail(-1, "spill file %s: %s", path, strerror(error));
}

int ls_spill_reopen(const struct ls_stage_facts* facts) {
  struct ls_spill_head found;
  const struct ls_spill_head wanted = head_of(facts);
  const int fd = open(facts->spill, O_RDWR | O_CLOEXEC);
  if (fd < 0) return ls_stage_fail(-1, "spill file %s: %s", facts->spill, strerror(errno));
  if (pread(fd, &found, sizeof found, 0) == (ssize_t)sizeof found && memcmp(&found, &wanted, sizeof found) == 0) {
    return fd;
  }
  close(fd);
  return ls_stage_fail(-1, "spill file %s is of another stream, or of another version of this library", facts->spill);
}

int ls_spill_append(int fd, const struct ls_stage_facts* facts, uint64_t count, int64_t step, const void* parts) {
  const uint64_t bytes = facts->part_stride * (uint64_t)facts->ranks;
  const off_t at = (off_t)(LS_SPILL_PAGE + count * ls_spill_stride(bytes));
  char line[LS_SPILL_RECORD] = {0};
  struct ls_spill_record record = {.magic = LS_SPILL_RECORD_MAGIC, .step = step, .index = count};
  const char* place = (const char*)&record + offsetof(struct ls_spill_record, step);
  record.crc = ls_crc32c(ls_crc32c(0, place, sizeof record.step + sizeof record.index), parts, bytes);
  memcpy(line, &record, sizeof record);
  const int error = write_all(fd, parts, bytes, at + LS_SPILL_RECORD);
  return error != 0 ? error : write_all(fd, line, sizeof line, at);
}

uint32_t ls_stage_crc32c(const void* data, uint64_t bytes) { return ls_crc32c(0, data, bytes); }
