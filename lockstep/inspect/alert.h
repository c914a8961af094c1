// Reading: what one look at a source showed. Alert: a condition of this node that lasted. Plain values.
// Times: CLOCK_BOOTTIME.
//
//   Alert alert{"nic_down", "eth0", FaultClass::kNetwork, "no carrier", since, raised};
//   AlertText(alert)                             // "nic_down eth0: no carrier (network; for 31 s)"
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/inspect/item.h"

namespace lockstep::inspect {

struct Condition {
  std::string item, subject;          // "nic_down", "eth0"
  std::string text;                   // with its figures
  std::optional<FaultClass> fault{};  // where it is not the item's
};

// What is seen, whether or not it is a condition: for reports.
struct Figure {
  std::string subject, text;
};

struct Reading {
  Source source = Source::kNic;
  Nanos at;
  std::vector<Condition> conditions{};           // that hold now
  std::map<std::string, std::string> missing{};  // items that this machine does not let us see, and why
  std::vector<Figure> figures{};
};
// Says of all items of the source that they can't be seen.
void MissAll(const Settings& settings, const std::string& why, Reading& reading);

struct Alert {
  std::string item, subject;
  FaultClass fault = FaultClass::kWarning;
  std::string text;
  Nanos since;    // the condition was first seen
  Nanos raised;   // and had lasted
  Nanos cleared;  // 0: it still is
  int times = 1;  // raised so often for this subject; more than once: it comes and goes
  bool operator==(const Alert&) const = default;
};

std::string AlertText(const Alert& alert);

}  // namespace lockstep::inspect
