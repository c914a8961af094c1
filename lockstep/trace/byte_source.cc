#include "lockstep/trace/byte_source.h"

#include <libdeflate.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "lockstep/base/large_pages.h"

namespace lockstep::trace {
namespace {

constexpr size_t kBuffer = 256 << 10;
constexpr size_t kSmall = 64 << 20;  // packed, and not
constexpr size_t kGzipTrailer = 8;

}  // namespace

std::string FirstBytes(const std::string& path, size_t count) {
  std::ifstream file(path, std::ios::binary);
  std::string begin(count, '\0');
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return begin;
}

void ByteSource::Closer::operator()(void* file) const { gzclose_r(static_cast<gzFile>(file)); }

ByteSource::Buffer::Buffer(size_t wanted) : bytes(std::make_unique_for_overwrite<char[]>(wanted)), size(wanted) {
  AdviseLargePages(bytes.get(), size);
}

ByteSource::ByteSource(std::string path, size_t largest, void* file)
    : path_(std::move(path)), largest_(largest), file_(file), buffer_(kBuffer) {}

// Of a small gzip file everything at once: libdeflate is three times as fast as zlib, but knows no streams. Empty: it
// is another file, or damaged, which zlib tells better.
ByteSource::Buffer ByteSource::Inflated(const std::string& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size < kGzipTrailer || size > kSmall) return {};
  Buffer packed(size);
  std::ifstream file(path, std::ios::binary);
  if (!file.read(packed.bytes.get(), static_cast<std::streamsize>(size)) ||
      !std::string_view(packed.bytes.get(), size).starts_with("\x1f\x8b"))
    return {};
  uint32_t length = 0;  // of the last member, as its trailer has it
  std::memcpy(&length, packed.bytes.get() + size - sizeof(length), sizeof(length));
  if (length == 0 || length > kSmall) return {};
  Buffer text(length);
  const std::unique_ptr<libdeflate_decompressor, void (*)(libdeflate_decompressor*)> decompressor(
      libdeflate_alloc_decompressor(), libdeflate_free_decompressor);
  if (decompressor == nullptr) return {};
  size_t read = 0, written = 0;
  const libdeflate_result result = libdeflate_gzip_decompress_ex(decompressor.get(), packed.bytes.get(), size,
                                                                 text.bytes.get(), text.size, &read, &written);
  // Several members in a row are for zlib, too.
  if (result != LIBDEFLATE_SUCCESS || read != size || written != text.size) return {};
  return text;
}

absl::StatusOr<ByteSource> ByteSource::Open(const std::string& path, size_t largest) {
  gzFile file = gzopen(path.c_str(), "rbe");
  if (file == nullptr) return ErrnoError(errno, path);
  gzbuffer(file, kBuffer);
  ByteSource source(path, largest, file);
  if (Buffer text = Inflated(path); text.size > 0) {
    source.buffer_ = std::move(text);
    source.end_ = source.buffer_.size;
    source.at_end_ = true;
  }
  return source;
}

bool ByteSource::Grow() {
  if (at_end_ || !status_.ok() || is_full()) return false;
  if (begin_ > 0) {
    std::memmove(buffer_.bytes.get(), buffer_.bytes.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == buffer_.size) {
    Buffer larger(std::min(2 * buffer_.size, std::max(largest_, kBuffer)));
    std::memcpy(larger.bytes.get(), buffer_.bytes.get(), end_);
    buffer_ = std::move(larger);
  }
  const auto file = static_cast<gzFile>(file_.get());
  const int got = gzread(file, buffer_.bytes.get() + end_, static_cast<unsigned>(buffer_.size - end_));
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
