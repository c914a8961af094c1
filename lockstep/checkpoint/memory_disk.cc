#include "lockstep/checkpoint/memory_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace lockstep::checkpoint {
namespace {

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }
std::string NameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

class MemoryFile final : public DiskFile {
 public:
  MemoryFile(MemoryDisk& disk, int inode) : disk_(disk), inode_(inode) {}
  absl::Status Append(std::span<const std::byte> data) override {
    const std::string text(reinterpret_cast<const char*>(data.data()), data.size());
    const bool cut = disk_.short_write && disk_.operations == disk_.fail_at;
    if (cut) disk_.Apply({Operation::kAppend, inode_, 0, "", "", text.substr(0, text.size() / 2)});
    return disk_.Do({Operation::kAppend, inode_, 0, "", "", text});
  }
  absl::Status Sync() override { return disk_.Do({Operation::kSync, inode_, 0, "", "", ""}); }

 private:
  MemoryDisk& disk_;
  int inode_;
};

std::optional<int> MemoryDisk::Find(const std::string& path) const {
  int at = 0;
  for (size_t begin = 1; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const auto found = inodes_[static_cast<size_t>(at)].entries.find(path.substr(begin, end - begin));
    if (found == inodes_[static_cast<size_t>(at)].entries.end()) return std::nullopt;
    at = found->second;
    begin = end + 1;
  }
  return at;
}

absl::Status MemoryDisk::MayFail(const std::string& what) {
  const int number = operations++;
  const bool fails = number == fail_at || (dead && fail_at >= 0 && number > fail_at);
  return fails ? Errno(error, "{}", what) : absl::OkStatus();
}

absl::Status MemoryDisk::Do(Operation operation) {
  LS_RETURN_IF_ERROR(MayFail("disk"));
  Apply(operation);
  log.push_back(std::move(operation));
  return absl::OkStatus();
}

void MemoryDisk::Apply(const Operation& operation) {
  Inode& inode = inodes_[static_cast<size_t>(operation.inode)];
  auto& entries = inodes_[static_cast<size_t>(operation.directory)].entries;
  if (operation.kind == Operation::kAppend) inode.data += operation.data;
  if (operation.kind == Operation::kSync) inode.synced = inode.data.size();
  if (operation.kind != Operation::kEntry) return;
  if (!operation.from.empty()) entries.erase(operation.from);
  if (!operation.to.empty()) entries[operation.to] = operation.inode;
}

absl::StatusOr<int> MemoryDisk::Make(const std::string& path, bool directory) {
  const std::optional<int> folder = Find(FolderOf(path));
  if (!folder) return Errno(ENOENT, "{}", path);
  if (Find(path)) return Errno(EEXIST, "{}", path);
  const int inode = static_cast<int>(inodes_.size());
  inodes_.push_back({directory, "", 0, {}});
  LS_RETURN_IF_ERROR(Do({Operation::kEntry, inode, *folder, "", NameOf(path), ""}));
  return inode;
}

absl::StatusOr<std::unique_ptr<DiskFile>> MemoryDisk::Create(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const int inode, Make(path, false));
  return std::make_unique<MemoryFile>(*this, inode);
}

absl::Status MemoryDisk::Rename(const std::string& from, const std::string& to) {
  const std::optional<int> inode = Find(from), folder = Find(FolderOf(from)), taken = Find(to);
  if (!inode || !folder) return Errno(ENOENT, "{}", from);
  if (taken) return Errno(ENOTEMPTY, "{}", to);
  return Do({Operation::kEntry, *inode, *folder, NameOf(from), NameOf(to), ""});
}

absl::Status MemoryDisk::Remove(const std::string& path) {
  const std::optional<int> inode = Find(path), folder = Find(FolderOf(path));
  if (!inode || !folder) return Errno(ENOENT, "{}", path);
  if (!inodes_[static_cast<size_t>(*inode)].entries.empty()) return Errno(ENOTEMPTY, "{}", path);
  return Do({Operation::kEntry, *inode, *folder, NameOf(path), "", ""});
}

absl::Status MemoryDisk::SyncDirectory(const std::string& path) {
  const std::optional<int> inode = Find(path);
  if (!inode) return Errno(ENOENT, "{}", path);
  return Do({Operation::kSyncDirectory, *inode, 0, "", "", ""});
}

bool MemoryDisk::IsDirectory(const std::string& path) {
  const std::optional<int> inode = Find(path);
  return inode && inodes_[static_cast<size_t>(*inode)].directory;
}

absl::StatusOr<std::vector<std::string>> MemoryDisk::List(const std::string& path) {
  const std::optional<int> inode = Find(path);
  if (!inode || !inodes_[static_cast<size_t>(*inode)].directory) return Errno(ENOENT, "{}", path);
  std::vector<std::string> names;
  for (const auto& [name, entry] : inodes_[static_cast<size_t>(*inode)].entries) names.push_back(name);
  return names;
}

absl::StatusOr<uint64_t> MemoryDisk::Size(const std::string& path) {
  if (read_error != 0) return Errno(read_error, "{}", path);
  const std::optional<int> inode = Find(path);
  if (!inode) return Errno(ENOENT, "{}", path);
  return inodes_[static_cast<size_t>(*inode)].data.size();
}

absl::Status MemoryDisk::Read(const std::string& path, uint64_t offset, std::span<std::byte> data) {
  if (read_error != 0) return Errno(read_error, "{}", path);
  const std::optional<int> inode = Find(path);
  if (!inode) return Errno(ENOENT, "{}", path);
  const auto& content = inodes_[static_cast<size_t>(*inode)].data;
  if (offset > content.size() || data.size() > content.size() - offset) return DataLoss("{} is too short", path);
  std::memcpy(data.data(), content.data() + offset, data.size());
  return absl::OkStatus();
}

// Which of the first `count` operations no crash can undo.
std::vector<bool> MemoryDisk::Durable(size_t count) const {
  std::vector<bool> durable(count, false);
  std::map<int, bool> synced;  // directories, looking back from the crash
  for (size_t i = count; i-- > 0;) {
    if (log[i].kind == Operation::kSyncDirectory) synced[log[i].inode] = true;
    durable[i] = log[i].kind != Operation::kEntry || synced[log[i].directory];
  }
  return durable;
}

size_t MemoryDisk::Loose(size_t count) const {
  const std::vector<bool> durable = Durable(count);
  return static_cast<size_t>(std::count(durable.begin(), durable.end(), false));
}

std::unique_ptr<MemoryDisk> MemoryDisk::Crash(const MemoryDisk& before, size_t count, uint64_t stays,
                                              Unsynced data) const {
  auto disk = std::make_unique<MemoryDisk>();
  disk->inodes_ = before.inodes_;
  disk->inodes_.resize(inodes_.size());
  for (size_t i = 0; i < inodes_.size(); ++i) disk->inodes_[i].directory = inodes_[i].directory;
  const std::vector<bool> durable = Durable(count);
  for (size_t i = 0, loose = 0; i < count; ++i) {
    if (durable[i] || (stays >> loose++ & 1) != 0) disk->Apply(log[i]);
  }
  for (Inode& inode : disk->inodes_) {
    const size_t lost = inode.data.size() - inode.synced;
    if (data == Unsynced::kDropped) inode.data.resize(inode.synced);
    if (data == Unsynced::kTorn) inode.data.resize(inode.synced + lost / 2);
    if (data == Unsynced::kZeros) std::fill_n(inode.data.rbegin(), lost, '\0');
  }
  return disk;
}

}  // namespace lockstep::checkpoint
