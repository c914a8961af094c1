// Archives for tests.
#pragma once

#include <fmt/core.h>

#include <string>

namespace lockstep::prepare {

// One member of an archive: its header, its content, padding.
inline std::string TarEntry(const std::string& name, const std::string& content, char type = '0') {
  std::string block(512, '\0');
  block.replace(0, std::min<size_t>(name.size(), 100), name.substr(0, 100));
  block.replace(124, 11, fmt::format("{:011o}", content.size()));
  block[156] = type;
  block.replace(257, 8,
                std::string("ustar\0"
                            "00",
                            8));
  block.replace(148, 8, "        ");
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<uint8_t>(c);
  block.replace(148, 8, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
  return block + content + std::string((512 - content.size() % 512) % 512, '\0');
}
}  // namespace lockstep::prepare
