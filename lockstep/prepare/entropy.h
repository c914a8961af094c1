// Decodes the Huffman codes of a baseline scan, in place of libjpeg's own code for that, which is two thirds of the
// time of a decode: one look into a table gives run, length and value of most coefficients, where libjpeg takes three
// steps. All else (transform, upsampling, colors) stays libjpeg's. It is plugged in by jpegint.h, the interface between
// libjpeg's own modules. Whatever is not as it should be ends in gave_up(): the caller then decodes once more without
// it, so that damaged files mean what they mean to libjpeg.
//
//   jpeg_start_decompress(&info);
//   if (entropy.TakeOver(&info)) ... read rows: libjpeg calls us for each MCU
#pragma once

#include <array>
#include <cstdint>

#include "lockstep/prepare/jpeg_guard.h"

namespace lockstep::prepare {

// For the next kBits bits: what they begin with.
//   bits 0-6: length of the code, and of the value's bits where `kLong` is not set
//   bit 7 (kLong): the value's bits, of which bits 16-19 tell the number, follow
//   bits 8-15: by how much the index of the coefficient grows: run + 1; kEndOfBlock for the end
//   bits 16-31: the value
// 0: the code is longer than kBits.
class HuffmanTable {
 public:
  static constexpr int kBits = 10;
  static constexpr uint32_t kLong = 0x80, kEndOfBlock = 128;
  enum class Kind : uint8_t { kDc, kAc };

  // Nothing is done for the table that it was made of before.
  void Make(const JHUFF_TBL& table, Kind kind);
  uint32_t Look(uint64_t bits) const { return entries_[bits >> (64 - kBits)]; }
  // An entry with kLong for a code of more than kBits; 0: there is no such code.
  uint32_t Search(uint64_t bits) const;

 private:
  uint32_t EntryOf(uint8_t symbol, int length) const;
  void Fill(uint32_t code, int length, uint8_t symbol);

  std::array<uint32_t, 1 << kBits> entries_{};
  std::array<int64_t, 17> last_code_{}, first_index_{};  // by length; -1: none
  JHUFF_TBL made_of_{};
  Kind kind_ = Kind::kDc;
  bool made_ = false;
};

// Bits of entropy-coded data, without the zeros stuffed behind 0xFF; it stops at a marker, and zeros follow. A value:
// loops work on a copy, which the compiler keeps in registers.
class BitReader {
 public:
  BitReader() = default;
  BitReader(const uint8_t* begin, const uint8_t* end) : at_(begin), end_(end) {}

  // At least 32 bits, unless the data ends.
  void Refill() {
    if (count_ < 32 && !LoadWord()) *this = Loaded(*this);
  }
  uint64_t bits() const { return bits_; }
  void Drop(int count) {
    bits_ <<= count;
    count_ -= count;
  }
  // Were bits used that are not there?
  bool overrun() const { return count_ < made_up_; }
  // Goes on behind the restart marker of this number (0 to 7), if that is what comes next.
  bool Restart(int number);

 private:
  // False where a 0xFF comes, or the end.
  bool LoadWord();
  static BitReader Loaded(BitReader reader);  // byte by byte

  const uint8_t *at_ = nullptr, *end_ = nullptr;
  uint64_t bits_ = 0;  // the next one is the highest
  int count_ = 0, made_up_ = 0;
};

class Entropy {
 public:
  explicit Entropy(JpegGuard& guard) : guard_(guard) {}

  // After jpeg_start_decompress, before the first row. False: this scan is none for it, libjpeg does it.
  // info->client_data must point to this object.
  bool TakeOver(j_decompress_ptr info);
  // Since Reset.
  bool gave_up() const { return gave_up_; }
  void Reset() { gave_up_ = false; }

 private:
  static boolean DecodeMcu(j_decompress_ptr info, JBLOCKROW* blocks);
  template <bool kStore>
  void Decode(JBLOCKROW* blocks);
  template <bool kStore>
  void DecodeBlock(int component, JCOEF* block, BitReader& reader);
  uint32_t NextEntry(const HuffmanTable& table, BitReader& reader);
  void RestartIfDue();
  [[noreturn]] void GiveUp();

  JpegGuard& guard_;
  std::array<HuffmanTable, 2 * NUM_HUFF_TBLS> tables_;
  struct Component {
    const HuffmanTable *dc, *ac;
    int last_dc;
  };
  std::array<Component, MAX_COMPS_IN_SCAN> components_{};
  std::array<uint8_t, D_MAX_BLOCKS_IN_MCU> component_of_{};  // of each block of an MCU
  int blocks_ = 0;
  uint32_t interval_ = 0, to_restart_ = 0;
  int next_restart_ = 0;
  BitReader reader_;
  bool gave_up_ = false;
};

}  // namespace lockstep::prepare
