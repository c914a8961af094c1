// One trail (record/trail.h) as a reader has it: mapped, for its process may still be writing it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/record/trail.h"

namespace lockstep::trace {

class TrailFile {
 public:
  static absl::StatusOr<TrailFile> Open(const std::string& path);

  const ls_trail& operator*() const { return *trail_; }
  const ls_trail* operator->() const { return trail_; }
  std::string host() const;
  // Whether its process still runs, on this machine.
  bool IsAlive() const;

 private:
  struct Unmap {
    size_t bytes;
    void operator()(void* memory) const;
  };
  std::unique_ptr<void, Unmap> memory_{nullptr, {0}};
  const ls_trail* trail_ = nullptr;
};

struct TrailRecords {
  std::vector<ls_record> ended, under_way;
  uint64_t missed = 0;  // overwritten before they could be read
};
// Everything that is there. An op that ends meanwhile may be told twice: as under way, and as ended.
TrailRecords ReadRecords(const ls_trail& trail);

}  // namespace lockstep::trace
