// What the inspections of a node look at, and when what they see becomes an alert. A source (network interfaces, the
// kernel's log, ...) is one reader; an item is one condition that it can show. An alert comes once the condition was
// seen without a break for `tolerance` and in so many readings: what heals itself sooner is no alert. Plain values.
//
//   const Settings settings;                     // or ReadSettings("inspect.toml")
//   settings["nic_down"].tolerance               // 30 s
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::inspect {

// What an alert says of the machine.
enum class FaultClass : uint8_t {
  kMachine,   // this machine is at fault, for certain: nothing needs to be asked
  kNetwork,   // a link, or something behind it: may be another machine's, and may pass
  kSoftware,  // the job's program, or what it shares with others; another machine would not help
  kWarning,   // for people: nothing is to be done for the job's sake
};
const char* FaultClassName(FaultClass fault);
std::optional<FaultClass> FaultClassFromName(std::string_view name);

enum class Source : uint8_t { kNic, kDisk, kMount, kMemory, kKernelLog, kGpu };
inline constexpr int kSourceCount = 6;
const char* SourceName(Source source);

struct Item {
  std::string name;  // "nic_down"
  Source source = Source::kNic;
  Seconds interval{5};              // from one reading to the next
  std::optional<double> threshold;  // in the unit of the item; none: the item has none
  Seconds window;                   // of items that count what happened lately; 0: of the others
  Seconds tolerance;                // the condition must last for so long
  int readings = 1;                 // and be seen in so many readings, one after the other
  FaultClass fault = FaultClass::kWarning;
  bool operator==(const Item&) const = default;
};

struct Settings {
  Settings();                                           // the defaults, as presets/inspect/default.toml has them
  const Item& operator[](std::string_view name) const;  // must exist
  Item& operator[](std::string_view name);
  Seconds Interval(Source source) const;  // the shortest of its items

  std::vector<Item> items;
  std::vector<std::string> nics;  // watched beside those with hardware, bonds and the default route
  bool operator==(const Settings&) const = default;
};

// Keys as presets/inspect/default.toml has them; what is absent keeps its default. Errors: "file:line:column: ...".
absl::StatusOr<Settings> ParseSettings(std::string_view text, const std::string& file);
absl::StatusOr<Settings> ReadSettings(const std::string& path);
// The same as TOML, with the meaning of each key.
std::string SettingsText(const Settings& settings);

}  // namespace lockstep::inspect
