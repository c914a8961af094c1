// Test support: a folder of programs that stand for Slurm's, alone on PATH with the system's. Each writes its arguments
// down, one line a call, with a tab between two, and does what its script says.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/test_folder.h"

namespace lockstep::schedule {

class FakePrograms {
 public:
  FakePrograms() : path_before_(std::getenv("PATH")) {
    std::filesystem::create_directory(folder_);
    setenv("PATH", (folder_ + ":/usr/bin:/bin").c_str(), 1);
  }
  ~FakePrograms() { setenv("PATH", path_before_.c_str(), 1); }

  // `script`: of sh. $calls is where calls are written down, $folder where it may keep things.
  void Add(const std::string& name, const std::string& script) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << fmt::format(
        "#!/bin/sh\nfolder={}\nline={}\nfor word in \"$@\"; do line=\"$line\t$word\"; done\n"
        "printf '%s\\n' \"$line\" >>$folder/calls\n{}\n",
        folder_, name, script);
    chmod(path.c_str(), 0755);
  }

  // The folder is another one from then on.
  void Rename(const std::string& name) {
    const std::string renamed = folder_ + " " + name;
    std::filesystem::rename(folder_, renamed);
    folder_ = renamed;
    setenv("PATH", (folder_ + ":/usr/bin:/bin").c_str(), 1);
  }

  // "scontrol|requeue|17"
  std::vector<std::string> Calls(const std::string& program = "") const {
    std::vector<std::string> calls;
    std::ifstream in(folder_ + "/calls");
    for (std::string line; std::getline(in, line);) {
      for (char& c : line)
        if (c == '\t') c = '|';
      if (program.empty() || line.starts_with(program + "|")) calls.push_back(line);
    }
    return calls;
  }

  std::string Text(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(folder_ + "/" + name).rdbuf();
    return text.str();
  }
  void Write(const std::string& name, const std::string& text) const { std::ofstream(folder_ + "/" + name) << text; }
  const std::string& folder() const { return folder_; }

 private:
  const std::string path_before_;
  const TestFolder around_;
  std::string folder_ = around_ / "programs";
};

}  // namespace lockstep::schedule
