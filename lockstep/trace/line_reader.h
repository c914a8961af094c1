// The lines of a file, plain or gzipped, one after the other, in constant memory.
//
//   LS_ASSIGN_OR_RETURN(LineReader lines, LineReader::Open(path));
//   while (lines.Next()) Use(lines.number(), lines.line());
//   LS_RETURN_IF_ERROR(lines.status());
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/status.h"

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
  struct Closer {
    void operator()(void* file) const;
  };

  LineReader(std::string path, void* file);
  bool Refill();

  std::string path_;
  std::unique_ptr<void, Closer> file_;  // a gzFile
  std::string buffer_;
  size_t begin_ = 0, end_ = 0;  // of what is in the buffer and not read yet
  bool at_end_ = false;
  std::string_view line_;
  uint64_t number_ = 0;
  absl::Status status_;
};

}  // namespace lockstep::trace
