// Members of documents that others wrote: what is not there, or of another type, is a default and no error. Where it is
// one, see incident/fields.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/report.h"

namespace lockstep {

// Null where `object` is none or has no such member.
const Json& At(const Json& object, std::string_view key);
int64_t IntegerAt(const Json& object, std::string_view key, int64_t otherwise);
bool BooleanAt(const Json& object, std::string_view key, bool otherwise);
std::string TextAt(const Json& object, std::string_view key);  // "" if it is no text

}  // namespace lockstep
