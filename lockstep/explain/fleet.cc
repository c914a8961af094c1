#include "lockstep/explain/fleet.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/parallel.h"
#include "lockstep/explain/fleet_page.h"
#include "lockstep/explain/fleet_report.h"

namespace lockstep::explain {
namespace {

namespace fs = std::filesystem;

// Tells whether lines on disk are of these jobs, these files and this version: FNV-1a of all that.
std::string Fingerprint(const std::vector<trace::JobFiles>& jobs, const std::string& version) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](const std::string& text) {
    for (const char c : text + '\n') hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  };
  add(version);
  for (const trace::JobFiles& job : jobs) {
    add(job.id);
    std::vector<std::string> files = job.kineto;
    files.insert(files.end(), job.chakra.begin(), job.chakra.end());
    files.insert(files.end(), {job.trace, job.meta});
    for (const std::string& file : files) {
      std::error_code error;
      const auto time = fs::last_write_time(file, error);
      add(fmt::format("{} {} {}", file, fs::file_size(file, error), error ? 0 : time.time_since_epoch().count()));
    }
  }
  return fmt::format("{:016x}", hash);
}

// What a shard has on disk.
struct Lines {
  std::map<std::string, Json> by_job;
  bool complete = false;
  size_t bytes = 0;  // of whole lines; behind them an interrupted write may have left a part of one
};

constexpr char kFleet[] = "fleet", kComplete[] = "complete", kJob[] = "job";

// None: the file is not there, or of other jobs.
std::optional<Lines> ReadLines(const std::string& path, const std::string& fingerprint) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return std::nullopt;
  Lines lines;
  for (size_t end = text->find('\n'); end != std::string::npos; end = text->find('\n', lines.bytes)) {
    const Json line = ParseJson(std::string_view(*text).substr(lines.bytes, end - lines.bytes));
    if (!line.is_object() || (lines.bytes == 0 && (!line.contains(kFleet) || line[kFleet] != fingerprint))) break;
    if (line.contains(kJob) && line[kJob].is_string()) lines.by_job[line[kJob].get<std::string>()] = line;
    lines.complete = lines.complete || line.contains(kComplete);
    lines.bytes = end + 1;
  }
  if (lines.bytes == 0) return std::nullopt;
  return lines;
}

// The file of one shard, which its process alone writes.
class ShardFile {
 public:
  static absl::StatusOr<ShardFile> Open(const std::string& path, const std::string& fingerprint) {
    ShardFile file(path);
    const std::optional<Lines> lines = ReadLines(path, fingerprint);
    if (lines) file.lines_ = *lines;
    file.fd_ = Fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!file.fd_.valid() || ftruncate(file.fd_.get(), static_cast<off_t>(file.lines_.bytes)) != 0)
      return Errno(errno, "{}", path);
    if (!lines) LS_RETURN_IF_ERROR(file.Append({{kFleet, fingerprint}}));
    return file;
  }

  const Lines& lines() const { return lines_; }

  absl::Status Append(const Json& line) {
    const std::string text = OneLine(line) + "\n";
    for (size_t written = 0; written < text.size();) {
      const ssize_t bytes = write(fd_.get(), text.data() + written, text.size() - written);
      if (bytes < 0 && errno != EINTR) return Errno(errno, "{}", path_);
      written += static_cast<size_t>(std::max<ssize_t>(bytes, 0));
    }
    if (line.contains(kJob)) lines_.by_job[line[kJob].get<std::string>()] = line;
    return absl::OkStatus();
  }

 private:
  explicit ShardFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  Fd fd_;
  Lines lines_;
};

Json LineOf(const trace::JobFiles& job) {
  if (job.kineto.empty() && job.chakra.empty() && (job.meta.empty() || job.trace.empty()))
    return DamagedLine(job.id, job.meta.empty()
                                   ? NotFound("{}: meta-X.yaml is missing beside trace-X", job.id)
                                   : NotFound("{}: trace-X.parquet, .csv or .csv.gz is missing beside meta-X", job.id));
  const absl::StatusOr<Explained> explained = Explained::Of(job, {});
  return explained.ok() ? FleetLine(job.id, *explained) : DamagedLine(job.id, explained.status());
}

