#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "lockstep/base/file.h"
#include "lockstep/checkpoint/disk.h"

namespace lockstep::checkpoint {
namespace {

class PosixFile : public DiskFile {
 public:
  PosixFile(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  absl::Status Append(std::span<const std::byte> data) override {
    while (!data.empty()) {
      const ssize_t wrote = write(fd_.get(), data.data(), data.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return Errno(errno, "writing {}", path_);
      data = data.subspan(static_cast<size_t>(wrote));
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (fdatasync(fd_.get()) != 0) return Errno(errno, "syncing {}", path_);
    posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
    return absl::OkStatus();
  }

 private:
  Fd fd_;
  std::string path_;
};

absl::Status Done(int result, const char* what, const std::string& path) {
  return result == 0 ? absl::OkStatus() : Errno(errno, "{} {}", what, path);
}

class RealDisk : public Disk {
 public:
  absl::Status MakeDirectory(const std::string& path) override {
    if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
    return Errno(errno, "making {}", path);
  }
  absl::StatusOr<std::unique_ptr<DiskFile>> Create(const std::string& path) override {
    Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd.valid()) return Errno(errno, "making {}", path);
    return std::make_unique<PosixFile>(std::move(fd), path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return Done(rename(from.c_str(), to.c_str()), "renaming to", to);
  }
  absl::Status RemoveFile(const std::string& path) override { return Done(unlink(path.c_str()), "removing", path); }
  absl::Status RemoveDirectory(const std::string& path) override { return Done(rmdir(path.c_str()), "removing", path); }
  absl::Status SyncDirectory(const std::string& path) override {
    const Fd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid()) return Errno(errno, "opening {}", path);
    return Done(fsync(fd.get()), "syncing", path);
  }
  bool IsDirectory(const std::string& path) override {
    struct stat info{};
    return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;
  absl::StatusOr<uint64_t> Size(const std::string& path) override {
    struct stat info{};
    if (stat(path.c_str(), &info) != 0) {
      // A person's file has the name of a checkpoint, whose files would lie in it.
      if (errno == ENOTDIR) return DataLoss("{}: {}", path, strerror(ENOTDIR));
      return Errno(errno, "{}", path);
    }
    if (!S_ISREG(info.st_mode)) return DataLoss("{} is not a file", path);
    return static_cast<uint64_t>(info.st_size);
  }
  absl::Status Read(const std::string& path, uint64_t offset, std::span<std::byte> data) override;
};

absl::StatusOr<std::vector<std::string>> RealDisk::List(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), closedir);
  if (!folder) return Errno(errno, "{}", path);
  std::vector<std::string> names;
  while (const dirent* entry = readdir(folder.get())) {
    if (std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0) names.push_back(entry->d_name);
  }
  return names;
}

absl::Status RealDisk::Read(const std::string& path, uint64_t offset, std::span<std::byte> data) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return Errno(errno, "{}", path);
  const size_t done = ReadAt(fd.get(), data, offset);
  if (done == data.size()) return absl::OkStatus();
  if (errno != 0) return Errno(errno, "reading {}", path);
  return DataLoss("{} ends at {}, expected {} bytes more", path, offset + done, data.size() - done);
}

}  // namespace

std::unique_ptr<Disk> PosixDisk() { return std::make_unique<RealDisk>(); }

}  // namespace lockstep::checkpoint
