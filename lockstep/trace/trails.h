// The trails that collectors keep in processes (record/trail.h), of a job that runs, hangs or is over.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/trace/comm_log.h"
#include "lockstep/trace/trail_file.h"

namespace lockstep::trace {

inline constexpr char kTrailSuffix[] = ".trail";
inline constexpr char kRecordsSuffix[] = ".records";  // record_file.h

// Of several trails of a rank counts the one whose newest communicator is the youngest; those that an older epoch left
// are left out, and so are its communicators, of workers that went on. All are counted. Clocks of different hosts are
// fitted to each other by the ends of collectives.
CommLog JoinTrails(std::vector<TrailSnapshot> trails);

// Trails and files of snapshots (record_file.h): named by themselves, and all of directories and of runs' directories.
// Errors: nothing there can be read; a file among others that can't be is listed as damaged. Files of other kinds, as
// dumps, beside them are counted (other_files).
absl::StatusOr<CommLog> ReadTrails(const std::vector<std::string>& paths);
bool HasTrails(const std::string& path);
// Paths of the trails in a directory, or in a run's.
std::vector<std::string> TrailsIn(const std::string& directory);

}  // namespace lockstep::trace
