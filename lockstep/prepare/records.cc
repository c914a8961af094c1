#include "lockstep/prepare/records.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/check.h"

namespace lockstep::prepare {
namespace {

constexpr uint64_t kMaxHead = 100'000'000;  // safetensors' own limit
constexpr uint64_t kMaxNpyHead = 1 << 16;

class Records final : public Source {
 public:
  Records(DataFile file, RecordLayout layout) : file_(std::move(file)), layout_(std::move(layout)) {
    format_ = layout_.format;
  }
  uint64_t size() const override { return layout_.count; }
  std::string KeyOf(uint64_t index) const override { return NameOf(file_.path()) + "/" + std::to_string(index); }
  uint64_t BytesOf(uint64_t) const override { return format_.bytes; }
  absl::Status Read(uint64_t index, Buffer& bytes) const override {
    return file_.Read(layout_.offset + index * layout_.stride, layout_.format.bytes, bytes);
  }

 private:
  DataFile file_;
  RecordLayout layout_;
};

absl::StatusOr<std::unique_ptr<Source>> MakeRecords(DataFile file, absl::StatusOr<RecordLayout> layout) {
  if (!layout.ok()) return At(file.path(), layout.status());
  return std::unique_ptr<Source>(std::make_unique<Records>(std::move(file), *std::move(layout)));
}

}  // namespace

absl::StatusOr<RecordLayout> FinishLayout(RecordLayout layout, uint64_t element_bytes, uint64_t data_bytes) {
  uint64_t bytes = element_bytes;
  for (const int64_t side : layout.format.shape) {
    const auto factor = static_cast<uint64_t>(side);
    if (factor == 0) return InvalidArgument("items of no elements");
    if (factor > kMaxItemBytes / bytes) return InvalidArgument("items of more than {} bytes", kMaxItemBytes);
    bytes *= factor;
  }
  if (layout.count == 0) return InvalidArgument("it has no items");
  if (layout.count > data_bytes / bytes)
    return DataLoss("{} items of {} bytes, but only {} bytes of data: it is truncated", layout.count, bytes,
                    data_bytes);
  layout.format.bytes = layout.stride = bytes;
  return layout;
}

absl::Status CheckTokens(int token_bytes, uint64_t tokens_per_item, uint64_t file_bytes) {
  if (token_bytes != 2 && token_bytes != 4) return InvalidArgument("tokens of {} bytes: expected 2 or 4", token_bytes);
  const auto width = static_cast<uint64_t>(token_bytes);
  if (tokens_per_item == 0 || tokens_per_item >= kMaxItemBytes / width)
    return InvalidArgument("{} tokens per item: expected 1 to {}", tokens_per_item, kMaxItemBytes / width - 1);
  if (file_bytes % width != 0)
    return DataLoss("{} bytes are no whole number of tokens of {} bytes: is it truncated, or of another type?",
                    file_bytes, token_bytes);
  return absl::OkStatus();
}

absl::StatusOr<RecordLayout> LayoutTokens(int token_bytes, uint64_t tokens_per_item, uint64_t file_bytes) {
  LS_RETURN_IF_ERROR(CheckTokens(token_bytes, tokens_per_item, file_bytes));
  const auto width = static_cast<uint64_t>(token_bytes);
  const uint64_t tokens = file_bytes / width;
  if (tokens < tokens_per_item + 1)
    return InvalidArgument("{} tokens: an item takes {} and one more", tokens, tokens_per_item);
  RecordLayout layout;
  layout.count = (tokens - 1) / tokens_per_item;
  layout.stride = tokens_per_item * width;
  layout.format = {ItemKind::kTokens,
                   token_bytes == 2 ? "<u2" : "<u4",
                   {static_cast<int64_t>(tokens_per_item + 1)},
                   layout.stride + width};
  return layout;
}

absl::StatusOr<RecordLayout> NpyLayout(const DataFile& file) {
  std::vector<uint8_t> head(std::min(file.size(), kMaxNpyHead));
  LS_RETURN_IF_ERROR(file.Read(0, head));
  return ParseNpy(head, file.size());
}

absl::StatusOr<std::unique_ptr<Source>> OpenNpy(DataFile file) {
  absl::StatusOr<RecordLayout> layout = NpyLayout(file);
  return MakeRecords(std::move(file), std::move(layout));
}

absl::StatusOr<std::unique_ptr<Source>> OpenSafetensors(DataFile file, const std::string& tensor) {
  if (file.size() < 8) return DataLoss("{}: {} bytes: too short for safetensors", file.path(), file.size());
  std::array<uint8_t, 8> first;
  LS_RETURN_IF_ERROR(file.Read(0, first));
  uint64_t length = 0;
  for (size_t i = first.size(); i-- > 0;) length = length << 8 | first[i];
  if (length > kMaxHead || length > file.size() - 8)
    return DataLoss("{}: a header of {} bytes: it is truncated, or no safetensors", file.path(), length);
  std::string json(length, '\0');
  LS_RETURN_IF_ERROR(file.Read(8, {reinterpret_cast<uint8_t*>(json.data()), json.size()}));
  absl::StatusOr<RecordLayout> layout = ParseSafetensors(json, tensor, file.size());
  return MakeRecords(std::move(file), std::move(layout));
}

absl::StatusOr<std::unique_ptr<Source>> OpenTokens(DataFile file, int token_bytes, uint64_t tokens_per_item) {
  absl::StatusOr<RecordLayout> layout = LayoutTokens(token_bytes, tokens_per_item, file.size());
  return MakeRecords(std::move(file), std::move(layout));
}

void WidenTokens(Bytes tokens, int token_bytes, std::span<int64_t> out) {
  LS_CHECK(tokens.size() == out.size() * static_cast<size_t>(token_bytes), "{} {}", tokens.size(), out.size());
  const auto widen = [&]<typename Token>(Token token) {
    for (size_t i = 0; i < out.size(); ++i) {
      std::memcpy(&token, tokens.data() + i * sizeof token, sizeof token);
      out[i] = token;
    }
  };
  if (token_bytes == 2) {
    widen(uint16_t{});
  } else {
    widen(uint32_t{});
  }
}

}  // namespace lockstep::prepare
