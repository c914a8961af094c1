#include "lockstep/explain/compat.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/explain/report.h"
#include "lockstep/explain/sample.h"
#include "lockstep/trace/text_writer.h"

namespace lockstep::explain {
namespace {

// The sum of floats as numpy makes it: pairwise, in eight sums below 128 values. The published launch_slowdown has a
// mean over steps of it, which differs from the true one in the seventh digit.
float NumpySum(std::span<const double> values) {
  constexpr size_t kLanes = 8, kBlock = 128;
  if (values.size() > kBlock) {
    const size_t half = values.size() / 2 - values.size() / 2 % kLanes;
    return NumpySum(values.first(half)) + NumpySum(values.subspan(half));
  }
  float sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += static_cast<float>(values[i + lane]);
  float sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  for (; i < values.size(); ++i) sum += static_cast<float>(values[i]);
  return sum;
}

class Result {
 public:
  Result(const WhatIf& analysis, const trace::StragglerMeta& meta, const std::vector<int64_t>& steps)
      : analysis_(analysis), meta_(meta) {
    for (const int64_t step : steps) steps_.push_back(std::to_string(step));
  }

  Json Build(double threshold) {
    std::vector<double> blocking, launch;
    for (size_t step = 0; step < steps_.size(); ++step) {
      blocking.push_back(analysis_.nodelay()[step] / analysis_.ideal()[step]);
      launch.push_back(analysis_.measured()[step] / analysis_.nodelay()[step]);
    }
    Json json;
    json["job_meta"] = {{"trial_name", meta_.trial_name},
                        {"run_id", meta_.run_id},
                        {"dp_size", meta_.dp},
                        {"pp_size", meta_.pp},
                        {"tp_size", meta_.tp},
                        {"dsp_size", meta_.dsp},
                        {"vpp_size", meta_.vpp},
                        {"world_size", meta_.world_size}};
    json["step_t_base"] = BySteps(analysis_.measured());
    json["step_t_nodelay"] = BySteps(analysis_.nodelay());
    json["step_t_noblk"] = BySteps(analysis_.ideal());
    const double launch_slowdown = LaunchSlowdown();
    json["launch_slowdown"] = launch_slowdown;
    json["blocking_slowdown"] = analysis_.slowdown();
    json["blocking_step_slowdown"] = Ordered(steps_, blocking);
    json["launch_step_slowdown"] = Ordered(steps_, launch);
    const bool blocked = analysis_.slowdown() >= threshold, late = launch_slowdown >= threshold;
    Json per_step;
    for (const auto& [name, by] : {std::pair("dp_rank", By::kDp), {"stage", By::kStage}, {"optype", By::kKind}}) {
      Put(json, per_step, std::string("blocking_decompose_by_") + name, blocked ? &analysis_.Blocking(by) : nullptr,
          blocking);
      Put(json, per_step, std::string("launch_decompose_by_") + name, late ? &analysis_.Launch(by) : nullptr, launch);
    }
    json.update(per_step);
    return json;
  }

 private:
  double LaunchSlowdown() const {
    const auto count = static_cast<float>(analysis_.measured().size());
    return static_cast<double>(NumpySum(analysis_.measured()) / count) / analysis_.nodelay_mean();
  }

  Json BySteps(const std::vector<double>& values) const {
    Json json = Json::object();
    for (size_t step = 0; step < steps_.size(); ++step) json[steps_[step]] = values[step];
    return json;
  }

  // Null where nothing is taken apart. Steps stand in the order of their slowdowns.
  void Put(Json& json, Json& per_step, const std::string& name, const Split* split,
           const std::vector<double>& slowdowns) const {
    if (split == nullptr) {
      json[name] = per_step[name + "_per_step"] = nullptr;
      return;
    }
    json[name] = Ordered(split->names, split->total);
    Json& steps = per_step[name + "_per_step"] = Json::object();
    for (const size_t step : Descending(slowdowns)) steps[steps_[step]] = Ordered(split->names, split->per_step[step]);
  }

  const WhatIf& analysis_;
  const trace::StragglerMeta& meta_;
  std::vector<std::string> steps_;
};

Json RemovalJson(const WhatIf& analysis, const Removal& removal, const char* name) {
  return {{"trem", removal.removed_s},
          {"tadd", removal.added_s},
          {"tori", analysis.nodelay_mean()},
          {"tideal", analysis.ideal_mean()},
          {"rem", removal.rem},
          {"add", removal.add},
          {name, removal.rem}};
}

absl::Status Write(const std::string& path, const Json& json, int indent) {
  return trace::WriteText(path, json.dump(indent) + "\n");
}

}  // namespace

Json CompatResult(const WhatIf& analysis, const trace::StragglerMeta& meta, double decompose_threshold) {
  return Result(analysis, meta, analysis.steps()).Build(decompose_threshold);
}

Json CompatStage(const WhatIf& analysis, const trace::StragglerMeta& meta) {
  return RemovalJson(analysis, analysis.RemoveStage(meta.pp - 1), "Ms");
}

Json CompatWorkers(const WhatIf& analysis) {
  const Split &dps = analysis.Blocking(By::kDp), &stages = analysis.Blocking(By::kStage);
  const auto approximate = [&](const WhatIf::Worker& worker) {
    return std::min(dps.total[static_cast<size_t>(worker.first)], stages.total[static_cast<size_t>(worker.second)]);
  };
  return RemovalJson(analysis, analysis.RemoveCostliest(analysis.Ranked(approximate)), "Mw");
}

absl::Status WriteCompat(const std::string& directory, const WhatIf& analysis, const trace::StragglerMeta& meta) {
  LS_RETURN_IF_ERROR(MakeDirectory(directory));
  const auto path = [&](const char* kind) { return fmt::format("{}/{}-{}.json", directory, kind, meta.trial_name); };
  LS_RETURN_IF_ERROR(Write(path("result"), CompatResult(analysis, meta, kDecomposeThreshold), 2));
  LS_RETURN_IF_ERROR(Write(path("ms"), CompatStage(analysis, meta), 4));
  return Write(path("mw"), CompatWorkers(analysis), 4);
}

}  // namespace lockstep::explain
