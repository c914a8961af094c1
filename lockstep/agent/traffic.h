// Whether ranks of this node communicate right now, by their trails (record/trail.h). A rank that waits for another
// within a collective communicates, too: its trail does not tell the two apart.
// Thread-safe. Cost of a question: 32 bytes of each trail are read.
#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/trace/trail_file.h"

namespace lockstep::agent {

class Traffic {
 public:
  // Whom to look at from now on; the trails of the epoch's ranks, which it keeps mapped.
  void Follow(std::vector<trace::TrailFile> trails);
  // Nothing: no collector tells.
  std::optional<bool> IsUnderWay() const;

 private:
  mutable std::mutex mutex_;
  std::vector<trace::TrailFile> trails_;
};

}  // namespace lockstep::agent
