#include "lockstep/detect/stack_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>

#include "lockstep/base/ranges.h"
#include "lockstep/incident/rank_ranges.h"

namespace lockstep::detect {
namespace {

constexpr size_t kMostClusters = 16;  // a person reads so many

std::string RanksText(std::span<const int> ranks, Reader reader) {
  return reader == Reader::kPerson ? incident::RangesText(ranks) : RangesText(ranks, {.least = 2});
}

Json ClusterJson(const StackCluster& cluster, Reader reader) {
  constexpr const char* kAnswers[] = {"unknown", "yes", "no"};  // in the order of InCollective
  return {{"role", trace::RoleName(cluster.role)},
          {"processes", cluster.processes},
          {"ranks", RanksText(cluster.ranks, reader)},
          {"in_communication", kAnswers[static_cast<size_t>(cluster.in_communication)]},
          {"place", cluster.place},
          {"frames", cluster.frames},
          {"example", {{"rank", cluster.example}, {"frames", cluster.example_frames}}}};
}

Json GroupJson(const GroupRule& rule, Reader reader) {
  return {{"dimensions", rule.group.dimensions},
          {"ranks", RanksText(rule.group.ranks, reader)},
          {"machines", rule.machines},
          {"over_evicted", rule.over_evicted}};
}

// Of which role ever: a job whose trainers are all elsewhere still shows where most of its data workers are.
std::vector<size_t> TheLargest(const std::vector<StackCluster>& clusters, size_t most) {
  std::vector<size_t> order(clusters.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](size_t at) { return clusters[at].processes; });
  order.resize(std::min(most, order.size()));
  std::ranges::sort(order);
  return order;
}

std::string LeftText(const std::vector<StackCluster>& clusters, const std::vector<size_t>& told) {
  std::unordered_set<int> ranks;
  for (size_t i = 0; i < clusters.size(); ++i)
    if (!std::ranges::binary_search(told, i)) ranks.insert(clusters[i].ranks.begin(), clusters[i].ranks.end());
  const size_t left = clusters.size() - told.size();
  return fmt::format("{} smaller {} with processes of {} {}; --json has all", left, left == 1 ? "cluster" : "clusters",
                     ranks.size(), ranks.size() == 1 ? "rank" : "ranks");
}

}  // namespace

Json StackReport(const StackVerdict& verdict, Reader reader) {
  const std::vector<StackCluster>& clusters = verdict.stacks.clusters;
  Json report = {{"basis", StackBasisName(verdict.basis)},
                 {"confidence", verdict.confidence},
                 {"processes", verdict.stacks.processes},
                 {"unread", verdict.stacks.unread},
                 {"no_stack", RanksText(verdict.no_stack, reader)},
                 {"evict", verdict.machines},
                 {"outliers", RanksText(verdict.outliers, reader)},
                 {"group_rule", verdict.group_rule ? GroupJson(*verdict.group_rule, reader) : Json()},
                 {"clusters", Json::array()}};
  const std::vector<size_t> told = TheLargest(clusters, reader == Reader::kPerson ? kMostClusters : clusters.size());
  for (const size_t at : told) report["clusters"].push_back(ClusterJson(clusters[at], reader));
  if (told.size() < clusters.size()) report["clusters_left"] = LeftText(clusters, told);
  return report;
}

}  // namespace lockstep::detect
