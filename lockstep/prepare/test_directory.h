// A directory for the files of a test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "lockstep/prepare/source.h"

namespace lockstep::prepare {

class Directory : public testing::Test {
 protected:
  Directory() {
    std::string name = testing::TempDir() + "source-XXXXXX";
    root_ = mkdtemp(name.data());
  }
  ~Directory() override { std::filesystem::remove_all(root_); }

  std::string Write(const std::string& name, std::string_view text) {
    const std::filesystem::path path = std::filesystem::path(root_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
    return path.string();
  }
  std::unique_ptr<Source> Open(const SourceSpec& spec) {
    absl::StatusOr<std::unique_ptr<Source>> source = OpenSource(spec);
    EXPECT_TRUE(source.ok()) << source.status();
    return source.ok() ? *std::move(source) : nullptr;
  }
  std::string ErrorOf(const SourceSpec& spec) { return std::string(OpenSource(spec).status().message()); }

  std::string root_;
};

}  // namespace lockstep::prepare
