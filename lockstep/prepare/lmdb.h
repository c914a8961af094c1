// LMDB (data.mdb, as liblmdb 0.9 writes it on 64-bit little-endian machines), read-only and without liblmdb: that maps
// the file, so one that shrinks, or is damaged, would end the process. Values are items, in the order of their keys.
// What is read is the state of the last commit when it was opened; one that is written to later is a file that has
// changed, of which nothing is read any more, for its pages are used again.
#pragma once

#include "lockstep/prepare/data_file.h"
#include "lockstep/prepare/source.h"

namespace lockstep::prepare {

struct LmdbEntry {
  std::string key;
  uint64_t offset = 0, bytes = 0;  // of the value, in the file
};
// Of the main database. Named databases and several values of one key are refused.
absl::StatusOr<std::vector<LmdbEntry>> ListLmdb(const DataFile& file);

absl::StatusOr<std::unique_ptr<Source>> OpenLmdb(DataFile file);

}  // namespace lockstep::prepare
