#include "lockstep/agent/last_watched.h"

#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/incident/fields.h"

namespace lockstep::agent {

absl::Status NoteUnwatched(const std::string& run_dir, Nanos since) {
  return WriteFileAtomically(run_dir + "/" + kUnwatchedFile, Json{{"since_ns", since.value}}.dump());
}

Nanos LastWatched(const std::string& run_dir) {
  const absl::StatusOr<std::string> text = ReadFile(run_dir + "/" + kUnwatchedFile);
  if (!text.ok()) return {};
  const Json json = Json::parse(*text, nullptr, false);
  incident::Fields fields(json, kUnwatchedFile);
  const Nanos since = fields.Time("since_ns");
  return fields.status().ok() ? since : Nanos{};
}

}  // namespace lockstep::agent
