/* A file of records: one 64-byte header, then cells as they came. Append-only; a torn last record (power loss, full
 * disk) is left out by the reader and counted. Byte-exact layout: docs/formats/record.md. Threads: one per open file.
 * Cost: one write per append; the reader holds 64 KiB.
 *
 *   int fd = ls_record_file_create(path);                     // -1: errno
 *   ls_record_file_append(fd, cells, count);
 *   struct ls_record_reader reader;
 *   if (ls_record_reader_open(&reader, path) == LS_FILE_OK)
 *     while ((record = ls_record_reader_next(&reader)) != NULL) ...
 */
#ifndef LOCKSTEP_RECORD_FILE_H_
#define LOCKSTEP_RECORD_FILE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lockstep/record/record.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LS_RECORD_FILE_MAGIC 0x31304345524b534cULL /* "LSKREC01" in memory, little endian */

struct ls_record_file_header { /* 64 bytes */
  uint64_t magic;
  uint32_t cell_bytes; /* 64 */
  uint32_t reserved[13];
};
LS_RECORD_ASSERT(sizeof(struct ls_record_file_header) == 64, "docs/formats/record.md");

enum ls_file_result { LS_FILE_OK = 0, LS_FILE_UNREADABLE = 1, LS_FILE_NOT_RECORDS = 2 };

/* Opens for appending; writes the header into an empty file, cuts off a torn last record, for which it reads the file.
 * -1: errno says why. */
int ls_record_file_create(const char* path);
/* All of them or none. False: errno says why. */
bool ls_record_file_append(int fd, const struct ls_record* cells, size_t count);

struct ls_record_reader {
  int fd;
  uint64_t unknown;    /* records of kinds that this version does not know, skipped */
  uint64_t torn_bytes; /* at the end of the file */
  struct ls_record* cells;
  size_t capacity, begin, end; /* in cells; the unread ones */
};

enum ls_file_result ls_record_reader_open(struct ls_record_reader*, const char* path);
/* The next record of a known kind, its `more` cells behind it; valid until the next call. NULL: the end. */
const struct ls_record* ls_record_reader_next(struct ls_record_reader*);
void ls_record_reader_close(struct ls_record_reader*);

#ifdef __cplusplus
}
#endif
#endif
