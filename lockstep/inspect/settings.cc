#include <algorithm>
#include <array>

#include "lockstep/base/check.h"
#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"
#include "lockstep/inspect/item.h"

namespace lockstep::inspect {
namespace {

constexpr std::array<const char*, 4> kFaults = {"machine", "network", "software", "warning"};
constexpr std::array<const char*, kSourceCount> kSources = {"nic", "disk", "mount", "memory", "kernel_log", "gpu"};

constexpr Seconds kShortest{0.05}, kMost{86400};  // of what a file may say

struct Definition {
  const char* name;
  Source source;
  double interval;
  const char* threshold_key;  // with its unit; nullptr: there is none
  double threshold, window, tolerance;
  int readings;
  FaultClass fault;
  const char* meaning;
};
using enum Source;
using enum FaultClass;
constexpr Definition kDefinitions[] = {
    {"nic_down", kNic, 5, nullptr, 0, 0, 30, 2, kNetwork,
     "an interface that was up has no carrier, was set down, or is gone"},
    {"port_flapping", kNic, 5, "threshold_changes", 4, 30, 0, 1, kNetwork,
     "the carrier of an interface changed so often within the window (down and up again are two)"},
    {"nic_errors", kNic, 5, "threshold_share", 0.001, 30, 10, 2, kNetwork,
     "this share of the packets within the window had errors, and at least 100"},
    {"disk_full", kMount, 10, "threshold_share", 0.01, 0, 10, 2, kMachine,
     "no more than this share of a file system's space, or of its inodes, is free"},
    {"disk_read_only", kMount, 10, nullptr, 0, 0, 0, 1, kMachine,
     "a file system that could be written to can only be read now"},
    {"disk_errors", kDisk, 10, "threshold_errors", 10, 60, 0, 1, kMachine,
     "so many requests to a disk failed within the window; a disk that is offline or dead counts at once"},
    {"disk_stuck", kDisk, 10, nullptr, 0, 0, 30, 3, kMachine, "a disk has requests under way and ends none"},
    {"mount_lost", kMount, 5, nullptr, 0, 0, 0, 2, kMachine,
     "a file system that was mounted at the start is not, or another is in its place"},
    {"mount_silent", kMount, 5, "threshold_s", 10, 0, 20, 1, kNetwork,
     "a file system does not answer for so long (of one that is not remote: class machine)"},
    {"memory_pressure", kMemory, 5, "threshold_percent", 20, 0, 10, 2, kWarning,
     "all processes waited for memory for this part of the last 10 s (/proc/pressure/memory, full avg10)"},
    {"memory_low", kMemory, 5, "threshold_share", 0.02, 0, 10, 2, kWarning,
     "no more than this share of the machine's memory, or of the cgroup's limit, can still be had"},
    {"oom_kill", kMemory, 5, "threshold_kills", 1, 60, 0, 1, kSoftware,
     "the kernel killed so many processes within the window for want of memory, in our cgroup or the machine"},
    {"kernel_fault", kKernelLog, 2, "threshold_lines", 1, 300, 0, 1, kMachine,
     "the kernel says of itself: panic, oops, bug, or a CPU that is locked up"},
    {"kernel_hung", kKernelLog, 2, "threshold_lines", 1, 300, 0, 1, kWarning,
     "the kernel names tasks that are blocked, or stalls of RCU and work queues"},
    {"kernel_machine_check", kKernelLog, 2, "threshold_lines", 1, 300, 0, 1, kMachine,
     "hardware errors that were not corrected: CPU, memory, PCIe, power"},
    {"kernel_corrected", kKernelLog, 2, "threshold_lines", 10, 300, 0, 1, kWarning,
     "hardware errors that were corrected, so many within the window"},
    {"kernel_xid", kKernelLog, 2, "threshold_lines", 1, 300, 0, 1, kMachine,
     "the NVIDIA driver reports an Xid that a fault of the GPU makes"},
    {"kernel_application", kKernelLog, 2, "threshold_lines", 1, 60, 0, 1, kSoftware,
     "a program's own fault: an Xid that programs make, a segmentation fault"},
    {"kernel_link", kKernelLog, 2, "threshold_lines", 1, 300, 30, 2, kNetwork,
     "a driver reports a link as down, or packets in error; a line that says it is up ends it"},
    {"kernel_filesystem", kKernelLog, 2, "threshold_lines", 1, 300, 0, 1, kMachine,
     "a file system reports errors, or goes read-only or down (of a full one: class software)"},
    {"kernel_remote", kKernelLog, 2, "threshold_lines", 1, 300, 10, 2, kNetwork,
     "a server of a file system does not answer; a line that says it does ends it"},
    {"kernel_disk", kKernelLog, 2, "threshold_lines", 1, 300, 0, 1, kMachine,
     "a disk or its controller reports failed requests"},
    {"kernel_oom", kKernelLog, 2, "threshold_lines", 1, 60, 0, 1, kSoftware,
     "the kernel killed a process for want of memory"},
    {"kernel_thermal", kKernelLog, 2, "threshold_lines", 1, 300, 10, 2, kWarning,
     "the kernel slows a CPU down for its heat, or a fan fails; a line that says it is over ends it"},
    {"gpu_lost", kGpu, 5, nullptr, 0, 0, 10, 2, kMachine, "a GPU that was there is gone, or does not answer"},
    {"gpu_driver_hang", kGpu, 5, "threshold_s", 10, 0, 0, 1, kMachine, "the driver does not answer for so long"},
    {"gpu_temperature", kGpu, 5, "threshold_c", 90, 0, 10, 2, kMachine,
     "a GPU is so hot, or as hot as where its driver says that it slows down, whichever is lower"},
    {"gpu_row_remap", kGpu, 5, nullptr, 0, 0, 0, 1, kMachine,
     "a row of GPU memory could not be remapped (one that awaits a reset: class warning)"},
    {"gpu_ecc", kGpu, 5, "threshold_errors", 1, 300, 0, 1, kMachine,
     "so many errors of GPU memory within the window were not corrected"},
};

const Definition& DefinitionOf(const Item& item) {
  for (const Definition& definition : kDefinitions)
    if (item.name == definition.name) return definition;
  LS_CHECK(false, "no item {}", item.name);
  return kDefinitions[0];
}

void ReadItem(cluster::TableReader& in, Item& item) {
  using cluster::Sign;
  const Definition& definition = DefinitionOf(item);
  in.Number("interval_s", Sign::kPositive, item.interval);
  if (definition.threshold_key != nullptr) in.Number(definition.threshold_key, Sign::kPositive, item.threshold);
  if (definition.window > 0) in.Number("window_s", Sign::kPositive, item.window);
  in.Number("tolerance_s", Sign::kNotNegative, item.tolerance);
  in.Integer("readings", {.least = 1, .most = 1000}, item.readings);
  std::string fault = FaultClassName(item.fault);
  for (const auto& [key, seconds] : {std::pair("interval_s", item.interval), std::pair("window_s", item.window),
                                     std::pair("tolerance_s", item.tolerance)})
    if (seconds > kMost) in.Fail(key, fmt::format("{} must be at most {}", key, kMost.value));
  if (item.interval < kShortest) in.Fail("interval_s", fmt::format("interval_s must be at least {}", kShortest.value));
  in.OneOf("class", {kFaults[0], kFaults[1], kFaults[2], kFaults[3]}, fault);
  item.fault = *FaultClassFromName(fault);
}

std::string ItemText(const Item& item) {
  const Definition& definition = DefinitionOf(item);
  std::string text = fmt::format("\n[{}]  # {}\ninterval_s = {}\n", item.name, definition.meaning, item.interval.value);
  if (item.threshold) text += fmt::format("{} = {}\n", definition.threshold_key, *item.threshold);
  if (item.window.value > 0) text += fmt::format("window_s = {}\n", item.window.value);
  return text + fmt::format("tolerance_s = {}\nreadings = {}\nclass = \"{}\"\n", item.tolerance.value, item.readings,
                            FaultClassName(item.fault));
}

}  // namespace

const char* FaultClassName(FaultClass fault) { return kFaults[static_cast<size_t>(fault)]; }
const char* SourceName(Source source) { return kSources[static_cast<size_t>(source)]; }

std::optional<FaultClass> FaultClassFromName(std::string_view name) {
  const auto found = std::find(kFaults.begin(), kFaults.end(), name);
  if (found == kFaults.end()) return std::nullopt;
  return static_cast<FaultClass>(found - kFaults.begin());
}

Settings::Settings() {
  for (const Definition& of : kDefinitions) {
    items.push_back({of.name,
                     of.source,
                     {of.interval},
                     of.threshold_key != nullptr ? std::optional(of.threshold) : std::nullopt,
                     {of.window},
                     {of.tolerance},
                     of.readings,
                     of.fault});
  }
}

Item& Settings::operator[](std::string_view name) {
  const auto found = std::find_if(items.begin(), items.end(), [&](const Item& item) { return item.name == name; });
  LS_CHECK(found != items.end(), "no item {}", name);
  return *found;
}
const Item& Settings::operator[](std::string_view name) const { return const_cast<Settings&>(*this)[name]; }

Seconds Settings::Interval(Source source) const {
  Seconds least{1e9};
  for (const Item& item : items)
    if (item.source == source) least = std::min(least, item.interval);
  return least;
}

absl::StatusOr<Settings> ParseSettings(std::string_view text, const std::string& file) {
  LS_ASSIGN_OR_RETURN(const cluster::TomlValue root, cluster::ParseToml(text, file));
  Settings settings;
  cluster::TableReader in(root, file);
  in.Texts("nics", settings.nics);
  for (Item& item : settings.items) in.Table(item.name, [&](cluster::TableReader& table) { ReadItem(table, item); });
  LS_RETURN_IF_ERROR(in.Finish());
  return settings;
}

absl::StatusOr<Settings> ReadSettings(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseSettings(text, path);
}

std::string SettingsText(const Settings& settings) {
  std::string text =
      "# What the inspections of a node look at, and when it becomes an alert, for `lockstep inspect --config FILE`\n"
      "# and `lockstep run --inspect FILE`.\n"
      "# These are the defaults; a file may have some keys only. Per item: how often it is read, from when on a\n"
      "# reading shows the condition (threshold, within a window where one is counted), for how long and in how many\n"
      "# readings in a row it must be seen before it is an alert, so that what heals itself is none, and the class:\n"
      "# machine (this machine is at fault, for certain), network, software, warning. A switch that is down can't be\n"
      "# told from a link by one machine: the nic items see its ports, and whoever sees all machines the switch.\n\n";
  std::string nics;
  for (const std::string& nic : settings.nics) nics += (nics.empty() ? "" : ", ") + cluster::TomlText(nic);
  text += fmt::format("nics = [{}]  # watched beside those with hardware, bonds and the default route\n", nics);
  for (const Item& item : settings.items) text += ItemText(item);
  return text;
}

}  // namespace lockstep::inspect
