#include "lockstep/base/json_text.h"

#include <nlohmann/json.hpp>
#include <ostream>

namespace lockstep {

Json ParseJson(std::string_view text) { return Json::parse(text, nullptr, false); }

std::string OneLine(const Json& document) { return document.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace lockstep

namespace nlohmann {

void PrintTo(const ordered_json& document, std::ostream* out) { *out << lockstep::OneLine(document); }

}  // namespace nlohmann
