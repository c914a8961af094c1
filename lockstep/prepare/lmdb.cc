#include "lockstep/prepare/lmdb.h"

#include <absl/strings/escaping.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

namespace lockstep::prepare {
namespace {

constexpr uint32_t kMagic = 0xBEEFC0DE;
constexpr uint64_t kPageHead = 16, kNodeHead = 8;
constexpr uint16_t kBranch = 1, kLeaf = 2;                    // of a page
constexpr uint16_t kBigData = 1, kSubData = 2, kDupData = 4;  // of a node
constexpr uint64_t kNoRoot = std::numeric_limits<uint64_t>::max();
constexpr int kDeepest = 32;

template <typename T>
T At(Bytes bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// The last commit is that of the two meta pages with the higher transaction.
struct Meta {
  uint64_t page_bytes = 0, root = kNoRoot, transaction = 0;
};

class Tree {
 public:
  explicit Tree(const DataFile& file) : file_(file) {}

  absl::StatusOr<std::vector<LmdbEntry>> List() {
    LS_RETURN_IF_ERROR(ReadMeta());
    if (meta_.root != kNoRoot) LS_RETURN_IF_ERROR(Walk(meta_.root, 0));
    return std::move(entries_);
  }

 private:
  absl::StatusOr<Meta> ReadMetaAt(uint64_t offset) const;
  absl::Status ReadMeta();
  absl::Status Walk(uint64_t page, int depth);
  absl::StatusOr<uint64_t> NodeBytes(Bytes node, uint64_t number, uint16_t kind) const;
  absl::Status TakeNode(Bytes node, uint64_t offset, uint16_t kind, int depth);
  absl::Status TakeLeaf(Bytes node, uint64_t offset);
  absl::Status Wrong(std::string_view what, uint64_t page) const {
    return DataLoss("{}: {} in page {}", file_.path(), what, page);
  }

  const DataFile& file_;
  Meta meta_;
  uint64_t visited_ = 0;
  std::vector<LmdbEntry> entries_;
};

absl::StatusOr<Meta> Tree::ReadMetaAt(uint64_t offset) const {
  constexpr size_t kFree = 24, kMain = kFree + 48, kRoot = 40, kTransaction = 128;
  std::array<uint8_t, kPageHead + 136> bytes;
  LS_RETURN_IF_ERROR(file_.Read(offset, bytes));
  const Bytes meta = Bytes(bytes).subspan(kPageHead);
  if (At<uint32_t>(meta, 0) != kMagic || At<uint32_t>(meta, 4) != 1)
    return InvalidArgument("{}: no LMDB of version 1", file_.path());
  return Meta{At<uint32_t>(meta, kFree), At<uint64_t>(meta, kMain + kRoot), At<uint64_t>(meta, kTransaction)};
}

absl::Status Tree::ReadMeta() {
  LS_ASSIGN_OR_RETURN(const Meta first, ReadMetaAt(0));
  const bool power = (first.page_bytes & (first.page_bytes - 1)) == 0;
  if (!power || first.page_bytes < 512 || first.page_bytes > 65'536)
    return DataLoss("{}: pages of {} bytes", file_.path(), first.page_bytes);
  LS_ASSIGN_OR_RETURN(const Meta second, ReadMetaAt(first.page_bytes));
  meta_ = second.transaction > first.transaction ? second : first;
  meta_.page_bytes = first.page_bytes;
  return absl::OkStatus();
}

absl::Status Tree::Walk(uint64_t number, int depth) {
  const uint64_t pages = file_.size() / meta_.page_bytes;
  if (number >= pages) return Wrong("a link behind the end of the file", number);
  if (depth > kDeepest || ++visited_ > pages) return Wrong("a link that leads in a circle", number);
  std::vector<uint8_t> page(meta_.page_bytes);
  LS_RETURN_IF_ERROR(file_.Read(number * meta_.page_bytes, page));
  const auto kind = At<uint16_t>(page, 10), lower = At<uint16_t>(page, 12);
  if ((kind & ~uint32_t{0x10}) != kBranch && (kind & ~uint32_t{0x10}) != kLeaf)
    return Wrong("another kind of content", number);
  if (lower < kPageHead || lower > page.size()) return Wrong("a damaged header", number);
  // Nodes lie apart, behind what points to them: else a page of pointers to one node would be thousands of items.
  uint64_t left = page.size() - lower;
  for (uint64_t at = kPageHead; at + 2 <= lower; at += 2) {
    const auto begin = At<uint16_t>(page, at);
    if (begin < lower || begin + kNodeHead > page.size()) return Wrong("a damaged entry", number);
    const Bytes node = Bytes(page).subspan(begin);
    LS_ASSIGN_OR_RETURN(const uint64_t bytes, NodeBytes(node, number, kind));
    if (bytes > left) return Wrong("entries that overlap", number);
    left -= bytes;
    LS_RETURN_IF_ERROR(TakeNode(node, number * meta_.page_bytes + begin, kind, depth));
  }
  return absl::OkStatus();
}

// In its page, which has so many.
absl::StatusOr<uint64_t> Tree::NodeBytes(Bytes node, uint64_t number, uint16_t kind) const {
  const uint64_t head = kNodeHead + At<uint16_t>(node, 6);
  if (head > node.size()) return Wrong("a key beyond its page", number);
  if ((kind & kBranch) != 0) return head;
  const uint64_t value = (At<uint16_t>(node, 4) & kBigData) != 0 ? 8 : At<uint32_t>(node, 0);
  if (value > node.size() - head) return Wrong("a value beyond its page", number);
  return head + value;
}

// `offset`: of the node, in the file.
absl::Status Tree::TakeNode(Bytes node, uint64_t offset, uint16_t kind, int depth) {
  const uint64_t low = At<uint32_t>(node, 0);
  if ((kind & kBranch) != 0) return Walk(low | static_cast<uint64_t>(At<uint16_t>(node, 4)) << 32, depth + 1);
  return TakeLeaf(node, offset);
}

absl::Status Tree::TakeLeaf(Bytes node, uint64_t offset) {
  const auto flags = At<uint16_t>(node, 4), key_bytes = At<uint16_t>(node, 6);
  const uint64_t number = offset / meta_.page_bytes;
  if ((flags & (kSubData | kDupData)) != 0)
    return InvalidArgument(
        "{}: it has named databases, or several values of one key: expected keys with one value each", file_.path());
  LmdbEntry entry;
  entry.key.assign(reinterpret_cast<const char*>(node.data()) + kNodeHead, key_bytes);
  entry.bytes = At<uint32_t>(node, 0);
  const uint64_t begin = kNodeHead + key_bytes;
  if ((flags & kBigData) == 0) {
    entry.offset = offset + begin;
  } else {
    const auto page = At<uint64_t>(node, begin);
    if (page >= file_.size() / meta_.page_bytes) return Wrong("a value behind the end of the file", number);
    entry.offset = page * meta_.page_bytes + kPageHead;
  }
  if (entry.bytes > file_.size() - std::min(entry.offset, file_.size()))
    return Wrong("a value that goes beyond the end of the file: it is truncated", number);
  entries_.push_back(std::move(entry));
  return absl::OkStatus();
}

class Lmdb final : public Source {
 public:
  Lmdb(DataFile file, std::vector<LmdbEntry> entries) : file_(std::move(file)), entries_(std::move(entries)) {}
  uint64_t size() const override { return entries_.size(); }
  std::string KeyOf(uint64_t index) const override { return entries_[index].key; }
  uint64_t BytesOf(uint64_t index) const override { return entries_[index].bytes; }
  absl::Status Read(uint64_t index, Buffer& bytes) const override {
    const LmdbEntry& entry = entries_[index];
    LS_RETURN_IF_ERROR(CheckItemBytes(file_.path() + ": " + absl::Utf8SafeCHexEscape(entry.key), entry.bytes));
    return file_.Read(entry.offset, entry.bytes, bytes);
  }

 private:
  DataFile file_;
  std::vector<LmdbEntry> entries_;
};

}  // namespace

absl::StatusOr<std::vector<LmdbEntry>> ListLmdb(const DataFile& file) { return Tree(file).List(); }

absl::StatusOr<std::unique_ptr<Source>> OpenLmdb(DataFile file) {
  LS_ASSIGN_OR_RETURN(std::vector<LmdbEntry> entries, ListLmdb(file));
  if (entries.empty()) return InvalidArgument("{}: it has no items", file.path());
  return std::unique_ptr<Source>(std::make_unique<Lmdb>(std::move(file), std::move(entries)));
}

}  // namespace lockstep::prepare
