#include "lockstep/trace/kineto_name.h"

#include <filesystem>
#include <regex>

namespace lockstep::trace {

KinetoName ParseKinetoName(const std::string& path) {
  // torch.profiler writes the time in nanoseconds, which are 19 digits; before 2.0 in milliseconds, 13.
  static const std::regex own("((.+)_[0-9]{1,9})\\.([0-9]{13,19})\\.pt\\.trace\\.json(\\.gz)?");
  // What has more digits is a date, or no rank.
  static const std::regex named("(?:rank|worker)[-_]?([0-9]{1,7})(?![0-9])", std::regex::icase),
      last("_([0-9]{1,7})\\.");
  const std::string name = std::filesystem::path(path).filename().string();
  KinetoName told;
  std::smatch match;
  if (std::regex_match(name, match, own)) {
    told.worker = match[1].str();
    told.host = match[2].str();
    told.time = std::stoll(match[3].str());
    for (auto digits = match[3].length(); digits < 19; ++digits) told.time *= 10;
    return told;  // the number behind the host is a process
  }
  if (std::regex_search(name, match, named) || std::regex_search(name, match, last)) {
    const int rank = std::stoi(match[1].str());
    if (rank < kMostKinetoRanks) told.rank = rank;
  }
  return told;
}

bool IsKinetoName(std::string_view file) {
  static const std::regex form(".*\\.pt\\.trace\\.json(\\.gz)?|.*(rank|worker)[-_]?[0-9].*\\.(json(\\.gz)?|sqlite)",
                               std::regex::icase);
  return std::regex_match(file.begin(), file.end(), form);
}

}  // namespace lockstep::trace
