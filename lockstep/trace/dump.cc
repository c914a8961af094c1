#include "lockstep/trace/dump.h"

#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/trace/pickle.h"

namespace lockstep::trace {

absl::StatusOr<Json> ReadDump(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  if (bytes.starts_with('\x80')) return ReadPickle(bytes);
  try {
    return Json::parse(bytes);
  } catch (const Json::parse_error& error) {
    return InvalidArgument("byte {}: not JSON; expected JSON, or a pickle of protocol 2 or later", error.byte);
  } catch (const Json::out_of_range&) {
    return InvalidArgument("a number that no double holds");
  }
}

}  // namespace lockstep::trace
