// Run directories: where a run keeps its journal, sockets, logs and stacks, and how the other subcommands find it.
#pragma once

#include <sys/types.h>

#include <string>

#include "lockstep/agent/spec.h"
#include "lockstep/base/status.h"

namespace lockstep::node {

// $XDG_RUNTIME_DIR/lockstep, else, and where that goes at logout, /tmp/lockstep-<uid>. As
// python/lockstep/_feed_link.py.
std::string RunsBase();
// logind removes what it has made for a user with his last session, unless he is among the `lingering`.
bool GoesAtLogout(const std::string& runtime, uid_t user, const std::string& lingering = "/var/lib/systemd/linger");
// With mode 0700, unless it is there. PermissionDenied if it is someone else's.
absl::Status MakeRunsBase();
// `path`, or RunsBase()/<job>; makes nothing. InvalidArgument: the job's name would be no name of a directory there.
absl::StatusOr<std::string> PlanRunDir(const std::string& path, const std::string& job);
// Creates it with mode 0700. AlreadyExists if it holds a run; PermissionDenied if it is
// someone else's.
absl::StatusOr<std::string> MakeRunDir(const std::string& path, const std::string& job);
bool HoldsRun(const std::string& run_dir);
// Nothing was started there, and its lock is ours: it may be had again.
void ForgetRun(const std::string& run_dir);
// `path` if given and it holds a run; otherwise the newest run in RunsBase(). NotFound says where was looked.
absl::StatusOr<std::string> FindRunDir(const std::string& path);
// The same of what can only be done to a run that goes on. FailedPrecondition: the newest has ended, another goes on,
// and nobody said which of them is meant.
absl::StatusOr<std::string> FindLiveRunDir(const std::string& path);

// `run_dir` is the directory in which this run was started, whatever the way there, and no copy of it.
absl::Status CheckInPlace(const std::string& run_dir, const agent::RunSpec& spec);
// PermissionDenied: it is another user's, who could not go on with what we make there.
absl::Status CheckOwner(const std::string& run_dir);
// FailedPrecondition: the journal of this run, which this node leads, is gone, empty or damaged; and what to do.
absl::Status CheckJournal(const std::string& run_dir);
// What to do about the run of this node that `run_dir` holds and that has no watcher: "go on with `lockstep run
// --resume DIR`, or ..."; where nobody is left to be adopted, how to start a new one.
std::string HowToGoOn(const std::string& run_dir);

}  // namespace lockstep::node
