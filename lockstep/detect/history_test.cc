// What is noted in samples as they come says the same as going back over all of them.
#include "lockstep/detect/history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "lockstep/detect/awake.h"

namespace lockstep::detect {
namespace {

constexpr Seconds kWindow{20};  // 400 samples of a process, and 80 stacks, of at most 80 s
constexpr int64_t kSecond = 1'000'000'000;

template <typename Sample>
std::vector<Sample> Newest(std::vector<Sample> samples, size_t most) {
  std::ranges::sort(samples);
  const Nanos newest = samples.back().at;
  std::erase_if(samples, [&](const Sample& one) { return newest - one.at > ToNanos(Seconds{80}); });
  if (samples.size() > most) samples.erase(samples.begin(), samples.end() - static_cast<std::ptrdiff_t>(most));
  return samples;
}

// Up to `now`, newest first, as long as it holds and the sampler was not silent for a minute; none: `otherwise`.
template <typename Sample, typename Holds>
Nanos Since(const std::vector<Sample>& samples, Nanos now, Nanos otherwise, Holds holds) {
  Nanos since = otherwise, later = now;
  for (auto it = samples.rbegin(); it != samples.rend(); ++it) {
    if (it->at > now) continue;
    if (later - it->at > ToNanos(Seconds{60}) || !holds(*it)) break;
    since = later = it->at;
  }
  return since;
}

class Histories : public testing::TestWithParam<uint32_t> {
 protected:
  int Below(int count) { return static_cast<int>(chance_() % static_cast<uint32_t>(count)); }
  // In the order of their times but for some that are late.
  template <typename Sample>
  void AddAll(std::vector<Sample> samples) {
    for (size_t i = 1; i < samples.size(); ++i)
      if (Below(5) == 0) std::swap(samples[i], samples[i - 1]);
    for (const Sample& sample : samples) history_.Add(sample);
  }

  std::mt19937 chance_{GetParam()};
  RankHistory history_{kWindow};
};

TEST_P(Histories, OfSamples) {
  std::vector<RankSample> samples(420);
  int kind = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (Below(6) == 0) kind = Below(4);
    samples[i].at = Nanos{static_cast<int64_t>(i + 1) * kSecond / 20};
    samples[i].state = kind == 1 ? ProcState::kStopped : ProcState::kSleeping;
    samples[i].traced = kind == 2;
  }
  AddAll(samples);
  const std::vector<RankSample> kept = Newest(samples, 400);
  for (const RankSample& until : kept) {
    const Nanos now = until.at;
    EXPECT_EQ(history_.HaltedSince(now).value_or(Nanos{}), Since(kept, now, Nanos{}, Halted));
    EXPECT_EQ(history_.FreeSince(now),
              Since(kept, now, now, [](const RankSample& sample) { return !Halted(sample) && !sample.traced; }));
  }
}

TEST_P(Histories, OfStacks) {
  std::vector<StackSample> stacks(90);
  int kind = 0;
  int64_t at = 0;
  for (StackSample& stack : stacks) {
    if (Below(6) == 0) kind = Below(3);
    stack.at = Nanos{at += Below(50) == 0 ? 61 * kSecond : kSecond / 4};
    stack.code = kind == 2 ? CodeKind::kMathLibrary : CodeKind::kInterpreter;
    stack.python = "a.py:" + std::to_string(1 + Below(3)) + (kind == 0 ? " in f" : " in g");
    stack.signature = static_cast<uint64_t>(1 + Below(2));
  }
  AddAll(stacks);
  const std::vector<StackSample> kept = Newest(stacks, 80);
  for (const StackSample& last : kept) {
    EXPECT_EQ(history_.Still(last.at).since, Since(kept, last.at, last.at, [&](const StackSample& stack) {
                return stack.signature == last.signature;
              }));
    std::set<std::string> lines;
    const Nanos since = Since(kept, last.at, last.at, [&](const StackSample& stack) {
      lines.insert(stack.python);
      return last.code != CodeKind::kMathLibrary && stack.code == last.code &&
             FunctionOf(stack.python) == FunctionOf(last.python) && lines.size() <= 2;
    });
    const StackRun run = history_.OneSpot(last.at);
    EXPECT_EQ(run.since, since);
    EXPECT_EQ(run.samples == 0, last.code == CodeKind::kMathLibrary);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Histories, testing::Range(1u, 101u));

// Ten seconds: a hole from 2.5 s to 6.2, all halted in the ninth.
TEST(Awake, WhatIsWatchedOfATime) {
  AwakeClock clock(100);
  for (int tenth = 0; tenth < 100; ++tenth) {
    if (tenth > 25 && tenth < 62) continue;
    RankSample sample;
    sample.at = Nanos{100 * kSecond + tenth * kSecond / 10};
    sample.frozen = tenth >= 80 && tenth < 90;
    clock.Add(sample);
  }
  const auto watched = [&](double from, double to) {
    const auto at = [](double seconds) { return Nanos{100 * kSecond} + ToNanos(Seconds{seconds}); };
    return clock.Until(at(to)).Since(at(from)).value;
  };
  EXPECT_DOUBLE_EQ(watched(0, 2), 2);
  EXPECT_DOUBLE_EQ(watched(0, 10), 10 - 3.2 - 1);  // the second of the last sample counts whole
  EXPECT_DOUBLE_EQ(watched(8.5, 10), 1);
  EXPECT_DOUBLE_EQ(watched(3, 6.5), 0.3);
  EXPECT_DOUBLE_EQ(watched(3.5, 6.5), 3) << "a shorter hole is forgiven";
  EXPECT_DOUBLE_EQ(watched(9.95, 20), 0.05);
}

}  // namespace
}  // namespace lockstep::detect
