// Disks: requests that failed (as SCSI, md and ext4 count them), devices that are offline, and disks that have requests
// under way and end none.
//
//   DiskJudge judge(settings);
//   judge.Judge(ReadDisks(tree), now, reading);
#pragma once

#include <map>

#include "lockstep/inspect/lately.h"
#include "lockstep/inspect/reader.h"

namespace lockstep::inspect {

struct DiskState {
  std::string name;     // "sda", "nvme0n1"; "sda1" where ext4 tells of its own errors
  std::string state{};  // of its device: "running", "live", "offline"; empty: it says none
  uint64_t errors = 0;
  bool of_filesystem = false;  // its errors were serious: one is enough
  uint64_t degraded = 0;       // disks missing from an array
  uint64_t in_flight = 0;      // requests
  uint64_t done = 0;           // since the machine started
};

std::vector<DiskState> ReadDisks(const Tree& tree);

class DiskJudge {
 public:
  explicit DiskJudge(const Settings& settings) : settings_(settings) {}
  void Judge(const std::vector<DiskState>& disks, Nanos at, Reading& reading);

 private:
  struct Known {
    Lately errors;
    uint64_t done = 0;
    bool busy = false;      // at the reading before
    uint64_t degraded = 0;  // as it was at first
  };
  void JudgeErrors(const DiskState& disk, Known& known, Nanos at, Reading& reading) const;

  const Settings settings_;
  std::map<std::string, Known> known_;
};

std::unique_ptr<Reader> DiskReader(const Settings& settings, const Where& where);

}  // namespace lockstep::inspect
