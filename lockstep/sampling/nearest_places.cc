#include "lockstep/sampling/nearest_places.h"

#include <algorithm>

#include "lockstep/base/check.h"

namespace lockstep::sampling {

// A walk of an epoch looks at all places of the data set, passes at all items of the set, once for as many as are kept.
// A pass comes all at once and takes memory, so little to save is not worth it.
bool NearestPlaces::IsCheaper(uint64_t universe, uint64_t items) {
  constexpr uint64_t kWorth = 16;
  const uint64_t passes = (items + kMostKept - 1) / kMostKept;
  return items <= universe / passes / kWorth;
}

void NearestPlaces::KeepNearest() {
  if (places_.size() <= most_kept_) return;
  const auto last = places_.begin() + static_cast<std::ptrdiff_t>(most_kept_ - 1);
  std::nth_element(places_.begin(), last, places_.end());
  end_ = *last;
  places_.resize(most_kept_);
}

std::optional<uint64_t> NearestPlaces::Find(const Lap& lap, uint64_t from, const PlaceOf& place_of, uint64_t& work) {
  const bool is_made = seen_ == items_ && !places_.empty();
  if (lap != lap_ || from < from_ || (is_made && from > places_.back()) || (!is_made && from != from_)) {
    lap_ = lap;
    from_ = from;
    seen_ = 0;
    end_ = UINT64_MAX;
    places_.clear();
  }
  if (seen_ < items_) {
    for (; seen_ < items_ && work > 0; ++seen_, --work) {
      const uint64_t place = place_of(seen_);
      if (place < from_ || place >= end_) continue;
      places_.push_back(place);
      if (places_.size() == 2 * most_kept_) KeepNearest();
    }
    if (seen_ < items_) return std::nullopt;
    KeepNearest();
    std::sort(places_.begin(), places_.end());
    LS_CHECK(!places_.empty(), "no item from place {} on", from);
  }
  return *std::lower_bound(places_.begin(), places_.end(), from);
}

}  // namespace lockstep::sampling
