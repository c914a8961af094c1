// What a fit has learnt, as files of one folder: rates of each kind of hardware (rates_NAME.toml), habits of each stack
// (stacks.toml), and how far predictions are from runs of each family (families.toml).
#pragma once

#include <map>
#include <optional>
#include <string>

#include "lockstep/plan/known.h"
#include "lockstep/plan/rates.h"

namespace lockstep::plan {

// By Machine::rates; the habits in them are the usual ones.
using RatesByName = std::map<std::string, Rates>;

struct Calibration {
  RatesByName hardware;
  Stacks stacks{{}};
  // By family: 80 % of the logarithms of measured over predicted are within plus or minus this, where the family was
  // among those that were fitted to, though not the run itself.
  std::map<std::string, double> spreads{};

  // Of the hardware and the stack of the workload. Null: nothing is known of that hardware.
  std::optional<Rates> Of(const Workload& workload) const;
};

absl::StatusOr<Calibration> ReadCalibration(const std::string& folder);
// Writes all of its files into the folder, and makes it where there is none. `about`: a comment, without its sign.
absl::Status WriteCalibration(const Calibration& calibration, const std::string& folder, const std::string& about);

}  // namespace lockstep::plan
