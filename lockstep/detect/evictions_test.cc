#include "lockstep/detect/evictions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <random>
#include <set>

namespace lockstep::detect {
namespace {

using testing::ElementsAre;

std::map<int, double> Chances(const Explanations& explanations) {
  std::map<int, double> chances;
  for (const Explanation& one : explanations.list) {
    for (const int x : one.bad) chances[x] += one.chance;
  }
  return chances;
}

// As the words say it, looking at every machine of every explanation each time.
double Covered(const Explanations& explanations, const std::set<int>& machines) {
  double covered = 0;
  for (const Explanation& one : explanations.list) {
    if (std::all_of(one.bad.begin(), one.bad.end(), [&](int x) { return machines.contains(x); })) covered += one.chance;
  }
  return covered;
}

std::set<int> Plainly(const Explanations& explanations, double confidence) {
  std::vector<std::pair<double, int>> order;
  for (const auto& [machine, chance] : Chances(explanations)) order.emplace_back(-chance, machine);
  std::sort(order.begin(), order.end());
  std::set<int> evict;
  for (const auto& [chance, machine] : order) {
    if (Covered(explanations, evict) >= confidence) break;
    evict.insert(machine);
  }
  for (auto last = order.rbegin(); last != order.rend(); ++last) {
    if (evict.erase(last->second) == 0) continue;
    if (Covered(explanations, evict) < confidence) evict.insert(last->second);
  }
  return evict;
}

Explanations Drawn(std::mt19937_64& random) {
  Explanations drawn;
  const size_t machines = 1 + random() % 12;
  double sum = 0;
  for (size_t left = 1 + random() % 30; left > 0; --left) {
    std::set<int> bad;
    for (size_t i = random() % 5; i > 0; --i) bad.insert(static_cast<int>(random() % machines));
    const double weight = 1 + static_cast<double>(random() % 7);  // some are alike
    sum += weight;
    drawn.list.push_back({{bad.begin(), bad.end()}, {}, {}, weight});
  }
  for (Explanation& one : drawn.list) one.chance /= sum;
  return drawn;
}

TEST(Evictions, AreThoseOfThePlainRuleToTheBit) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 3000; ++i) {
    const Explanations drawn = Drawn(random);
    for (const double confidence : {0.6, 0.9, 0.99}) {
      const Evictions found = FindEvictions(drawn, Chances(drawn), confidence);
      const std::set<int> expected = Plainly(drawn, confidence);
      ASSERT_EQ(Machines(expected.begin(), expected.end()), found.machines) << i;
      ASSERT_EQ(Covered(drawn, expected), found.chance) << i;
    }
  }
}

TEST(Evictions, OfNoMachineAreNone) {
  const Explanations healthy{{{{}, {}, {}, 1}}};
  EXPECT_TRUE(FindEvictions(healthy, {}, 0.99).machines.empty());
  EXPECT_EQ(1, FindEvictions(healthy, {}, 0.99).chance);
}

// The coordinator looks for them in its own thread, and agents give it up after 4 s of silence. A look at every machine
// of each explanation for each step took 12 s of processor time here; this takes a tenth of one.
TEST(Evictions, OfAsManyExplanationsAsThereMayBeTakeNoTime) {
  Explanations all;
  for (int i = 0; i < kMostNodes; ++i) {
    Explanation one{{}, {}, {}, 1.0 / kMostNodes};
    for (int x = 0; x < 100; ++x) one.bad.push_back(x);
    one.bad.push_back(100 + i % 400);
    all.list.push_back(std::move(one));
  }
  const std::map<int, double> chances = Chances(all);
  const std::clock_t begin = std::clock();
  EXPECT_EQ(496u, FindEvictions(all, chances, 0.99).machines.size());
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 4);
}

}  // namespace
}  // namespace lockstep::detect
