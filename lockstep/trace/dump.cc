#include "lockstep/trace/dump.h"

#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"
#include "lockstep/trace/pickle.h"

namespace lockstep::trace {

absl::StatusOr<Json> ReadDump(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  if (bytes.starts_with('\x80')) return ReadPickle(bytes);
  absl::StatusOr<Json> document = ReadJson(bytes);
  if (document.ok()) return document;
  return InvalidArgument("{}; expected JSON, or a pickle of protocol 2 or later", Message(document.status()));
}

}  // namespace lockstep::trace
