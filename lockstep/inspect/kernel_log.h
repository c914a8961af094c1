// What a line of the kernel's log says of this machine: which item it is of, of whom, and how bad. By a table of texts
// that the kernel and its drivers print, without regular expressions. A second table has words that say the same in the
// logs of other systems; it is for files that people give us, as in live logs it would see faults where there are none.
// Pure. Cost: docs/models/inspect.md.
//
//   ClassifyKernelLine("EXT4-fs error (device sda1): ...")->item      // "kernel_filesystem", of "sda1"
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/units.h"
#include "lockstep/inspect/item.h"

namespace lockstep::inspect {

struct LogEvent {
  std::string item;     // of source kernel_log
  std::string subject;  // "eth0", "sda1", "GPU 0000:3b:00"; "kernel" where the line names nobody
  FaultClass fault = FaultClass::kWarning;
  bool heals = false;  // it is over: the link is up, the server answers
  bool operator==(const LogEvent&) const = default;
};

// nullopt: the line says nothing of a fault.
std::optional<LogEvent> ClassifyKernelLine(std::string_view line);
// By the second table, of a line of any system's log that the first one does not know.
std::optional<LogEvent> ClassifyOtherLine(std::string_view line);

// What an Xid of the NVIDIA driver says, by its number: kMachine, kSoftware, or kWarning.
FaultClass XidClass(uint64_t xid);

// A record of /dev/kmsg: "level and facility,sequence,microseconds,flags;text", then lines of a dictionary.
struct KernelRecord {
  int level = 0, facility = 0;
  uint64_t sequence = 0;
  Nanos at;  // since the machine started
  std::string_view text;
};
std::optional<KernelRecord> ParseKernelRecord(std::string_view record);

// A line as dmesg, journalctl or syslog print it, or a record: the kernel's own text.
std::string_view KernelText(std::string_view line);

}  // namespace lockstep::inspect
