#define _GNU_SOURCE
#include "lockstep/record/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A record has at most 1 + 65535 cells; the buffer begins small and grows to that only if it must. */
enum { kFirstCells = 1024 };

/* All or nothing, of a file that nobody else appends to: what a full disk has cut off would swallow what follows. */
static bool append_all(int fd, const void* data, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t written = write(fd, (const char*)data + done, bytes - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int why = errno;
      struct stat info;
      if (done > 0 && fstat(fd, &info) == 0) (void)!ftruncate(fd, info.st_size - (off_t)done);
      errno = why;
      return false;
    }
    done += (size_t)written;
  }
  return true;
}

/* Returns what could be read before the end of the file. */
static size_t read_all(int fd, void* data, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = read(fd, (char*)data + done, bytes - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += (size_t)got;
  }
  return done;
}

/* Where the last whole record ends; 0 where there is not even a header. What is not ours stays as it is. */
static off_t whole_bytes(const char* path, off_t size) {
  if (size < (off_t)sizeof(struct ls_record_file_header)) return 0;
  struct ls_record_reader reader;
  if (ls_record_reader_open(&reader, path) != LS_FILE_OK) return size;
  while (ls_record_reader_next(&reader) != NULL) continue;
  ls_record_reader_close(&reader);
  return size - (off_t)reader.torn_bytes;
}

/* What follows a torn record would be taken for the rest of it. */
static bool prepare(int fd, const char* path) {
  struct stat info;
  if (fstat(fd, &info) != 0) return false;
  const off_t whole = whole_bytes(path, info.st_size);
  if (whole != info.st_size && ftruncate(fd, whole) != 0) return false;
  const struct ls_record_file_header header = {.magic = LS_RECORD_FILE_MAGIC, .cell_bytes = LS_CELL_BYTES};
  return whole > 0 || append_all(fd, &header, sizeof header);
}

int ls_record_file_create(const char* path) {
  const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0 || prepare(fd, path)) return fd;
  close(fd);
  return -1;
}

bool ls_record_file_append(int fd, const struct ls_record* cells, size_t count) {
  return append_all(fd, cells, count * LS_CELL_BYTES);
}

enum ls_file_result ls_record_reader_open(struct ls_record_reader* reader, const char* path) {
  memset(reader, 0, sizeof *reader);
  reader->fd = open(path, O_RDONLY | O_CLOEXEC);
  if (reader->fd < 0) return LS_FILE_UNREADABLE;
  struct ls_record_file_header header;
  const bool whole = read_all(reader->fd, &header, sizeof header) == sizeof header;
  if (!whole || header.magic != LS_RECORD_FILE_MAGIC || header.cell_bytes != LS_CELL_BYTES) {
    ls_record_reader_close(reader);
    return LS_FILE_NOT_RECORDS;
  }
  return LS_FILE_OK;
}

/* Makes `wanted` cells available at `begin`; false when the file ends before. */
static bool fill(struct ls_record_reader* reader, size_t wanted) {
  if (reader->end - reader->begin >= wanted) return true;
  if (reader->capacity < wanted) {
    const size_t capacity = wanted > kFirstCells ? wanted : kFirstCells;
    struct ls_record* grown = realloc(reader->cells, capacity * LS_CELL_BYTES);
    if (grown == NULL) return false;
    reader->cells = grown;
    reader->capacity = capacity;
  }
  const size_t kept = reader->end - reader->begin;
  if (kept > 0) memmove(reader->cells, reader->cells + reader->begin, kept * LS_CELL_BYTES);
  const size_t got = read_all(reader->fd, reader->cells + kept, (reader->capacity - kept) * LS_CELL_BYTES);
  reader->begin = 0;
  reader->end = kept + got / LS_CELL_BYTES;
  reader->torn_bytes += got % LS_CELL_BYTES;
  return reader->end >= wanted;
}

static bool known(uint8_t kind) { return kind >= LS_RECORD_STEP && kind <= LS_RECORD_DATA && kind != LS_RECORD_WINDOW; }

const struct ls_record* ls_record_reader_next(struct ls_record_reader* reader) {
  while (fill(reader, 1)) {
    const size_t cells = 1u + reader->cells[reader->begin].more;
    if (!fill(reader, cells)) {
      reader->torn_bytes += (reader->end - reader->begin) * LS_CELL_BYTES;
      reader->begin = reader->end;
      return NULL;
    }
    const struct ls_record* record = &reader->cells[reader->begin];
    reader->begin += cells;
    if (known(record->kind)) return record;
    ++reader->unknown;
  }
  return NULL;
}

void ls_record_reader_close(struct ls_record_reader* reader) {
  if (reader->fd >= 0) close(reader->fd);
  free(reader->cells);
  reader->fd = -1;
  reader->cells = NULL;
}
