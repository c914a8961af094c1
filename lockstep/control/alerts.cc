#include "lockstep/control/alerts.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::control {
namespace {

bool IsOfTheSame(const Alerted& a, const Alerted& b) {
  return a.node == b.node && a.item == b.item && a.subject == b.subject;
}

}  // namespace

bool Alerts::Take(const Alerted& alert, Nanos now, Seconds window) {
  std::vector<Alerted>& kept = kept_[alert.node];
  Drop(kept, now - ToNanos(window));
  bool known = false;
  for (Alerted& other : kept) {
    if (!IsOfTheSame(alert, other)) continue;
    if (alert.cleared) known = !std::exchange(other.cleared, true) || known;
    if (!alert.cleared && other.since >= alert.since) known = true;
  }
  if (alert.cleared) return known;
  if (!known) {
    kept.push_back(alert);
    kept.back().since = std::min(alert.since, now);
  }
  return !known;
}

void Alerts::Renumber(const std::vector<int>& from) {
  std::map<int, std::vector<Alerted>> kept;
  for (size_t node = 0; node < from.size(); ++node) {
    const auto before = kept_.find(from[node]);
    if (before == kept_.end()) continue;
    std::vector<Alerted>& alerts = kept[static_cast<int>(node)] = std::move(before->second);
    for (Alerted& alert : alerts) alert.node = static_cast<int>(node);
  }
  kept_ = std::move(kept);
}

void Alerts::Forget(int node) { kept_.erase(node); }

// One that stands is kept, however old: the newest of each kind.
void Alerts::Drop(std::vector<Alerted>& kept, Nanos before) {
  std::vector<bool> goes;
  for (const Alerted& alert : kept) {
    const bool stands = !alert.cleared && std::none_of(kept.begin(), kept.end(), [&](const Alerted& other) {
      return IsOfTheSame(alert, other) && other.since > alert.since;
    });
    goes.push_back(alert.since < before && !stands);
  }
  size_t i = 0;
  std::erase_if(kept, [&](const Alerted&) { return goes[i++]; });
}

template <typename Counts>
std::vector<Alerts::Complaint> Alerts::ByNode(const Counts& counts) const {
  std::vector<Complaint> list;
  for (const auto& [node, alerts] : kept_) {
    const Alerted* newest = nullptr;
    int count = 0;
    bool stands = false;
    for (const Alerted& alert : alerts) {
      if (!counts(alert)) continue;
      newest = &alert;
      ++count;
      stands = stands || !alert.cleared;
    }
    if (newest != nullptr) list.push_back({*newest, count, stands});
  }
  return list;
}

std::vector<Alerts::Complaint> Alerts::Broken() const {
  return ByNode([](const Alerted& alert) { return alert.kind == AlertClass::kMachine && !alert.cleared; });
}

std::vector<Alerts::Complaint> Alerts::NetworkOf(Nanos from) const {
  return ByNode([&](const Alerted& alert) { return alert.kind == AlertClass::kNetwork && alert.since >= from; });
}

std::vector<Alerts::Complaint> Alerts::Unsteady(const Policy& policy, Nanos now) const {
  std::vector<Complaint> unsteady = NetworkOf(now - ToNanos(policy.network_window));
  std::erase_if(unsteady, [&](const Complaint& complaint) { return complaint.count < policy.network_alerts; });
  return unsteady;
}

bool Alerts::IsWidespread(const Policy& policy, Nanos now) const {
  return NetworkOf(now - ToNanos(policy.network_window)).size() > 1;
}

std::string ComplaintText(const Alerts::Complaint& complaint) {
  const Alerted& newest = complaint.newest;
  const std::string about = newest.subject.empty() ? newest.item : fmt::format("{} of {}", newest.item, newest.subject);
  return fmt::format("{}: {}{}", about, newest.text,
                     complaint.count > 1 ? fmt::format("; {} alerts in all", complaint.count) : "");
}

}  // namespace lockstep::control
