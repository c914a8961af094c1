// What a trace lacks or has wrong, in sentences that a report carries beside its answer.
#pragma once

#include <string>
#include <vector>

#include "lockstep/trace/traced_job.h"

namespace lockstep::explain {

inline constexpr char kWorkersWithoutRows[] = "workers_without_rows",
                      kStagesWithoutForward[] = "stages_without_forward";

struct Notes {
  std::vector<std::string> texts;
  std::vector<trace::Counter> counters;  // the two above, workers_without_all_steps
  bool clocks_disagree = false;          // and could not be mended
};

Notes NotesOf(const trace::TracedJob& job);

}  // namespace lockstep::explain
