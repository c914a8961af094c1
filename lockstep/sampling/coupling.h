// The two pieces that aligned orders are made of.
#pragma once

#include <span>
#include <vector>

#include "lockstep/sampling/random.h"
#include "lockstep/sampling/sampler.h"

namespace lockstep::sampling {

// How many of `marked` marked among `places` places lie within `part` of them, if all orders have the same chance.
struct Hypergeometric {
  int64_t places = 0, marked = 0, part = 0;
  int64_t Least() const;
  int64_t Most() const;
  std::vector<double> Chances() const;  // of Least()..Most()
};

// A draw of `to` at the same quantile as `value` is of `from`: it has the law of `to` if `value` has that of `from`,
// and is near to it, the same if both laws are the same. Requires from.Least() <= value <= from.Most().
int64_t SameQuantile(const Hypergeometric& from, int64_t value, const Hypergeometric& to, Rng& rng);

// The places [begin, end) of an order that run at the same time as [begin, end) of another.
struct Shared {
  size_t begin = 0, end = 0;
  size_t size() const { return end - begin; }
};

// An order of `items` (ascending), uniform if `partner` is, that has as much of it as uniformity allows at the places
// that run at the same time. `in_partner`: of the items, which the partner has.
struct Coupling {
  std::span<const Item> items;
  const std::vector<bool>& wanted;      // of the universe: the items
  const std::vector<bool>& in_partner;  // of the universe
  std::span<const Item> partner;
  Shared own, theirs;
};
std::vector<Item> Couple(const Coupling& coupling, Rng& rng);

}  // namespace lockstep::sampling
