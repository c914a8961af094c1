// Documents from texts, and texts of documents. nlohmann's parser and its writer are templates, which cost g++ two
// seconds in each file that calls them; here they are compiled once. How people are to see a document: report.h.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"

namespace lockstep {

// To copy a document, or to write it, recurses as deep as it is nested: a text of brackets alone would end the process.
// Nothing that we read or write is nested nearly as deep.
constexpr int kDeepestJson = 128;

// is_discarded() if the text is no JSON, or nested deeper.
Json ParseJson(std::string_view text);
// The same. An error says what is wrong with the text, and where in it.
absl::StatusOr<Json> ReadJson(std::string_view text);
// Without spaces. What is no UTF-8, as text of foreign origin may be, is replaced.
std::string OneLine(const Json& document);

}  // namespace lockstep

namespace nlohmann {

void PrintTo(const ordered_json& document, std::ostream* out);  // for GoogleTest, which finds it here

}  // namespace nlohmann
