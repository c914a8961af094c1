// A folder of files that stands for a machine's /proc and /sys, gone with the test.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "lockstep/base/test_folder.h"
#include "lockstep/inspect/tree.h"

namespace lockstep::inspect {

class TestTree {
 public:
  void Write(const std::string& path, const std::string& text) const { root_.Write(path, text + "\n"); }
  void Append(const std::string& path, const std::string& text) const {
    std::ofstream(root_ / path, std::ios::app) << text << "\n";
  }
  void Remove(const std::string& path) const { std::filesystem::remove_all(root_ / path); }
  Tree tree() const { return Tree(root_.path()); }

 private:
  const TestFolder root_;
};

inline Nanos At(double seconds) { return ToNanos(Seconds{seconds}); }

}  // namespace lockstep::inspect
