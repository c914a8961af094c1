#include "lockstep/synth/schedule.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace lockstep::synth {
namespace {

// "F0 F1 B0 ..."; with chunks "F0.1": microbatch 0 of chunk 1.
std::string Text(const std::vector<Compute>& order, bool chunks) {
  std::string text;
  for (const Compute& one : order)
    text +=
        fmt::format("{}{}{} ", one.forward ? 'F' : 'B', one.microbatch, chunks ? fmt::format(".{}", one.chunk) : "");
  return text;
}

// A stage runs ahead by as many forwards as there are stages behind it, then one forward, one backward.
TEST(Schedule, OneForwardOneBackward) {
  EXPECT_EQ(Text(Schedule(0, 3, 1, 4), false), "F0 F1 F2 B0 F3 B1 B2 B3 ");
  EXPECT_EQ(Text(Schedule(2, 3, 1, 4), false), "F0 B0 F1 B1 F2 B2 F3 B3 ");
  EXPECT_EQ(Text(Schedule(0, 1, 1, 2), false), "F0 B0 F1 B1 ");
  EXPECT_EQ(Text(Schedule(0, 4, 1, 2), false), "F0 F1 B0 B1 ");
}

// Megatron-LM: 2 * (pp - stage - 1) + (vpp - 1) * pp forwards ahead; backward begins with the last chunk.
TEST(Schedule, Interleaved) {
  EXPECT_EQ(Text(Schedule(1, 2, 2, 4), true),
            "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0 ");
}

TEST(Schedule, EveryMicrbatchPassesEveryChunkOnceEachWay) {
  for (int stage = 0; stage < 4; ++stage) {
    std::set<std::tuple<bool, int, int>> seen;
    for (const Compute& one : Schedule(stage, 4, 3, 8)) {
      EXPECT_TRUE(seen.emplace(one.forward, one.chunk, one.microbatch).second);
      EXPECT_TRUE(one.forward || seen.contains({true, one.chunk, one.microbatch}));
    }
    EXPECT_EQ(seen.size(), 2U * 3 * 8);
  }
}

}  // namespace
}  // namespace lockstep::synth
