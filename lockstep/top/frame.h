// One picture of a job: a pure function of what is known, where the person looks, and the size of the terminal. Cost:
// 4096 ranks in about a millisecond.
//
//   const Frame frame = MakeFrame({status, incidents, folding}, {24, 80}, look);
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/top/fold.h"

namespace lockstep::top {

struct Size {
  size_t rows = 24, columns = 80;
  bool operator==(const Size&) const = default;
};

enum class Screen { kRanks, kIncidents, kStacks, kHelp };

// Where the person looks.
struct Look {
  Screen screen = Screen::kRanks;
  size_t selected = 0;           // row of ranks, or incident; beyond the last: the last
  size_t scroll = 0;             // lines of stacks above the first that is shown
  std::vector<int> within = {};  // only these ranks; empty: all
  std::string within_name = {};
  int stacks_of = -1;
  std::string stacks = {};  // empty: not there yet
};

struct Known {
  Json status, incidents;
  Folding folding;
  std::string trouble;  // why the picture may be old, or what keeps the job; empty: nothing
};

struct Frame {
  std::vector<std::string> lines;  // exactly size.rows, none wider than size.columns
  size_t selectable = 0;           // rows among which Look::selected chooses
  Row selected;                    // what Enter opens; no ranks: nothing
};

Frame MakeFrame(const Known& known, Size size, const Look& look);

}  // namespace lockstep::top
