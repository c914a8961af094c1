#include "lockstep/node/run_dir.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "lockstep/agent/last_watched.h"
#include "lockstep/agent/spec.h"
#include "lockstep/agent/wire.h"
#include "lockstep/base/packets.h"
#include "lockstep/client/join.h"
#include "lockstep/node/past.h"
#include "lockstep/store/journal.h"
#include "lockstep/store/writer_lock.h"

namespace lockstep::node {
namespace {

namespace fs = std::filesystem;

absl::Status MakePrivate(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return Errno(errno, "creating {}", path);
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) return Errno(errno, "{}", path);
  if (!S_ISDIR(info.st_mode)) return InvalidArgument("{} is not a directory", path);
  if (info.st_uid != geteuid()) {
    return MakeError(absl::StatusCode::kPermissionDenied,
                     fmt::format("{} belongs to uid {}; choose another --run", path, info.st_uid));
  }
  return absl::OkStatus();
}

// Its journal is here, and empty.
bool IsUnbegun(const std::string& run_dir) {
  const auto journal = store::OpenSqliteJournal(run_dir + "/" + agent::kJournalFile, store::JournalMode::kRead);
  if (!journal.ok()) return false;
  const auto events = (*journal)->Read(0);
  return events.ok() && events->empty();
}

// Its process; 0: there is none. At the workers' door: at the starter's other one we would be taken for the watcher.
pid_t StarterOf(const std::string& run_dir) {
  const absl::StatusOr<Fd> door = agent::ConnectTo(run_dir + "/" LS_JOIN_SOCKET);
  return door.ok() ? PeerOf(door->get()) : 0;
}
bool HasStarter(const std::string& run_dir) { return agent::ConnectTo(run_dir + "/" LS_JOIN_SOCKET).ok(); }

// Of a run that keeps its journal in its directory: why nobody can go on by it. Empty: somebody can.
std::string WhyUnreadable(const std::string& run_dir) {
  const auto journal = store::OpenSqliteJournal(run_dir + "/" + agent::kJournalFile, store::JournalMode::kRead);
  if (!journal.ok()) return Message(journal.status());
  const auto events = (*journal)->Read(0);
  if (!events.ok()) return Message(events.status());
  return events->empty() ? fmt::format("{}/{} is empty: expected the events of the run", run_dir, agent::kJournalFile)
                         : "";
}

bool IsWatched(const std::string& run_dir) { return agent::ConnectTo(run_dir + "/" + agent::kControlSocket).ok(); }

bool IsLive(const std::string& run_dir) { return IsWatched(run_dir) || HasStarter(run_dir); }

// The newest first; at least one.
absl::StatusOr<std::vector<std::string>> Runs() {
  std::vector<std::pair<fs::file_time_type, std::string>> runs;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(RunsBase(), ignored))
    if (HoldsRun(entry.path().string()))
      runs.emplace_back(fs::last_write_time(entry.path() / "run.json", ignored), entry.path().string());
  if (runs.empty()) return NotFound("no run under {}; name one with --run DIR", RunsBase());
  std::sort(runs.rbegin(), runs.rend());
  std::vector<std::string> paths;
  for (auto& [time, path] : runs) paths.push_back(std::move(path));
  return paths;
}

// What somebody leaves whose job never began is in nobody's way. A journal may also be empty for want of room.
void ForgetUnbegun(const std::string& run_dir) {
  if (!HoldsRun(run_dir) || HasStarter(run_dir)) return;
  const absl::StatusOr<store::WriterLock> lock = store::WriterLock::Take(run_dir + "/" + agent::kWatcherLock);
  if (lock.ok() && IsUnbegun(run_dir)) ForgetRun(run_dir);
}

}  // namespace

bool HoldsRun(const std::string& run_dir) {
  std::error_code ignored;
  return fs::exists(fs::path(run_dir) / "run.json", ignored);
}

bool GoesAtLogout(const std::string& runtime, uid_t user, const std::string& lingering) {
  if (runtime != fmt::format("/run/user/{}", user)) return false;
  const passwd* entry = getpwuid(user);
  return entry == nullptr || access((lingering + "/" + entry->pw_name).c_str(), F_OK) != 0;
}

std::string RunsBase() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && access(runtime, W_OK) == 0 && !GoesAtLogout(runtime, geteuid()))
    return std::string(runtime) + "/lockstep";
  return fmt::format("/tmp/lockstep-{}", geteuid());
}

absl::Status MakeRunsBase() { return MakePrivate(RunsBase()); }

absl::StatusOr<std::string> PlanRunDir(const std::string& path, const std::string& job) {
  if (path.empty() && (job.empty() || job == "." || job == ".." || job.find_first_of("/\n") != std::string::npos))
    return InvalidArgument("a job's name is the name of a directory: expected one without /, found \"{}\"", job);
  return fs::absolute(path.empty() ? RunsBase() + "/" + job : path).lexically_normal().string();
}

