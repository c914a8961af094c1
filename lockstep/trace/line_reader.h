// The lines of a file, plain or gzipped, one after the other, in constant memory.
//
//   LS_ASSIGN_OR_RETURN(LineReader lines, LineReader::Open(path));
//   while (lines.Next()) Use(lines.number(), lines.line());
//   LS_RETURN_IF_ERROR(lines.status());
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/status.h"
#include "lockstep/trace/byte_source.h"

namespace lockstep::trace {

class LineReader {
 public:
  static absl::StatusOr<LineReader> Open(const std::string& path);

  // False at the end, or when reading failed, which status() tells.
  bool Next();
  // Without its end, which may be LF or CRLF; valid until Next().
  std::string_view line() const { return line_; }
  uint64_t number() const { return number_; }  // from 1
  const absl::Status& status() const { return status_; }

 private:
  explicit LineReader(ByteSource bytes) : bytes_(std::move(bytes)) {}

  ByteSource bytes_;
  size_t used_ = 0;  // bytes of the window that are the line and its end
  std::string_view line_;
  uint64_t number_ = 0;
  absl::Status status_;
};

}  // namespace lockstep::trace
