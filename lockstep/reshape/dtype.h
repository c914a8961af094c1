// The element types of tensors, as torch, safetensors and torch.save name them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep::reshape {

struct Dtype {
  std::string_view torch;        // "bfloat16"
  std::string_view in_pickles;   // "torch.bfloat16"
  std::string_view safetensors;  // "BF16"; empty: it knows none such
  std::string_view storage;      // "torch.BFloat16Storage"; empty: only untyped storages hold it
  uint64_t bytes = 0;
};

std::span<const Dtype> Dtypes();
// By one of its names; null: unknown.
const Dtype* DtypeOf(std::string_view name);

}  // namespace lockstep::reshape
