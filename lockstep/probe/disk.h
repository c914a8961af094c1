// Whether a directory's disk keeps what is written to it, and how fast: a file is written, synced, read back and
// compared. Past the page cache (O_DIRECT) where the file system can; else the cache is asked to let go of it, and the
// reading rate may be memory's. The file loses its name as soon as it is made, so nothing is left behind however the
// test ends. Memory: 1 MiB. Disk: `bytes`, or less when half of the time is over. A disk that hangs hangs this call:
// use RunApart().
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/probe/budget.h"
#include "lockstep/probe/measurement.h"

namespace lockstep::probe {

// For tests: what a fault does to a MiB that was read.
using TamperRead = std::function<void(uint64_t offset, std::span<uint64_t> block)>;

struct DiskOptions {
  std::string directory{};
  Bytes bytes{64 << 20};
  TamperRead tamper{};
};

// disk.bits (errors: words that came back wrong; also when writing or reading failed, and why), disk.write and
// disk.read (GB/s; writing with the sync).
std::vector<Measurement> MeasureDisk(const Budget& budget, const DiskOptions& options);

}  // namespace lockstep::probe
