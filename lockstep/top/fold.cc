#include "lockstep/top/fold.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "lockstep/term/lines.h"

namespace lockstep::top {
namespace {

int NumberOf(const Json& rank) { return rank.value("rank", 0); }

// Less is worse.
std::tuple<bool, int64_t, double, int> Rating(const Json& rank) {
  const std::string state = rank.value("state", "");
  const double step_time = term::StepTime(rank);
  return {state == "running" || state == "finished", rank.value("step", int64_t{-1}),
          step_time == step_time ? -step_time : 0, NumberOf(rank)};
}

std::vector<Row> OneByOne(const Json& ranks) {
  std::vector<Row> rows;
  for (const Json& rank : ranks) rows.push_back({{NumberOf(rank)}, ""});
  return rows;
}

// Groups of those that are left, in the order of the folding.
std::vector<Row> Groups(const std::set<int>& left, const Folding& folding) {
  std::vector<Row> rows;
  for (const Group& group : folding.groups) {
    Row row{{}, group.name};
    std::copy_if(group.ranks.begin(), group.ranks.end(), std::back_inserter(row.ranks),
                 [&](int rank) { return left.contains(rank); });
    if (!row.ranks.empty()) rows.push_back(std::move(row));
  }
  return rows;
}

// All groups in `room` rows: the groups with the worst ranks by themselves, and in one last row the others together.
void Squeeze(std::vector<Row>& rows, const std::map<int, size_t>& place, size_t room) {
  if (rows.size() <= room) return;
  const auto worst = [&](const Row& row) {
    size_t best = SIZE_MAX;
    for (const int rank : row.ranks) best = std::min(best, place.at(rank));
    return best;
  };
  std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) { return worst(a) < worst(b); });
  Row rest{{}, fmt::format("{} others", rows.size() - (room - 1))};
  for (size_t i = room - 1; i < rows.size(); ++i)
    rest.ranks.insert(rest.ranks.end(), rows[i].ranks.begin(), rows[i].ranks.end());
  std::sort(rest.ranks.begin(), rest.ranks.end());
  rows.resize(room - 1);
  rows.push_back(std::move(rest));
}

std::string PlaceName(cluster::Dimension dimension, int place) {
  return fmt::format("{} {}", cluster::DimensionName(dimension), place);
}

int PlaceIn(const cluster::Coordinates& at, cluster::Dimension dimension) {
  switch (dimension) {
    case cluster::Dimension::kTp:
      return at.tp;
    case cluster::Dimension::kCp:
      return at.cp;
    case cluster::Dimension::kEp:
      return at.ep;
    case cluster::Dimension::kPp:
      return at.pp;
    case cluster::Dimension::kExpertDp:
      return at.expert_dp;
    default:
      return at.dp;
  }
}

}  // namespace

Folding ByNode(const Json& ranks) {
  Folding folding{"node", {}};
  for (const Json& rank : ranks) {
    const std::string name = rank.contains("node") ? "node " + rank["node"].get<std::string>() : "this node";
    if (folding.groups.empty() || folding.groups.back().name != name) folding.groups.push_back({name, {}});
    folding.groups.back().ranks.push_back(rank.at("rank").get<int>());
  }
  return folding;
}

Folding ByPlace(const cluster::Layout& layout, cluster::Dimension dimension) {
  Folding folding{cluster::DimensionName(dimension), {}};
  for (int place = 0; place < layout.Size(dimension); ++place)
    folding.groups.push_back({PlaceName(dimension, place), {}});
  for (int rank = 0; rank < layout.WorldSize(); ++rank) {
    const int place = PlaceIn(layout.CoordinatesOf(RankId(rank)), dimension);
    folding.groups[static_cast<size_t>(place)].ranks.push_back(rank);
  }
  return folding;
}

std::vector<int> WorstFirst(const Json& ranks) {
  std::vector<std::tuple<bool, int64_t, double, int>> ratings;
  for (const Json& rank : ranks) ratings.push_back(Rating(rank));
  std::sort(ratings.begin(), ratings.end());
  std::vector<int> order;
  order.reserve(ratings.size());
  for (const auto& rating : ratings) order.push_back(std::get<int>(rating));
  return order;
}

std::vector<Row> Fold(const Json& ranks, const Folding& folding, size_t room) {
  if (ranks.size() <= room) return OneByOne(ranks);
  const std::vector<int> order = WorstFirst(ranks);
  const size_t alone = room / 2;
  std::map<int, size_t> place;
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  std::vector<Row> rows;
  rows.reserve(room);
  for (size_t i = 0; i < alone; ++i) rows.push_back({{order[i]}, ""});
  std::vector<Row> groups = Groups({order.begin() + static_cast<ptrdiff_t>(alone), order.end()}, folding);
  Squeeze(groups, place, room - alone);
  rows.insert(rows.end(), groups.begin(), groups.end());
  return rows;
}

}  // namespace lockstep::top
