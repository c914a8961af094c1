#include "lockstep/agent/last_watched.h"

#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"
#include "lockstep/incident/fields.h"

namespace lockstep::agent {

absl::Status NoteUnwatched(const std::string& run_dir, Nanos since) {
  return WriteFileAtomically(run_dir + "/" + kUnwatchedFile, OneLine(Json{{"since_ns", since.value}}));
}

Nanos LastWatched(const std::string& run_dir) {
  const absl::StatusOr<std::string> text = ReadFile(run_dir + "/" + kUnwatchedFile);
  if (!text.ok()) return {};
  const Json json = ParseJson(*text);
  incident::Fields fields(json, kUnwatchedFile);
  const Nanos since = fields.Time("since_ns");
  return fields.status().ok() ? since : Nanos{};
}

}  // namespace lockstep::agent
