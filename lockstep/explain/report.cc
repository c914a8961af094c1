#include "lockstep/explain/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lockstep/explain/sample.h"

namespace lockstep::explain {
namespace {

constexpr double kTopWorkers = 0.03;  // of all workers: those whose removal is M_W (Eq. 5)

struct Costly {
  WhatIf::Worker worker;
  int32_t rank;
  double slowdown;
};

std::vector<Costly> ByCost(const WhatIf& analysis) {
  std::vector<Costly> workers;
  const auto slowdowns = analysis.ByWorker();
  for (size_t dp = 0; dp < slowdowns.size(); ++dp)
    for (size_t stage = 0; stage < slowdowns[dp].size(); ++stage) {
      const WhatIf::Worker worker{static_cast<int>(dp), static_cast<int>(stage)};
      workers.push_back({worker, analysis.RankOf(worker), slowdowns[dp][stage]});
    }
  std::sort(workers.begin(), workers.end(), [](const Costly& a, const Costly& b) {
    return std::tuple(-a.slowdown, a.rank) < std::tuple(-b.slowdown, b.rank);
  });
  return workers;
}

Json Ordered(const Split& split) {
  std::vector<size_t> order(split.names.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return split.total[a] > split.total[b]; });
  Json json = Json::object();
  for (const size_t i : order) json[split.names[i]] = split.total[i];
  return json;
}

// Eq. 5 with exact slowdowns.
double WorkerShare(const WhatIf& analysis, const std::vector<Costly>& workers) {
  const auto count = static_cast<size_t>(std::ceil(kTopWorkers * static_cast<double>(workers.size())));
  std::vector<WhatIf::Worker> top;
  top.reserve(count);
  for (size_t i = 0; i < count; ++i) top.push_back(workers[i].worker);
  return analysis.RemoveWorkers(top).rem;
}

Json SuspectJson(const CauseSuspect& suspect) {
  Json json = Json::object();
  if (suspect.dp) json["dp"] = *suspect.dp;
  if (suspect.stage) json["stage"] = *suspect.stage;
  if (suspect.rank) json["rank"] = *suspect.rank;
  if (suspect.first_step) json["steps"] = {*suspect.first_step, *suspect.last_step};
  return json;
}

Json CauseJson(const Cause& cause) {
  Json suspects = Json::array();
  for (const CauseSuspect& suspect : cause.suspects) suspects.push_back(SuspectJson(suspect));
  return {{"cause", CauseName(cause.kind)},
          {"suspects", suspects},
          {"share", cause.share},
          {"gain_s", cause.gain_s},
          {"evidence", cause.evidence}};
}

}  // namespace

Json Report(const WhatIf& analysis, const Causes& causes, const trace::StragglerMeta& meta,
            const std::vector<trace::Counter>& counters) {
  Json json;
  json["slowdown"] = analysis.slowdown();
  json["launch_slowdown"] = analysis.launch_slowdown();
  json["steps"] = analysis.steps().size();
  json["step_s"] = {{"measured", Mean(analysis.measured())},
                    {"without_delays", analysis.nodelay_mean()},
                    {"ideal", analysis.ideal_mean()}};
  json["by_optype"] = Ordered(analysis.ByKind());
  json["by_dp_rank"] = Ordered(analysis.ByDp());
  json["by_stage"] = Ordered(analysis.ByStage());
  const std::vector<Costly> workers = ByCost(analysis);
  json["by_worker"] = Json::array();
  for (const auto& [worker, rank, slowdown] : workers)
    json["by_worker"].push_back(
        {{"dp", worker.first}, {"stage", worker.second}, {"rank", rank}, {"slowdown", slowdown}});
  const bool straggles = analysis.slowdown() >= kStraggles;
  json["m_w"] = straggles ? Json(WorkerShare(analysis, workers)) : Json();
  json["m_s"] = straggles ? Json(analysis.RemoveStage(meta.pp - 1).rem) : Json();
  json["causes"] = Json::array();
  for (const Cause& cause : causes.found) json["causes"].push_back(CauseJson(cause));
  json["unexplained"] = causes.unexplained();
  json["counters"] = Json::object();
  for (const trace::Counter& counter : counters) json["counters"][counter.name] = counter.count;
  return json;
}

}  // namespace lockstep::explain
