#include "lockstep/sampling/coupling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/check.h"

namespace lockstep::sampling {
namespace {

constexpr Item kFree = std::numeric_limits<Item>::max();

double LogChoose(int64_t n, int64_t k) {
  const auto log_factorial = [](int64_t x) {
    int sign = 0;
    return lgamma_r(static_cast<double>(x) + 1, &sign);
  };
  return log_factorial(n) - log_factorial(k) - log_factorial(n - k);
}

// What the partner takes at places that both run, and where: place of the partner, item.
struct Match {
  size_t place = 0;
  Item item = 0;
};

// In the making: places, and the items that have none yet.
class Draft {
 public:
  Draft(const Coupling& coupling, Rng& rng) : in_(coupling), rng_(rng), order_(coupling.items.size(), kFree) {}

  std::vector<Item> Make() {
    Sort();
    const int64_t kept_or_added = TargetCount();
    if (in_.own.size() == in_.theirs.size())
      KeepPlaces(kept_or_added);
    else
      KeepSequence(kept_or_added);
    FillRest(kept_or_added);
    return std::move(order_);
  }

 private:
  // Common items at shared places of the partner, common items elsewhere, items that the partner doesn't have.
  void Sort() {
    std::vector<bool> matched(in_.wanted.size());
    for (size_t at = in_.theirs.begin; at < in_.theirs.end; ++at) {
      const Item item = in_.partner[at];
      if (!in_.wanted[item]) continue;
      matches_.push_back({.place = at, .item = item});
      matched[item] = true;
    }
    for (const Item item : in_.items) {
      if (!in_.in_partner[item])
        foreign_.push_back(item);
      else if (!matched[item])
        common_.push_back(item);
    }
    Shuffle(std::span(common_), rng_);
    Shuffle(std::span(foreign_), rng_);
  }

  int64_t TargetCount() {
    const auto marked = static_cast<int64_t>(matches_.size() + common_.size());
    const Hypergeometric theirs{static_cast<int64_t>(in_.partner.size()), marked,
                                static_cast<int64_t>(in_.theirs.size())};
    const Hypergeometric own{static_cast<int64_t>(in_.items.size()), marked, static_cast<int64_t>(in_.own.size())};
    return SameQuantile(theirs, static_cast<int64_t>(matches_.size()), own, rng_);
  }

  // Leaves `count` matches, every choice with the same chance, in the partner's order; others become common_.
  void Thin(size_t count) {
    if (count >= matches_.size()) return;
    Shuffle(std::span(matches_), rng_);
    for (size_t i = count; i < matches_.size(); ++i) common_.push_back(matches_[i].item);
    Shuffle(std::span(common_), rng_);
    matches_.resize(count);
    std::sort(matches_.begin(), matches_.end(), [](const Match& a, const Match& b) { return a.place < b.place; });
  }

  std::vector<size_t> FreePlaces(size_t begin, size_t end) {
    std::vector<size_t> places;
    for (size_t i = begin; i < end; ++i) {
      if (order_[i] == kFree) places.push_back(i);
    }
    Shuffle(std::span(places), rng_);
    return places;
  }

  // Same speed: a match stays in its step.
  void KeepPlaces(int64_t count) {
    Thin(static_cast<size_t>(count));
    for (const Match& match : matches_) order_[match.place - in_.theirs.begin + in_.own.begin] = match.item;
    const std::vector<size_t> places = FreePlaces(in_.own.begin, in_.own.end);
    const size_t more = static_cast<size_t>(count) - matches_.size();
    for (size_t i = 0; i < more; ++i) order_[places[i]] = Take(common_);
  }

  // Another speed: places by chance, the matches in the partner's sequence.
  void KeepSequence(int64_t count) {
    Thin(static_cast<size_t>(count));
    std::vector<size_t> places = FreePlaces(in_.own.begin, in_.own.end);
    places.resize(static_cast<size_t>(count));
    std::vector<bool> is_match(places.size());
    std::fill_n(is_match.begin(), matches_.size(), true);
    for (size_t i = 0; i < is_match.size(); ++i) {
      const size_t other = i + rng_.Below(is_match.size() - i);
      const bool kept = is_match[i];
      is_match[i] = is_match[other];
      is_match[other] = kept;
    }
    std::sort(places.begin(), places.end());
    size_t next = 0;
    for (size_t i = 0; i < places.size(); ++i) order_[places[i]] = is_match[i] ? matches_[next++].item : Take(common_);
  }

  // The rest of the shared places to foreign items; all that is left then to the others.
  void FillRest(int64_t common_inside) {
    std::vector<size_t> inside = FreePlaces(in_.own.begin, in_.own.end);
    LS_CHECK(inside.size() + static_cast<size_t>(common_inside) == in_.own.size(), "{} free", inside.size());
    for (const size_t place : inside) order_[place] = Take(foreign_);
    common_.insert(common_.end(), foreign_.begin(), foreign_.end());
    for (const size_t place : FreePlaces(0, order_.size())) order_[place] = Take(common_);
  }

  static Item Take(std::vector<Item>& items) {
    LS_CHECK(!items.empty());
    const Item item = items.back();
    items.pop_back();
    return item;
  }

  const Coupling& in_;
  Rng& rng_;
  std::vector<Item> order_;
  std::vector<Match> matches_;
  std::vector<Item> common_, foreign_;
};

}  // namespace

int64_t Hypergeometric::Least() const { return std::max<int64_t>(0, marked - (places - part)); }
int64_t Hypergeometric::Most() const { return std::min(marked, part); }

std::vector<double> Hypergeometric::Chances() const {
  std::vector<double> chances;
  const double all = LogChoose(places, part);
  for (int64_t k = Least(); k <= Most(); ++k)
    chances.push_back(std::exp(LogChoose(marked, k) + LogChoose(places - marked, part - k) - all));
  return chances;
}

int64_t SameQuantile(const Hypergeometric& from, int64_t value, const Hypergeometric& to, Rng& rng) {
  if (from.places == to.places && from.marked == to.marked && from.part == to.part) return value;
  LS_CHECK(from.Least() <= value && value <= from.Most(), "{}", value);
  const std::vector<double> source = from.Chances(), target = to.Chances();
  double quantile = rng.Uniform() * source[static_cast<size_t>(value - from.Least())];
  for (int64_t k = from.Least(); k < value; ++k) quantile += source[static_cast<size_t>(k - from.Least())];
  double below = 0;
  for (int64_t k = to.Least(); k < to.Most(); ++k) {
    below += target[static_cast<size_t>(k - to.Least())];
    if (quantile < below) return k;
  }
  return to.Most();
}

std::vector<Item> Couple(const Coupling& coupling, Rng& rng) { return Draft(coupling, rng).Make(); }

}  // namespace lockstep::sampling
