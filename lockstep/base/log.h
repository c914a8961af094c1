// Logs for people, on stderr: one line each, with time and level. Results never go here, logs never to stdout.
#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace lockstep {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
void LogText(LogLevel level, std::string_view text);
// Nothing below this is said from now on; kInfo to begin with.
void SetLogLevel(LogLevel least);

template <typename... Args>
void Log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  LogText(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace lockstep
