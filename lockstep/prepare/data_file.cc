#include "lockstep/prepare/data_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "lockstep/base/file.h"

namespace lockstep::prepare {
namespace {

struct LocalFile {
  Fd fd;
  uint64_t size = 0;
  timespec written{};  // last
};

absl::StatusOr<LocalFile> OpenLocal(const std::string& path) {
  // Not blocking: a named pipe must not hold us.
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return Errno(errno, "{}", path);
  struct stat about{};
  if (fstat(fd.get(), &about) != 0) return Errno(errno, "{}", path);
  if (!S_ISREG(about.st_mode)) return InvalidArgument("{}: expected a regular file", path);
  return LocalFile{std::move(fd), static_cast<uint64_t>(about.st_size), about.st_mtim};
}

absl::Status ReadLocal(const std::string& path, const Fd& fd, uint64_t offset, std::span<uint8_t> bytes) {
  const size_t done = ReadAt(fd.get(), std::as_writable_bytes(bytes), offset);
  if (done == bytes.size()) return absl::OkStatus();
  if (errno != 0) return Errno(errno, "{}", path);
  return DataLoss("{}: it ends before byte {}: expected {} bytes from {} on (was it cut short since it was opened?)",
                  path, offset + done, bytes.size(), offset);
}

}  // namespace

absl::Status CheckItemBytes(const std::string& name, uint64_t bytes) {
  if (bytes <= kMaxItemBytes) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted,
                   fmt::format("{}: {} bytes: the limit of an item is {}", name, bytes, kMaxItemBytes));
}

absl::Status DataFile::Read(uint64_t offset, std::span<uint8_t> bytes) const {
  if (remote_) return remote_->Read(offset, bytes);
  LS_ASSIGN_OR_RETURN(const LocalFile file, OpenLocal(path_));
  const absl::Status read = ReadLocal(path_, file.fd, offset, bytes);
  // Now, for it may have been written to meanwhile. By size and time, as rsync tells files apart, and not by number:
  // some file systems (FUSE) number a file anew whenever they have forgotten it.
  struct stat now{};
  if (fstat(file.fd.get(), &now) != 0) return Errno(errno, "{}", path_);
  const bool same = static_cast<uint64_t>(now.st_size) == size_ && now.st_mtim.tv_sec == written_.tv_sec &&
                    now.st_mtim.tv_nsec == written_.tv_nsec;
  return same ? read : HasChanged(path_);
}

absl::StatusOr<DataFile> Files::Open(const std::string& path) {
  DataFile file;
  file.path_ = WithoutQuery(path);
  if (!IsUrl(path)) {
    LS_ASSIGN_OR_RETURN(const LocalFile local, OpenLocal(path));
    file.size_ = local.size;
    file.written_ = local.written;
    return file;
  }
  const absl::StatusOr<http::Url> url = http::ParseUrl(path);
  if (!url.ok()) return InvalidArgument("{}: {}", file.path_, Message(url.status()));
  LS_ASSIGN_OR_RETURN(file.remote_, HttpFile::Open(path, url->target, OriginOf(*url)));
  file.size_ = file.remote_->size();
  return file;
}

absl::Status Files::ReadRemote(const std::string& url, Buffer& bytes) {
  const absl::StatusOr<http::Url> parsed = http::ParseUrl(url);
  if (!parsed.ok()) return InvalidArgument("{}: {}", WithoutQuery(url), Message(parsed.status()));
  return GetWhole(url, parsed->target, *OriginOf(*parsed), kMaxItemBytes, bytes);
}

std::shared_ptr<HttpOrigin> Files::OriginOf(const http::Url& url) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<HttpOrigin>& origin = origins_[url.Origin()];
  if (origin == nullptr) origin = std::make_shared<HttpOrigin>(url.Origin(), patience_);
  return origin;
}

absl::StatusOr<std::string> Files::ReadText(const std::string& path) {
  constexpr uint64_t kMaxText = 64 << 20;
  LS_ASSIGN_OR_RETURN(const DataFile file, Open(path));
  if (file.size() > kMaxText)
    return InvalidArgument("{}: {} bytes: expected a text of at most {}", file.path(), file.size(), kMaxText);
  std::string text(file.size(), '\0');
  LS_RETURN_IF_ERROR(file.Read(0, {reinterpret_cast<uint8_t*>(text.data()), text.size()}));
  return text;
}

void Files::Stop() {
  const std::lock_guard lock(mutex_);
  for (const auto& [endpoint, origin] : origins_) origin->Stop();
}

bool IsUrl(std::string_view path) { return path.starts_with("http://") || path.starts_with("https://"); }

std::string_view WithoutQuery(std::string_view path) { return IsUrl(path) ? path.substr(0, path.find('?')) : path; }

std::string NameOf(std::string_view path) { return std::filesystem::path(WithoutQuery(path)).filename().string(); }

std::string ExtensionOf(std::string_view path) { return std::filesystem::path(NameOf(path)).extension().string(); }

absl::Status NearReader::Read(uint64_t offset, std::span<uint8_t> bytes) {
  const bool is_near =
      offset >= begin_ && bytes.size() <= near_.size() && offset - begin_ <= near_.size() - bytes.size();
  if (!is_near) {
    const uint64_t left = file_.size() - std::min(offset, file_.size());
    Buffer next;
    LS_RETURN_IF_ERROR(file_.Read(offset, std::max<uint64_t>(bytes.size(), std::min(kAhead, left)), next));
    near_ = std::move(next);
    begin_ = offset;
  }
  std::copy_n(near_.data() + (offset - begin_), bytes.size(), bytes.data());
  return absl::OkStatus();
}

absl::Status ReadWhole(const std::string& path, Buffer& bytes) {
  LS_ASSIGN_OR_RETURN(const LocalFile file, OpenLocal(path));
  LS_RETURN_IF_ERROR(CheckItemBytes(path, file.size));
  bytes.Resize(file.size);
  return ReadLocal(path, file.fd, 0, {bytes.data(), bytes.size()});
}

}  // namespace lockstep::prepare
