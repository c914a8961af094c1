// For fuzz targets of readers that want a file.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace lockstep {

// In memory, and gone with this process; always the same name, for messages.
inline std::string FuzzFile(const uint8_t* data, size_t size) {
  static const std::string path = "/proc/self/fd/" + std::to_string(memfd_create("fuzz", 0));
  if (FILE* file = std::fopen(path.c_str(), "wb")) {
    std::fwrite(data, 1, size, file);
    std::fclose(file);
  }
  return path;
}

}  // namespace lockstep
