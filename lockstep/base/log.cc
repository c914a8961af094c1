#include "lockstep/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace lockstep {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::logger& Logger() {
  static const auto logger = [] {
    auto made = spdlog::stderr_color_mt("lockstep");
    made->set_pattern("%H:%M:%S.%e lockstep %^%l%$: %v");
    return made;
  }();
  return *logger;
}

}  // namespace

void LogText(LogLevel level, std::string_view text) { Logger().log(ToSpdlog(level), text); }

void SetLogLevel(LogLevel least) { Logger().set_level(ToSpdlog(least)); }

}  // namespace lockstep
