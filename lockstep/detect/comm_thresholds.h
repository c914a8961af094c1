// From when on communication counts as hanging or slow. presets/detect.toml has the same numbers, for users to change.
#pragma once

#include <cstddef>
#include <string>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::detect {

struct CommThresholds {
  Seconds hang{5};               // an op hangs that is under way for longer than this,
  double hang_of_usual = 8;      // and than so many times what all but 1 % of the ops took,
  double hang_of_longest = 1.5;  // and, where its time alone tells, than so many times what took longest twice
  Seconds window{30};            // slowness is judged over the newest ops of so much time, or more (look_back.h),
  size_t window_ops = 24;        // but at least over so many collectives; with fewer in all there is no verdict,
  Seconds least{1};              // nor before they lie in so much time
  double slow_share = 0.05;      // a rank is slow that holds the others up for this share of the time
  double slow_deviation = 6;     // and by so many standard deviations (robust) of what the ranks differ by
  double link_share = 0.02;      // a way between ranks is slow whose first messages cost this share of the time,
  double link_ratio = 3;         // take so many times as long as those of like ways,
  double link_deviation = 6;     // and longer by so many standard deviations (robust) of one way's messages
  double trend_ratio = 1.1;      // a job has become slow whose steps take so many times as long as before,
  size_t trend_steps = 10;       // for at least so many, and so many before,
  double trend_deviation = 8;    // by so many standard deviations (robust) of the difference of two medians
  bool operator==(const CommThresholds&) const = default;
};

// Keys as presets/detect.toml has them; what is absent keeps its default.
absl::StatusOr<CommThresholds> ReadCommThresholds(const std::string& path);

}  // namespace lockstep::detect
