// Test support: a journal that outlives coordinators, as a disk does.
#pragma once

#include <utility>
#include <vector>

#include "lockstep/store/journal.h"

namespace lockstep::control {

// Keeps events in memory, and may be told that its disk is full, or fails, or that another coordinator writes it by
// now.
class MemoryJournal final : public store::Journal {
 public:
  absl::Status Append(std::vector<store::Event> events) override {
    if (removed) return DataLoss("the journal was removed");
    if (full) return MakeError(absl::StatusCode::kResourceExhausted, "the disk is full");
    if (taken) return FailedPrecondition("another coordinator leads");
    ++appends;
    for (store::Event& event : events) {
      event.sequence = static_cast<int64_t>(rows.size()) + 1;
      rows.push_back(std::move(event));
    }
    return absl::OkStatus();
  }
  absl::Status Sync() override {
    if (cannot_sync) return MakeError(absl::StatusCode::kUnavailable, "the disk does not answer");
    return ++syncs, absl::OkStatus();
  }
  absl::StatusOr<std::vector<store::Event>> Read(int64_t after) override {
    return std::vector<store::Event>(rows.begin() + after, rows.end());
  }

  std::vector<store::Event> rows;
  bool full = false, taken = false, cannot_sync = false, removed = false;
  int appends = 0, syncs = 0;
};

}  // namespace lockstep::control
