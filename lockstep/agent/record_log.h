// The stream of records of a run: drains every rank's ring and appends what came to <run dir>/records. Bounded: the
// newest count, so a file that is half of the limit becomes `records.1`, in place of the one before. What a full disk
// refuses is counted, and training goes on.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/base/file.h"
#include "lockstep/base/units.h"
#include "lockstep/record/ring.h"

namespace lockstep::agent {

inline constexpr char kOlderRecords[] = ".1";  // behind the path

class RecordLog {
 public:
  RecordLog(std::string path, Bytes limit) : path_(std::move(path)), limit_(limit) {}
  ~RecordLog();
  // Maps the ring of a rank; a rank that comes again with the same ring is no news.
  void Attach(int rank, const Fd& ring);
  // Moves what the rings hold into the file.
  void Drain();

  uint64_t kept() const { return kept_; }          // records written
  uint64_t not_kept() const { return not_kept_; }  // the disk did not take them
  uint64_t dropped() const;                        // by full rings: those count on under the next agent

 private:
  struct Ring {
    ls_ring* ring;
    size_t bytes;
    ino_t inode;
  };
  void Keep(const ls_record* cells, size_t count);
  void Open();

  std::string path_;
  Bytes limit_;
  Fd file_;
  std::map<int, Ring> rings_;
  uint64_t bytes_ = 0;  // of the file
  uint64_t kept_ = 0, not_kept_ = 0;
};

}  // namespace lockstep::agent
