// Whether anything moves in what the ranks of a job tell of their communication: since when somebody has been waiting
// there, and nobody has launched, heard or ended anything. What a job has for a clock that tells no steps.
// A look is no later than the newest snapshots, so what it returns is never too early. Pure. Cost: that of comparing
// the trails with those before.
//
//   CommMotion motion;
//   motion.Look(trails, log, now);                       // every few seconds
//   std::optional<detect::CommWait> wait = motion.Wait(now);
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/detect/hang.h"
#include "lockstep/trace/comm_log.h"
#include "lockstep/trace/trail_file.h"

namespace lockstep::control {

using Trails = std::map<std::pair<uint32_t, std::string>, trace::TrailSnapshot>;  // by owner

class CommMotion {
 public:
  // `log`: the trails as one.
  void Look(const Trails& trails, const trace::CommLog& log, Nanos now);
  // Null: nobody waits, or it is not known, as where ranks may communicate by what tells nothing, or nobody has looked
  // lately.
  std::optional<detect::CommWait> Wait(Nanos now) const;

 private:
  // How far a process has come.
  struct Place {
    uint64_t launched = 0, ended = 0;                     // collectives
    int64_t newest_ns = 0;                                // of what has ended
    std::vector<std::pair<int64_t, uint32_t>> under_way;  // when each was launched, and the messages that it has heard
    bool operator==(const Place&) const = default;
  };
  static Place PlaceOf(const trace::TrailSnapshot& trail);

  std::map<std::pair<uint32_t, std::string>, Place> places_;  // at the newest look
  Nanos looked_, moved_;
  bool waits_ = false;
  Seconds quiet_;  // at the newest look
  std::optional<Seconds> usual_quiet_;
};

}  // namespace lockstep::control