// Each job once, on several threads; `keep` is called by one at a time.
absl::Status ExplainEach(const std::vector<const trace::JobFiles*>& jobs, int threads,
                         const std::function<absl::Status(Json)>& keep) {
  std::atomic<bool> failed = false;
  std::mutex mutex;
  absl::Status status;
  ParallelFor(jobs.size(), static_cast<size_t>(threads), [&](size_t i, size_t /*worker*/) {
    if (failed) return;
    Json line = LineOf(*jobs[i]);
    const std::lock_guard lock(mutex);
    if (status.ok()) status = keep(std::move(line));
    failed = !status.ok();
  });
  return status;
}

class Fleet {
 public:
  Fleet(const std::vector<trace::JobFiles>& jobs, const FleetOptions& options)
      : jobs_(jobs), options_(options), fingerprint_(Fingerprint(jobs, options.version)) {}

  absl::StatusOr<Json> Run() {
    if (options_.out.empty()) return RunInMemory();
    LS_RETURN_IF_ERROR(MakeDirectory(options_.out));
    LS_ASSIGN_OR_RETURN(ShardFile file, ShardFile::Open(PathOf(options_.shard.index), fingerprint_));
    std::vector<const trace::JobFiles*> left;
    for (const trace::JobFiles* job : Own())
      if (!file.lines().by_job.contains(job->id)) left.push_back(job);
    LS_RETURN_IF_ERROR(ExplainEach(left, options_.threads, [&](const Json& line) { return file.Append(line); }));
    return Join(file);
  }

 private:
  std::string PathOf(int shard) const {
    return fmt::format("{}/jobs-{}-of-{}.jsonl", options_.out, shard, options_.shard.count);
  }

  // Dealt out one by one: neighbours in the list are often of about one size.
  std::vector<const trace::JobFiles*> Own() const {
    std::vector<const trace::JobFiles*> own;
    for (size_t i = 0; i < jobs_.size(); ++i)
      if (i % static_cast<size_t>(options_.shard.count) == static_cast<size_t>(options_.shard.index))
        own.push_back(&jobs_[i]);
    return own;
  }

  absl::StatusOr<Json> RunInMemory() const {
    std::vector<Json> lines;
    LS_RETURN_IF_ERROR(ExplainEach(Own(), options_.threads, [&](Json line) {
      lines.push_back(std::move(line));
      return absl::OkStatus();
    }));
    return FleetReport(std::move(lines));
  }

  // Says that this shard is complete and looks at the others under one lock: so exactly one sees all complete first.
  absl::StatusOr<Json> Join(ShardFile& file) const {
    const std::string lock_path = options_.out + "/.lock";
    const Fd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!lock.valid() || flock(lock.get(), LOCK_EX) != 0) return Errno(errno, "{}", lock_path);
    if (!file.lines().complete) LS_RETURN_IF_ERROR(file.Append({{kComplete, true}}));
    std::vector<Json> lines;
    Json waits_for = Json::array();
    for (int shard = 0; shard < options_.shard.count; ++shard) {
      std::optional<Lines> own = ReadLines(PathOf(shard), fingerprint_);
      if (!own || !own->complete) {
        waits_for.push_back(shard);
      } else {
        for (auto& [job, line] : own->by_job) lines.push_back(std::move(line));
      }
    }
    if (!waits_for.empty())
      return Json{{"shard", fmt::format("{}/{}", options_.shard.index, options_.shard.count)},
                  {"jobs", file.lines().by_job.size()},
                  {"waits_for_shards", std::move(waits_for)}};
    Json report = FleetReport(std::move(lines));
    LS_RETURN_IF_ERROR(WriteFileAtomically(options_.out + "/fleet.json", RenderJson(report), kForReaders));
    LS_RETURN_IF_ERROR(WriteFileAtomically(options_.out + "/index.html", FleetPage(report), kForReaders));
    return report;
  }

  const std::vector<trace::JobFiles>& jobs_;
  const FleetOptions& options_;
  const std::string fingerprint_;
};

}  // namespace

absl::StatusOr<Json> ExplainFleet(const std::vector<trace::JobFiles>& jobs, const FleetOptions& options) {
  return Fleet(jobs, options).Run();
}

}  // namespace lockstep::explain
