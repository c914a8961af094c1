// The zip archives that torch.save writes: entries that are stored, not compressed, so that a tensor's bytes lie in the
// file as they are. What such an archive never has (compression, encryption, parts on other disks) is refused, and so
// is an entry that does not lie wholly before the directory.
//
//   LS_ASSIGN_OR_RETURN(const Zip zip, Zip::Open(slice));
//   LS_ASSIGN_OR_RETURN(const Slice record, zip.Find("archive/data.pkl"));
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "lockstep/reshape/slice.h"

namespace lockstep::reshape {

struct ZipEntry {
  uint64_t header = 0;  // in the archive
  uint64_t bytes = 0;
  std::optional<uint32_t> crc32 = {};  // none: the archive was written without sums
};

class Zip {
 public:
  // Reads the directory. Errors begin with the path.
  static absl::StatusOr<Zip> Open(const Slice& archive);

  // Sorted by name.
  const std::map<std::string, ZipEntry, std::less<>>& entries() const { return entries_; }
  // False: every entry says 0, as torch.serialization.set_crc32_options(False) has it, and nothing can be compared.
  bool has_sums() const { return has_sums_; }
  // Where the content of an entry lies; reads its header. kNotFound if there is none of that name.
  absl::StatusOr<Slice> Find(std::string_view name) const;

 private:
  struct Directory {
    uint64_t begin = 0, bytes = 0;
  };
  absl::Status Fail(std::string_view what) const;
  absl::StatusOr<Directory> FindDirectory() const;
  absl::StatusOr<Directory> FindLargeDirectory(uint64_t end) const;
  absl::Status ReadDirectory();
  absl::StatusOr<size_t> AddEntry(std::string_view rest);

  Slice archive_;
  uint64_t end_ = 0;  // of the entries: where the directory begins
  bool has_sums_ = false;
  std::map<std::string, ZipEntry, std::less<>> entries_;
};

// kDataLoss: what was read of an entry has another CRC-32 than its archive says, if it says one.
absl::Status CompareSum(const Slice& entry, std::span<const std::byte> content, std::optional<uint32_t> crc32);

}  // namespace lockstep::reshape
