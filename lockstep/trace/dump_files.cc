#include "lockstep/trace/dump_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "lockstep/base/number.h"
#include "lockstep/trace/byte_source.h"

namespace lockstep::trace {
namespace {

std::optional<int> RankOfName(const std::string& path) {
  constexpr std::string_view kDigits = "0123456789";
  const std::string name = std::filesystem::path(path).filename().string();
  const size_t word = name.rfind("rank");
  size_t first = word == std::string::npos ? word : name.find_first_not_of("_-.=", word + 4);
  if (first == std::string::npos || name.find_first_of(kDigits, first) != first) {
    const size_t last = name.find_last_of(kDigits);
    if (last == std::string::npos) return std::nullopt;
    first = name.find_last_not_of(kDigits, last) + 1;  // none: from the beginning
  }
  const size_t end = std::min(name.find_first_not_of(kDigits, first), name.size());
  return WholeNumber<int>(std::string_view(name).substr(first, end - first));
}

bool LooksLikeADump(const std::string& path) {
  const std::string begin = FirstBytes(path, 64);
  const size_t at = begin.find_first_not_of(" \t\r\n");
  return begin.starts_with('\x80') || (at != std::string::npos && begin[at] == '{');
}

}  // namespace

absl::StatusOr<std::vector<DumpFile>> FindDumpFiles(const std::vector<std::string>& paths, uint64_t& others) {
  std::vector<DumpFile> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back({path, -1, true});
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      if (!entry.is_regular_file(error)) continue;
      if (LooksLikeADump(entry.path().string()))
        files.push_back({entry.path().string(), -1, false});
      else
        ++others;
    }
    if (error) return ErrnoError(error.value(), path);
  }
  std::map<int, std::string> known;
  for (DumpFile& file : files) {
    const std::optional<int> rank = RankOfName(file.path);
    if (!rank) return InvalidArgument("{}: its name does not tell the rank: {}", file.path, kRankRule);
    file.rank = *rank;
    const auto [found, is_new] = known.emplace(*rank, file.path);
    if (!is_new)
      return InvalidArgument("{}: rank {} is in {} too; expected one file per rank, and {}", file.path, *rank,
                             found->second, kRankRule);
  }
  std::sort(files.begin(), files.end(), [](const DumpFile& a, const DumpFile& b) { return a.rank < b.rank; });
  return files;
}

int64_t WrittenNs(const std::string& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) return INT64_MAX;
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

}  // namespace lockstep::trace
