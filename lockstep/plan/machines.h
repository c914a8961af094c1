// The machines that plan knows, from presets/plan/machines.toml: peaks of data sheets, and the names under which tables
// of measured runs have them.
//
//   LS_ASSIGN_OR_RETURN(const Machines machines, ReadMachines(path));
//   LS_ASSIGN_OR_RETURN(const Machine machine, machines.Find("H100-80GB-SXM"));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/plan/workload.h"

namespace lockstep::plan {

// Of an accelerator with its share of the host; what lies outside was given in another unit.
struct Limits {
  double least, most;
};
inline constexpr Limits kUsdPerHour{1e-3, 1e4}, kWatts{1, 1e5};

class Machines {
 public:
  struct Named {
    Machine machine;
    std::vector<std::string> names;  // and its own
  };
  explicit Machines(std::vector<Named> all) : all_(std::move(all)) {}
  // NotFound, with the nearest names.
  absl::StatusOr<Machine> Find(std::string_view name) const;
  const std::vector<Named>& all() const { return all_; }

 private:
  std::vector<Named> all_;
};

// What may have been given in another unit, though it is possible; "": nothing.
std::string UnitNote(const Machine& machine);

absl::StatusOr<Machines> ReadMachines(const std::string& path);

}  // namespace lockstep::plan
