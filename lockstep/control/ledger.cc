#include "lockstep/control/ledger.h"

#include <algorithm>

#include "lockstep/base/check.h"

namespace lockstep::control {
namespace {

constexpr std::array<const char*, kPhases> kNames = {"startup", "productive", "detect", "decide",
                                                     "restart", "recompute",  "paused", "shutdown"};

size_t Index(Phase phase) { return static_cast<size_t>(phase); }

Nanos Sum(const Ledger::Sums& sums) {
  Nanos sum;
  for (const Nanos part : sums) sum += part;
  return sum;
}

// Formula: ETTR = productive time / wall time.
double ProductiveShare(const Ledger::Sums& sums) {
  const Nanos wall = Sum(sums);
  if (wall.value == 0) return 1;
  return static_cast<double>(sums[Index(Phase::kProductive)].value) / static_cast<double>(wall.value);
}

}  // namespace

const char* PhaseName(Phase phase) { return kNames[Index(phase)]; }

void Ledger::Enter(Phase phase, Nanos at, int64_t incident) {
  LS_CHECK(closed_.value == 0, "the ledger was closed at {} ns", closed_.value);
  if (!intervals_.empty()) at = std::max(at, intervals_.front().begin);
  while (!intervals_.empty() && intervals_.back().begin >= at) {
    of_incident_[intervals_.back().incident].pop_back();
    intervals_.pop_back();
  }
  const bool same = !intervals_.empty() && intervals_.back().phase == phase && intervals_.back().incident == incident;
  if (same) return;
  of_incident_[incident].push_back(intervals_.size());
  intervals_.push_back({phase, at, incident});
}

void Ledger::Close(Nanos at) {
  if (intervals_.empty()) return;
  closed_ = std::max(at, intervals_.back().begin);
}

Nanos Ledger::LengthOf(size_t i, Nanos from, Nanos to) const {
  if (closed_.value != 0) to = std::min(to, closed_);
  const Nanos begin = std::max(from, intervals_[i].begin);
  const Nanos end = i + 1 < intervals_.size() ? std::min(to, intervals_[i + 1].begin) : to;
  return std::max(Nanos{}, end - begin);
}

Ledger::Sums Ledger::Within(Nanos from, Nanos to) const {
  Sums sums{};
  for (size_t i = 0; i < intervals_.size(); ++i) sums[Index(intervals_[i].phase)] += LengthOf(i, from, to);
  return sums;
}

Ledger::Sums Ledger::Total(Nanos now) const {
  if (intervals_.empty()) return Sums{};
  return Within(intervals_.front().begin, now);
}

incident::Phases Ledger::OfIncident(int64_t incident, Nanos now) const {
  Sums sums{};
  if (const auto own = of_incident_.find(incident); own != of_incident_.end())
    for (const size_t i : own->second) sums[Index(intervals_[i].phase)] += LengthOf(i, Nanos{}, now);
  const auto seconds = [&](Phase phase) { return ToSeconds(sums[Index(phase)]); };
  return {seconds(Phase::kDetect), seconds(Phase::kDecide), seconds(Phase::kRestart), seconds(Phase::kRecompute)};
}

double Ledger::Cumulative(Nanos now) const { return ProductiveShare(Total(now)); }

double Ledger::Sliding(Nanos now, Seconds window) const {
  if (closed_.value != 0) now = std::min(now, closed_);
  return ProductiveShare(Within(now - ToNanos(window), now));
}

Phase Ledger::Current() const { return intervals_.empty() ? Phase::kStartup : intervals_.back().phase; }

}  // namespace lockstep::control
