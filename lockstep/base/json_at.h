// Members of documents that others wrote: what is not there, or of another type, is a default and no error. Where it is
// one, see incident/fields.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/report.h"

namespace lockstep {

// Null where `object` is none or has no such member.
const Json& At(const Json& object, std::string_view key);
int64_t IntegerAt(const Json& object, std::string_view key, int64_t otherwise);
bool BooleanAt(const Json& object, std::string_view key, bool otherwise);
// None of what is no whole number, below 0, or more than any job has.
std::optional<int> RankFrom(const Json& value);
std::string TextAt(const Json& object, std::string_view key);  // "" if it is no text

}  // namespace lockstep
