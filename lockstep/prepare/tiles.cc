#include "lockstep/prepare/tiles.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace lockstep::prepare {
namespace {

constexpr std::string_view kName("LSTILES\0", 8);
constexpr uint8_t kVersion = 1;
constexpr int kMargin = 2;  // libjpeg's fancy upsampling looks at one chroma sample beside: up to two pixels

void PutVarint(std::string& text, uint32_t value) {
  while (value >= 0x80) {
    text += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  text += static_cast<char>(value);
}

class VarintReader {
 public:
  explicit VarintReader(Bytes bytes) : left_(bytes) {}
  // False at the end, and for what has more than 32 bits.
  bool Next(uint32_t& value) {
    uint64_t sum = 0;
    for (int shift = 0; shift < 35 && !left_.empty(); shift += 7) {
      const uint8_t byte = left_[0];
      left_ = left_.subspan(1);
      sum |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte >= 0x80) continue;
      value = static_cast<uint32_t>(sum);
      return sum <= UINT32_MAX;
    }
    return false;
  }
  bool empty() const { return left_.empty(); }

 private:
  Bytes left_;
};

absl::Status Damaged(std::string_view what) { return DataLoss("the tile index is damaged: {}", what); }

// Three numbers, which must be what the frame asks for.
absl::Status ReadShape(VarintReader& reader, const JpegHead& head, TileIndex& index) {
  uint32_t across = 0, down = 0, mcus = 0;
  if (!reader.Next(across) || !reader.Next(down) || !reader.Next(mcus)) return Damaged("it is too short");
  const Size all = head.mcus();
  const bool fits = mcus >= 1 && mcus == static_cast<uint32_t>(head.restart_interval) &&
                    static_cast<uint64_t>(across) * mcus == static_cast<uint64_t>(all.width) &&
                    down == static_cast<uint32_t>(all.height);
  if (!fits || head.progressive) return Damaged("its tiles are not those of the image");
  index.across = static_cast<int>(across);
  index.down = static_cast<int>(down);
  index.mcus = static_cast<int>(mcus);
  return absl::OkStatus();
}

bool MarkerBefore(Bytes jpeg, size_t end, uint8_t marker) { return jpeg[end - 2] == 0xFF && jpeg[end - 1] == marker; }

void Append(Buffer& out, size_t& at, Bytes bytes) {
  std::memcpy(out.data() + at, bytes.data(), bytes.size());
  at += bytes.size();
}

void PutBig16(uint8_t* at, int value) {
  at[0] = static_cast<uint8_t>(value >> 8);
  at[1] = static_cast<uint8_t>(value);
}

size_t RowBytes(const TileIndex& index, const TileCover& cover, int row) {
  const size_t first = static_cast<size_t>(row) * static_cast<size_t>(index.across);
  return index.begin[first + static_cast<size_t>(cover.right)] - index.begin[first + static_cast<size_t>(cover.left)];
}

}  // namespace

bool IsTileMarker(Bytes content) {
  return content.size() > kName.size() && std::memcmp(content.data(), kName.data(), kName.size()) == 0;
}

std::string RenderTileIndex(int across, int down, int mcus, const std::vector<uint32_t>& lengths) {
  std::string text(kName);
  text += static_cast<char>(kVersion);
  for (const int value : {across, down, mcus}) PutVarint(text, static_cast<uint32_t>(value));
  for (const uint32_t length : lengths) PutVarint(text, length);
  return text;
}

absl::Status ParseTileIndex(Bytes jpeg, const JpegHead& head, TileIndex& index) {
  const Bytes content = head.tile_marker;
  if (!IsTileMarker(content)) return Damaged("there is none");
  if (content[kName.size()] != kVersion) return Damaged("another version");
  VarintReader reader(content.subspan(kName.size() + 1));
  LS_RETURN_IF_ERROR(ReadShape(reader, head, index));
  const size_t count = static_cast<size_t>(index.across) * static_cast<size_t>(index.down);
  if (count > content.size()) return Damaged("it is too short");  // a tile has a byte at least
  index.begin.clear();
  index.begin.reserve(count + 1);
  uint64_t at = head.entropy_at;
  index.begin.push_back(static_cast<uint32_t>(at));
  for (size_t i = 0; i < count; ++i) {
    uint32_t length = 0;
    if (!reader.Next(length) || length < 3) return Damaged("it is too short");
    at += length;
    if (at > jpeg.size()) return Damaged("a tile ends behind the file");
    const auto expected = static_cast<uint8_t>(i + 1 == count ? 0xD9 : 0xD0 + i % 8);
    if (!MarkerBefore(jpeg, at, expected)) return Damaged("a tile does not end with its marker");
    index.begin.push_back(static_cast<uint32_t>(at));
  }
  return reader.empty() ? absl::OkStatus() : Damaged("it is too long");
}

TileCover Cover(const JpegHead& head, const TileIndex& index, const Region& crop) {
  const int wide = head.mcu.width * index.mcus, high = head.mcu.height;
  TileCover cover;
  cover.left = std::max(crop.x - kMargin, 0) / wide;
  cover.top = std::max(crop.y - kMargin, 0) / high;
  cover.right = std::min((crop.x + crop.width + kMargin + wide - 1) / wide, index.across);
  cover.bottom = std::min((crop.y + crop.height + kMargin + high - 1) / high, index.down);
  const int x = cover.left * wide, y = cover.top * high;
  cover.pixels = {x, y, std::min(cover.right * wide, head.size.width) - x,
                  std::min(cover.bottom * high, head.size.height) - y};
  return cover;
}

void AssembleTiles(Bytes jpeg, const JpegHead& head, const TileIndex& index, const TileCover& cover, Buffer& out) {
  size_t bytes = head.entropy_at;
  for (int row = cover.top; row < cover.bottom; ++row) bytes += RowBytes(index, cover, row);
  out.Resize(bytes);
  size_t at = 0;
  Append(out, at, jpeg.first(head.entropy_at));
  PutBig16(out.data() + head.frame_size_at, cover.pixels.height);
  PutBig16(out.data() + head.frame_size_at + 2, cover.pixels.width);
  int restart = 0;
  for (int row = cover.top; row < cover.bottom; ++row) {
    const size_t first = static_cast<size_t>(row) * static_cast<size_t>(index.across);
    const uint32_t* begin = index.begin.data() + first;
    const size_t row_begin = at;
    Append(out, at, jpeg.subspan(begin[cover.left], RowBytes(index, cover, row)));
    for (int i = cover.left; i < cover.right; ++i) {
      uint8_t* end = out.data() + row_begin + (begin[i + 1] - begin[cover.left]);
      end[-1] = static_cast<uint8_t>(0xD0 + restart++ % 8);
    }
  }
  out.data()[at - 1] = 0xD9;
}

}  // namespace lockstep::prepare
