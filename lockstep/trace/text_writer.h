// Writes text into a file, gzipped if its name ends in .gz, in pieces: memory does not grow with the file.
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/status.h"

namespace lockstep::trace {

class TextWriter {
 public:
  static absl::StatusOr<TextWriter> Create(const std::string& path);

  template <typename... Args>
  void Write(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Args>(args)...);
    if (buffer_.size() >= kBuffer) Flush();
  }
  // An error of any write before shows here. Without it the file may lack its end.
  absl::Status Finish();

 private:
  static constexpr size_t kBuffer = 256 << 10;
  struct Closer {
    void operator()(void* file) const;
  };

  TextWriter(std::string path, void* file) : path_(std::move(path)), file_(file) {}
  void Flush();

  std::string path_;
  std::unique_ptr<void, Closer> file_;  // a gzFile
  std::string buffer_;
  absl::Status status_;
};

// The whole text into a file.
absl::Status WriteText(const std::string& path, std::string_view text);

}  // namespace lockstep::trace
