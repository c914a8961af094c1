#include "lockstep/base/json_text.h"

#include <nlohmann/json.hpp>
#include <ostream>

namespace lockstep {
namespace {

// Looked at before it is parsed: the parser itself takes any depth.
bool NestsTooDeep(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size() && depth <= kDeepestJson; ++i) {
    const char c = text[i];
    if (quoted && c == '\\') ++i;
    if (c == '"') quoted = !quoted;
    if (!quoted) depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
  }
  return depth > kDeepestJson;
}

}  // namespace

Json ParseJson(std::string_view text) {
  return NestsTooDeep(text) ? Json(Json::value_t::discarded) : Json::parse(text, nullptr, false);
}

absl::StatusOr<Json> ReadJson(std::string_view text) {
  if (NestsTooDeep(text)) return InvalidArgument("nested more than {} deep", kDeepestJson);
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    return InvalidArgument("byte {}: not JSON", error.byte);
  } catch (const Json::out_of_range&) {
    return InvalidArgument("a number that no double holds");
  }
}

std::string OneLine(const Json& document) { return document.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace lockstep

namespace nlohmann {

void PrintTo(const ordered_json& document, std::ostream* out) { *out << lockstep::OneLine(document); }

}  // namespace nlohmann
