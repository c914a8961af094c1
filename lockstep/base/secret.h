// Bearer tokens: what a server wants to hear before it serves beyond loopback.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/status.h"

namespace lockstep {

// Without the space around it: editors end a file with a line's end, and no request can carry one.
absl::StatusOr<std::string> ReadToken(const std::string& path);

// Takes as long for any two texts of the same lengths, so that the time of an answer tells nothing about the token.
bool SameSecret(std::string_view given, std::string_view wanted);

}  // namespace lockstep
