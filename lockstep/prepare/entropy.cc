#include "lockstep/prepare/entropy.h"

#if __has_include(<jpegint.h>)  // Debian installs it with jpeglib.h
#include <jpegint.h>
#define LS_HAS_JPEGINT 1
#endif

#include <algorithm>
#include <bit>
#include <cstring>

namespace lockstep::prepare {
namespace {

// Where in a block the k-th coefficient stands. Behind the 64: the last, for indices that an end of block leads to.
constexpr std::array<uint8_t, 64> kZigzag = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                             12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                             35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                             58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};
constexpr std::array<uint8_t, 64 + HuffmanTable::kEndOfBlock> kPlaces = [] {
  std::array<uint8_t, 64 + HuffmanTable::kEndOfBlock> places{};
  places.fill(63);
  std::copy(kZigzag.begin(), kZigzag.end(), places.begin());
  return places;
}();

// The value that `size` bits stand for (T.81, F.2.2.1).
int Extended(uint32_t bits, int size) {
  const int value = static_cast<int>(bits);
  return value < 1 << (size - 1) ? value - (1 << size) + 1 : value;
}

uint64_t Big64(const uint8_t* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return std::endian::native == std::endian::little ? __builtin_bswap64(value) : value;
}

// Is one of the bytes 0xFF?
bool HasFf(uint64_t bytes) {
  constexpr uint64_t kOnes = 0x0101010101010101, kTops = 0x8080808080808080;
  return ((~bytes - kOnes) & bytes & kTops) != 0;
}

}  // namespace

// ---- tables ----

// How many bits of value follow, and by how much the index grows.
uint32_t HuffmanTable::EntryOf(uint8_t symbol, int length) const {
  const uint32_t size = kind_ == Kind::kDc ? symbol : symbol & 15, run = kind_ == Kind::kDc ? 0 : symbol >> 4;
  if (kind_ == Kind::kAc && size == 0) return (run == 15 ? 16 : kEndOfBlock) << 8 | static_cast<uint32_t>(length);
  if (size == 0) return 1 << 8 | static_cast<uint32_t>(length);
  return size << 16 | (run + 1) << 8 | kLong | static_cast<uint32_t>(length);
}

void HuffmanTable::Fill(uint32_t code, int length, uint8_t symbol) {
  const uint32_t entry = EntryOf(symbol, length), rest = static_cast<uint32_t>(kBits - length);
  const auto size = static_cast<int>(entry >> 16);
  for (uint32_t i = 0; i < 1U << rest; ++i) {
    uint32_t& slot = entries_[code << rest | i];
    slot = entry;
    if ((entry & kLong) == 0 || length + size > kBits) continue;
    const auto value = static_cast<uint32_t>(Extended(i >> (static_cast<int>(rest) - size), size));
    slot = value << 16 | (entry & 0xFF00) | static_cast<uint32_t>(length + size);
  }
}

void HuffmanTable::Make(const JHUFF_TBL& table, Kind kind) {
  const bool same = made_ && kind == kind_ && std::memcmp(table.bits, made_of_.bits, sizeof table.bits) == 0 &&
                    std::memcmp(table.huffval, made_of_.huffval, sizeof table.huffval) == 0;
  if (same) return;
  made_of_ = table;
  kind_ = kind;
  made_ = true;
  entries_.fill(0);
  uint32_t code = 0;
  int index = 0;
  for (int length = 1; length <= 16; ++length, code <<= 1) {
    const auto at = static_cast<size_t>(length);
    first_index_[at] = index - static_cast<int64_t>(code);
    for (int i = 0; i < table.bits[length]; ++i, ++code, ++index)
      if (length <= kBits) Fill(code, length, table.huffval[index]);
    last_code_[at] = table.bits[length] == 0 ? -1 : static_cast<int64_t>(code) - 1;
  }
}

uint32_t HuffmanTable::Search(uint64_t bits) const {
  for (int length = kBits + 1; length <= 16; ++length) {
    const auto at = static_cast<size_t>(length);
    const auto code = static_cast<int64_t>(bits >> (64 - length));
    if (code <= last_code_[at]) return EntryOf(made_of_.huffval[(first_index_[at] + code) & 255], length);
  }
  return 0;
}

// ---- bits ----

inline bool BitReader::LoadWord() {
  if (end_ - at_ < 8) return false;
  const uint64_t next = Big64(at_);
  if (HasFf(next)) return false;
  const int bytes = (63 - count_) >> 3;
  bits_ |= next >> count_;  // what is not counted yet comes once more, as the same bits
  at_ += bytes;
  count_ += bytes * 8;
  return true;
}

[[gnu::noinline]] BitReader BitReader::Loaded(BitReader reader) {
  uint64_t& bits = reader.bits_;
  int& count = reader.count_;
  // Bits beyond the count may be there from before, and are the same.
  bits = count == 0 ? 0 : bits & ~uint64_t{0} << (64 - count);
  for (; count <= 56; count += 8) {
    uint64_t byte = 0;
    const uint8_t*& at = reader.at_;
    if (at == reader.end_ || (*at == 0xFF && (reader.end_ - at < 2 || at[1] != 0))) {
      reader.made_up_ += 8;
    } else {
      byte = *at;
      at += byte == 0xFF ? 2 : 1;
    }
    bits |= byte << (56 - count);
  }
  return reader;
}

