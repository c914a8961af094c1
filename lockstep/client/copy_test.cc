#include "lockstep/client/copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "lockstep/client/client.h"

namespace {

std::vector<uint8_t> RandomBytes(size_t count) {
  std::mt19937 random(1);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

// One bit at a time, straight from the definition: polynomial 0x1EDC6F41, reflected, complemented before and after.
uint32_t SlowCrc(uint32_t crc, const uint8_t* data, size_t bytes) {
  crc = ~crc;
  for (size_t i = 0; i < bytes; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
  }
  return ~crc;
}

TEST(Crc32c, KnownAnswers) {  // RFC 3720, B.4
  EXPECT_EQ(ls_crc32c(0, "123456789", 9), 0xe3069283u);
  const std::vector<uint8_t> zeros(32), ones(32, 0xff);
  EXPECT_EQ(ls_crc32c(0, zeros.data(), 32), 0x8a9136aau);
  EXPECT_EQ(ls_crc32c(0, ones.data(), 32), 0x62a8ab43u);
}

TEST(Crc32c, ContinuesAcrossAnySplit) {
  const std::vector<uint8_t> data = RandomBytes(40'000);
  const uint32_t whole = SlowCrc(0, data.data(), data.size());
  for (const size_t split : {0u, 1u, 63u, 12'288u, 12'289u, 39'999u}) {
    EXPECT_EQ(ls_crc32c(ls_crc32c(0, data.data(), split), data.data() + split, data.size() - split), whole) << split;
  }
}

TEST(Crc32c, IsThatOfTwoPartsJoined) {
  const std::vector<uint8_t> data = RandomBytes(40'000);
  const uint32_t whole = ls_crc32c(0, data.data(), data.size());
  for (const size_t split : {0u, 1u, 63u, 12'288u, 39'999u, 40'000u}) {
    const uint32_t before = ls_crc32c(0, data.data(), split);
    const uint32_t after = ls_crc32c(0, data.data() + split, data.size() - split);
    EXPECT_EQ(ls_crc32c_join(before, after, data.size() - split), whole) << split;
  }
}

// Every instruction set of this machine, odd lengths, odd alignments of both sides; nothing beyond the end is touched.
TEST(CopyCrc32c, CopiesAndChecksumsOnEveryInstructionSet) {
  const std::vector<uint8_t> data = RandomBytes(100'000);
  for (int isa = LS_ISA_PORTABLE; isa <= ls_copy_best_isa(); ++isa) {
    for (const size_t bytes : {0u, 1u, 7u, 64u, 1023u, 1024u, 4096u, 12'288u, 12'352u, 24'577u, 99'000u}) {
      for (const size_t offset : {0u, 1u, 8u, 63u}) {
        std::vector<uint8_t> to(bytes + 256, 0xaa);
        const uint32_t crc =
            ls_copy_crc32c_with(static_cast<ls_isa>(isa), 5, to.data() + offset, data.data() + offset / 2, bytes);
        ASSERT_EQ(crc, SlowCrc(5, data.data() + offset / 2, bytes)) << isa << ' ' << bytes << ' ' << offset;
        ASSERT_EQ(std::memcmp(to.data() + offset, data.data() + offset / 2, bytes), 0) << isa << ' ' << bytes;
        ASSERT_EQ(to[offset + bytes], 0xaa) << isa << ' ' << bytes;
      }
    }
  }
}

TEST(CopyNontemporal, CopiesAll) {
  const std::vector<uint8_t> data = RandomBytes(70'001);
  for (const size_t bytes : {0u, 100u, 1024u, 70'000u}) {
    std::vector<uint8_t> to(bytes + 1, 0xaa);
    ls_copy_nontemporal(to.data(), data.data() + 1, bytes);
    EXPECT_EQ(std::memcmp(to.data(), data.data() + 1, bytes), 0);
    EXPECT_EQ(to[bytes], 0xaa);
  }
}

}  // namespace
