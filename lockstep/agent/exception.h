// What a worker's uncaught exception says: the note that its excepthook left (python/lockstep/_boot.py), and whether it
// only tells of a lost peer.
#pragma once

#include <optional>
#include <string>

#include "lockstep/control/events.h"

namespace lockstep::agent {

struct ExceptionNote {
  control::ExceptionInfo info;
  Nanos at;  // when it was raised: before its sockets closed, so before any survivor's error
};

// nullopt: the worker left none (killed, os._exit, not Python).
std::optional<ExceptionNote> ReadException(const std::string& path);

// True for the errors that survivors of a dead peer meet in gloo, NCCL and TCPStore: secondary, never the culprit.
bool IsConnectionError(const std::string& type, const std::string& message);

}  // namespace lockstep::agent
