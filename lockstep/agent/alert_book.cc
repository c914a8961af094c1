#include "lockstep/agent/alert_book.h"

#include <fmt/format.h>

#include <charconv>

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

// "traps: python3[16679] general protection fault ip:...".
std::string WhoseText(const inspect::Alert& alert, const std::map<int64_t, RankId>& ranks) {
  const std::string before = alert.subject + "[";
  const size_t at = alert.text.find(before);
  int64_t pid = 0;
  if (at == std::string::npos) return "";
  const char* digits = alert.text.data() + at + before.size();
  if (std::from_chars(digits, alert.text.data() + alert.text.size(), pid).ec != std::errc()) return "";
  const auto found = ranks.find(pid);
  if (found == ranks.end()) return fmt::format(": process {} is not known to be a rank of this job", pid);
  return fmt::format(": process {} was rank {}", pid, found->second.value());
}

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
