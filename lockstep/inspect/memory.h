// Memory: how long processes wait for it (pressure), how much can still be had, of the machine and within our cgroup's
// limits, and whom the kernel killed for want of it. cgroup v1 and v2.
//
//   MemoryJudge judge(settings);
//   judge.Judge(ReadMemory(tree, cgroup), now, reading);
#pragma once

#include "lockstep/inspect/lately.h"
#include "lockstep/inspect/reader.h"

namespace lockstep::inspect {

// Where our own memory cgroup is, below the tree's root.
struct MemoryCgroup {
  std::string directory;  // "/sys/fs/cgroup/memory/job"; empty: none
  std::string mount;      // where the walk upwards ends
  bool v2 = false;
};
MemoryCgroup FindMemoryCgroup(std::string_view mountinfo, std::string_view own_cgroups);

struct MemoryState {
  std::optional<double> pressure{};         // full avg10, in percent; none: the kernel does not count it
  uint64_t total = 0, available = 0;        // of the machine, in bytes; total 0: not known
  std::optional<uint64_t> machine_kills{};  // by the kernel for want of memory, since it started
  uint64_t limit = 0, used = 0;             // of the cgroup with the least left, ours or above; limit 0: there is none
  std::optional<uint64_t> cgroup_kills{};   // in ours
  uint64_t limit_hits = 0;                  // charges that met the limit; most end well
};
MemoryState ReadMemory(const Tree& tree, const MemoryCgroup& cgroup);

class MemoryJudge {
 public:
  explicit MemoryJudge(const Settings& settings) : settings_(settings) {}
  void Judge(const MemoryState& state, Nanos at, Reading& reading);

 private:
  void JudgePressure(const MemoryState& state, Reading& reading) const;
  void JudgeLeft(const char* subject, uint64_t left, uint64_t of, Reading& reading) const;
  void JudgeKills(const MemoryState& state, Nanos at, Reading& reading);

  const Settings settings_;
  Lately machine_, cgroup_;
};

std::unique_ptr<Reader> MemoryReader(const Settings& settings, const Where& where);

}  // namespace lockstep::inspect
