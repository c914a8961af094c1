// Decides which source is to be read when, and which of the conditions that readings show are alerts. Pure: readings
// and times come in, alerts go out; the same readings give the same alerts.
// Invariants: an alert is raised once for a condition that lasts, and cleared once, by the first reading without it; it
// is raised when its item's tolerance is over, never before. Time that passed unseen (the machine slept, the reader
// hung, the clock jumped) counts as at most two intervals of the item, and backwards as none.
// Thread-compatible. Cost: some microseconds a reading.
//
//   Inspector inspector(settings);
//   inspector.ReadDue(now, [&](Source source, Nanos at) { return readers.Read(source, at); });
//   for (const Alert& alert : inspector.TakeChanges()) ...
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/inspect/alert.h"

namespace lockstep::inspect {

class Inspector {
 public:
  explicit Inspector(const Settings& settings) : settings_(settings) {}

  // Sources of which an item is due; each counts as read from now on.
  std::vector<Source> Due(Nanos now);
  // How long until one is.
  Seconds UntilDue(Nanos now) const;
  void Take(const Reading& reading);
  // Takes a reading of each source of which an item is due, all as of `now`: by one that is a moment later than it was
  // due, the next one would be too early.
  void ReadDue(Nanos now, const std::function<Reading(Source, Nanos)>& read) {
    for (const Source source : Due(now)) Take(read(source, now));
  }

  // Those that hold, the oldest first.
  std::vector<Alert> Alerts() const;
  // Raised or cleared since it was last asked, in the order in which that came about.
  std::vector<Alert> TakeChanges() { return std::exchange(changes_, {}); }
  // Conditions that healed before they were alerts.
  int64_t healed() const { return healed_; }
  // Seen, but no alert yet.
  std::vector<Alert> Pending() const;
  // Items that can't be seen here, and why.
  const std::map<std::string, std::string>& missing() const { return missing_; }

 private:
  struct Held {
    Alert alert;
    Nanos held;  // it lasted so long, as far as was seen
    int readings = 0;
    bool raised = false, seen = false;
  };
  struct Looked {
    Nanos at, step;  // step: from the reading before, as far as it counts
    bool before = false, now = false;
  };
  using Subject = std::pair<std::string, std::string>;  // item, subject

  void BeginItem(const Item& item, const Reading& reading);
  void TakeCondition(const Condition& condition, Nanos at);
  void EndItem(const Item& item, Nanos at);
  void Clear(Held& held, Nanos at);

  const Settings settings_;
  std::map<Source, Nanos> read_;
  std::map<std::string, Looked> looked_;  // by item
  std::map<Subject, Held> held_;
  std::map<Subject, int> times_;
  std::map<std::string, std::string> missing_;
  std::vector<Alert> changes_;
  int64_t healed_ = 0;
};

}  // namespace lockstep::inspect
