// For tests: a folder of the test's own, gone with it. Its path is canonical, and short: sockets lie in such folders.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace lockstep {

class TestFolder {
 public:
  TestFolder() : path_(testing::TempDir() + "lockstep-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) throw std::system_error(errno, std::generic_category(), path_);
    path_ = std::filesystem::canonical(path_);
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

  // A file of that path below it, whose folder is made if it is not there.
  std::string Write(std::string_view name, std::string_view text) const {
    const std::string path = *this / name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    if (!(std::ofstream(path, std::ios::binary) << text)) throw std::system_error(EIO, std::generic_category(), path);
    return path;
  }

 private:
  std::string path_;
};

}  // namespace lockstep
