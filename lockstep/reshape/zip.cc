#include "lockstep/reshape/zip.h"

#include <zlib.h>

#include <algorithm>

namespace lockstep::reshape {
namespace {

// Of the format (APPNOTE.TXT), little endian: signatures, and the bytes of the fixed parts.
constexpr uint32_t kEndSignature = 0x06054b50, kLargeEndSignature = 0x06064b50, kLocatorSignature = 0x07064b50;
constexpr uint32_t kEntrySignature = 0x02014b50, kHeaderSignature = 0x04034b50;
constexpr size_t kEnd = 22, kLargeEnd = 56, kLocator = 20, kEntry = 46, kHeader = 30;
constexpr uint16_t kLargeExtra = 1;                  // of an entry with numbers of 64 bits
constexpr uint32_t kElsewhere = 0xFFFFFFFF;          // a number that is there
constexpr uint64_t kLargestDirectory = 1ULL << 30U;  // ours

// 0 where the text ends before.
template <typename Number>
Number At(std::string_view text, size_t offset) {
  uint64_t number = 0;
  if (text.size() < sizeof(Number) || offset > text.size() - sizeof(Number)) return 0;
  for (size_t i = sizeof(Number); i-- > 0;) number = number << 8U | static_cast<unsigned char>(text[offset + i]);
  return static_cast<Number>(number);
}

// The numbers of 64 bits of an entry, in the order in which they stand, for those that have no room in it.
bool ReadLarge(std::string_view extra, uint64_t* const (&numbers)[3]) {
  while (extra.size() >= 4) {
    const auto id = At<uint16_t>(extra, 0);
    const size_t bytes = At<uint16_t>(extra, 2);
    if (bytes > extra.size() - 4) return false;
    if (id == kLargeExtra) {
      size_t at = 0;
      for (uint64_t* number : numbers) {
        if (*number != kElsewhere) continue;
        if (at + sizeof(uint64_t) > bytes) return false;
        *number = At<uint64_t>(extra, 4 + at);
        at += sizeof(uint64_t);
      }
      return true;
    }
    extra.remove_prefix(4 + bytes);
  }
  return false;
}

constexpr size_t kPiece = 1ULL << 30U;  // zlib counts in 32 bits

uint32_t Crc32(std::span<const std::byte> data) {
  uLong crc = ::crc32(0, nullptr, 0);
  for (; !data.empty(); data = data.subspan(std::min(kPiece, data.size())))
    crc = ::crc32(crc, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(std::min(kPiece, data.size())));
  return static_cast<uint32_t>(crc);
}

}  // namespace

absl::Status CompareSum(const Slice& entry, std::span<const std::byte> content, std::optional<uint32_t> crc32) {
  const uint32_t crc = Crc32(content);
  if (crc == crc32.value_or(crc)) return absl::OkStatus();
  return DataLoss("{}: the {} bytes at {} have CRC {:#010x}, their archive says {:#010x}: they are damaged", entry.path,
                  content.size(), entry.begin, crc, *crc32);
}

absl::Status Zip::Fail(std::string_view what) const {
  return DataLoss("{}: the {} bytes at {} are no archive of torch.save: {}", archive_.path, archive_.bytes,
                  archive_.begin, what);
}

absl::StatusOr<Zip> Zip::Open(const Slice& archive) {
  Zip zip;
  zip.archive_ = archive;
  LS_RETURN_IF_ERROR(zip.ReadDirectory());
  return zip;
}

absl::StatusOr<Zip::Directory> Zip::FindDirectory() const {
  if (archive_.bytes < kEnd) return Fail("too short");
  const uint64_t end = archive_.bytes - kEnd;
  LS_ASSIGN_OR_RETURN(const std::string text, archive_.Text(end, kEnd));
  if (At<uint32_t>(text, 0) != kEndSignature) return Fail("it has no directory at its end");
  if (end >= kLocator) {
    LS_ASSIGN_OR_RETURN(const std::string locator, archive_.Text(end - kLocator, kLocator));
    if (At<uint32_t>(locator, 0) == kLocatorSignature) return FindLargeDirectory(At<uint64_t>(locator, 8));
  }
  return Directory{.begin = At<uint32_t>(text, 16), .bytes = At<uint32_t>(text, 12)};
}

absl::StatusOr<Zip::Directory> Zip::FindLargeDirectory(uint64_t end) const {
  if (!archive_.Holds(end, kLargeEnd)) return Fail("its directory lies outside");
  LS_ASSIGN_OR_RETURN(const std::string text, archive_.Text(end, kLargeEnd));
  if (At<uint32_t>(text, 0) != kLargeEndSignature) return Fail("it has no directory where it says");
  return Directory{.begin = At<uint64_t>(text, 48), .bytes = At<uint64_t>(text, 40)};
}

absl::Status Zip::ReadDirectory() {
  LS_ASSIGN_OR_RETURN(const Directory directory, FindDirectory());
  if (!archive_.Holds(directory.begin, directory.bytes)) return Fail("its directory lies outside");
  if (directory.bytes > kLargestDirectory) return Fail("its directory is larger than 1 GiB");
  end_ = directory.begin;
  LS_ASSIGN_OR_RETURN(const std::string text, archive_.Text(directory.begin, directory.bytes));
  for (std::string_view rest = text; !rest.empty();) {
    LS_ASSIGN_OR_RETURN(const size_t taken, AddEntry(rest));
    rest.remove_prefix(taken);
  }
  if (!has_sums_) {
    for (auto& [name, entry] : entries_) entry.crc32.reset();
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> Zip::AddEntry(std::string_view rest) {
  if (rest.size() < kEntry || At<uint32_t>(rest, 0) != kEntrySignature) return Fail("its directory is damaged");
  const size_t name_bytes = At<uint16_t>(rest, 28), extra_bytes = At<uint16_t>(rest, 30);
  const size_t bytes = kEntry + name_bytes + extra_bytes + At<uint16_t>(rest, 32);
  if (bytes > rest.size()) return Fail("its directory is cut off");
  const std::string name(rest.substr(kEntry, name_bytes));
  uint64_t stored = At<uint32_t>(rest, 20), real = At<uint32_t>(rest, 24), header = At<uint32_t>(rest, 42);
  const bool large = stored == kElsewhere || real == kElsewhere || header == kElsewhere;
  if (large && !ReadLarge(rest.substr(kEntry + name_bytes, extra_bytes), {&real, &stored, &header}))
    return Fail(fmt::format("entry {} lacks its sizes", name));
  if ((At<uint16_t>(rest, 8) & 1U) != 0) return Fail(fmt::format("entry {} is encrypted", name));
  if (At<uint16_t>(rest, 10) != 0 || stored != real)
    return Fail(fmt::format("entry {} is compressed; torch.save stores", name));
  if (header > end_ || stored > end_ - header)
    return Fail(fmt::format("entry {} of {} bytes at {} lies outside", name, stored, header));
  has_sums_ |= At<uint32_t>(rest, 16) != 0;
  if (!entries_.emplace(name, ZipEntry{header, stored, At<uint32_t>(rest, 16)}).second)
    return Fail(fmt::format("entry {} comes twice", name));
  return bytes;
}

absl::StatusOr<Slice> Zip::Find(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end())
    return NotFound("{}: the archive at {} has no entry {}", archive_.path, archive_.begin, name);
  const ZipEntry& entry = found->second;
  LS_ASSIGN_OR_RETURN(const std::string header, archive_.Text(entry.header, kHeader));
  if (At<uint32_t>(header, 0) != kHeaderSignature) return Fail(fmt::format("entry {} has no header", name));
  const uint64_t begin = entry.header + kHeader + At<uint16_t>(header, 26) + At<uint16_t>(header, 28);
  if (begin > end_ || entry.bytes > end_ - begin) return Fail(fmt::format("entry {} lies outside", name));
  return Slice{archive_.disk, archive_.path, archive_.begin + begin, entry.bytes};
}

}  // namespace lockstep::reshape
