#include "lockstep/base/wall_time.h"

#include <fmt/core.h>

#include <ctime>
#include <string_view>

namespace lockstep {

std::string IsoTime(Nanos wall) {
  const time_t seconds = wall.value / 1'000'000'000;
  tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
  return fmt::format("{}.{:03}Z", text, wall.value % 1'000'000'000 / 1'000'000);
}

std::string IsoSecond(Nanos wall) {
  return IsoTime(wall).substr(0, std::string_view("2026-01-01T10:00:10").size()) + "Z";
}

std::string IsoDay(Nanos wall) { return IsoTime(wall).substr(0, std::string_view("2026-01-01").size()); }

}  // namespace lockstep
