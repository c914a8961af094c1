// A folder of files that stands for a machine's /proc and /sys, gone with the test.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "lockstep/inspect/tree.h"

namespace lockstep::inspect {

class TestTree {
 public:
  TestTree() {
    std::string path = testing::TempDir() + "inspect_XXXXXX";
    root_ = mkdtemp(path.data());
  }
  ~TestTree() { std::filesystem::remove_all(root_); }
  TestTree(const TestTree&) = delete;
  TestTree& operator=(const TestTree&) = delete;

  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }
  void Append(const std::string& path, const std::string& text) const {
    std::ofstream(root_ + path, std::ios::app) << text << "\n";
  }
  void Remove(const std::string& path) const { std::filesystem::remove_all(root_ + path); }
  Tree tree() const { return Tree(root_); }

 private:
  std::string root_;
};

inline Nanos At(double seconds) { return ToNanos(Seconds{seconds}); }

}  // namespace lockstep::inspect
