#include "lockstep/checkpoint/budget.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <sstream>

#include "lockstep/base/cgroup.h"
#include "lockstep/base/file.h"
#include "lockstep/base/number.h"
#include "lockstep/client/board.h"

namespace lockstep::checkpoint {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// The leading number of `text`; none if it has no such (as "max").
std::optional<uint64_t> Number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return TakeNumber<uint64_t>(text);
}

std::optional<uint64_t> NumberIn(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  return text.ok() ? Number(*text) : std::nullopt;
}

// The number behind `key` at the begin of a line.
std::optional<uint64_t> Field(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, key.size(), key) == 0) return Number(std::string_view(line).substr(key.size()));
  }
  return std::nullopt;
}

struct Files {
  const char *limit, *usage, *droppable;
};
constexpr Files kV2 = {"memory.max", "memory.current", "inactive_file "};
constexpr Files kV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};

// What one cgroup leaves. Page cache that nobody uses counts as free: the kernel drops it before it refuses memory.
uint64_t Left(const std::string& folder, const Files& files) {
  const std::optional<uint64_t> limit = NumberIn(folder + "/" + files.limit);
  const std::optional<uint64_t> usage = NumberIn(folder + "/" + files.usage);
  if (!limit || !usage) return kUnlimited;
  const absl::StatusOr<std::string> stat = ReadFile(folder + "/memory.stat");
  const uint64_t droppable = stat.ok() ? Field(*stat, files.droppable).value_or(0) : 0;
  const uint64_t kept = *usage - std::min(*usage, droppable);
  return *limit - std::min(*limit, kept);
}

// From the cgroup at `path` up to `root`. In a container the path may not exist below the mount; its root does.
uint64_t LeftUpwards(const std::string& root, std::string_view path, const Files& files) {
  if (path == "/") path = "";
  uint64_t least = kUnlimited;
  for (;;) {
    least = std::min(least, Left(fmt::format("{}{}", root, path), files));
    if (path.empty()) return least;
    const size_t slash = path.rfind('/');
    path = path.substr(0, slash == std::string_view::npos ? 0 : slash);
  }
}

}  // namespace

absl::StatusOr<Bytes> AvailableMemory(const MemoryRoots& roots) {
  LS_ASSIGN_OR_RETURN(const std::string meminfo, ReadFile(roots.proc + "/meminfo"));
  const std::optional<uint64_t> kilobytes = Field(meminfo, "MemAvailable:");
  if (!kilobytes) return DataLoss("{}/meminfo: no line MemAvailable", roots.proc);
  uint64_t least = *kilobytes * 1024;
  // A kernel without cgroups has no such file.
  const std::string groups = ReadFile(roots.proc + "/self/cgroup").value_or("");
  if (const auto path = CgroupPath(groups, kUnified)) least = std::min(least, LeftUpwards(roots.cgroup, *path, kV2));
  if (const auto path = CgroupPath(groups, "memory"))
    least = std::min(least, LeftUpwards(roots.cgroup + "/memory", *path, kV1));
  return Bytes{least};
}

absl::Status CheckBudget(const BudgetRequest& request, Bytes available) {
  const Bytes asked = request.per_slot * (static_cast<uint64_t>(request.ranks) * LS_SLOTS);
  const Bytes all = available + request.held;
  const bool own_limit = request.limit.value != 0;
  const Bytes allowed = own_limit ? request.limit : Bytes{all.value / 2};
  if (asked <= allowed) return absl::OkStatus();
  const std::string why =
      own_limit ? "the limit of --checkpoint-memory" : fmt::format("half of {} available", HumanBytes(all));
  return MakeError(absl::StatusCode::kResourceExhausted,
                   fmt::format("checkpoint buffers: {} ranks x {} slots x {} = {}; {} may be used ({})", request.ranks,
                               LS_SLOTS, HumanBytes(request.per_slot), HumanBytes(asked), HumanBytes(allowed), why));
}

std::string HumanBytes(Bytes bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes.value);
  size_t unit = 0;
  for (; value >= 999.95; ++unit) value /= 1000;
  return unit == 0 ? fmt::format("{} B", bytes.value) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace lockstep::checkpoint
