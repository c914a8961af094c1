// Test support: a disk in memory that writes down what is done to it, fails where it is told to, and shows what a crash
// could leave: synced data whole, data that was not synced in any state, and of the changes of directories that were
// not synced any subset.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/disk.h"

namespace lockstep::checkpoint {

struct Inode {
  bool directory = false;
  std::string data;
  size_t synced = 0;
  std::map<std::string, int> entries;
};

// Entry changes name the directory; `from` and `to` are names in it, either empty: made, or removed.
struct Operation {
  enum Kind { kEntry, kAppend, kSync, kSyncDirectory } kind;
  int inode = 0;  // that is entered, written or synced
  int directory = 0;
  std::string from, to, data;
};

enum class Unsynced { kKept, kDropped, kTorn, kZeros };

class MemoryDisk : public Disk {
 public:
  MemoryDisk() : inodes_(1) { inodes_[0].directory = true; }

  std::vector<Operation> log;
  int fail_at = -1;    // the operation of this number, counted from 0, fails; so do all after it if `dead`
  int error = 0;       // errno
  int read_error = 0;  // errno of whatever is read of files; 0: none
  bool short_write = false, dead = false;
  int operations = 0;

  absl::Status MakeDirectory(const std::string& path) override {
    const absl::Status made = Make(path, true).status();
    return absl::IsAlreadyExists(made) ? absl::OkStatus() : made;
  }
  absl::StatusOr<std::unique_ptr<DiskFile>> Create(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status RemoveFile(const std::string& path) override { return Remove(path); }
  absl::Status RemoveDirectory(const std::string& path) override { return Remove(path); }
  absl::Status SyncDirectory(const std::string& path) override;
  bool IsDirectory(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;
  absl::StatusOr<uint64_t> Size(const std::string& path) override;
  absl::Status Read(const std::string& path, uint64_t offset, std::span<std::byte> data) override;

  // How many entry changes among the first `count` operations a crash may still lose.
  size_t Loose(size_t count) const;
  // This disk as it was before `log`, then the first `count` operations, then a crash: of the loose changes those stay
  // whose bit is set.
  std::unique_ptr<MemoryDisk> Crash(const MemoryDisk& before, size_t count, uint64_t stays, Unsynced data) const;

 private:
  friend class MemoryFile;
  std::optional<int> Find(const std::string& path) const;
  absl::StatusOr<int> Make(const std::string& path, bool directory);
  absl::Status Remove(const std::string& path);
  absl::Status Do(Operation operation);
  void Apply(const Operation& operation);
  absl::Status MayFail(const std::string& what);
  std::vector<bool> Durable(size_t count) const;

  std::vector<Inode> inodes_;
};

}  // namespace lockstep::checkpoint
