#include "lockstep/prepare/pack.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "lockstep/base/check.h"
#include "lockstep/prepare/records.h"

namespace lockstep::prepare {
namespace {

constexpr uint64_t kBlock = 4 << 20;  // bytes that are looked through at once

// Of documents, each cut into pieces that a row has room for.
std::vector<Piece> PiecesOf(std::span<const uint64_t> ends, uint64_t capacity) {
  std::vector<Piece> pieces;
  uint64_t begin = 0;
  for (const uint64_t end : ends) {
    for (; end - begin > capacity; begin += capacity - 1) pieces.push_back({begin, capacity});
    pieces.push_back({begin, end - begin});
    begin = end;
  }
  return pieces;
}

// Which row each piece comes into, the longest first.
std::vector<uint64_t> RowsByBestFit(std::span<const Piece> pieces, std::span<const uint64_t> order, uint64_t capacity) {
  std::vector<uint64_t> row_of(pieces.size());
  std::map<uint64_t, std::vector<uint64_t>> open;  // rows, by the room they have
  uint64_t rows = 0;
  for (const uint64_t piece : order) {
    const uint64_t count = pieces[piece].count;
    uint64_t room = capacity, row = rows;
    if (const auto best = open.lower_bound(count); best != open.end()) {
      room = best->first;
      row = best->second.back();
      best->second.pop_back();
      if (best->second.empty()) open.erase(best);
    } else {
      ++rows;
    }
    row_of[piece] = row;
    if (room > count) open[room - count].push_back(row);
  }
  return row_of;
}

class Packed final : public Source {
 public:
  Packed(DataFile file, int token_bytes, uint64_t capacity, Packing packing)
      : file_(std::move(file)), token_bytes_(token_bytes), capacity_(capacity), packing_(std::move(packing)) {
    const auto side = static_cast<int64_t>(capacity);
    format_ = {ItemKind::kTokens, "<i8", {3, side}, 3 * capacity * sizeof(int64_t)};
  }
  uint64_t size() const override { return packing_.size(); }
  std::string KeyOf(uint64_t index) const override { return NameOf(file_.path()) + "/" + std::to_string(index); }
  uint64_t BytesOf(uint64_t) const override { return format_.bytes + capacity_ * static_cast<uint64_t>(token_bytes_); }
  absl::Status Read(uint64_t index, Buffer& bytes) const override;

 private:
  absl::Status ReadTokens(std::span<const Piece> pieces, std::span<int64_t> tokens) const;

  DataFile file_;
  int token_bytes_;
  uint64_t capacity_;
  Packing packing_;
};

absl::Status Packed::ReadTokens(std::span<const Piece> pieces, std::span<int64_t> tokens) const {
  const auto width = static_cast<uint64_t>(token_bytes_);
  Buffer read;
  for (size_t first = 0; first < pieces.size();) {
    // What lies together is read at once.
    size_t last = first;
    uint64_t count = pieces[first].count;
    while (last + 1 < pieces.size() && pieces[last + 1].begin == pieces[first].begin + count)
      count += pieces[++last].count;
    LS_RETURN_IF_ERROR(file_.Read(pieces[first].begin * width, count * width, read));
    WidenTokens(read.bytes(), token_bytes_, tokens.first(count));
    tokens = tokens.subspan(count);
    first = last + 1;
  }
  return absl::OkStatus();
}

absl::Status Packed::Read(uint64_t index, Buffer& bytes) const {
  bytes.Resize(format_.bytes);
  const std::span<int64_t> row(reinterpret_cast<int64_t*>(bytes.data()), 3 * capacity_);
  std::fill(row.begin(), row.end(), 0);
  const std::span<const Piece> pieces = packing_.Row(index);
  LS_RETURN_IF_ERROR(ReadTokens(pieces, row.first(capacity_)));
  uint64_t at = 0;
  for (size_t piece = 0; piece < pieces.size(); ++piece)
    for (uint64_t place = 0; place < pieces[piece].count; ++place, ++at) {
      row[capacity_ + at] = static_cast<int64_t>(piece + 1);
      row[2 * capacity_ + at] = static_cast<int64_t>(place);
    }
  return absl::OkStatus();
}

template <typename Token>
void FindEnds(Bytes block, uint64_t first, uint64_t end_token, std::vector<uint64_t>& ends) {
  Token token;
  for (uint64_t i = 0; i < block.size() / sizeof token; ++i) {
    std::memcpy(&token, block.data() + i * sizeof token, sizeof token);
    if (token == end_token) ends.push_back(first + i + 1);
  }
}

absl::StatusOr<std::vector<uint64_t>> EndsByToken(const DataFile& file, int token_bytes, uint64_t end_token) {
  const auto width = static_cast<uint64_t>(token_bytes);
  if (end_token >> (8 * width) != 0)
    return InvalidArgument("{}: no token of {} bytes is {}", file.path(), width, end_token);
  std::vector<uint64_t> ends;
  Buffer block;
  for (uint64_t at = 0; at < file.size(); at += kBlock) {
    LS_RETURN_IF_ERROR(file.Read(at, std::min(kBlock, file.size() - at), block));
    if (width == 2) {
      FindEnds<uint16_t>(block.bytes(), at / width, end_token, ends);
    } else {
      FindEnds<uint32_t>(block.bytes(), at / width, end_token, ends);
    }
  }
  if (ends.empty())
    return InvalidArgument("{}: no document in it ends with token {}: is that the right one?", file.path(), end_token);
  if (const uint64_t tokens = file.size() / width; ends.back() != tokens) ends.push_back(tokens);
  return ends;
}

absl::StatusOr<std::vector<int64_t>> ReadOffsets(const DataFile& file) {
  const absl::StatusOr<RecordLayout> layout = NpyLayout(file);
  if (!layout.ok()) return At(file.path(), layout.status());
  const ItemFormat& format = layout->format;
  if (!format.shape.empty() || (format.dtype != "<i8" && format.dtype != "<u8"))
    return InvalidArgument("{}: items of type {} with {} dimensions: expected one whole number of 8 bytes each",
                           file.path(), format.dtype, format.shape.size());
  std::vector<int64_t> offsets(layout->count);
  LS_RETURN_IF_ERROR(
      file.Read(layout->offset, {reinterpret_cast<uint8_t*>(offsets.data()), offsets.size() * sizeof(int64_t)}));
  return offsets;
}

absl::StatusOr<std::vector<uint64_t>> EndsOf(Files& files, const SourceSpec& spec, const DataFile& file) {
  if (spec.end_token.has_value() == !spec.documents.empty())
    return InvalidArgument("{}: to pack documents, say either the token that ends each, or a file of where they begin",
                           file.path());
  if (spec.end_token) return EndsByToken(file, spec.token_bytes, *spec.end_token);
  LS_ASSIGN_OR_RETURN(const DataFile list, files.Open(spec.documents));
  LS_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, ReadOffsets(list));
  absl::StatusOr<std::vector<uint64_t>> ends =
      EndsFromOffsets(offsets, file.size() / static_cast<uint64_t>(spec.token_bytes));
  if (!ends.ok()) return At(list.path(), ends.status());
  return ends;
}

}  // namespace

