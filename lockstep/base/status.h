// Errors as values: absl::Status with text that says what, where, what was expected and what to do.
// Debian's absl::string_view is not std::string_view; these few functions are the adapter, so our APIs speak std types.
//
//   LS_ASSIGN_OR_RETURN(Layout layout, ParseLayout(text));
//   LS_RETURN_IF_ERROR(Validate(layout));
//   return InvalidArgument("{}:{}: tp must be at least 1, found {}", path, line, tp);
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

absl::Status MakeError(absl::StatusCode code, std::string_view message);
std::string Message(const absl::Status& status);
// The same error, with "where: " before its text.
absl::Status At(std::string_view where, const absl::Status& status);
// "what: strerror(error)" with the code that fits errno.
absl::Status ErrnoError(int error, std::string_view what);

template <typename... Args>
absl::Status InvalidArgument(fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(absl::StatusCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status NotFound(fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(absl::StatusCode::kNotFound, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status FailedPrecondition(fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(absl::StatusCode::kFailedPrecondition, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status Unavailable(fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(absl::StatusCode::kUnavailable, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status DataLoss(fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(absl::StatusCode::kDataLoss, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status Errno(int error, fmt::format_string<Args...> format, Args&&... args) {
  return ErrnoError(error, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace lockstep

#define LS_CONCAT_INNER(a, b) a##b
#define LS_CONCAT(a, b) LS_CONCAT_INNER(a, b)

#define LS_RETURN_IF_ERROR(expression)     \
  do {                                     \
    absl::Status ls_status = (expression); \
    if (!ls_status.ok()) return ls_status; \
  } while (false)

#define LS_ASSIGN_OR_RETURN(declaration, expression) \
  LS_ASSIGN_OR_RETURN_INNER(LS_CONCAT(ls_statusor_, __LINE__), declaration, expression)
#define LS_ASSIGN_OR_RETURN_INNER(statusor, declaration, expression) \
  auto statusor = (expression);                                      \
  if (!statusor.ok()) return std::move(statusor).status();           \
  declaration = *std::move(statusor)
