#include "lockstep/trace/trails.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <utility>

#include "lockstep/trace/byte_source.h"
#include "lockstep/trace/record_file.h"
#include "lockstep/trace/trail_choice.h"
#include "lockstep/trace/trail_file.h"
#include "lockstep/trace/trail_joiner.h"

namespace lockstep::trace {
namespace {

bool IsOurs(const std::filesystem::path& path) {
  return path.extension() == kTrailSuffix || path.extension() == kRecordsSuffix;
}

// Files of other kinds beside trails: dumps of a tool that writes into their directory, say. A run's are its own.
uint64_t OthersIn(const std::string& directory) {
  uint64_t ours = 0, others = 0;
  std::error_code error;
  for (const std::string& folder : {directory, directory + "/trails"}) {
    if (std::filesystem::exists(folder + "/run.json", error)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error))
      if (entry.is_regular_file(error)) ++(IsOurs(entry.path()) ? ours : others);
    if (ours == 0) others = 0;  // of a copied run's own folder
  }
  return others;
}

// Of a directory, or of a run's.
void AddFiles(const std::string& directory, const char* suffix, std::vector<std::string>& files) {
  std::error_code error;
  for (const std::string& folder : {directory, directory + "/trails"})
    for (const auto& entry : std::filesystem::directory_iterator(folder, error))
      if (entry.path().extension() == suffix) files.push_back(entry.path().string());
}

std::vector<std::string> FilesOf(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  std::error_code error;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    for (const char* suffix : {kTrailSuffix, kRecordsSuffix}) AddFiles(path, suffix, files);
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool IsTrail(const std::string& path) { return FirstBytes(path, 8) == "LSTRIL01"; }
bool IsRecordFile(const std::string& path) { return FirstBytes(path, 8) == "LSKREC01"; }

absl::Status ReadInto(const std::string& path, std::vector<TrailSnapshot>& trails, std::vector<Counter>& counters) {
  if (IsRecordFile(path)) {
    LS_ASSIGN_OR_RETURN(std::vector<TrailSnapshot> kept, ReadRecordFile(path, counters));
    std::move(kept.begin(), kept.end(), std::back_inserter(trails));
    return absl::OkStatus();
  }
  LS_ASSIGN_OR_RETURN(const TrailFile file, TrailFile::Open(path));
  trails.push_back(TakeSnapshot(file));
  return absl::OkStatus();
}

// Of the job. None where trails tell of different sizes: nobody knows which of them it has.
std::vector<int> WorldOf(const std::vector<TrailSnapshot>& trails) {
  const auto is_other = [&](const TrailSnapshot& trail) { return trail.origin.world != trails[0].origin.world; };
  if (trails.empty() || std::ranges::any_of(trails, is_other)) return {};
  std::vector<int> world(trails[0].origin.world);
  std::iota(world.begin(), world.end(), 0);
  return world;
}

}  // namespace

bool HasTrails(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) return IsTrail(path) || IsRecordFile(path);
  return std::filesystem::is_directory(path, error) && !FilesOf({path}).empty();
}

std::vector<std::string> TrailsIn(const std::string& directory) {
  std::vector<std::string> files;
  AddFiles(directory, kTrailSuffix, files);
  std::sort(files.begin(), files.end());
  return files;
}

CommLog JoinTrails(std::vector<TrailSnapshot> trails) {
  const ChosenTrails chosen = ChooseTrails(std::move(trails));
  CommLog log = JoinChosen(chosen.trails);
  log.world = WorldOf(chosen.trails);
  for (const Counter& counter : chosen.counters) Count(log.counters, counter.name, counter.count);
  if (chosen.riddles > 0) {
    log.AddBlindSpot(
        fmt::format("{} trail(s) are of a rank that another process says to be at the same time", chosen.riddles));
    if (log.doubt.empty()) log.doubt = "which process is which rank: RANK and WORLD_SIZE of each";
  }
  if (chosen.senseless) log.AddBlindSpot("part of the trails makes no sense");
  return log;
}

absl::StatusOr<CommLog> ReadTrails(const std::vector<std::string>& paths) {
  std::vector<TrailSnapshot> trails;
  std::vector<std::string> damaged;
  std::vector<Counter> counters;
  for (const std::string& path : FilesOf(paths))
    if (const absl::Status read = ReadInto(path, trails, counters); !read.ok()) damaged.emplace_back(Message(read));
  if (trails.empty())
    return InvalidArgument("{}", damaged.empty() ? paths.front() + ": no trails here" : damaged.front());
  CommLog log = JoinTrails(std::move(trails));
  log.damaged = std::move(damaged);
  for (const Counter& counter : counters) Count(log.counters, counter.name, counter.count);
  if (!counters.empty()) log.AddBlindSpot("part of what was kept can't be read");
  for (const std::string& path : paths)
    if (std::error_code error; std::filesystem::is_directory(path, error))
      Count(log.counters, "other_files", OthersIn(path));
  return log;
}

}  // namespace lockstep::trace
