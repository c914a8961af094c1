#include "lockstep/trace/job_files.h"

#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "lockstep/trace/kineto_name.h"

namespace lockstep::trace {
namespace {

namespace fs = std::filesystem;

constexpr std::array kTraceEndings = {".parquet", ".csv", ".csv.gz"};
constexpr std::array kMetaEndings = {".yaml", ".yml"};
constexpr std::string_view kTrace = "trace", kMeta = "meta";

// "-X" of meta-X.yaml, "" of meta.yaml.
template <typename Endings>
std::optional<std::string> Between(std::string_view name, std::string_view begin, const Endings& endings) {
  for (const std::string_view ending : endings)
    if (name.starts_with(begin) && name.ends_with(ending) && name.size() >= begin.size() + ending.size()) {
      const std::string_view word = name.substr(begin.size(), name.size() - begin.size() - ending.size());
      if (word.empty() || word.starts_with('-')) return std::string(word);
    }
  return std::nullopt;
}

// The files of one directory.
class Directory {
 public:
  explicit Directory(fs::path path) : path_(std::move(path)) {}

  void Add(const std::string& name) { names_.insert(name); }

  void FindJobs(std::map<std::string, JobFiles>& jobs) const {
    std::set<std::string> words;
    for (const std::string& name : names_) {
      if (const auto word = Between(name, kMeta, kMetaEndings)) words.insert(*word);
      if (const auto word = Between(name, kTrace, kTraceEndings)) words.insert(*word);
    }
    for (const std::string& word : words) {
      JobFiles job{{}, First(kTrace, word, kTraceEndings), First(kMeta, word, kMetaEndings), {}, {}};
      job.id = job.trace.empty() ? job.meta : job.trace;
      jobs.emplace(job.id, job);
    }
    JobFiles profiled{path_.string(), {}, {}, ProfilerFiles(), {}};
    if (!profiled.kineto.empty()) jobs.emplace(profiled.id, std::move(profiled));
    JobFiles chakra{(path_ / "*.et").string(), {}, {}, {}, {}};
    for (const std::string& name : names_)
      if (name.ends_with(".et")) chakra.chakra.push_back((path_ / name).string());
    if (!chakra.chakra.empty()) jobs.emplace(chakra.id, std::move(chakra));
  }

 private:
  template <typename Endings>
  std::string First(std::string_view begin, const std::string& word, const Endings& endings) const {
    for (const std::string_view ending : endings)
      if (const std::string name = std::string(begin) + word + std::string(ending); names_.contains(name))
        return (path_ / name).string();
    return "";
  }

  std::vector<std::string> ProfilerFiles() const {
    std::vector<std::string> files;
    std::map<std::string, std::pair<int64_t, std::string>> newest;  // of a worker
    for (const std::string& name : names_) {
      if (!IsKinetoName(name)) continue;
      const KinetoName told = ParseKinetoName(name);
      if (told.worker.empty()) {
        files.push_back((path_ / name).string());
      } else {
        auto& one = newest[told.worker];
        one = std::max(one, std::pair(told.time, (path_ / name).string()));
      }
    }
    for (const auto& [worker, one] : newest) files.push_back(one.second);
    return files;
  }

  fs::path path_;
  std::set<std::string> names_;
};

}  // namespace

absl::StatusOr<std::vector<JobFiles>> FindJobs(const std::vector<std::string>& directories) {
  std::map<std::string, JobFiles> jobs;
  std::string searched;
  for (const std::string& root : directories) {
    std::error_code error;
    std::map<fs::path, Directory> found;
    auto entry = fs::recursive_directory_iterator(fs::path(root).lexically_normal(), error);
    for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
      if (!entry->is_regular_file(error)) continue;
      const fs::path folder = entry->path().parent_path();
      found.try_emplace(folder, folder).first->second.Add(entry->path().filename().string());
    }
    if (error) return NotFound("{}: {}; expected a directory with traces", root, error.message());
    for (const auto& [path, directory] : found) directory.FindJobs(jobs);
    searched += (searched.empty() ? "" : ", ") + root;
  }
  if (jobs.empty())
    return NotFound(
        "{}: no traces; expected trace-X.parquet (or .csv, .csv.gz) with meta-X.yaml, or the profiler's files of a job "
        "in a directory of its own (rank-3.json.gz, HOST_PID.TIME.pt.trace.json, rank-3.sqlite, rank-3.et)",
        searched);
  std::vector<JobFiles> all;
  all.reserve(jobs.size());
  for (auto& [id, job] : jobs) all.push_back(std::move(job));
  return all;
}

}  // namespace lockstep::trace
