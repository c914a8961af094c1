#include "lockstep/trace/comm_files.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/trace/dump.h"
#include "lockstep/trace/flight_recorder.h"
#include "lockstep/trace/ras.h"
#include "lockstep/trace/trails.h"

namespace lockstep::trace {

absl::StatusOr<CommLog> ReadCommFiles(const std::vector<std::string>& paths) {
  std::error_code error;
  if (paths.size() == 1 && std::filesystem::is_regular_file(paths.front(), error)) {
    const absl::StatusOr<Json> document = ReadDump(paths.front());
    if (document.ok() && IsRas(*document)) {
      absl::StatusOr<CommLog> log = ReadRas(*document);
      if (!log.ok()) return InvalidArgument("{}: {}", paths.front(), Message(log.status()));
      return log;
    }
  }
  return std::any_of(paths.begin(), paths.end(), HasTrails) ? ReadTrails(paths) : ReadFlightRecorder(paths);
}

}  // namespace lockstep::trace
