// What a worker's uncaught exception says, and whether it only tells of a lost peer. There are two notes of it: the one
// that our excepthook left (python/lockstep/_boot.py), which knows the most, and the error file that torch's @record
// writes, which a Python process below the worker (--no-python) leaves too.
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/status.h"
#include "lockstep/control/events.h"

namespace lockstep::agent {

struct ExceptionNote {
  control::ExceptionInfo info;
  Nanos at;  // when it was raised: before its sockets closed, so before any survivor's error. 0: unknown
};

// nullopt: the worker left none (killed, os._exit, not Python).
std::optional<ExceptionNote> ReadException(const std::string& path);

// Bytes of the disk that stay taken: should it be full, the worker writes over them what ends it, with its epoch. Else
// nobody would know whether it only lost a peer.
absl::Status MakeErrorRoom(const std::string& path);
std::string ErrorRoomPath(const std::string& run_dir, int rank);  // the rank's on this node
// nullopt: nothing, or of another epoch.
std::optional<ExceptionNote> ReadErrorRoom(const std::string& path, uint64_t epoch);

// NotFound: the worker left no error file. DataLoss: what lies there can't be read; says why and where.
absl::StatusOr<ExceptionNote> ReadTorchError(const std::string& path);

// True for the errors that survivors of a dead peer meet in gloo, NCCL and TCPStore: secondary, never the culprit.
// `raised_in`: the Python module that raised it; empty: not known. A connection of the program's own that fails is
// another thing, though it says the same.
bool IsConnectionError(const std::string& type, const std::string& message, const std::string& raised_in);
// True for the error of a rank that was to host the rendezvous store, but found its port taken.
bool IsPortTaken(const std::string& type, const std::string& message);

}  // namespace lockstep::agent
