// One picture of a data service: a pure function of what it says of itself now, of what it said a moment ago, and of
// the size of the terminal.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/top/frame.h"

namespace lockstep::top {

struct FeedSeen {
  Json before, now;     // documents of `lockstep feed status --json`; before: null, and rates are since it began
  double apart_s = 0;   // of the two
  std::string trouble;  // why the picture may be old; empty: it is not
};

// Exactly size.rows lines, none wider than size.columns. Of ranks those that wait for the service come first.
std::vector<std::string> MakeFeedFrame(const FeedSeen& seen, Size size);

}  // namespace lockstep::top
