// The parts of a list in a text: "1,3,4" at commas.
#pragma once

#include <sstream>
#include <string>
#include <vector>

namespace lockstep {

// An empty text has no part, and an empty part at the end is none.
inline std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

}  // namespace lockstep
