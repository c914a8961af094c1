// Text of foreign origin, such as the message of an exception, for a terminal: without what would steer it. UTF-8
// stays. Pure.
//
//   Clean("bad \033[31m\nvalue") == "bad  [31m value"
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Spaces in place of escapes and other control characters, ends of lines among them.
std::string Clean(std::string_view text);
// The same, but lines stay apart.
std::string CleanLines(std::string_view text);

}  // namespace lockstep
