// What the text status of NCCL's RAS tells, line by line, before anything is concluded from it (ras_text.h).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/trace/counter.h"
#include "lockstep/trace/ras_notes.h"

namespace lockstep::trace::ras_text {

// Beyond this, what a text says was not written by NCCL.
inline constexpr int64_t kMostRanks = 1 << 20;    // of a communicator
inline constexpr int64_t kMostSpelled = 1 << 21;  // ranks that come of lists and remainders, all in all

using Process = RasProcess;
using Key = std::pair<int64_t, int64_t>;  // group, number in it

struct Row {  // of the table: communicators of one size
  int64_t size;
  bool ok;                // no errors
  int64_t communicators;  // in how many there are
};

// Ranks that have launched the same number.
struct Alike {
  int64_t launched = 0;
  int64_t count = 0;    // of them
  std::set<int> ranks;  // those that are named
};

struct Told {  // of one communicator, by its own ranks
  std::string hash;
  int64_t size = kMostRanks;  // until a row tells
  std::map<int, Process> process_of;
  std::map<int, std::vector<std::string>> remarks;
  std::set<int> missing;
  int64_t missing_count = 0;
  std::map<std::string, std::vector<Alike>> launched;  // by function
};

struct RasTold {
  bool has_table = false, has_warnings = false;
  int64_t devices = 0;          // of all processes, as the summary counts them; 0: not told
  std::map<int64_t, Row> rows;  // by group
  std::map<Key, Told> communicators;
  std::vector<std::pair<Process, std::string>> silent;  // processes, and how
  std::vector<Counter> counters;
};

// Lines that are not understood are counted where they matter.
RasTold Parse(std::string_view text);
// Whether text that begins so is a status at all.
bool IsStatus(std::string_view begin);

}  // namespace lockstep::trace::ras_text
