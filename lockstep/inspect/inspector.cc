#include "lockstep/inspect/inspector.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/base/report.h"

namespace lockstep::inspect {
namespace {

constexpr int kUnseenIntervals = 2;
constexpr size_t kMostSubjects = 4096;  // whose alerts are counted; a kernel's log may name any number

// A clock that ran backwards leaves nothing due for ever.
Seconds Left(Nanos read, Nanos now, Seconds interval) {
  const Seconds left = ToSeconds(read + ToNanos(interval) - now);
  return left.value > interval.value ? Seconds{0} : std::max(left, Seconds{0});
}

// An alert goes into JSON; what a log or a mount's name holds need not be UTF-8.
std::string ValidText(const std::string& text) {
  const auto plain = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), plain)) return text;
  return ParseJson(OneLine(Json(text))).get<std::string>();
}

std::vector<Alert> Sorted(std::vector<Alert> alerts) {
  std::stable_sort(alerts.begin(), alerts.end(), [](const Alert& a, const Alert& b) { return a.since < b.since; });
  return alerts;
}

}  // namespace

std::vector<Source> Inspector::Due(Nanos now) {
  std::vector<Source> due;
  for (int i = 0; i < kSourceCount; ++i) {
    const auto source = static_cast<Source>(i);
    const auto read = read_.find(source);
    if (read != read_.end() && Left(read->second, now, settings_.Interval(source)).value > 0) continue;
    read_[source] = now;
    due.push_back(source);
  }
  return due;
}

Seconds Inspector::UntilDue(Nanos now) const {
  if (read_.size() < kSourceCount) return {0};
  Seconds least{1e9};
  for (const auto& [source, at] : read_) least = std::min(least, Left(at, now, settings_.Interval(source)));
  return least;
}

// Of items that are read more often than they ask for, because another one of their source is, the rest is skipped.
void Inspector::BeginItem(const Item& item, const Reading& reading) {
  Looked& looked = looked_[item.name];
  const auto missing = reading.missing.find(item.name);
  looked.now = false;
  if (missing != reading.missing.end()) {
    missing_[item.name] = missing->second;  // what it showed last stands
    return;
  }
  missing_.erase(item.name);
  if (looked.before && Left(looked.at, reading.at, item.interval).value > 0) return;
  const int64_t most = ToNanos(item.interval * kUnseenIntervals).value;
  looked.step = {looked.before ? std::clamp<int64_t>(reading.at.value - looked.at.value, 0, most) : 0};
  looked.at = reading.at;
  looked.before = looked.now = true;
}

void Inspector::TakeCondition(const Condition& condition, Nanos at) {
  const auto looked = looked_.find(condition.item);
  if (looked == looked_.end() || !looked->second.now) return;
  const Item& item = settings_[condition.item];
  auto [place, is_new] = held_.try_emplace({condition.item, condition.subject});
  Held& held = place->second;
  if (held.seen) return;  // twice in one reading
  if (is_new) {
    held.alert.item = condition.item;
    held.alert.subject = ValidText(condition.subject);
    held.alert.since = at;
  } else {
    held.held += looked->second.step;
  }
  held.seen = true;
  ++held.readings;
  held.alert.text = ValidText(condition.text);
  held.alert.fault = condition.fault.value_or(item.fault);
  if (held.raised || held.held < ToNanos(item.tolerance) || held.readings < item.readings) return;
  held.raised = true;
  held.alert.raised = at;
  if (times_.size() >= kMostSubjects) times_.clear();
  held.alert.times = ++times_[place->first];
  changes_.push_back(held.alert);
}

void Inspector::Clear(Held& held, Nanos at) {
  if (!held.raised) {
    ++healed_;
    return;
  }
  held.alert.cleared = at;
  changes_.push_back(held.alert);
}

void Inspector::EndItem(const Item& item, Nanos at) {
  if (!looked_[item.name].now) return;
  for (auto held = held_.begin(); held != held_.end();) {
    const bool gone = held->first.first == item.name && !held->second.seen;
    if (gone) Clear(held->second, at);
    held->second.seen &= held->first.first != item.name;
    held = gone ? held_.erase(held) : std::next(held);
  }
}

void Inspector::Take(const Reading& reading) {
  for (const Item& item : settings_.items)
    if (item.source == reading.source) BeginItem(item, reading);
  for (const Condition& condition : reading.conditions) TakeCondition(condition, reading.at);
  for (const Item& item : settings_.items)
    if (item.source == reading.source) EndItem(item, reading.at);
}

std::vector<Alert> Inspector::Alerts() const {
  std::vector<Alert> alerts;
  for (const auto& [subject, held] : held_)
    if (held.raised) alerts.push_back(held.alert);
  return Sorted(std::move(alerts));
}

std::vector<Alert> Inspector::Pending() const {
  std::vector<Alert> pending;
  for (const auto& [subject, held] : held_)
    if (!held.raised) pending.push_back(held.alert);
  return Sorted(std::move(pending));
}

}  // namespace lockstep::inspect
