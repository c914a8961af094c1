// Copies of the code that a run's workers have run, under <run dir>/code, named by their content and kept as long as
// the run: what a user changes in place changes none of them. What is copied is what workers are started with, and a
// directory's code: files that are called so (kTextSuffixes, .so) or begin as scripts and compiled programs do. All
// else (data, results) is linked to where it was, as are programs that are too large; hidden files are left out.
//
//   LS_ASSIGN_OR_RETURN(const std::string root, CodeRoot(spec));       // what a new version takes the place of
//   LS_RETURN_IF_ERROR(CheckCode(spec, directory));                    // the script is there
//   LS_ASSIGN_OR_RETURN(const std::string path, PathOfCode(spec, version));
#pragma once

#include <string>
#include <vector>

#include "lockstep/agent/code_listing.h"
#include "lockstep/agent/spec.h"
#include "lockstep/base/status.h"
#include "lockstep/control/events.h"

namespace lockstep::agent {

struct CodeTree {
  // Of the directory's path and its code: names, contents, and whether its owner may execute it. The same on every
  // machine; of programs that are linked the size and the time instead.
  std::string hash;
  std::vector<std::string> linked;  // those, by their names
  std::vector<std::string> unread;  // may not be read here; linked, too
};

// The directory that Python puts first on its path: that of the script, or the working directory for -m. Errors: a
// program that is no file of ours (--no-python, found on PATH).
absl::StatusOr<std::string> CodeRoot(const RunSpec& spec);
// NotFound: it is no directory, or lacks the script or module.
absl::Status CheckCode(const RunSpec& spec, const std::string& directory);
// `entry`: what its workers are started with, which is code whatever it is called.
absl::StatusOr<CodeTree> LookAtCode(const std::string& entry, const std::string& directory,
                                    const CodeLimits& limits = {});
// The script's name below its directory; of a module, its first part; empty: it runs no script of its own.
std::string EntryOf(const RunSpec& spec);
// "more than 1024 MB of programs, so libx.so.1 is not copied"; empty: all are.
std::string WhatIsLinked(const CodeTree& tree, const CodeLimits& limits = {});
// What the run began with, should it be changed in place: kept where that is cheap. Its hash is the same wherever a
// node has that directory. What to say of it, also that a copy was taken later than at first, in `epoch`; neither a
// hash nor an error: nothing, for no update brings another one.
control::CodeKept KeepFirstCode(const RunSpec& spec, EpochId epoch);
// Where the workers of a version find their code; empty: where the run began with it. Copies what is not there yet.
absl::StatusOr<std::string> PathOfCode(const RunSpec& spec, const control::Version& version);

}  // namespace lockstep::agent
