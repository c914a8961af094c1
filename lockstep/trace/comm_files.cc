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

// Trails by their name too, for one that is damaged is told of by their reader; and runs, for a node may have none.
bool IsOfTrails(const std::string& path) {
  std::error_code error;
  return HasTrails(path) || std::filesystem::exists(path + "/run.json", error) || path.ends_with(kTrailSuffix) ||
         path.ends_with(kRecordsSuffix);
}

// That every path is of the kind that some of them are.
absl::Status CheckAlike(const std::vector<std::string>& paths, bool (*is_of_kind)(const std::string&),
                        std::string_view kind) {
  for (const std::string& path : paths)
    if (!is_of_kind(path))
      return InvalidArgument("{}: it has no {}, which others here have; give either alone", path, kind);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CommLog> ReadCommFiles(const std::vector<std::string>& paths) {
  for (const std::string& path : paths)
    if (std::error_code error; !std::filesystem::exists(path, error))
      return NotFound("{}: {}", path, error ? error.message() : "No such file or directory");
  for (const std::string& path : paths)
    if (std::error_code error; std::filesystem::is_regular_file(path, error) && std::filesystem::file_size(path) == 0)
      return InvalidArgument("{}: it is empty; expected a dump, a trail, or the stacks of an incident", path);
  const auto text = std::find_if(paths.begin(), paths.end(), HasRasText);
  if (text != paths.end() && paths.size() > 1)
    return InvalidArgument("{}: a status of NCCL's RAS is of the whole job; expected it alone", *text);
  if (text != paths.end()) return ReadRasTextFile(*text);
  if (std::ranges::any_of(paths, HasTrails)) {
    LS_RETURN_IF_ERROR(CheckAlike(paths, IsOfTrails, "trails"));
    return ReadTrails(paths);
  }
  if (std::ranges::any_of(paths, HasInspector)) {
    LS_RETURN_IF_ERROR(CheckAlike(paths, HasInspector, "files of NCCL's Inspector"));
    return ReadInspector(paths);
  }
  std::error_code error;
  for (const std::string& path : paths)
    if (std::filesystem::exists(path + "/run.json", error))
      return InvalidArgument("{}: a run without trails: nothing watched what its ranks told each other", path);
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
