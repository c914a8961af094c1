#include "lockstep/sampling/packed.h"

#include <algorithm>
#include <bit>

#include "lockstep/sampling/permutation.h"

namespace lockstep::sampling {
namespace {

constexpr size_t kMostClasses = 4096;

using Signature = std::vector<uint64_t>;  // which sets an item is in, a bit each

bool Disjoint(const Signature& a, const Signature& b) {
  for (size_t word = 0; word < a.size(); ++word) {
    if ((a[word] & b[word]) != 0) return false;
  }
  return true;
}

int CountOf(const Signature& signature) {
  int count = 0;
  for (const uint64_t word : signature) count += std::popcount(word);
  return count;
}

struct Class {
  Signature signature;
  std::vector<Item> items;
};

// The widest first.
std::vector<Class> ClassesOf(uint64_t universe, std::span<const std::vector<Item>* const> sets) {
  std::vector<Signature> signatures(universe, Signature((sets.size() + 63) / 64));
  for (size_t set = 0; set < sets.size(); ++set) {
    for (const Item item : *sets[set]) signatures[item][set / 64] |= uint64_t{1} << (set % 64);
  }
  std::map<Signature, std::vector<Item>> by_signature;
  for (Item item = 0; item < universe; ++item) by_signature[signatures[item]].push_back(item);
  std::vector<Class> classes;
  for (auto& [signature, items] : by_signature) classes.push_back({signature, std::move(items)});
  std::stable_sort(classes.begin(), classes.end(),
                   [](const Class& a, const Class& b) { return CountOf(a.signature) > CountOf(b.signature); });
  return classes;
}

// Classes from `first` on, disjoint and not empty, each the widest that fits.
std::vector<size_t> Fitting(const std::vector<Class>& classes, size_t first) {
  std::vector<size_t> chosen{first};
  Signature taken = classes[first].signature;
  for (size_t i = first + 1; i < classes.size(); ++i) {
    if (classes[i].items.empty() || CountOf(classes[i].signature) == 0 || !Disjoint(taken, classes[i].signature))
      continue;
    chosen.push_back(i);
    for (size_t word = 0; word < taken.size(); ++word) taken[word] |= classes[i].signature[word];
  }
  return chosen;
}

}  // namespace

Units Pack(uint64_t universe, std::span<const std::vector<Item>* const> sets) {
  std::vector<Class> classes = ClassesOf(universe, sets);
  Units units{.of = std::vector<uint32_t>(universe)};
  const bool few = classes.size() <= kMostClasses;
  for (size_t first = 0; first < classes.size(); ++first) {
    while (!classes[first].items.empty()) {
      const std::vector<size_t> chosen = few ? Fitting(classes, first) : std::vector<size_t>{first};
      size_t count = classes[first].items.size();
      for (const size_t i : chosen) count = std::min(count, classes[i].items.size());
      for (; count > 0; --count, ++units.count) {
        for (const size_t i : chosen) {
          units.of[classes[i].items.back()] = units.count;
          classes[i].items.pop_back();
        }
      }
    }
  }
  return units;
}

namespace {

struct Placed {
  uint64_t place = 0;  // of its unit
  uint64_t chance = 0;
  Item item = 0;
  friend bool operator<(const Placed& a, const Placed& b) {
    return std::tie(a.place, a.chance, a.item) < std::tie(b.place, b.chance, b.item);
  }
};

// One item of each unit in the order of the units; the others at places that are drawn.
std::vector<Item> Spread(const std::vector<Placed>& placed, Rng& rng) {
  std::vector<Item> leading, others;
  for (size_t i = 0; i < placed.size(); ++i)
    (i == 0 || placed[i].place != placed[i - 1].place ? leading : others).push_back(placed[i].item);
  if (others.empty()) return leading;
  Shuffle(std::span(others), rng);
  std::vector<uint8_t> is_other(placed.size());
  std::fill_n(is_other.begin(), others.size(), uint8_t{1});
  Shuffle(std::span(is_other), rng);
  std::vector<Item> order;
  size_t next_leading = 0, next_other = 0;
  for (const uint8_t other : is_other) order.push_back(other != 0 ? others[next_other++] : leading[next_leading++]);
  return order;
}

}  // namespace

void PackedOrders::Leave(int job) {
  laps_.Leave(static_cast<uint64_t>(job));
  known_.erase(job);
}

std::vector<Item> PackedOrders::Make(const EpochStart& start) {
  const double steps = std::max(1.0, static_cast<double>(start.items.size()) / start.rate);
  const Lap lap = laps_.Begin({.job = static_cast<uint64_t>(start.job), .steps = steps, .now = start.now});
  if (packed_for_ != lap.number) {
    known_.try_emplace(start.job, start.items.begin(), start.items.end());
    std::vector<const std::vector<Item>*> sets;
    for (const auto& [job, items] : known_) sets.push_back(&items);
    units_ = Pack(options_.universe, sets);
    packed_for_ = lap.number;
  }
  const Permutation order(units_.count, KeyOf(Purpose::kUnits, options_.seed, lap.number));
  const uint64_t offset = lap.offset * units_.count / options_.universe;
  Rng rng(KeyOf(Purpose::kEpoch, options_.seed, start.epoch, start.had, static_cast<uint64_t>(start.job)));
  std::vector<Placed> placed;
  placed.reserve(start.items.size());
  for (const Item item : start.items) {
    const uint64_t at = order.IndexOf(units_.of[item]);
    placed.push_back({at >= offset ? at - offset : at + units_.count - offset, rng.Next(), item});
  }
  std::sort(placed.begin(), placed.end());
  return Spread(placed, rng);
}

}  // namespace lockstep::sampling