absl::StatusOr<std::string> MakeRunDir(const std::string& path, const std::string& job) {
  LS_ASSIGN_OR_RETURN(const std::string run_dir, PlanRunDir(path, job));
  if (path.empty()) LS_RETURN_IF_ERROR(MakeRunsBase());
  LS_RETURN_IF_ERROR(MakePrivate(run_dir));
  ForgetUnbegun(run_dir);
  if (!HoldsRun(run_dir)) return run_dir;
  return MakeError(
      absl::StatusCode::kAlreadyExists,
      fmt::format("{} already holds a run; {}", run_dir,
                  IsWatched(run_dir) ? "it goes on: choose another --run for a new one" : HowToGoOn(run_dir)));
}

void ForgetRun(const std::string& run_dir) {
  const std::string journal = agent::kJournalFile;
  for (const std::string& file :
       {std::string("run.json"), std::string(agent::kControlSocket), std::string(agent::kWatcherLock),
        std::string(agent::kUnwatchedFile), journal, journal + "-wal", journal + "-shm", journal + ".lock"})
    unlink((run_dir + "/" + file).c_str());
  if (fs::path(run_dir).parent_path() == RunsBase()) rmdir(run_dir.c_str());  // one of its own: unless there is more
}

absl::Status CheckInPlace(const std::string& run_dir, const agent::RunSpec& spec) {
  std::error_code error;
  if (fs::equivalent(run_dir, spec.run_dir, error)) return absl::OkStatus();
  const bool is_there = HoldsRun(spec.run_dir);
  return FailedPrecondition("{} was copied or moved: its run was started in {}; {}", run_dir, spec.run_dir,
                            is_there ? "name that directory" : "expected it there: move it back");
}

absl::Status CheckOwner(const std::string& run_dir) {
  struct stat info{};
  if (stat(run_dir.c_str(), &info) != 0) return Errno(errno, "{}", run_dir);
  if (info.st_uid == geteuid()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kPermissionDenied,
                   fmt::format("{} belongs to uid {}: go on with it as that user", run_dir, info.st_uid));
}

std::string HowToGoOn(const std::string& run_dir) {
  const auto with = [](const std::string& command) {
    return fmt::format("go on with {}, or choose another --run for a new one", command);
  };
  const absl::StatusOr<agent::RunSpec> spec = agent::ReadRunSpec(run_dir);
  if (spec.ok())
    if (const absl::Status in_place = CheckInPlace(run_dir, *spec); !in_place.ok()) return Message(in_place);
  const absl::StatusOr<history::Replayed> past = Replay(run_dir);
  const bool has_ended = past.ok() && past->state.mode == control::Mode::kFinished;
  if (has_ended && !HasStarter(run_dir))
    return fmt::format("it has ended ({}): choose another --run for a new one", past->state.verdict);
  const bool as_before = spec.ok() && spec->ranks == 0 && (!spec->journal.empty() || IsUnbegun(run_dir));
  if (as_before) return with("`lockstep coordinator`, started as before");
  if (spec.ok() && spec->ranks == 0) return with(fmt::format("`lockstep coordinator --resume {}`", run_dir));
  const bool leads = spec.ok() && spec->coordinator.empty();
  const std::string unreadable = leads ? WhyUnreadable(run_dir) : "";
  if (const pid_t starter = StarterOf(run_dir); starter != 0 && !unreadable.empty())
    return fmt::format(
        "it cannot be resumed ({}): end its workers with `kill {}`, their starter, and choose another --run for a new "
        "one",
        unreadable, starter);
  if (!spec.ok() || HasStarter(run_dir)) return with(fmt::format("`lockstep run --resume {}`", run_dir));
  const std::string from =
      spec->checkpoint_dir.empty()
          ? "it begins anew, for this one had no --checkpoint-dir"
          : fmt::format("with --checkpoint-dir {} it goes on from the newest checkpoint there", spec->checkpoint_dir);
  return fmt::format("its workers are gone: start a new run in another --run ({})", from);
}

absl::Status CheckJournal(const std::string& run_dir) {
  if (WhyUnreadable(run_dir).empty()) return absl::OkStatus();
  return FailedPrecondition("{}: {}", run_dir, HowToGoOn(run_dir));
}

absl::StatusOr<std::string> FindRunDir(const std::string& path) {
  if (path.empty()) {
    LS_ASSIGN_OR_RETURN(const std::vector<std::string> runs, Runs());
    return runs.front();
  }
  if (access((path + "/run.json").c_str(), F_OK) != 0 && errno == EACCES) return Errno(errno, "{}", path);
  if (!HoldsRun(path)) return NotFound("{} holds no run (no run.json there)", path);
  return fs::absolute(path).lexically_normal().string();
}

absl::StatusOr<std::string> FindLiveRunDir(const std::string& path) {
  if (!path.empty()) return FindRunDir(path);
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> runs, Runs());
  const auto live = std::find_if(runs.begin(), runs.end(), IsLive);
  if (live == runs.begin() || live == runs.end()) return runs.front();
  return FailedPrecondition("the newest run, {}, has ended; if you mean {}, which goes on, say --run {}", runs.front(),
                            *live, *live);
}

}  // namespace lockstep::node
