#include "lockstep/node/past.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <thread>

#include "lockstep/agent/last_watched.h"
#include "lockstep/agent/spec.h"
#include "lockstep/base/parallel.h"
#include "lockstep/control/coordinator.h"
#include "lockstep/node/query.h"
#include "lockstep/store/postgres_journal.h"

namespace lockstep::node {
namespace {

namespace fs = std::filesystem;
using history::Past;

struct Found {
  std::set<std::string> runs;                            // directories with a journal
  std::set<std::pair<std::string, std::string>> shared;  // journals of several coordinators, by URL and job
  Past past;                                             // what is no run
  int64_t met = 0;  // directories that say something, were they named before or not
};

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

absl::StatusOr<std::unique_ptr<store::Journal>> OpenJournal(const std::string& run_dir) {
  const absl::StatusOr<agent::RunSpec> spec = agent::ReadRunSpec(run_dir);
  if (spec.ok() && !spec->journal.empty()) return store::OpenPostgresReader(spec->journal, spec->job);
  const std::string file = run_dir + "/" + agent::kJournalFile;
  if (spec.ok() && !spec->coordinator.empty() && !Exists(file))
    return FailedPrecondition("{}: {}", run_dir, AskElsewhere(spec->coordinator));
  return store::OpenSqliteJournal(file, store::JournalMode::kRead);
}

// What lies below a run is its own: nothing is looked for there.
void Search(const fs::path& directory, Found& found) {
  if (Exists(directory / agent::kJournalFile)) {
    ++found.met;
    std::error_code error;
    const fs::path whole = fs::canonical(directory, error);
    found.runs.insert(error ? directory.string() : whole.string());
    return;
  }
  if (Exists(directory / "run.json")) {
    ++found.met;
    const absl::StatusOr<agent::RunSpec> spec = agent::ReadRunSpec(directory.string());
    if (!spec.ok() || spec->journal.empty()) {
      ++found.past.without_journal;
    } else if (found.shared.emplace(spec->journal, spec->job).second) {  // each of its coordinators has a directory
      found.runs.insert(directory.string());
    }
    return;
  }
  std::error_code error;
  std::vector<fs::path> below;
  auto entry = fs::directory_iterator(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored) && !entry->is_symlink(ignored)) below.push_back(entry->path());
  }
  if (error) {
    ++found.met;
    found.past.unread.push_back({directory.string(), error.message()});
  }
  std::sort(below.begin(), below.end());
  for (const fs::path& path : below) Search(path, found);
}

void SearchRoot(const std::string& root, Found& found) {
  const int64_t met = found.met;
  Search(fs::path(root).lexically_normal(), found);
  if (found.met == met)
    found.past.unread.push_back({root, fmt::format("holds no run: no {} in it or below", agent::kJournalFile)});
}

// Where a job of one node ran, which its journal does not say.
std::string HostOf(const std::string& run_dir) {
  const absl::StatusOr<agent::RunSpec> spec = agent::ReadRunSpec(run_dir);
  return spec.ok() ? spec->node_name : "";
}

absl::StatusOr<history::RunFacts> ReadRun(const std::string& run_dir) {
  LS_ASSIGN_OR_RETURN(history::Replayed replayed, Replay(run_dir));
  if (replayed.state.epoch.value() == 0) return FailedPrecondition("its journal is empty: the job never began");
  if (replayed.state.spec.nodes.empty()) replayed.host = HostOf(run_dir);
  return history::RunOf(run_dir, replayed);
}

std::vector<absl::StatusOr<history::RunFacts>> ReadRuns(const std::vector<std::string>& directories) {
  std::vector<absl::StatusOr<history::RunFacts>> runs(directories.size());
  const size_t threads = std::max(1u, std::thread::hardware_concurrency());
  ParallelFor(directories.size(), threads, [&](size_t i, size_t) { runs[i] = ReadRun(directories[i]); });
  return runs;
}

}  // namespace

absl::StatusOr<history::Replayed> Replay(const std::string& run_dir) {
  LS_ASSIGN_OR_RETURN(const auto journal, OpenJournal(run_dir));
  LS_ASSIGN_OR_RETURN(const std::vector<store::Event> events, journal->Read(0));
  history::Replayed replayed;
  LS_ASSIGN_OR_RETURN(replayed.state, control::ReplayEvents(events));
  if (events.empty()) return replayed;
  replayed.first = events.front().at;
  replayed.last = events.back().at;
  replayed.last_wall = events.back().wall;
  // What is not over went on being watched after that, and its time with it.
  const Nanos watched = agent::LastWatched(run_dir);
  if (watched > replayed.last && replayed.state.mode != control::Mode::kFinished) {
    replayed.last_wall += watched - replayed.last;
    replayed.last = watched;
  }
  const std::string stop = control::TypeName(control::StopAsked{});
  replayed.stop_asked =
      std::any_of(events.begin(), events.end(), [&](const store::Event& event) { return event.type == stop; });
  return replayed;
}

absl::StatusOr<Past> ReadPast(const std::vector<std::string>& directories) {
  Found found;
  for (const std::string& root : directories) SearchRoot(root, found);
  const std::vector<std::string> paths(found.runs.begin(), found.runs.end());
  std::vector<absl::StatusOr<history::RunFacts>> runs = ReadRuns(paths);
  Past past = std::move(found.past);
  for (size_t i = 0; i < paths.size(); ++i) {
    if (runs[i].ok()) {
      past.runs.push_back(*std::move(runs[i]));
    } else {
      past.unread.push_back({paths[i], Message(runs[i].status())});
    }
  }
  if (!past.runs.empty()) return past;
  if (past.unread.empty())
    return NotFound("no run has its journal here: {} attended jobs that another node led", past.without_journal);
  return NotFound("there is no run to report of: {}: {}{}", past.unread.front().path, past.unread.front().why,
                  past.unread.size() > 1 ? fmt::format(" (and {} more)", past.unread.size() - 1) : "");
}

}  // namespace lockstep::node
