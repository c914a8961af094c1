// github.com/huggingface/safetensors: eight bytes of length, JSON {name: {dtype, shape, data_offsets}}, the data.
#include <array>
#include <nlohmann/json.hpp>

#include "lockstep/prepare/records.h"

namespace lockstep::prepare {
namespace {

struct Type {
  std::string_view name, numpy;
  uint64_t bytes;
};
constexpr std::array<Type, 15> kTypes = {{{"F64", "<f8", 8},
                                          {"F32", "<f4", 4},
                                          {"F16", "<f2", 2},
                                          {"BF16", "bfloat16", 2},
                                          {"I64", "<i8", 8},
                                          {"I32", "<i4", 4},
                                          {"I16", "<i2", 2},
                                          {"I8", "|i1", 1},
                                          {"U64", "<u8", 8},
                                          {"U32", "<u4", 4},
                                          {"U16", "<u2", 2},
                                          {"U8", "|u1", 1},
                                          {"F8_E4M3", "|u1", 1},  // their bits: NumPy has no such numbers
                                          {"F8_E5M2", "|u1", 1},
                                          {"BOOL", "|b1", 1}}};

using Parsed = nlohmann::json;

absl::StatusOr<Parsed::const_iterator> FindTensor(const Parsed& head, const std::string& name) {
  if (!name.empty()) {
    const auto found = head.find(name);
    if (found == head.end()) return NotFound("there is no tensor \"{}\"", name);
    return found;
  }
  auto only = head.end();
  for (auto it = head.begin(); it != head.end(); ++it) {
    if (it.key() == "__metadata__") continue;
    if (only != head.end())
      return InvalidArgument("it has several tensors, such as {} and {}: name one by --tensor", only.key(), it.key());
    only = it;
  }
  if (only == head.end()) return InvalidArgument("it has no tensor");
  return only;
}

// Non-negative numbers, or nothing.
std::vector<int64_t> NumbersOf(const Parsed& tensor, const char* key) {
  std::vector<int64_t> numbers;
  const auto found = tensor.find(key);
  if (found == tensor.end() || !found->is_array()) return {};
  for (const Parsed& value : *found) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX) return {};
    numbers.push_back(value.get<int64_t>());
  }
  return numbers;
}

}  // namespace

absl::StatusOr<RecordLayout> ParseSafetensors(std::string_view json, const std::string& name, uint64_t file_bytes) {
  const Parsed head = Parsed::parse(json, nullptr, false);
  if (!head.is_object()) return DataLoss("the header is no JSON object");
  LS_ASSIGN_OR_RETURN(const Parsed::const_iterator tensor, FindTensor(head, name));
  if (!tensor->is_object()) return DataLoss("tensor {} is no JSON object", tensor.key());
  const std::vector<int64_t> shape = NumbersOf(*tensor, "shape"), offsets = NumbersOf(*tensor, "data_offsets");
  if (shape.empty() || offsets.size() != 2 || offsets[1] < offsets[0])
    return InvalidArgument("tensor {}: expected a shape of one dimension at least, and two offsets", tensor.key());
  const auto dtype = tensor->find("dtype");
  const std::string type_name = dtype != tensor->end() && dtype->is_string() ? dtype->get<std::string>() : "";
  const auto* type = std::find_if(kTypes.begin(), kTypes.end(), [&](const Type& one) { return one.name == type_name; });
  if (type == kTypes.end()) return InvalidArgument("tensor {}: a type that is not known: {}", tensor.key(), type_name);
  const uint64_t data = 8 + json.size();
  if (file_bytes < data || static_cast<uint64_t>(offsets[1]) > file_bytes - data)
    return DataLoss("tensor {} goes beyond the end of the file: it is truncated", tensor.key());
  RecordLayout layout;
  layout.format.kind = ItemKind::kArray;
  layout.format.dtype = type->numpy;
  layout.offset = data + static_cast<uint64_t>(offsets[0]);
  layout.count = static_cast<uint64_t>(shape[0]);
  layout.format.shape.assign(shape.begin() + 1, shape.end());
  return FinishLayout(std::move(layout), type->bytes, static_cast<uint64_t>(offsets[1] - offsets[0]));
}

}  // namespace lockstep::prepare
