#include "lockstep/prepare/tar.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "lockstep/base/number.h"

namespace lockstep::prepare {
namespace {

constexpr uint64_t kBlock = 512;
constexpr uint64_t kMaxText = 1 << 20;  // of a long name, or of a pax header
// What tar writes at once, if not told otherwise. Two blocks of zeros end an archive, and fill the record they are in.
constexpr uint64_t kRecord = 20 * kBlock, kMaxEnd = kRecord + kBlock;

using Block = std::array<uint8_t, kBlock>;

std::string_view Field(const Block& block, size_t at, size_t size) {
  const std::string_view field(reinterpret_cast<const char*>(block.data()) + at, size);
  return field.substr(0, std::min(field.find('\0'), field.size()));
}

std::optional<uint64_t> Octal(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  text = text.substr(0, std::min(text.find(' '), text.size()));
  return text.empty() ? 0 : WholeNumber<uint64_t>(text, 8);
}

// Twelve bytes: octal digits or, where the first bit is set, a number in base 256 (GNU).
std::optional<uint64_t> SizeOf(const Block& block) {
  constexpr size_t kAt = 124, kDigits = 12;
  if ((block[kAt] & 0x80) == 0) return Octal(Field(block, kAt, kDigits));
  uint64_t value = block[kAt] & 0x7F;
  for (size_t i = 1; i < kDigits; ++i) {
    if (value >> 54 != 0) return std::nullopt;  // no file is that large
    value = value << 8 | block[kAt + i];
  }
  return value;
}

// The sum of all bytes, those of the sum itself as blanks; old archives sum signed bytes.
bool SumIsRight(const Block& block) {
  constexpr size_t kAt = 148, kDigits = 8;
  int64_t plain = 0, of_signed = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    const uint8_t byte = i >= kAt && i < kAt + kDigits ? ' ' : block[i];
    plain += byte;
    of_signed += static_cast<int8_t>(byte);
  }
  const std::optional<uint64_t> written = Octal(Field(block, kAt, kDigits));
  return written && (static_cast<int64_t>(*written) == plain || static_cast<int64_t>(*written) == of_signed);
}

std::string NameOf(const Block& block) {
  std::string name(Field(block, 0, 100));
  const std::string_view prefix = Field(block, 345, 155);
  const bool posix = Field(block, 257, 6) == "ustar" && block[263] == '0';  // GNU's has other fields there
  return posix && !prefix.empty() ? std::string(prefix) + "/" + name : name;
}

// What a pax header says of the member behind it: lines "LENGTH KEY=VALUE\n".
struct PaxNotes {
  std::optional<std::string> path;
  std::optional<uint64_t> size;
  bool is_sparse = false;
};

bool TakePaxLine(std::string_view line, PaxNotes& notes) {
  const size_t equals = line.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view key = line.substr(0, equals), value = line.substr(equals + 1);
  if (key == "path") notes.path = value;
  if (key.starts_with("GNU.sparse.")) notes.is_sparse = true;
  if (key != "size") return true;
  notes.size = WholeNumber<uint64_t>(value);
  return notes.size.has_value();
}

bool TakePax(std::string_view text, PaxNotes& notes) {
  while (!text.empty() && text[0] != '\0') {
    std::string_view rest = text;
    const size_t length = TakeNumber<size_t>(rest).value_or(0), digits = text.size() - rest.size();
    if (length > text.size() || length < digits + 2 || text[digits] != ' ') return false;
    if (text[length - 1] != '\n' || !TakePaxLine(text.substr(digits + 1, length - digits - 2), notes)) return false;
    text.remove_prefix(length);
  }
  return true;
}

class Lister {
 public:
  explicit Lister(NearReader& near) : near_(near), file_(near.file()) {}
  absl::StatusOr<TarList> List() {
    for (;;) {
      LS_ASSIGN_OR_RETURN(const bool more, Next());
      if (!more) return std::move(list_);
    }
  }

 private:
  absl::StatusOr<bool> Next();
  absl::Status Take(const Block& block, uint64_t bytes);
  absl::Status CheckEnd();
  absl::StatusOr<std::string> Text(uint64_t bytes);
  absl::Status Wrong(std::string_view what) const {
    return DataLoss("{}: {} in the header at byte {}", file_.path(), what, at_);
  }

