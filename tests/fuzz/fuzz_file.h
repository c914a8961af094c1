// For fuzz targets of readers that want a file.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace lockstep {

// In memory, of this process alone; the name is kept for messages.
inline std::string FuzzFile(const uint8_t* data, size_t size) {
  const std::string path = "/dev/shm/lockstep-fuzz-" + std::to_string(getpid());
  if (FILE* file = std::fopen(path.c_str(), "wb")) {
    std::fwrite(data, 1, size, file);
    std::fclose(file);
  }
  return path;
}

}  // namespace lockstep
