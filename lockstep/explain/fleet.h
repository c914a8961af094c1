// `lockstep explain DIR...`: many jobs, on the threads of this process and in shards on many machines, whose results
// join into what one process would have said, byte for byte.
//
// A shard writes a line per job into OUT/jobs-I-of-N.jsonl as it goes; killed and started anew, it goes on where it
// was. The shard that ends last joins all: it writes OUT/fleet.json and OUT/index.html. Lines count only for the jobs,
// the files (by size and time) and the version of Lockstep that they were made from.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/trace/job_files.h"

namespace lockstep::explain {

struct Shard {
  int index = 0, count = 1;  // 0 <= index < count
};

struct FleetOptions {
  Shard shard;
  std::string out;  // directory; may be empty for a single shard, which then keeps nothing
  int threads = 1;
  std::string version;  // of Lockstep
};

// Thread-safe by itself. The report of the fleet, or, while others are still at work, {shard, jobs, waits_for_shards}.
// Errors are of the output directory only: a job whose files are damaged is counted and named in the report.
absl::StatusOr<Json> ExplainFleet(const std::vector<trace::JobFiles>& jobs, const FleetOptions& options);

}  // namespace lockstep::explain
