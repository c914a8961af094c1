#include "lockstep/sampling/aligned.h"

#include <algorithm>
#include <cmath>

#include "lockstep/sampling/coupling.h"

namespace lockstep::sampling {
namespace {

struct Span {
  double begin = 0, end = 0;
};

// Places of an order whose step lies within [begin, end).
Shared PlacesWithin(const Span& steps, double begin, double rate, size_t size) {
  const auto place = [&](double step) {
    return static_cast<size_t>(std::clamp(std::ceil((step - begin) * rate - 1e-9), 0.0, static_cast<double>(size)));
  };
  return {place(steps.begin), place(steps.end)};
}

}  // namespace

bool AlignedOrders::MayCouple(const Window& partner, const EpochStart& start, double end) const {
  if (partner.job == start.job) return false;
  const auto before = in_tree_.find({partner.root, start.job});
  if (before == in_tree_.end()) return true;
  return before->second && partner.number == partner.root && end <= partner.End();
}

const AlignedOrders::Window* AlignedOrders::ChoosePartner(const EpochStart& start,
                                                          const std::vector<bool>& wanted) const {
  const auto begin = static_cast<double>(start.now);
  const double steps = static_cast<double>(start.items.size()) / start.rate;
  const Window* best = nullptr;
  double most = 0;
  for (const Window& window : windows_) {
    if (!MayCouple(window, start, begin + steps)) continue;
    const double both = std::min(window.End(), begin + steps) - begin;
    const auto common =
        std::count_if(window.order.begin(), window.order.end(), [&](Item item) { return wanted[item]; });
    const double shared =
        static_cast<double>(common) * both / std::max(steps, window.End() - static_cast<double>(window.begin));
    if (shared > most) {
      most = shared;
      best = &window;
    }
  }
  return best;
}

void AlignedOrders::Forget(double now) {
  std::erase_if(windows_, [&](const Window& window) { return window.End() <= now; });
  std::erase_if(in_tree_, [&](const auto& entry) {
    return std::none_of(windows_.begin(), windows_.end(),
                        [&](const Window& window) { return window.root == entry.first.first; });
  });
}

std::vector<Item> AlignedOrders::Make(const EpochStart& start) {
  const auto begin = static_cast<double>(start.now);
  Forget(begin);
  std::vector<bool> wanted(options_.universe);
  for (const Item item : start.items) wanted[item] = true;
  Rng rng(KeyOf(Purpose::kEpoch, options_.seed, start.epoch, start.had, static_cast<uint64_t>(start.job)));
  Window window{
      .job = start.job, .begin = start.now, .rate = start.rate, .root = windows_made_, .number = windows_made_};
  ++windows_made_;
  if (const Window* partner = ChoosePartner(start, wanted)) {
    std::vector<bool> in_partner(options_.universe);
    for (const Item item : partner->order) in_partner[item] = true;
    const double end = begin + static_cast<double>(start.items.size()) / start.rate;
    const Span both{begin, std::min(end, partner->End())};
    window.order = Couple(
        {.items = start.items,
         .wanted = wanted,
         .in_partner = in_partner,
         .partner = partner->order,
         .own = PlacesWithin(both, begin, start.rate, start.items.size()),
         .theirs = PlacesWithin(both, static_cast<double>(partner->begin), partner->rate, partner->order.size())},
        rng);
    window.root = partner->root;
    const bool within = partner->number == partner->root && end <= partner->End();
    const auto [entry, fresh] = in_tree_.try_emplace({window.root, start.job}, within);
    entry->second = entry->second && within;
  } else {
    window.order.assign(start.items.begin(), start.items.end());
    Shuffle(std::span(window.order), rng);
    in_tree_[{window.root, start.job}] = false;
  }
  windows_.push_back(window);
  return window.order;
}

}  // namespace lockstep::sampling