bool BitReader::Restart(int number) {
  if (overrun() || count_ - made_up_ >= 8) return false;
  if (end_ - at_ < 2 || at_[0] != 0xFF || at_[1] != 0xD0 + number) return false;
  *this = BitReader(at_ + 2, end_);
  return true;
}

// ---- scans ----

#ifdef LS_HAS_JPEGINT
bool Entropy::TakeOver(j_decompress_ptr info) {
  const bool fits = !info->progressive_mode && !info->arith_code && info->data_precision == 8 &&
                    info->comps_in_scan == info->num_components && !info->inputctl->has_multiple_scans &&
                    info->blocks_in_MCU <= D_MAX_BLOCKS_IN_MCU;
  if (!fits) return false;
  for (int i = 0; i < info->comps_in_scan; ++i) {
    const jpeg_component_info& component = *info->cur_comp_info[i];
    const JHUFF_TBL* dc = info->dc_huff_tbl_ptrs[component.dc_tbl_no];
    const JHUFF_TBL* ac = info->ac_huff_tbl_ptrs[component.ac_tbl_no];
    if (dc == nullptr || ac == nullptr) return false;
    HuffmanTable& dc_table = tables_[static_cast<size_t>(component.dc_tbl_no)];
    HuffmanTable& ac_table = tables_[static_cast<size_t>(NUM_HUFF_TBLS + component.ac_tbl_no)];
    dc_table.Make(*dc, HuffmanTable::Kind::kDc);
    ac_table.Make(*ac, HuffmanTable::Kind::kAc);
    components_[static_cast<size_t>(i)] = {&dc_table, &ac_table, 0};
  }
  blocks_ = info->blocks_in_MCU;
  for (size_t i = 0; i < static_cast<size_t>(blocks_); ++i)
    component_of_[i] = static_cast<uint8_t>(info->MCU_membership[i]);
  interval_ = to_restart_ = info->restart_interval;
  next_restart_ = 0;
  reader_ = BitReader(info->src->next_input_byte, info->src->next_input_byte + info->src->bytes_in_buffer);
  info->entropy->decode_mcu = DecodeMcu;
  return true;
}
#else
bool Entropy::TakeOver(j_decompress_ptr) { return false; }
#endif

void Entropy::GiveUp() {
  gave_up_ = true;
  guard_.Fail("it is damaged");
}

void Entropy::RestartIfDue() {
  if (interval_ == 0) return;
  if (to_restart_ == 0) {
    if (!reader_.Restart(next_restart_)) GiveUp();
    next_restart_ = (next_restart_ + 1) % 8;
    to_restart_ = interval_;
    for (Component& component : components_) component.last_dc = 0;
  }
  --to_restart_;
}

[[gnu::always_inline]] inline uint32_t Entropy::NextEntry(const HuffmanTable& table, BitReader& reader) {
  reader.Refill();
  uint32_t entry = table.Look(reader.bits());
  if (entry == 0) [[unlikely]] {
    entry = table.Search(reader.bits());
    if (entry == 0) GiveUp();
  }
  return entry;
}

// Takes the bits of an entry, and of its value.
[[gnu::always_inline]] inline int TakeValue(uint32_t entry, BitReader& reader) {
  reader.Drop(static_cast<int>(entry & 0x7F));
  if ((entry & HuffmanTable::kLong) == 0) [[likely]]
    return static_cast<int>(entry) >> 16;
  const auto size = static_cast<int>(entry >> 16);
  const auto bits = static_cast<uint32_t>(reader.bits() >> (64 - size));
  reader.Drop(size);
  return Extended(bits, size);
}

template <bool kStore>
[[gnu::always_inline]] inline void Entropy::DecodeBlock(int index, JCOEF* block, BitReader& reader) {
  Component& component = components_[static_cast<size_t>(index)];
  component.last_dc += TakeValue(NextEntry(*component.dc, reader), reader);
  if (component.last_dc < -32'768 || component.last_dc > 32'767) GiveUp();
  if constexpr (kStore) block[0] = static_cast<JCOEF>(component.last_dc);
  const HuffmanTable& ac = *component.ac;
  uint32_t k = 1;
  while (k < 64) {
    const uint32_t entry = NextEntry(ac, reader);
    k += entry >> 8 & 0xFF;
    const int value = TakeValue(entry, reader);
    // An end of block, or a run of sixteen zeros, writes a zero where there is one.
    if constexpr (kStore) block[kPlaces[k - 1]] = static_cast<JCOEF>(value);
  }
  if (k > 64 && k <= HuffmanTable::kEndOfBlock) GiveUp();  // a run beyond the block
}

template <bool kStore>
void Entropy::Decode(JBLOCKROW* blocks) {
  RestartIfDue();
  BitReader reader = reader_;
  for (int i = 0; i < blocks_; ++i)
    DecodeBlock<kStore>(component_of_[static_cast<size_t>(i)], kStore ? blocks[i][0] : nullptr, reader);
  reader_ = reader;
  if (reader.overrun()) GiveUp();
}

boolean Entropy::DecodeMcu(j_decompress_ptr info, JBLOCKROW* blocks) {
  auto& self = *static_cast<Entropy*>(info->client_data);
  if (blocks == nullptr) {  // of what is skipped
    self.Decode<false>(nullptr);
  } else {
    self.Decode<true>(blocks);
  }
  return TRUE;
}

}  // namespace lockstep::prepare
