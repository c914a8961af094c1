#include "lockstep/inspect/memory.h"

#include <algorithm>
#include <cstdlib>

#include "lockstep/base/cgroup.h"

namespace lockstep::inspect {
namespace {

constexpr uint64_t kNoLimit = uint64_t{1} << 60;  // cgroup v1 says "none" by a number near 2^63

struct Limit {
  uint64_t limit = 0, used = 0;
  uint64_t left() const { return limit > used ? limit - used : 0; }
};

// Pages of files that were not used lately can be had at any time: they are not counted as used.
Limit ReadLimit(const Tree& tree, const std::string& directory, bool v2) {
  const auto limit = tree.Number(directory + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  const auto used = tree.Number(directory + (v2 ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!limit || !used || *limit >= kNoLimit) return {};
  const auto files = tree.Number(directory + "/memory.stat", v2 ? "inactive_file" : "total_inactive_file");
  return {*limit, *used - std::min(*used, files.value_or(0))};
}

// A limit above ours holds us too.
Limit TightestLimit(const Tree& tree, const MemoryCgroup& cgroup) {
  Limit tightest;
  for (std::string at = cgroup.directory; at.size() >= cgroup.mount.size() && !at.empty();
       at.erase(std::min(at.rfind('/'), at.size()))) {
    const Limit limit = ReadLimit(tree, at, cgroup.v2);
    if (limit.limit != 0 && (tightest.limit == 0 || limit.left() < tightest.left())) tightest = limit;
  }
  return tightest;
}

// full avg10=0.00 avg60=0.00 avg300=0.00 total=0
std::optional<double> FullPressure(const Tree& tree) {
  const std::string text = tree.Text("/proc/pressure/memory").value_or("");
  const size_t full = text.find("full ");
  const auto average = full == std::string::npos ? std::nullopt : Behind(std::string_view(text).substr(full), "avg10");
  return average ? std::optional(std::strtod(std::string(*average).c_str(), nullptr)) : std::nullopt;
}

class SystemMemory final : public Reader {
 public:
  SystemMemory(const Settings& settings, const Where& where)
      : settings_(settings),
        tree_(where.tree),
        cgroup_(FindMemoryCgroup(tree_.OwnProc("mountinfo").value_or(""), tree_.OwnProc("cgroup").value_or(""))),
        judge_(settings) {}
  Reading Read(Nanos now) override {
    Reading reading{.source = Source::kMemory, .at = now};
    judge_.Judge(ReadMemory(tree_, cgroup_), now, reading);
    return reading;
  }

 private:
  const Settings settings_;
  const Tree tree_;
  const MemoryCgroup cgroup_;
  MemoryJudge judge_;
};

}  // namespace

MemoryCgroup FindMemoryCgroup(std::string_view mountinfo, std::string_view own_cgroups) {
  MemoryCgroup found;
  for (const std::string_view line : Lines(mountinfo)) {
    const std::vector<std::string_view> word = Words(line);
    const auto dash = std::find(word.begin(), word.end(), "-");
    if (dash - word.begin() < 6 || word.end() - dash < 4) continue;
    const bool v2 = dash[1] == "cgroup2";
    if (!v2 && (dash[1] != "cgroup" || !IsListed(dash[3], "memory"))) continue;
    if (v2 && !found.directory.empty()) continue;  // in a hybrid, v1 has the controller
    const auto path = CgroupPath(own_cgroups, v2 ? kUnified : "memory");
    if (!path) continue;
    // In a container, what is mounted is a part of the hierarchy.
    const std::string_view root = word[3] == "/" ? "" : word[3];
    const std::string_view below = path->starts_with(root) ? path->substr(root.size()) : "";
    found = {fmt::format("{}{}", word[4], below == "/" ? "" : below), std::string(word[4]), v2};
  }
  return found;
}

MemoryState ReadMemory(const Tree& tree, const MemoryCgroup& cgroup) {
  MemoryState state;
  state.pressure = FullPressure(tree);
  state.total = tree.Number("/proc/meminfo", "MemTotal").value_or(0) * 1024;
  state.available = tree.Number("/proc/meminfo", "MemAvailable").value_or(0) * 1024;
  state.machine_kills = tree.Number("/proc/vmstat", "oom_kill");
  if (cgroup.directory.empty()) return state;
  const Limit tightest = TightestLimit(tree, cgroup);
  state.limit = tightest.limit;
  state.used = tightest.used;
  const std::string& at = cgroup.directory;
  state.cgroup_kills = tree.Number(at + (cgroup.v2 ? "/memory.events" : "/memory.oom_control"), "oom_kill");
  state.limit_hits =
      (cgroup.v2 ? tree.Number(at + "/memory.events", "max") : tree.Number(at + "/memory.failcnt")).value_or(0);
  return state;
}

void MemoryJudge::Judge(const MemoryState& state, Nanos at, Reading& reading) {
  JudgePressure(state, reading);
  if (state.total != 0) JudgeLeft("machine", state.available, state.total, reading);
  if (state.limit != 0) JudgeLeft("cgroup", state.limit - std::min(state.used, state.limit), state.limit, reading);
  if (state.total == 0 && state.limit == 0) reading.missing["memory_low"] = "there is no /proc/meminfo to read";
  if (state.limit_hits != 0)
    reading.figures.push_back({"cgroup", fmt::format("{} times at its limit", state.limit_hits)});
  JudgeKills(state, at, reading);
}

void MemoryJudge::JudgePressure(const MemoryState& state, Reading& reading) const {
  if (!state.pressure) {
    reading.missing["memory_pressure"] = "the kernel has no /proc/pressure/memory (CONFIG_PSI, psi=1)";
    return;
  }
  reading.figures.push_back({"machine", fmt::format("all waited for memory {:.1f} % of 10 s", *state.pressure)});
  if (*state.pressure >= *settings_["memory_pressure"].threshold)
    reading.conditions.push_back(
        {"memory_pressure", "machine", fmt::format("all waited for memory {:.1f} % of 10 s", *state.pressure)});
}

void MemoryJudge::JudgeLeft(const char* subject, uint64_t left, uint64_t of, Reading& reading) const {
  const double share = static_cast<double>(left) / static_cast<double>(of);
  const std::string text =
      fmt::format("{:.1f} % of {:.4g} GiB can be had", 100 * share, static_cast<double>(of) / (1 << 30));
  reading.figures.push_back({subject, text});
  if (share <= *settings_["memory_low"].threshold) reading.conditions.push_back({"memory_low", subject, text});
}

void MemoryJudge::JudgeKills(const MemoryState& state, Nanos at, Reading& reading) {
  const Item& item = settings_["oom_kill"];
  if (!state.machine_kills && !state.cgroup_kills)
    reading.missing["oom_kill"] = "neither /proc/vmstat nor the cgroup counts oom_kill";
  const uint64_t machine = state.machine_kills ? machine_.Add(at, *state.machine_kills, item.window) : 0;
  const uint64_t cgroup = state.cgroup_kills ? cgroup_.Add(at, *state.cgroup_kills, item.window) : 0;
  const auto text = [&](uint64_t kills) {
    return fmt::format("{} processes were killed for want of memory in {:.0f} s", kills, item.window.value);
  };
  if (static_cast<double>(cgroup) >= *item.threshold) {
    reading.conditions.push_back({"oom_kill", "cgroup", text(cgroup)});
  } else if (static_cast<double>(machine) >= *item.threshold) {
    // Another job's, where we have a cgroup of our own.
    reading.conditions.push_back({"oom_kill", "machine", text(machine),
                                  state.cgroup_kills ? std::optional(FaultClass::kWarning) : std::nullopt});
  }
}

std::unique_ptr<Reader> MemoryReader(const Settings& settings, const Where& where) {
  return std::make_unique<SystemMemory>(settings, where);
}

}  // namespace lockstep::inspect
