#include "lockstep/control/alerts.h"

#include <algorithm>
#include <map>

namespace lockstep::control {
namespace {

bool IsOfTheSame(const Alerted& a, const Alerted& b) {
  return a.node == b.node && a.item == b.item && a.subject == b.subject;
}

std::vector<Alerts::Complaint> ByNode(const std::vector<Alerted>& alerts) {
  std::map<int, Alerts::Complaint> complaints;
  for (const Alerted& alert : alerts) {
    const auto [found, fresh] = complaints.try_emplace(alert.node, Alerts::Complaint{alert, 1, !alert.cleared});
    if (fresh) continue;
    found->second = {alert, found->second.count + 1, found->second.stands || !alert.cleared};
  }
  std::vector<Alerts::Complaint> list;
  list.reserve(complaints.size());
  for (const auto& [node, complaint] : complaints) list.push_back(complaint);
  return list;
}

}  // namespace

bool Alerts::Take(const Alerted& alert, Nanos now, Seconds window) {
  Drop(now - ToNanos(window));
  bool known = false;
  for (Alerted& other : kept_) {
    if (!IsOfTheSame(alert, other)) continue;
    if (alert.cleared) known = !std::exchange(other.cleared, true) || known;
    if (!alert.cleared && other.since >= alert.since) known = true;
  }
  if (alert.cleared) return known;
  if (!known) {
    kept_.push_back(alert);
    kept_.back().since = std::min(alert.since, now);
  }
  return !known;
}

void Alerts::Renumber(const std::vector<int>& from) {
  std::vector<Alerted> kept;
  for (Alerted& alert : kept_) {
    const auto now = std::find(from.begin(), from.end(), alert.node);
    if (now == from.end()) continue;
    alert.node = static_cast<int>(now - from.begin());
    kept.push_back(std::move(alert));
  }
  kept_ = std::move(kept);
}

void Alerts::Forget(int node) {
  std::erase_if(kept_, [&](const Alerted& alert) { return alert.node == node; });
}

// One that stands is kept, however old: the newest of each kind.
void Alerts::Drop(Nanos before) {
  const std::vector<Alerted> all = kept_;
  std::erase_if(kept_, [&](const Alerted& alert) {
    const bool stands = !alert.cleared && std::none_of(all.begin(), all.end(), [&](const Alerted& other) {
      return IsOfTheSame(alert, other) && other.since > alert.since;
    });
    return alert.since < before && !stands;
  });
}

std::vector<Alerts::Complaint> Alerts::Broken() const {
  std::vector<Alerted> machines;
  for (const Alerted& alert : kept_)
    if (alert.kind == AlertClass::kMachine && !alert.cleared) machines.push_back(alert);
  return ByNode(machines);
}

std::vector<Alerts::Complaint> Alerts::NetworkOf(Nanos from) const {
  std::vector<Alerted> network;
  for (const Alerted& alert : kept_)
    if (alert.kind == AlertClass::kNetwork && alert.since >= from) network.push_back(alert);
  return ByNode(network);
}

std::vector<Alerts::Complaint> Alerts::Unsteady(const Policy& policy, Nanos now) const {
  std::vector<Complaint> unsteady = NetworkOf(now - ToNanos(policy.network_window));
  std::erase_if(unsteady, [&](const Complaint& complaint) { return complaint.count < policy.network_alerts; });
  return unsteady;
}

bool Alerts::IsWidespread(const Policy& policy, Nanos now) const {
  return NetworkOf(now - ToNanos(policy.network_window)).size() > 1;
}

}  // namespace lockstep::control