  NearReader& near_;
  const DataFile& file_;
  TarList list_;
  PaxNotes notes_;
  uint64_t at_ = 0;
};

absl::StatusOr<std::string> Lister::Text(uint64_t bytes) {
  if (bytes > kMaxText) return Wrong("a name of more than a megabyte");
  std::string text(bytes, '\0');
  LS_RETURN_IF_ERROR(near_.Read(at_ + kBlock, {reinterpret_cast<uint8_t*>(text.data()), text.size()}));
  return text;
}

absl::Status Lister::Take(const Block& block, uint64_t bytes) {
  const char type = static_cast<char>(block[156]);
  if (type == 'x' || type == 'L') {  // of the next member: pax, or GNU's long name
    LS_ASSIGN_OR_RETURN(const std::string text, Text(bytes));
    if (type == 'L') notes_.path = text.substr(0, text.find('\0'));
    if (type == 'x' && !TakePax(text, notes_)) return Wrong("a damaged pax header");
    return absl::OkStatus();
  }
  if (type == 'g') return absl::OkStatus();  // of all members: nothing of it matters here
  const std::string name = notes_.path ? *notes_.path : NameOf(block);
  if (type == 'S' || notes_.is_sparse)
    return InvalidArgument("{}: {} is sparse: expected an archive that tar wrote without -S", file_.path(), name);
  if (type == '0' || type == '\0' || type == '7') {
    list_.members.push_back({name, at_ + kBlock, bytes, {}});
    if (bytes <= kMaxShort) {
      LS_ASSIGN_OR_RETURN(list_.members.back().text, Text(bytes));
    }
  } else if (type != '5' && type != 'K') {
    ++list_.others;
  }
  notes_ = {};
  return absl::OkStatus();
}

absl::Status Lister::CheckEnd() {
  const uint64_t rest = file_.size() - at_;
  std::vector<uint8_t> end(std::min(rest, kMaxEnd + kBlock));  // what follows a record of zeros is looked at, too
  LS_RETURN_IF_ERROR(near_.Read(at_, end));
  const auto other = std::find_if(end.begin(), end.end(), [](uint8_t byte) { return byte != 0; });
  if (other != end.end())
    return DataLoss(
        "{}: a block of zeros at byte {} ends the archive, but byte {} is not 0: expected no damaged header, and no "
        "archive behind another (tar --concatenate joins them)",
        file_.path(), at_, at_ + static_cast<uint64_t>(other - end.begin()));
  if (rest > kMaxEnd)
    return DataLoss(
        "{}: {} bytes of zeros from byte {} on: expected at most {} behind the last member. Was it written to the end? "
        "If so, in larger records than usual (tar -b): then truncate --size={} leaves out what is too much",
        file_.path(), rest, at_, kMaxEnd, at_ + 2 * kBlock);
  return absl::OkStatus();
}

absl::StatusOr<bool> Lister::Next() {
  // A block of zeros ends it; so does the end of the file, for some writers leave that out.
  if (at_ == file_.size()) return false;
  if (file_.size() - at_ < kBlock) return Wrong("the end of the file");
  Block block;
  LS_RETURN_IF_ERROR(near_.Read(at_, block));
  if (std::all_of(block.begin(), block.end(), [](uint8_t byte) { return byte == 0; })) {
    LS_RETURN_IF_ERROR(CheckEnd());
    list_.has_end = true;
    return false;
  }
  if (!SumIsRight(block)) return Wrong(list_.members.empty() ? "no tar archive: a wrong sum" : "a wrong sum");
  std::optional<uint64_t> bytes = SizeOf(block);
  const char type = static_cast<char>(block[156]);
  const bool of_next = type == 'x' || type == 'L' || type == 'K' || type == 'g';
  if (notes_.size && !of_next) bytes = notes_.size;
  if (type >= '1' && type <= '6') bytes = 0;  // links, devices and folders have no content
  if (!bytes) return Wrong("a damaged size");
  if (*bytes > file_.size() - at_ - kBlock)
    return Wrong("a member that goes beyond the end of the file: it is truncated");
  const uint64_t padded = (*bytes + kBlock - 1) / kBlock * kBlock;
  if (padded > file_.size() - at_ - kBlock)
    return Wrong("a member whose padding goes beyond the end of the file: it is truncated");
  LS_RETURN_IF_ERROR(Take(block, *bytes));
  at_ += kBlock + padded;
  return true;
}

}  // namespace

absl::StatusOr<TarList> ListTar(NearReader& file) { return Lister(file).List(); }

}  // namespace lockstep::prepare
