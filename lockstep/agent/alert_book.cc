#include "lockstep/agent/alert_book.h"

namespace lockstep::agent {
namespace {

using control::AlertClass;

constexpr Seconds kRepeatAfter{120};  // twice in the window in which a second alert of the network counts

AlertClass ClassOf(inspect::FaultClass fault) {
  switch (fault) {
    case inspect::FaultClass::kMachine:
      return AlertClass::kMachine;
    case inspect::FaultClass::kNetwork:
      return AlertClass::kNetwork;
    case inspect::FaultClass::kSoftware:
      return AlertClass::kSoftware;
    case inspect::FaultClass::kWarning:
      break;
  }
  return AlertClass::kWarning;
}

}  // namespace

control::Alerted AlertBook::Take(const inspect::Alert& alert, int node) {
  const bool cleared = alert.cleared.value != 0;
  const control::Alerted said{node, alert.item, ClassOf(alert.fault), alert.subject, alert.text, alert.raised, cleared};
  std::erase_if(standing_, [&](const control::Alerted& other) {
    return other.item == said.item && other.subject == said.subject;
  });
  if (!cleared) standing_.push_back(said);
  return said;
}

void AlertBook::Seat(int node) {
  for (control::Alerted& alert : standing_) alert.node = node;
}

std::vector<control::Alerted> AlertBook::Repeat(Nanos now) {
  std::vector<control::Alerted> due;
  for (control::Alerted& alert : standing_) {
    const bool compels = alert.kind == AlertClass::kMachine || alert.kind == AlertClass::kNetwork;
    if (!compels || now - alert.since < ToNanos(kRepeatAfter)) continue;
    alert.since = now;
    due.push_back(alert);
  }
  return due;
}

}  // namespace lockstep::agent
