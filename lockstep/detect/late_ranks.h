// Which ranks are late, by what their groups take alike, where groups meet: in nearly every step, and by more than
// chance allows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "lockstep/detect/comm_rounds.h"

namespace lockstep::detect {

struct Late {
  double share, waited;  // of the time: how much longer its groups took, and how long others waited for it
  int64_t since_ns;
  size_t times;  // so many steps were compared
};

struct LateRanks {
  std::map<int, Late> late;  // by rank
  bool is_whole = true;      // else too much is lost of what groups would be compared by
  // Of communicators in which hosts meet: whether anything is told of what groups take alike, and steps compared.
  bool are_groups = false;
  size_t most_steps = 0;
  // Steps by which anybody is late: there are 7 between the newest 8 that are told of each communicator live
  // (trace::Thin), and of the first not all may be told.
  static constexpr size_t kFewest = 6;
};

// `alike`: by communicator (AreAlike).
LateRanks FindLateRanks(const trace::CommLog& log, const Rounds& rounds, const std::vector<bool>& alike,
                        const CommThresholds& thresholds);

}  // namespace lockstep::detect
