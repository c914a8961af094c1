#include "lockstep/trace/comm_files.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/trace/byte_source.h"
#include "lockstep/trace/dump.h"
#include "lockstep/trace/flight_recorder.h"
#include "lockstep/trace/inspector.h"
#include "lockstep/trace/ras.h"
#include "lockstep/trace/ras_text.h"
#include "lockstep/trace/trails.h"

namespace lockstep::trace {
namespace {

bool HasRasText(const std::string& path) {
  constexpr size_t kBegin = 4096;
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && IsRasText(FirstBytes(path, kBegin));
}

absl::StatusOr<CommLog> ReadRasTextFile(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<CommLog> log = ReadRasText(text);
  if (!log.ok()) return InvalidArgument("{}: {}", path, Message(log.status()));
  return log;
}

}  // namespace

absl::StatusOr<CommLog> ReadCommFiles(const std::vector<std::string>& paths) {
  const auto text = std::find_if(paths.begin(), paths.end(), HasRasText);
  if (text != paths.end() && paths.size() > 1)
    return InvalidArgument("{}: a status of NCCL's RAS is of the whole job; expected it alone", *text);
  if (text != paths.end()) return ReadRasTextFile(*text);
  if (std::any_of(paths.begin(), paths.end(), HasTrails)) return ReadTrails(paths);
  if (std::any_of(paths.begin(), paths.end(), HasInspector)) return ReadInspector(paths);
  std::error_code error;
  if (paths.size() == 1 && std::filesystem::is_regular_file(paths.front(), error)) {
    const absl::StatusOr<Json> document = ReadDump(paths.front());
    if (document.ok() && IsRas(*document)) {
      absl::StatusOr<CommLog> log = ReadRas(*document);
      if (!log.ok()) return InvalidArgument("{}: {}", paths.front(), Message(log.status()));
      return log;
    }
  }
  return ReadFlightRecorder(paths);
}

}  // namespace lockstep::trace
