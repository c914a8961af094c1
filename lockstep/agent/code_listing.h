// What of a directory is code: texts by their names, programs by their names or how they begin, and what workers are
// started with, whatever it is called. Hidden files, virtual environments and runs are left out.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::agent {

struct CodeLimits {
  int most_entries = 20'000;
  Bytes most{64 << 20};            // more is no directory of code
  Bytes most_programs{1LL << 30};  // the largest are linked, so that these are within
};

// By their names below the directory; directories are made on the way. What is linked is no code, but for programs
// that are too large.
struct CodeListing {
  std::map<std::string, std::filesystem::path> text, programs, large_programs, others;
  std::vector<std::string> unread;  // of the others, those that would be code, or may have some, and may not be read
  int entries = 0;
  Bytes size;  // of texts and programs
};

// `entry`: the name of what workers are started with; empty: not known. Errors: more than the limits.
absl::StatusOr<CodeListing> ListCode(const std::string& directory, const std::string& entry, const CodeLimits& limits);

}  // namespace lockstep::agent
