// For tests: generated jobs whose rows are changed before they are explained.
#pragma once

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