Packing PackBestFit(std::span<const uint64_t> ends, uint64_t capacity) {
  LS_CHECK(capacity >= 2, "{}", capacity);
  const std::vector<Piece> pieces = PiecesOf(ends, capacity);
  std::vector<uint64_t> order(pieces.size());
  std::iota(order.begin(), order.end(), uint64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](uint64_t a, uint64_t b) { return pieces[a].count > pieces[b].count; });
  const std::vector<uint64_t> row_of = RowsByBestFit(pieces, order, capacity);
  Packing packing;
  packing.rows.assign(row_of.empty() ? 1 : *std::max_element(row_of.begin(), row_of.end()) + 2, 0);
  for (const uint64_t row : row_of) ++packing.rows[row + 1];
  std::partial_sum(packing.rows.begin(), packing.rows.end(), packing.rows.begin());
  packing.pieces.resize(pieces.size());
  std::vector<uint64_t> next(packing.rows.begin(), packing.rows.end() - 1);
  for (const uint64_t piece : order) packing.pieces[next[row_of[piece]]++] = pieces[piece];
  return packing;
}

Packing PackChunks(std::span<const uint64_t> ends, uint64_t capacity) {
  LS_CHECK(capacity >= 2, "{}", capacity);
  Packing packing;
  uint64_t begin = 0, room = capacity;
  const auto end_row = [&] {
    packing.rows.push_back(packing.pieces.size());
    room = capacity;
  };
  const auto place = [&](uint64_t count) {
    packing.pieces.push_back({begin, count});
    room -= count;
  };
  for (const uint64_t end : ends) {
    while (end - begin > room) {
      if (room >= 2) {  // one place would take a token without its next
        place(room);
        begin = packing.pieces.back().begin + packing.pieces.back().count - 1;
      }
      end_row();
    }
    place(end - begin);
    begin = end;
    if (room == 0) end_row();
  }
  if (room != capacity) end_row();
  return packing;
}

absl::StatusOr<std::vector<uint64_t>> EndsFromOffsets(std::span<const int64_t> offsets, uint64_t tokens) {
  std::vector<uint64_t> ends;
  int64_t before = 0;
  for (size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] < before || static_cast<uint64_t>(offsets[i]) > tokens)
      return DataLoss("number {} is {}, the one before {}: expected ascending places up to {}, the number of tokens", i,
                      offsets[i], before, tokens);
    if (offsets[i] > before) ends.push_back(static_cast<uint64_t>(offsets[i]));
    before = offsets[i];
  }
  if (tokens > static_cast<uint64_t>(before)) ends.push_back(tokens);
  return ends;
}

absl::StatusOr<std::unique_ptr<Source>> OpenPacked(Files& files, const SourceSpec& spec) {
  LS_ASSIGN_OR_RETURN(DataFile file, files.Open(spec.path));
  absl::Status fits = CheckTokens(spec.token_bytes, spec.tokens_per_item, file.size());
  if (fits.ok() && spec.tokens_per_item >= kMaxItemBytes / (3 * sizeof(int64_t)))
    fits = InvalidArgument("{} tokens per item: packed ones have {} at most", spec.tokens_per_item,
                           kMaxItemBytes / (3 * sizeof(int64_t)) - 1);
  if (!fits.ok()) return At(file.path(), fits);
  LS_ASSIGN_OR_RETURN(const std::vector<uint64_t> ends, EndsOf(files, spec, file));
  const uint64_t capacity = spec.tokens_per_item + 1;
  Packing packing = spec.pack == PackRule::kBestFit ? PackBestFit(ends, capacity) : PackChunks(ends, capacity);
  if (packing.size() == 0) return InvalidArgument("{}: there is no token in it", file.path());
  return std::unique_ptr<Source>(
      std::make_unique<Packed>(std::move(file), spec.token_bytes, capacity, std::move(packing)));
}

}  // namespace lockstep::prepare
