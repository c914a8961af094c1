#include "lockstep/trace/byte_source.h"

#include <fcntl.h>
#include <libdeflate.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "lockstep/base/check.h"
#include "lockstep/base/large_pages.h"

namespace lockstep::trace {
namespace {

constexpr size_t kBuffer = 256 << 10;
constexpr size_t kSmall = 64 << 20;  // packed, and not
constexpr size_t kGzipTrailer = 8;
constexpr std::string_view kGzip = "\x1f\x8b";  // begins a member

absl::StatusOr<size_t> ReadSome(const Fd& file, const std::string& path, char* to, size_t room) {
  ssize_t got = 0;
  do got = ::read(file.get(), to, room);
  while (got < 0 && errno == EINTR);
  if (got < 0) return ErrnoError(errno, path);
  return static_cast<size_t>(got);
}

}  // namespace

// Not zlib's own reader of files: it takes whatever lies behind a member for its end.
class ByteSource::Inflater {
 public:
  // packed: the first bytes of the file, so many of them.
  Inflater(Buffer packed, size_t count) : packed_(std::move(packed)) {
    constexpr int kOfGzip = 16;  // zlib: such a header and trailer
    LS_CHECK(inflateInit2(&stream_, MAX_WBITS + kOfGzip) == Z_OK);
    Take(count);
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  absl::StatusOr<size_t> Read(const Fd& file, const std::string& path, char* to, size_t room) {
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = static_cast<uInt>(room);
    while (stream_.avail_out == room) {
      LS_RETURN_IF_ERROR(failed_);
      if (stream_.avail_in == 0) {
        LS_ASSIGN_OR_RETURN(const size_t got, ReadSome(file, path, packed_.bytes.get(), packed_.size));
        if (got == 0 && within_member_) return InvalidArgument("the file ends too early");
        if (got == 0) return 0;
        Take(got);
      }
      failed_ = within_member_ ? InflateSome() : BeginNext();
    }
    return room - stream_.avail_out;
  }

 private:
  void Take(size_t count) {
    stream_.next_in = reinterpret_cast<Bytef*>(packed_.bytes.get());
    stream_.avail_in = static_cast<uInt>(count);
  }

  absl::Status InflateSome() {
    const int result = inflate(&stream_, Z_NO_FLUSH);
    if (result == Z_STREAM_END) within_member_ = false;
    if (result == Z_STREAM_END || result == Z_OK || result == Z_BUF_ERROR) return absl::OkStatus();
    return InvalidArgument("{}", stream_.msg == nullptr ? zError(result) : stream_.msg);
  }

  // Behind a member comes another one, or zeros to the end of the file, as tapes and archives fill up blocks.
  absl::Status BeginNext() {
    const auto is_zero = [](Bytef byte) { return byte == 0; };
    const Bytef* const end = stream_.next_in + stream_.avail_in;
    const Bytef* const next = std::find_if_not(stream_.next_in, const_cast<Bytef*>(end), is_zero);
    padded_ = padded_ || next != stream_.next_in;
    if (next != end && (padded_ || *next != static_cast<Bytef>(kGzip[0])))
      return InvalidArgument("what follows its gzip stream is none; expected the end of the file, or another stream");
    stream_.avail_in = static_cast<uInt>(end - next);
    stream_.next_in = const_cast<Bytef*>(next);
    if (next == end) return absl::OkStatus();
    within_member_ = true;
    inflateReset(&stream_);
    return absl::OkStatus();
  }

  Buffer packed_;
  z_stream stream_{};
  bool within_member_ = true, padded_ = false;
  absl::Status failed_;  // told when all before it has been read
};

// Before it is opened, which waits until somebody writes.
absl::Status RefusePipe(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0 || (!S_ISFIFO(info.st_mode) && !S_ISSOCK(info.st_mode))) return absl::OkStatus();
  return InvalidArgument(
      "{}: a pipe or a socket: it can be read only once, and only while somebody writes to it; write it to a file and "
      "name that file",
      path);
}

std::string FirstBytes(const std::string& path, size_t count) {
  std::string begin(count, '\0');
  if (!RefusePipe(path).ok()) return begin;
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return begin;
}

void ByteSource::Closer::operator()(Inflater* inflater) const { delete inflater; }

ByteSource::Buffer::Buffer(size_t wanted) : bytes(std::make_unique_for_overwrite<char[]>(wanted)), size(wanted) {
  AdviseLargePages(bytes.get(), size);
}

ByteSource::ByteSource(std::string path, size_t largest, Fd file)
    : path_(std::move(path)), largest_(largest), file_(std::move(file)), buffer_(kBuffer) {}

// Of a small gzip file everything at once: libdeflate is three times as fast as zlib, but knows no streams. Empty: it
// is another file, or damaged, which zlib tells better.
ByteSource::Buffer ByteSource::Inflated(const std::string& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size < kGzipTrailer || size > kSmall) return {};
  Buffer packed(size);
  std::ifstream file(path, std::ios::binary);
  if (!file.read(packed.bytes.get(), static_cast<std::streamsize>(size)) ||
      !std::string_view(packed.bytes.get(), size).starts_with(kGzip))
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
  LS_RETURN_IF_ERROR(RefusePipe(path));
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return ErrnoError(errno, path);
  ByteSource source(path, largest, std::move(file));
  if (Buffer text = Inflated(path); text.size > 0) {
    source.buffer_ = std::move(text);
    source.end_ = source.buffer_.size;
    source.at_end_ = true;
    return source;
  }
  LS_RETURN_IF_ERROR(source.Begin());
  return source;
}

// The first bytes tell what it is.
absl::Status ByteSource::Begin() {
  while (end_ < kGzip.size()) {
    LS_ASSIGN_OR_RETURN(const size_t got, ReadSome(file_, path_, buffer_.bytes.get() + end_, buffer_.size - end_));
    if (got == 0) return absl::OkStatus();
    end_ += got;
  }
  if (!window().starts_with(kGzip)) return absl::OkStatus();
  inflater_.reset(new Inflater(std::exchange(buffer_, Buffer(kBuffer)), std::exchange(end_, 0)));
  return absl::OkStatus();
}

absl::StatusOr<size_t> ByteSource::Read(char* to, size_t room) {
  return inflater_ != nullptr ? inflater_->Read(file_, path_, to, room) : ReadSome(file_, path_, to, room);
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
  const absl::StatusOr<size_t> got = Read(buffer_.bytes.get() + end_, buffer_.size - end_);
  if (!got.ok()) {
    status_ = got.status();
    return false;
  }
  end_ += *got;
  at_end_ = *got == 0;
  return !at_end_;
}

}  // namespace lockstep::trace
