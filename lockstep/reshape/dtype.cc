#include "lockstep/reshape/dtype.h"

#include <algorithm>

namespace lockstep::reshape {
namespace {

constexpr Dtype kDtypes[] = {
    {"float32", "torch.float32", "F32", "torch.FloatStorage", 4},
    {"float64", "torch.float64", "F64", "torch.DoubleStorage", 8},
    {"float16", "torch.float16", "F16", "torch.HalfStorage", 2},
    {"bfloat16", "torch.bfloat16", "BF16", "torch.BFloat16Storage", 2},
    {"int64", "torch.int64", "I64", "torch.LongStorage", 8},
    {"int32", "torch.int32", "I32", "torch.IntStorage", 4},
    {"int16", "torch.int16", "I16", "torch.ShortStorage", 2},
    {"int8", "torch.int8", "I8", "torch.CharStorage", 1},
    {"uint8", "torch.uint8", "U8", "torch.ByteStorage", 1},
    {"bool", "torch.bool", "BOOL", "torch.BoolStorage", 1},
    {"complex64", "torch.complex64", "C64", "torch.ComplexFloatStorage", 8},
    {"complex128", "torch.complex128", "", "torch.ComplexDoubleStorage", 16},
    {"uint16", "torch.uint16", "U16", "", 2},
    {"uint32", "torch.uint32", "U32", "", 4},
    {"uint64", "torch.uint64", "U64", "", 8},
    {"float8_e4m3fn", "torch.float8_e4m3fn", "F8_E4M3", "", 1},
    {"float8_e5m2", "torch.float8_e5m2", "F8_E5M2", "", 1},
    {"float8_e4m3fnuz", "torch.float8_e4m3fnuz", "", "", 1},
    {"float8_e5m2fnuz", "torch.float8_e5m2fnuz", "", "", 1},
    {"float8_e8m0fnu", "torch.float8_e8m0fnu", "", "", 1},
    {"complex32", "torch.complex32", "", "", 4},
};

}  // namespace

std::span<const Dtype> Dtypes() { return kDtypes; }

const Dtype* DtypeOf(std::string_view name) {
  const auto* found = std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const Dtype& dtype) {
    return !name.empty() &&
           (dtype.torch == name || dtype.in_pickles == name || dtype.safetensors == name || dtype.storage == name);
  });
  return found == std::end(kDtypes) ? nullptr : found;
}

}  // namespace lockstep::reshape
