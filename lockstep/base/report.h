// A report is a struct in its part that turns itself into one Json document; this renders that document. Text, JSON and
// the web therefore cannot disagree. Keys name their unit (detect_s, resident_bytes).
//
//   fmt::print("{}", as_json ? RenderJson(report) : RenderText(report));
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace lockstep {

using Json = nlohmann::ordered_json;

// Indented by two, ending in a newline.
std::string RenderJson(const Json& report);
// "key  value" lines; an array of flat objects becomes a table with the keys of all rows, one of nested objects blocks;
// nested objects and lists of strings are indented. Numbers carry at most four decimals. Strings are cleaned (clean.h).
// What is as long as a job has ranks stays readable and complete: whole numbers that follow each other are a range
// ("0-511, 513"), and of a long table rows that differ in such a number alone are one row.
std::string RenderText(const Json& report);

}  // namespace lockstep
