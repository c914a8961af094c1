#include "lockstep/detect/stack_report.h"

#include <nlohmann/json.hpp>

#include "lockstep/incident/rank_ranges.h"

namespace lockstep::detect {
namespace {

using incident::RangesText;

Json ClusterJson(const StackCluster& cluster) {
  constexpr const char* kAnswers[] = {"unknown", "yes", "no"};  // in the order of InCollective
  return {{"role", trace::RoleName(cluster.role)},
          {"processes", cluster.processes},
          {"ranks", RangesText(cluster.ranks)},
          {"in_communication", kAnswers[static_cast<size_t>(cluster.in_communication)]},
          {"place", cluster.place},
          {"frames", cluster.frames},
          {"example", {{"rank", cluster.example}, {"frames", cluster.example_frames}}}};
}

Json GroupJson(const GroupRule& rule) {
  return {{"dimensions", rule.group.dimensions},
          {"ranks", RangesText(rule.group.ranks)},
          {"machines", rule.machines},
          {"over_evicted", rule.over_evicted}};
}

}  // namespace

Json StackReport(const StackVerdict& verdict) {
  Json report = {{"basis", StackBasisName(verdict.basis)},
                 {"confidence", verdict.confidence},
                 {"processes", verdict.stacks.processes},
                 {"unread", verdict.stacks.unread},
                 {"no_stack", RangesText(verdict.no_stack)},
                 {"evict", verdict.machines},
                 {"outliers", RangesText(verdict.outliers)},
                 {"group_rule", verdict.group_rule ? GroupJson(*verdict.group_rule) : Json()},
                 {"clusters", Json::array()}};
  for (const StackCluster& cluster : verdict.stacks.clusters) report["clusters"].push_back(ClusterJson(cluster));
  return report;
}

}  // namespace lockstep::detect
