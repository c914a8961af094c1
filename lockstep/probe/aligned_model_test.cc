// The model's gradients are those of its loss; its bits are the same whoever computes them, and not after any fault.
//   d loss / d w = (loss(w + h) - loss(w - h)) / 2 h
// The checksums that are expected were found by another implementation, tests/e2e/aligned_reference.py.
#include "lockstep/probe/aligned_model.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>

#include "lockstep/probe/aligned.h"
#include "lockstep/probe/cores.h"

namespace lockstep::probe {
namespace {

std::vector<AlignedShape> AllShapes() {
  std::vector<AlignedShape> shapes;
  for (const int tp : {1, 2})
    for (const int pp : {1, 2})
      for (const int dp : {1, 2}) shapes.push_back({.tp = tp, .pp = pp, .dp = dp});
  return shapes;
}

TEST(Exact, ExponentialIsNearTheLibrarys) {
  for (float x = -86; x < 88; x += 0.0137F) {
    const double exact = std::exp(static_cast<double>(x));
    ASSERT_NEAR(Exponential(x) / exact, 1, 3e-7) << x;
  }
  EXPECT_EQ(Exponential(0), 1);
  EXPECT_EQ(Exponential(-100), 0);
}

TEST(Exact, Bfloat16IsTheNearestWithTiesToEven) {
  EXPECT_EQ(ToBfloat16(1.0F), 1.0F);
  EXPECT_EQ(ToBfloat16(1.0F + 0x1p-8F), 1.0F);             // halfway between 1 and 1 + 2^-7
  EXPECT_EQ(ToBfloat16(1.0F + 3 * 0x1p-8F), 1 + 0x1p-6F);  // halfway, to the even one above
  EXPECT_EQ(ToBfloat16(-1.0F - 0x1.1p-8F), -1.0F - 0x1p-7F);
}

// Moves one value of the n-th leaf that the tape is given. Leaves come in the order of the tensors, for each replica.
double LossWith(size_t tensor, size_t index, float by, size_t tensors) {
  size_t leaf = 0;
  return RunAlignedModel({.tp = 2}, Precision::kSingle,
                         [&](std::string_view operation, std::span<float> values) {
                           if (operation == "leaf" && leaf++ % tensors == tensor) values[index] += by;
                         })
      .loss;
}

TEST(AlignedModel, LossFallsAlongItsGradient) {
  const std::vector<std::vector<float>> start = {FixedValues("x", 128, 1), FixedValues("g", 16, 1),
                                                 FixedValues("w", 256, 0.5), FixedValues("v", 256, 0.5)};
  // All operations but Pick, which the whole model's test has, in one small network.
  const auto build = [&](Tape& on, const std::vector<std::vector<float>>& leaves) {
    std::vector<int> at;
    const std::pair<int, int> sizes[] = {{8, 16}, {1, 16}, {16, 16}, {16, 16}};
    for (size_t i = 0; i < leaves.size(); ++i) {
      Matrix leaf(sizes[i].first, sizes[i].second);
      leaf.values = leaves[i];
      at.push_back(on.Leaf(std::move(leaf)));
    }
    const int normal = on.Normalise(at[0], at[1]);
    const int q = on.Multiply(normal, at[2]), k = on.Multiply(normal, at[3]);
    const int out = on.Silu(on.Sum({on.Attend(q, k, q, 2), k}));
    return std::pair(at, on.CrossEntropy({out, k}, {0, 17, 3, 31, 5, 20, 7, 9}));
  };
  Tape whole(Precision::kSingle);
  const auto [at, loss] = build(whole, start);
  ASSERT_GT(loss, 1);
  whole.Backward();
  constexpr float kStep = 1.0F / 256;
  for (size_t leaf = 0; leaf < start.size(); ++leaf) {
    for (size_t i = 0; i < start[leaf].size(); i += 13) {
      auto up = start, down = start;
      up[leaf][i] += kStep;
      down[leaf][i] -= kStep;
      Tape above(Precision::kSingle), below(Precision::kSingle);
      const double slope = (build(above, up).second - build(below, down).second) / (2 * kStep);
      EXPECT_NEAR(whole.Gradient(at[leaf]).values[i], slope, 2e-3 + 0.01 * std::abs(slope)) << leaf << " " << i;
    }
  }
}

TEST(AlignedModel, AllShapesGiveTheirKnownBitsAgainAndAgain) {
  std::set<uint32_t> different;
  for (const AlignedShape& shape : AllShapes()) {
    for (const Precision precision : {Precision::kSingle, Precision::kBfloat16}) {
      const AlignedBits bits = RunAlignedModel(shape, precision);
      EXPECT_EQ(bits.tensors, RunAlignedModel(shape, precision).tensors);
      EXPECT_EQ(bits.crc, ExpectedAlignedCrc(shape, precision)) << shape.Text() << std::hex << " 0x" << bits.crc;
      EXPECT_NEAR(bits.loss, std::log(128), 0.7) << "of words that are as good as chance";
      different.insert(bits.crc);
    }
  }
  EXPECT_EQ(different.size(), 16u);
}

// tp, pp and dp split the same model: its loss is the same but for roundings, unless there are more sequences.
TEST(AlignedModel, SplitsComputeTheSame) {
  const double whole = RunAlignedModel({}, Precision::kSingle).loss;
  EXPECT_NEAR(RunAlignedModel({.tp = 2}, Precision::kSingle).loss, whole, 1e-5);
  EXPECT_NEAR(RunAlignedModel({.pp = 2}, Precision::kSingle).loss, whole, 1e-12);
  EXPECT_NEAR(RunAlignedModel({}, Precision::kBfloat16).loss, whole, 0.05);
}

TEST(AlignedModel, WeightsMatter) {
  const size_t tensors = RunAlignedModel({.tp = 2}, Precision::kSingle).tensors.size();
  const double base = LossWith(0, 0, 0, tensors);
  for (size_t tensor = 1; tensor < tensors; ++tensor) EXPECT_NE(LossWith(tensor, 5, 0.5, tensors), base) << tensor;
}

// The checksum after one bit of what the n-th operation computed was flipped; n = 0 has words that no sequence may
// have.
uint32_t CrcWithFlip(Precision precision, int operation, uint32_t bit) {
  int now = 0;
  const TamperValues flip = [&](std::string_view, std::span<float> values) {
    float& value = values[values.size() / 2];
    if (now++ == operation) value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ 1U << bit);
  };
  return RunAlignedModel({}, precision, flip).crc;
}

// High bits of the fraction always; the lowest, unless the next sum rounds it away, which then does no harm either.
TEST(AlignedModel, OneFlippedBitIsSeen) {
  for (const Precision precision : {Precision::kSingle, Precision::kBfloat16}) {
    const uint32_t expected = ExpectedAlignedCrc({}, precision);
    const uint32_t lowest = precision == Precision::kSingle ? 0 : 16;
    int operations = 0, lowest_seen = 0;
    RunAlignedModel({}, precision, [&](std::string_view, std::span<float>) { ++operations; });
    for (int fault = 1; fault < operations; ++fault) {
      EXPECT_NE(CrcWithFlip(precision, fault, 22), expected) << fault;
      lowest_seen += CrcWithFlip(precision, fault, lowest) != expected;
    }
    EXPECT_GE(lowest_seen, operations * 3 / 4) << "of " << operations;
    RecordProperty(precision == Precision::kSingle ? "single" : "bfloat16", lowest_seen);
    RecordProperty("operations", operations);
  }
}

TEST(Aligned, NamesTheCoreAndWhatDiffers) {
  const SystemClock clock;
  const std::vector<int> cores = AllowedCores();
  const Budget budget(clock, Seconds{0.01}, {});
  const std::vector<Measurement> good = MeasureAligned(budget, cores, {.shape = {.tp = 2}, .repeat = 2});
  ASSERT_EQ(good.size(), 2u);
  EXPECT_EQ(good[0].name, "aligned.single.tp2,pp1,dp1");
  for (const Measurement& one : good) EXPECT_TRUE(one.ok) << one.text;
  EXPECT_EQ(good[0].value, ExpectedAlignedCrc({.tp = 2}, Precision::kSingle));

  int runs = 0;  // one core, so no two at once
  const std::vector<Measurement> bad = MeasureAligned(
      budget, {cores[0]}, {.repeat = 5, .tamper = [&](std::string_view operation, std::span<float> values) {
                             if (operation == "silu" && ++runs == 3) values[0] += 1;
                           }});
  EXPECT_FALSE(bad[0].ok);
  EXPECT_NE(bad[0].text.find("others on core"), std::string::npos) << bad[0].text;
  EXPECT_NE(bad[0].text.find("of 19 tensors differ"), std::string::npos) << bad[0].text;
}

}  // namespace
}  // namespace lockstep::probe
