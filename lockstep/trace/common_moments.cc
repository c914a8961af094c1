#include "lockstep/trace/common_moments.h"

#include <algorithm>

namespace lockstep::trace {

void CommonMoments::Sort() { std::sort(moments_.begin(), moments_.end()); }

float CommonMoments::Moved(float moment) const {
  if (moments_.empty()) return moment;
  auto nearest = std::ranges::lower_bound(moments_, moment, {}, &std::pair<float, float>::first);
  if (nearest == moments_.end() ||
      (nearest != moments_.begin() && moment - (nearest - 1)->first <= nearest->first - moment))
    --nearest;
  return nearest->second + (moment - nearest->first);
}

}  // namespace lockstep::trace
