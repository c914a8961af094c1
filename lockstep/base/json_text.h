// Documents from texts, and texts of documents. nlohmann's parser and its writer are templates, which cost g++ two
// seconds in each file that calls them; here they are compiled once. How people are to see a document: report.h.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

#include "lockstep/base/report.h"

namespace lockstep {

// is_discarded() if the text is no JSON.
Json ParseJson(std::string_view text);
// Without spaces. What is no UTF-8, as text of foreign origin may be, is replaced.
std::string OneLine(const Json& document);

}  // namespace lockstep

namespace nlohmann {

void PrintTo(const ordered_json& document, std::ostream* out);  // for GoogleTest, which finds it here

}  // namespace nlohmann
