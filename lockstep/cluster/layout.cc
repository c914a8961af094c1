#include "lockstep/cluster/layout.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "lockstep/base/check.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/number.h"

namespace lockstep::cluster {
namespace {

// The axes are what `order` is made of: dp is there as its two factors, ep and expert_dp.
enum Axis : uint8_t { kTpAxis, kCpAxis, kEpAxis, kExpertDpAxis, kPpAxis, kAxes };

struct Grid {
  std::array<int, kAxes> size{};
  std::array<int, kAxes> stride{};
  int At(RankId rank, Axis axis) const { return rank.value() / stride[axis] % size[axis]; }
};

using AxisSet = std::array<bool, kAxes>;

AxisSet AxesOf(Dimension dimension) {
  switch (dimension) {
    case Dimension::kTp:
      return {true, false, false, false, false};
    case Dimension::kCp:
      return {false, true, false, false, false};
    case Dimension::kEp:
      return {false, false, true, false, false};
    case Dimension::kExpertDp:
      return {false, false, false, true, false};
    case Dimension::kDp:
      return {false, false, true, true, false};
    case Dimension::kDpCp:
      return {false, true, true, true, false};
    case Dimension::kPp:
      return {false, false, false, false, true};
  }
  return {};
}

// As `order` calls them; "dp" stands for its remaining factor: what experts leave of it.
constexpr std::array<std::string_view, kAxes> kAxisNames = {"tp", "cp", "ep", "dp", "pp"};

std::optional<size_t> AxisNamed(std::string_view name) {
  const auto* const found = std::find(kAxisNames.begin(), kAxisNames.end(), name);
  if (found == kAxisNames.end()) return std::nullopt;
  return static_cast<size_t>(found - kAxisNames.begin());
}

std::string_view NextName(std::string_view& rest) {
  const size_t end = std::min(rest.find('-'), rest.size());
  const std::string_view name = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return name;
}

std::array<int, kAxes> Sizes(const Layout& layout) {
  return {layout.tp, layout.cp, layout.ep, layout.dp / layout.ep, layout.pp};
}

Grid GridOf(const Layout& layout) {
  Grid grid{.size = Sizes(layout)};
  int stride = 1;
  for (std::string_view rest = layout.order; !rest.empty();) {
    const std::optional<size_t> axis = AxisNamed(NextName(rest));
    LS_CHECK(axis.has_value(), "order {}", layout.order);
    grid.stride[*axis] = stride;
    stride *= grid.size[*axis];
  }
  // A dimension of size 1 may be missing from the order; its index is 0 whatever its stride.
  std::replace(grid.stride.begin(), grid.stride.end(), 0, 1);
  return grid;
}

// Ranks 0..world-1 that sit at index 0 of every axis outside (or inside) the set, offset by `base`.
std::vector<RankId> Spread(const Grid& grid, const AxisSet& axes, int base) {
  std::vector<RankId> ranks{RankId(base)};
  for (size_t axis = 0; axis < kAxes; ++axis) {
    const size_t before = ranks.size();
    for (int i = 1; axes[axis] && i < grid.size[axis]; ++i) {
      for (size_t j = 0; j < before; ++j) ranks.emplace_back(ranks[j].value() + i * grid.stride[axis]);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

AxisSet Complement(AxisSet axes) {
  for (bool& in : axes) in = !in;
  return axes;
}

bool EpIsFaster(const Layout& layout) { return layout.order.find("ep") < layout.order.find("dp"); }

absl::Status ValidateSizes(const Layout& layout) {
  const std::pair<const char*, int> fields[] = {{"tp", layout.tp}, {"cp", layout.cp}, {"ep", layout.ep},
                                                {"dp", layout.dp}, {"pp", layout.pp}, {"vpp", layout.vpp}};
  for (const auto& [name, size] : fields) {
    if (size < 1) return InvalidArgument("{} must be at least 1, found {}", name, size);
  }
  int64_t world = 1;
  for (const int size : {layout.tp, layout.cp, layout.dp, layout.pp}) {
    world *= size;
    if (world > Layout::kMaxRanks)
      return InvalidArgument("tp * cp * dp * pp must be at most {} ranks", Layout::kMaxRanks);
  }
  if (layout.dp % layout.ep != 0)
    return InvalidArgument("ep must divide dp, found ep {} and dp {}", layout.ep, layout.dp);
  if (layout.vpp > 1 && layout.pp == 1) return InvalidArgument("vpp {} needs pp of at least 2, found 1", layout.vpp);
  return absl::OkStatus();
}

absl::Status ValidateOrder(const Layout& layout) {
  if (layout.order.ends_with('-')) return InvalidArgument("order must not end in '-', found \"{}\"", layout.order);
  AxisSet seen{};
  for (std::string_view rest = layout.order; !rest.empty();) {
    const std::string_view name = NextName(rest);
    const std::optional<size_t> axis = AxisNamed(name);
    if (!axis) {
      return InvalidArgument("order must be made of tp, cp, ep, dp and pp, found \"{}\" in \"{}\"", name, layout.order);
    }
    if (seen[*axis]) return InvalidArgument("order must name {} once, found \"{}\"", name, layout.order);
    seen[*axis] = true;
  }
  const std::array<int, kAxes> sizes = {layout.tp, layout.cp, layout.ep, layout.dp, layout.pp};
  for (size_t axis = 0; axis < kAxes; ++axis) {
    if (sizes[axis] == 1 || seen[axis]) continue;
    return InvalidArgument("order must name {}, found \"{}\"", kAxisNames[axis], layout.order);
  }
  const bool neighbours =
      layout.order.find("ep-dp") != std::string::npos || layout.order.find("dp-ep") != std::string::npos;
  if (layout.ep > 1 && !neighbours) {
    return InvalidArgument("order must have ep and dp side by side, for ep splits dp; found \"{}\"", layout.order);
  }
  return absl::OkStatus();
}

}  // namespace

const char* DimensionName(Dimension dimension) {
  static constexpr const char* kNames[] = {"tp", "cp", "ep", "dp", "pp", "expert_dp", "dp_cp"};
  return kNames[static_cast<size_t>(dimension)];
}

absl::Status Layout::Validate() const {
  LS_RETURN_IF_ERROR(ValidateSizes(*this));
  return ValidateOrder(*this);
}

std::optional<Layout> Layout::WithRanks(int ranks) const {
  const int model = tp * cp * pp;
  Layout resized = *this;
  resized.dp = ranks / model;
  return ranks % model == 0 && resized.Validate().ok() ? std::optional(resized) : std::nullopt;
}

absl::Status Layout::CheckRanks(int ranks) const {
  if (WorldSize() == ranks) return absl::OkStatus();
  return InvalidArgument("its layout has {} ranks, the run has {}", WorldSize(), ranks);
}

int Layout::Size(Dimension dimension) const {
  const AxisSet axes = AxesOf(dimension);
  const std::array<int, kAxes> sizes = Sizes(*this);
  int size = 1;
  for (size_t axis = 0; axis < kAxes; ++axis) size *= axes[axis] ? sizes[axis] : 1;
  return size;
}

Coordinates Layout::CoordinatesOf(RankId rank) const {
  LS_CHECK(rank.value() >= 0 && rank.value() < WorldSize(), "rank {} of {}", rank.value(), WorldSize());
  const Grid grid = GridOf(*this);
  const int ep_index = grid.At(rank, kEpAxis), expert_dp_index = grid.At(rank, kExpertDpAxis);
  const int dp_index = EpIsFaster(*this) ? ep_index + ep * expert_dp_index : expert_dp_index + dp / ep * ep_index;
  return {.tp = grid.At(rank, kTpAxis),
          .cp = grid.At(rank, kCpAxis),
          .dp = dp_index,
          .pp = grid.At(rank, kPpAxis),
          .ep = ep_index,
          .expert_dp = expert_dp_index};
}

RankId Layout::Rank(const Coordinates& at) const {
  const Grid grid = GridOf(*this);
  const int ep_index = EpIsFaster(*this) ? at.dp % ep : at.dp / (dp / ep);
  const int expert_dp_index = EpIsFaster(*this) ? at.dp / ep : at.dp % (dp / ep);
  LS_CHECK(ep_index == at.ep && expert_dp_index == at.expert_dp, "dp {} is ep {} and expert_dp {}, not {} and {}",
           at.dp, ep_index, expert_dp_index, at.ep, at.expert_dp);
  return RankId(at.tp * grid.stride[kTpAxis] + at.cp * grid.stride[kCpAxis] + ep_index * grid.stride[kEpAxis] +
                expert_dp_index * grid.stride[kExpertDpAxis] + at.pp * grid.stride[kPpAxis]);
}

RankId Layout::FirstOfGroup(Dimension dimension, RankId rank) const {
  const Grid grid = GridOf(*this);
  const AxisSet axes = AxesOf(dimension);
  int base = rank.value();
  for (size_t axis = 0; axis < kAxes; ++axis) {
    if (axes[axis]) base -= grid.At(rank, static_cast<Axis>(axis)) * grid.stride[axis];
  }
  return RankId(base);
}

std::vector<RankId> Layout::Group(Dimension dimension, RankId rank) const {
  return Spread(GridOf(*this), AxesOf(dimension), FirstOfGroup(dimension, rank).value());
}

std::vector<std::vector<RankId>> Layout::Groups(Dimension dimension) const {
  const Grid grid = GridOf(*this);
  const AxisSet axes = AxesOf(dimension);
  std::vector<std::vector<RankId>> groups;
  for (const RankId first : Spread(grid, Complement(axes), 0)) groups.push_back(Spread(grid, axes, first.value()));
  return groups;
}

std::string LayoutJson(const Layout& layout) {
  return fmt::format(R"({{"tp": {}, "cp": {}, "ep": {}, "dp": {}, "pp": {}, "vpp": {}, "order": "{}"}})", layout.tp,
                     layout.cp, layout.ep, layout.dp, layout.pp, layout.vpp, layout.order);
}

absl::StatusOr<Layout> LayoutFromJson(const std::string& text) {
  const Json json = ParseJson(text);
  if (!json.is_object()) return InvalidArgument("a layout: expected a JSON object, found \"{}\"", text);
  Layout layout;
  const std::pair<const char*, int*> fields[] = {{"vpp", &layout.vpp}, {"tp", &layout.tp}, {"cp", &layout.cp},
                                                 {"ep", &layout.ep},   {"dp", &layout.dp}, {"pp", &layout.pp}};
  for (const auto& [name, size] : fields) {
    const auto found = json.find(name);
    if (found == json.end()) continue;
    *size = found->is_number_integer() ? found->get<int>() : 0;
    if (*size != *found)  // also where it is too large
      return InvalidArgument("a layout: expected an integer as {}, found {}", name, OneLine(*found));
  }
  if (const auto order = json.find("order"); order != json.end() && order->is_string())
    layout.order = order->get<std::string>();
  LS_RETURN_IF_ERROR(layout.Validate());
  return layout;
}

absl::StatusOr<Layout> ParseLayout(std::string_view text) {
  constexpr std::string_view kOrder = "order=";
  Layout layout;
  const std::pair<std::string_view, int*> fields[] = {{"vpp", &layout.vpp}, {"tp", &layout.tp}, {"cp", &layout.cp},
                                                      {"ep", &layout.ep},   {"dp", &layout.dp}, {"pp", &layout.pp}};
  std::vector<std::string_view> seen;
  const auto take = [&](std::string_view name) -> absl::Status {
    if (std::ranges::find(seen, name) != seen.end())
      return InvalidArgument("layout \"{}\": {} is given twice", text, name);
    seen.push_back(name);
    return absl::OkStatus();
  };
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    if (one.starts_with(kOrder)) {
      LS_RETURN_IF_ERROR(take("order"));
      layout.order = one.substr(kOrder.size());
      continue;
    }
    const auto* const field = std::find_if(std::begin(fields), std::end(fields),
                                           [&](const auto& known) { return one.starts_with(known.first); });
    if (field == std::end(fields))
      return InvalidArgument("layout \"{}\": expected tp, cp, ep, dp, pp or vpp with a size, as tp8, found \"{}\"",
                             text, one);
    LS_RETURN_IF_ERROR(take(field->first));
    const std::string_view size = one.substr(field->first.size());
    const std::optional<int> number = WholeNumber<int>(size);
    if (!number)
      return InvalidArgument("layout \"{}\": expected a size behind {}, found \"{}\"", text, field->first, size);
    *field->second = *number;
  }
  if (const absl::Status valid = layout.Validate(); !valid.ok())
    return InvalidArgument("layout \"{}\": {}", text, Message(valid));
  return layout;
}

}  // namespace lockstep::cluster
