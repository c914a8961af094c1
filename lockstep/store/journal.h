// The journal: an append-only sequence of opaque typed events, the truth of a run. What is appended survives kill -9 of
// this process at once, and power loss within one second (a background thread syncs); Sync() returns when everything
// appended so far is on disk. One writer per journal: a second Open for writing is refused. Readers may read while it
// is written. Thread-safe. It is a file here (SQLite), or what several coordinators share (postgres_journal.h).
//
//   LS_ASSIGN_OR_RETURN(auto journal, OpenSqliteJournal(run_dir + "/journal.sqlite", JournalMode::kWrite));
//   LS_RETURN_IF_ERROR(journal->Append({{now, "rank_exited", json}}));       // one transaction
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::store {

struct Event {
  Nanos at;    // CLOCK_BOOTTIME
  Nanos wall;  // since 1970, for people
  std::string type;
  std::string payload;   // opaque to the store
  int64_t sequence = 0;  // given by Append: 1, 2, ... without holes
};

class Journal {
 public:
  virtual ~Journal() = default;
  // All events or none. Fails with ResourceExhausted on a full disk; the journal stays usable and holds what it held.
  // FailedPrecondition: it is not ours to write (any more). DataLoss: it was removed or emptied under us, and nobody
  // will ever read what is appended.
  virtual absl::Status Append(std::vector<Event> events) = 0;
  virtual absl::Status Sync() = 0;
  // Events with sequence > after, in order.
  virtual absl::StatusOr<std::vector<Event>> Read(int64_t after) = 0;
};

enum class JournalMode { kRead, kWrite };
absl::StatusOr<std::unique_ptr<Journal>> OpenSqliteJournal(const std::string& path, JournalMode mode);

}  // namespace lockstep::store
