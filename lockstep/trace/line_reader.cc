#include "lockstep/trace/line_reader.h"

#include <zlib.h>

#include <cerrno>
#include <cstring>

namespace lockstep::trace {
namespace {

constexpr size_t kBuffer = 256 << 10;
constexpr size_t kLongest = 64 << 20;  // a line that is longer belongs to no file of ours

}  // namespace

void LineReader::Closer::operator()(void* file) const { gzclose_r(static_cast<gzFile>(file)); }

LineReader::LineReader(std::string path, void* file) : path_(std::move(path)), file_(file), buffer_(kBuffer, '\0') {}

absl::StatusOr<LineReader> LineReader::Open(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rbe");
  if (file == nullptr) return ErrnoError(errno, path);
  gzbuffer(file, kBuffer);
  return LineReader(path, file);
}

bool LineReader::Next() {
  for (size_t searched = begin_;;) {
    const void* found = std::memchr(buffer_.data() + searched, '\n', end_ - searched);
    if (found == nullptr && !at_end_) {
      searched = end_ - begin_;  // Refill moves what is left to the front
      if (!Refill()) return false;
      continue;
    }
    if (found == nullptr && begin_ == end_) return false;
    const size_t stop = found != nullptr ? static_cast<size_t>(static_cast<const char*>(found) - buffer_.data()) : end_;
    line_ = std::string_view(buffer_).substr(begin_, stop - begin_);
    if (line_.ends_with('\r')) line_.remove_suffix(1);
    begin_ = found != nullptr ? stop + 1 : end_;
    return ++number_, true;
  }
}

bool LineReader::Refill() {
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  if (end_ == buffer_.size()) {
    if (buffer_.size() >= kLongest) {
      status_ = InvalidArgument("{}:{}: the line is longer than {} bytes", path_, number_ + 1, kLongest);
      return false;
    }
    buffer_.resize(2 * buffer_.size());
  }
  const auto file = static_cast<gzFile>(file_.get());
  const int got = gzread(file, buffer_.data() + end_, static_cast<unsigned>(buffer_.size() - end_));
  int error = Z_OK;
  const char* why = gzerror(file, &error);
  if (got < 0 || error == Z_BUF_ERROR) {
    status_ = error == Z_ERRNO ? ErrnoError(errno, path_)
                               : InvalidArgument("{}: damaged behind line {}: {}", path_, number_,
                                                 error == Z_BUF_ERROR ? "the file ends too early" : why);
    return false;
  }
  end_ += static_cast<size_t>(got);
  at_end_ = got == 0;
  return true;
}

}  // namespace lockstep::trace
