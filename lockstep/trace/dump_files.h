// Files of which each is a rank's dump: which they are, of which rank, and when they were written.
//
//   uint64_t others = 0;
//   LS_ASSIGN_OR_RETURN(const std::vector<DumpFile> files, FindDumpFiles({"dumps/"}, others));
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::trace {

struct DumpFile {
  std::string path;
  int rank = -1;
  bool named = false;  // by itself, not by its directory
};

// For errors.
inline constexpr std::string_view kRankRule =
    "the rank is the number behind \"rank\" in a file's name, as in rank_3.json, or else the last number of it";

// By rank. A directory stands for the files in it that begin as a pickle or as JSON, the others are counted. Invalid
// argument: a name that does not tell its rank; two files of one rank.
absl::StatusOr<std::vector<DumpFile>> FindDumpFiles(const std::vector<std::string>& paths, uint64_t& others);
// When a file was written, wall time; without one, the end of time.
int64_t WrittenNs(const std::string& path);

}  // namespace lockstep::trace
