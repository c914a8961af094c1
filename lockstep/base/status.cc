#include "lockstep/base/status.h"

#include <cerrno>
#include <cstring>

namespace lockstep {
namespace {

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case EACCES:
    case EPERM:
      return absl::StatusCode::kPermissionDenied;
    case EEXIST:
      return absl::StatusCode::kAlreadyExists;
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case EFBIG:
      return absl::StatusCode::kResourceExhausted;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

}  // namespace

absl::Status MakeError(absl::StatusCode code, std::string_view message) {
  return absl::Status(code, absl::string_view(message.data(), message.size()));
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

absl::Status At(std::string_view where, const absl::Status& status) {
  return MakeError(status.code(), fmt::format("{}: {}", where, Message(status)));
}

absl::Status ErrnoError(int error, std::string_view what) {
  return MakeError(CodeOf(error),
                   fmt::format("{}: {}{}", what, std::strerror(error), error == EMFILE ? "; raise `ulimit -n`" : ""));
}

}  // namespace lockstep
