// LS_CHECK: an invariant of our own code, always on; prints the condition, the place and the values, then aborts.
// Never for input or the world: those are absl::Status.
//
//   LS_CHECK(rank < world_size, "rank {} of {}", rank, world_size);
#pragma once

#include <fmt/core.h>

#include <string_view>

namespace lockstep {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, std::string_view values);
}  // namespace lockstep

#define LS_CHECK(condition, ...)                                                              \
  do {                                                                                        \
    if (!(condition)) [[unlikely]]                                                            \
      ::lockstep::CheckFailed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
