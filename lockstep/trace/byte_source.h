// The bytes of a file, plain or gzipped (of several members, one behind the other), in constant memory: a window that
// moves forward and grows when it must.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/file.h"
#include "lockstep/base/status.h"

namespace lockstep::trace {

// As many as asked for, or as the file has; with NULs in place of the rest, as of a file that can't be read and of a
// pipe, which nobody opens here: that waits until somebody writes.
std::string FirstBytes(const std::string& path, size_t count);

// Refused: a pipe or a socket, which begins only once, so that a look at what it holds takes that away.
absl::Status RefusePipe(const std::string& path);

class ByteSource {
 public:
  // `largest`: bytes that may have to stand in the window at once.
  static absl::StatusOr<ByteSource> Open(const std::string& path, size_t largest);

  std::string_view window() const { return {buffer_.bytes.get() + begin_, end_ - begin_}; }
  // Drops the first bytes of the window.
  void Consume(size_t count) { begin_ += count; }
  // More bytes behind the window, which moves: views into it are gone. False at the end of the file, when the window is
  // as large as it may be (is_full), or when reading failed (status).
  bool Grow();
  bool is_full() const { return end_ - begin_ >= largest_; }
  const absl::Status& status() const { return status_; }
  const std::string& path() const { return path_; }

 private:
  class Inflater;
  struct Closer {
    void operator()(Inflater* inflater) const;
  };

  // Not filled in advance, for it may be large.
  struct Buffer {
    Buffer() = default;
    explicit Buffer(size_t size);
    std::unique_ptr<char[]> bytes;
    size_t size = 0;
  };

  ByteSource(std::string path, size_t largest, Fd file);
  static Buffer Inflated(const std::string& path);
  absl::Status Begin();
  // How many it got; 0: the file is at its end.
  absl::StatusOr<size_t> Read(char* to, size_t room);

  std::string path_;
  size_t largest_;
  Fd file_;
  std::unique_ptr<Inflater, Closer> inflater_;  // null: the file is plain
  Buffer buffer_;
  size_t begin_ = 0, end_ = 0;
  bool at_end_ = false;
  absl::Status status_;
};

}  // namespace lockstep::trace
