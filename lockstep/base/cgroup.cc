#include "lockstep/base/cgroup.h"

#include <algorithm>

#include "lockstep/base/split.h"

namespace lockstep {
namespace {

std::string_view TakeWord(std::string_view& line) {
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(word.size() + 1, line.size()));
  return word;
}

}  // namespace

bool IsListed(std::string_view list, std::string_view word) {
  for (;;) {
    const size_t end = std::min(list.find(','), list.size());
    if (list.substr(0, end) == word) return true;
    if (end == list.size()) return false;
    list.remove_prefix(end + 1);
  }
}

// Lines "6:freezer,cpu:/path" and "0::/path".
std::optional<std::string_view> CgroupPath(std::string_view groups, std::string_view controller) {
  while (!groups.empty()) {
    const std::string_view line = TakeLine(groups);
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    if (IsListed(line.substr(first + 1, second - first - 1), controller)) return line.substr(second + 1);
  }
  return std::nullopt;
}

// Lines "DEVICE PATH TYPE OPTIONS 0 0".
std::optional<std::string_view> FindCgroupMount(std::string_view mounts, std::string_view controller) {
  while (!mounts.empty()) {
    std::string_view line = TakeLine(mounts);
    TakeWord(line);
    const std::string_view path = TakeWord(line), type = TakeWord(line), options = TakeWord(line);
    if (controller == kUnified ? type == "cgroup2" : type == "cgroup" && IsListed(options, controller)) return path;
  }
  return std::nullopt;
}

}  // namespace lockstep
