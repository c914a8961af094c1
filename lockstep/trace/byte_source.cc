#include "lockstep/trace/byte_source.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace lockstep::trace {
namespace {

constexpr size_t kBuffer = 256 << 10;

}  // namespace

void ByteSource::Closer::operator()(void* file) const { gzclose_r(static_cast<gzFile>(file)); }

ByteSource::ByteSource(std::string path, size_t largest, void* file)
    : path_(std::move(path)), largest_(largest), file_(file), buffer_(kBuffer, '\0') {}

absl::StatusOr<ByteSource> ByteSource::Open(const std::string& path, size_t largest) {
  gzFile file = gzopen(path.c_str(), "rbe");
  if (file == nullptr) return ErrnoError(errno, path);
  gzbuffer(file, kBuffer);
  return ByteSource(path, largest, file);
}

bool ByteSource::Grow() {
  if (at_end_ || !status_.ok() || is_full()) return false;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == buffer_.size()) buffer_.resize(std::min(2 * buffer_.size(), std::max(largest_, kBuffer)));
  const auto file = static_cast<gzFile>(file_.get());
  const int got = gzread(file, buffer_.data() + end_, static_cast<unsigned>(buffer_.size() - end_));
  int error = Z_OK;
  const char* why = gzerror(file, &error);
  if (got < 0 || error == Z_BUF_ERROR) {
    status_ = error == Z_ERRNO ? ErrnoError(errno, path_)
                               : InvalidArgument("{}", error == Z_BUF_ERROR ? "the file ends too early" : why);
    return false;
  }
  end_ += static_cast<size_t>(got);
  at_end_ = got == 0;
  return !at_end_;
}

}  // namespace lockstep::trace
