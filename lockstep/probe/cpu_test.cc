// Memory, GEMM and all-to-all on this machine: what is right is said to be right, and one wrong bit is found and
// placed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "lockstep/probe/all_to_all.h"
#include "lockstep/probe/cores.h"
#include "lockstep/probe/gemm.h"
#include "lockstep/probe/memory.h"

namespace lockstep::probe {
namespace {

using testing::HasSubstr;

class Cpu : public testing::Test {
 protected:
  const SystemClock clock_;
  const std::vector<int> cores_ = AllowedCores();
  const Budget budget_{clock_, Seconds{0.02}, {}};
};

void ExpectHealthy(const std::vector<Measurement>& measured, const std::string& test) {
  ASSERT_EQ(measured.size(), 3u);
  EXPECT_EQ(measured[0].name, test + ".bits");
  EXPECT_EQ(measured[0].value, 0);
  for (const Measurement& one : measured) {
    EXPECT_TRUE(one.ok) << one.name << ": " << one.text;
    EXPECT_TRUE(one.unit == "errors" || one.value > 0) << one.name;
  }
}

TEST_F(Cpu, MemoryIsCopiedRight) { ExpectHealthy(MeasureMemory(budget_, cores_), "memory"); }

TEST_F(Cpu, OneFlippedBitInMemoryIsPlaced) {
  const auto flip = [](std::span<uint64_t> words) { words[123'456] ^= 1ULL << 17; };
  const Measurement bits = MeasureMemory(budget_, cores_, flip)[0];
  EXPECT_FALSE(bits.ok);
  EXPECT_EQ(bits.value, 1);
  EXPECT_THAT(bits.text, HasSubstr("1 words are not what was written; first at byte 987648:"));
}

TEST_F(Cpu, ProductsAreRight) { ExpectHealthy(MeasureGemm(budget_, cores_), "gemm"); }

TEST_F(Cpu, TheCoreThatMultipliesWrongIsNamed) {
  const int bad = cores_.back();
  const auto flip = [bad](int core, std::span<float> product) {
    if (core == bad) product[77] = -product[77];
  };
  const Measurement bits = MeasureGemm(budget_, cores_, flip)[0];
  EXPECT_FALSE(bits.ok);
  EXPECT_GT(bits.value, 0);
  EXPECT_THAT(bits.text, HasSubstr(fmt::format("wrong, on core {}; first core {}", bad, bad)));
}

TEST_F(Cpu, AllSendToAll) {
  ExpectHealthy(MeasureAllToAll(budget_, cores_), "all_to_all");
  ExpectHealthy(MeasureAllToAll(budget_, {cores_[0]}), "all_to_all");
  ExpectHealthy(MeasureAllToAll(budget_, std::vector<int>(40, cores_[0])), "all_to_all");  // more than take part
}

TEST_F(Cpu, TheWayThatDamagesIsNamed) {
  const std::vector<int> cores(3, cores_[0]);
  std::atomic<int> times = 0;
  const auto flip = [&](size_t from, size_t to, std::span<uint64_t> block) {
    if (from == 2 && to == 1 && times++ == 0) block.back() ^= 1;
  };
  const Measurement bits = MeasureAllToAll(budget_, cores, flip)[0];
  EXPECT_FALSE(bits.ok);
  EXPECT_EQ(bits.value, 1);
  EXPECT_THAT(bits.text, HasSubstr("wrong from core"));
}

// Whoever asks them to stop gets an answer after the least that they do.
TEST_F(Cpu, StopsWhenAsked) {
  std::stop_source stop;
  stop.request_stop();
  const Budget long_one(clock_, Seconds{3600}, stop.get_token());
  EXPECT_EQ(MeasureMemory(long_one, cores_).size(), 3u);
  EXPECT_EQ(MeasureGemm(long_one, cores_).size(), 3u);
  EXPECT_EQ(MeasureAllToAll(long_one, cores_).size(), 3u);
}

}  // namespace
}  // namespace lockstep::probe
