// Any numbers as the offsets of documents: each pair of neighbours lies in exactly one row.
#include <cstring>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/prepare/pack.h"

namespace lockstep::prepare {
namespace {

void Check(const Packing& packing, std::span<const uint64_t> ends, uint64_t capacity) {
  uint64_t pairs = 0, expected = 0, begin = 0;
  for (const uint64_t end : ends) {
    expected += end - begin - 1;
    begin = end;
  }
  for (uint64_t row = 0; row < packing.size(); ++row) {
    uint64_t count = 0;
    for (const Piece& piece : packing.Row(row)) {
      LS_CHECK(piece.count > 0 && piece.begin + piece.count <= ends.back(), "{} {}", piece.begin, piece.count);
      count += piece.count;
      pairs += piece.count - 1;
    }
    LS_CHECK(count > 0 && count <= capacity, "{} {}", count, capacity);
  }
  LS_CHECK(pairs == expected, "{} {}", pairs, expected);
}

}  // namespace
}  // namespace lockstep::prepare

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep::prepare;
  constexpr uint64_t kTokens = 1 << 14;
  if (size < 2) return 0;
  const uint64_t capacity = 2 + (data[0] | data[1] << 8) % 600;
  std::vector<int64_t> offsets;
  for (size_t at = 2; at + 8 <= size; at += 8) {
    int64_t offset = 0;
    std::memcpy(&offset, data + at, sizeof offset);
    offsets.push_back(offset);
  }
  const absl::StatusOr<std::vector<uint64_t>> ends = EndsFromOffsets(offsets, kTokens);
  if (!ends.ok()) return 0;
  Check(PackBestFit(*ends, capacity), *ends, capacity);
  Check(PackChunks(*ends, capacity), *ends, capacity);
  return 0;
}
