// Control groups, as /proc tells of them. A controller has a hierarchy of its own (v1), or all share one (v2). Pure,
// and without allocation: what is found is a part of the text.
//
//   CgroupPath("4:memory,cpu:/job\n0::/user\n", "memory")   // "/job"
#pragma once

#include <optional>
#include <string_view>

namespace lockstep {

inline constexpr std::string_view kUnified = "";  // in the place of a controller: the hierarchy of v2

// The path below the mount point of the group that a process is in, by its /proc/PID/cgroup. nullopt: in none.
std::optional<std::string_view> CgroupPath(std::string_view groups, std::string_view controller);
// Where the first such hierarchy is mounted, by /proc/PID/mounts. nullopt: nowhere.
std::optional<std::string_view> FindCgroupMount(std::string_view mounts, std::string_view controller);
// Whether "a,b,c" has the word.
bool IsListed(std::string_view list, std::string_view word);

}  // namespace lockstep
