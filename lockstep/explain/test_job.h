// For tests: generated jobs whose rows are changed before they are explained.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/explain/causes.h"
#include "lockstep/explain/explained.h"
#include "lockstep/synth/job.h"
#include "lockstep/trace/straggler_job.h"

namespace lockstep::explain {

inline void EachRow(trace::StragglerRows& rows, const std::function<void(trace::StragglerRow&)>& change) {
  for (auto& piece : rows.pieces)
    for (trace::StragglerRow& row : piece) change(row);
}

inline trace::TracedJob JobOf(trace::StragglerRows rows, const synth::JobShape& shape) {
  return trace::BuildStragglerJob(std::move(rows), synth::MetaOf(shape)).value();
}

// The job as it would have been recorded had its ops taken these transfers and delays.
inline trace::TracedJob Recorded(trace::TracedJob job, const std::vector<float>& transfers,
                                 const std::vector<float>& delays) {
  const std::vector<double> ideal(job.ops.size());
  const graph::Replay replay(job.graph, {transfers, delays, ideal});
  graph::Replay::Scratch scratch;
  std::vector<double> ends(job.starts.size());
  const graph::Selection all(job.ops.size(), graph::Selection::kAll);
  replay.SetTimes({all, all}, scratch, ends);
  std::copy_n(ends.begin(), job.step_times.size(), job.step_times.begin());
  replay.Ends({all, all}, scratch, ends);
  for (uint32_t op = 0; op < job.ops.size(); ++op)
    for (size_t cell = job.graph.Cell(op, 0); cell < job.graph.Cell(op, job.lanes.size()); ++cell) {
      double ready = 0;
      for (const uint32_t before : job.graph.DependenciesOf(op))
        ready = std::max(ready, ends[cell - job.graph.Cell(op, 0) + job.graph.Cell(before, 0)]);
      job.starts[cell] = static_cast<float>(ready) + delays[cell];
      job.durations[cell] = static_cast<float>(ends[cell]) - job.starts[cell];
    }
  MeasureParts(job);
  return job;
}

inline std::vector<Cause> CausesOf(trace::StragglerRows rows, const synth::JobShape& shape) {
  const trace::TracedJob job = JobOf(std::move(rows), shape);
  return FindCauses(job, WhatIf(job)).found;
}

inline std::vector<std::string> NamesOf(const std::vector<Cause>& causes) {
  std::vector<std::string> names;
  names.reserve(causes.size());
  for (const Cause& cause : causes) names.emplace_back(CauseName(cause.kind));
  return names;
}

// "worker 5, gc 0 4": with the suspects' global ranks.
inline std::string TextOf(const std::vector<Cause>& causes) {
  std::string text;
  for (const Cause& cause : causes) {
    text += (text.empty() ? "" : ", ") + std::string(CauseName(cause.kind));
    for (const CauseSuspect& suspect : cause.suspects)
      if (suspect.rank) text += " " + std::to_string(*suspect.rank);
  }
  return text;
}

}  // namespace lockstep::explain
