#include "lockstep/detect/shared_group.h"

#include <algorithm>
#include <array>

#include "lockstep/base/check.h"

namespace lockstep::detect {
namespace {

using cluster::Coordinates;
using cluster::Dimension;

// dp is there as its two factors. One of them alone has a name of its own.
struct Axis {
  int Coordinates::* index;
  Dimension dimension;
};
constexpr std::array<Axis, 5> kAxes = {{{&Coordinates::tp, Dimension::kTp},
                                        {&Coordinates::cp, Dimension::kCp},
                                        {&Coordinates::ep, Dimension::kEp},
                                        {&Coordinates::expert_dp, Dimension::kExpertDp},
                                        {&Coordinates::pp, Dimension::kPp}}};

std::string NameOf(const cluster::Layout& layout, const std::array<bool, kAxes.size()>& differs) {
  const bool ep = differs[2], expert_dp = differs[3];
  std::string name;
  for (size_t i = 0; i < kAxes.size(); ++i) {
    if (!differs[i] || (i == 3 && ep)) continue;
    const bool whole_dp = (i == 2 && expert_dp) || (i == 3 && layout.ep == 1);
    if (!name.empty()) name += '+';
    name += cluster::DimensionName(whole_dp ? Dimension::kDp : kAxes[i].dimension);
  }
  return name;
}

}  // namespace

SharedGroup FindSharedGroup(const cluster::Layout& layout, std::span<const int> ranks) {
  LS_CHECK(!ranks.empty(), "no ranks");
  const Coordinates first = layout.CoordinatesOf(RankId(ranks.front()));
  std::array<bool, kAxes.size()> differs{};
  for (const int rank : ranks) {
    const Coordinates at = layout.CoordinatesOf(RankId(rank));
    for (size_t i = 0; i < kAxes.size(); ++i) differs[i] |= at.*kAxes[i].index != first.*kAxes[i].index;
  }
  SharedGroup group{NameOf(layout, differs), {ranks.front()}};
  for (size_t i = 0; i < kAxes.size(); ++i) {
    if (!differs[i]) continue;
    std::vector<int> spread;
    for (const int rank : group.ranks)
      for (const RankId member : layout.Group(kAxes[i].dimension, RankId(rank))) spread.push_back(member.value());
    group.ranks = std::move(spread);
  }
  std::sort(group.ranks.begin(), group.ranks.end());
  return group;
}

}  // namespace lockstep::detect
