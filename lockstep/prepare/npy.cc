// github.com/numpy/numpy/blob/main/numpy/lib/format.py: magic, version, length of a Python dict as text, the dict, the
// data.
#include <cstring>
#include <optional>

#include "lockstep/base/number.h"
#include "lockstep/prepare/records.h"

namespace lockstep::prepare {
namespace {

std::string_view WithoutBlanks(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(" \t"), text.size()));
}

bool IsQuote(char letter) { return letter == '\'' || letter == '"'; }

// What follows "'KEY':" in the dict, whichever quotes and blanks its writer had.
std::optional<std::string_view> ValueOf(std::string_view dict, std::string_view key) {
  for (size_t at = dict.find(key); at != std::string_view::npos; at = dict.find(key, at + 1)) {
    const std::string_view behind = dict.substr(at + key.size());
    if (at == 0 || !IsQuote(dict[at - 1]) || !behind.starts_with(dict[at - 1])) continue;
    const std::string_view colon = WithoutBlanks(behind.substr(1));
    if (colon.starts_with(':')) return WithoutBlanks(colon.substr(1));
  }
  return std::nullopt;
}

// "'<f4', ...": kind and bytes of a number; big-endian, structured and object types are refused.
absl::StatusOr<uint64_t> ElementBytes(std::string_view dtype) {
  const bool known = dtype.size() >= 3 && (dtype[0] == '<' || dtype[0] == '|') &&
                     std::string_view("biufc").find(dtype[1]) != std::string_view::npos;
  const uint64_t bytes = known ? WholeNumber<uint64_t>(dtype.substr(2)).value_or(0) : 0;
  if (bytes < 1 || bytes > 16)
    return InvalidArgument("elements of type {}: expected little-endian numbers, such as <f4 or |u1", dtype);
  return bytes;
}

// "(10, 3, 4), ..."; Python 2 wrote "(10L, 3L, 4L)".
absl::StatusOr<std::vector<int64_t>> ParseShape(std::string_view text) {
  std::vector<int64_t> shape;
  const size_t close = text.find(')');
  if (text.empty() || text[0] != '(' || close == std::string_view::npos) return DataLoss("the shape is not a tuple");
  text = text.substr(1, close - 1);
  while (text.find_first_not_of(" ,") != std::string_view::npos) {
    text.remove_prefix(text.find_first_not_of(" ,"));
    const auto side = TakeNumber<int64_t>(text);
    if (!side || *side < 0) return DataLoss("the shape holds something else than numbers");
    shape.push_back(*side);
    if (text.starts_with('L')) text.remove_prefix(1);
  }
  return shape;
}

absl::StatusOr<std::string_view> DictOf(Bytes head) {
  constexpr size_t kVersionAt = 6, kLengthAt = 8;
  if (head.size() < 12 || std::memcmp(head.data(), "\x93NUMPY", 6) != 0) return InvalidArgument("this is no .npy file");
  const bool short_length = head[kVersionAt] == 1;
  const size_t begin = kLengthAt + (short_length ? 2 : 4);
  size_t length = head[8] | static_cast<size_t>(head[9]) << 8;
  if (!short_length) length |= static_cast<size_t>(head[10]) << 16 | static_cast<size_t>(head[11]) << 24;
  if (length > head.size() - begin) return DataLoss("the header has {} bytes: it is truncated or too large", length);
  return std::string_view(reinterpret_cast<const char*>(head.data()) + begin, length);
}

}  // namespace

absl::StatusOr<RecordLayout> ParseNpy(Bytes head, uint64_t file_bytes) {
  LS_ASSIGN_OR_RETURN(const std::string_view dict, DictOf(head));
  const auto descr = ValueOf(dict, "descr"), order = ValueOf(dict, "fortran_order"),
             shape_text = ValueOf(dict, "shape");
  if (!descr || !order || !shape_text) return DataLoss("the header lacks descr, fortran_order or shape");
  if (descr->empty() || !IsQuote((*descr)[0]))
    return InvalidArgument("a structured type: expected an array of numbers");
  LS_ASSIGN_OR_RETURN(std::vector<int64_t> shape, ParseShape(*shape_text));
  if (shape.empty()) return InvalidArgument("a single number: expected an array, of which each row is an item");
  if (!order->starts_with("False") && shape.size() > 1)
    return InvalidArgument("columns before rows (fortran_order): save it with numpy.ascontiguousarray");
  RecordLayout layout;
  layout.format.kind = ItemKind::kArray;
  layout.format.dtype = descr->substr(1, descr->find((*descr)[0], 1) - 1);
  LS_ASSIGN_OR_RETURN(const uint64_t element, ElementBytes(layout.format.dtype));
  layout.offset = static_cast<uint64_t>(dict.data() + dict.size() - reinterpret_cast<const char*>(head.data()));
  layout.count = static_cast<uint64_t>(shape[0]);
  layout.format.shape.assign(shape.begin() + 1, shape.end());
  return FinishLayout(std::move(layout), element, file_bytes - layout.offset);
}

}  // namespace lockstep::prepare
