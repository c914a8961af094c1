// One job from its files to its report: reads the trace, asks what would have been, names the causes.
//
//   LS_ASSIGN_OR_RETURN(const Explained explained, Explained::Of({.trace = "trace.parquet", .meta = "meta.yaml"}, {}));
//   fmt::print("{}", RenderText(explained.report()));
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/explain/what_if.h"
#include "lockstep/trace/job_files.h"
#include "lockstep/trace/straggler_sink.h"

namespace lockstep::explain {

class Explained {
 public:
  struct Options {
    std::vector<trace::StepRange> steps;  // none: all
    std::optional<int> rank;              // of the one file that does not tell it
    int threads = 1;                      // for replays
  };
  // Errors are those of the readers, and kInvalidArgument where ops take no time: then there is nothing to compare.
  static absl::StatusOr<Explained> Of(const trace::JobFiles& files, const Options& options);
  explicit Explained(trace::TracedJob job, int threads = 1);
  Explained(Explained&&) noexcept;
  ~Explained();

  const trace::TracedJob& job() const;
  const WhatIf& analysis() const;
  const Json& report() const;
  absl::Status CheckTimes() const;  // as of Of()

 private:
  struct State;
  explicit Explained(std::unique_ptr<State> state);
  static absl::StatusOr<Explained> Read(const trace::JobFiles& files, const Options& options);
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::explain
