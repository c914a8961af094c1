#include "lockstep/explain/explained.h"

#include <nlohmann/json.hpp>

#include "lockstep/explain/report.h"
#include "lockstep/trace/chakra_job.h"
#include "lockstep/trace/kineto_job.h"
#include "lockstep/trace/run_trace.h"
#include "lockstep/trace/straggler_file.h"
#include "lockstep/trace/straggler_meta.h"

namespace lockstep::explain {

struct Explained::State {
  State(std::shared_ptr<const trace::TracedJob> traced, int threads)
      : job(std::move(traced)), analysis(*job, threads), report(Report(*job, analysis, FindCauses(*job, analysis))) {}

  std::shared_ptr<const trace::TracedJob> job;
  WhatIf analysis;
  Json report;
};

Explained::Explained(std::unique_ptr<State> state) : state_(std::move(state)) {}
Explained::Explained(trace::TracedJob job, int threads)
    : Explained(std::make_unique<State>(std::make_shared<const trace::TracedJob>(std::move(job)), threads)) {}
Explained::Explained(Explained&&) noexcept = default;
Explained::~Explained() = default;

const trace::TracedJob& Explained::job() const { return *state_->job; }
const WhatIf& Explained::analysis() const { return state_->analysis; }
const Json& Explained::report() const { return state_->report; }

absl::Status Explained::CheckTimes() const {
  return analysis().ideal_mean() > 0 ? absl::OkStatus() : InvalidArgument("{}: its ops take no time", job().name);
}

absl::StatusOr<Explained> Explained::Of(const trace::JobFiles& files, const Options& options) {
  LS_ASSIGN_OR_RETURN(Explained explained, Read(files, options));
  LS_RETURN_IF_ERROR(explained.CheckTimes());
  return explained;
}

absl::StatusOr<Explained> Explained::Read(const trace::JobFiles& files, const Options& options) {
  if (!files.chakra.empty()) {
    std::vector<trace::ChakraRank> ranks;
    for (const std::string& path : files.chakra) {
      LS_ASSIGN_OR_RETURN(ranks.emplace_back(), trace::ReadChakra(path, options.rank));
    }
    LS_ASSIGN_OR_RETURN(trace::TracedJob job, trace::BuildChakraJob(std::move(ranks)));
    return Explained(std::move(job), options.threads);
  }
  if (files.kineto.empty() && files.run.empty()) {
    LS_ASSIGN_OR_RETURN(const trace::StragglerMeta meta, trace::ReadStragglerMeta(files.meta));
    LS_ASSIGN_OR_RETURN(trace::TracedJob job, trace::ReadStragglerJob(files.trace, meta, options.steps,
                                                                      static_cast<size_t>(options.threads)));
    return Explained(std::move(job), options.threads);
  }
  LS_ASSIGN_OR_RETURN(std::vector<trace::KinetoRank> ranks, files.run.empty()
                                                                ? trace::ReadKinetoFiles(files.kineto, options.rank)
                                                                : trace::ReadRun(files.run));
  LS_ASSIGN_OR_RETURN(trace::KinetoJob job, trace::BuildKinetoJob(std::move(ranks), options.steps));
  if (!files.run.empty()) job.job.name = trace::NameOfRun(files.run);
  const auto traced = std::make_shared<const trace::KinetoJob>(std::move(job));
  auto state = std::make_unique<State>(std::shared_ptr<const trace::TracedJob>(traced, &traced->job), options.threads);
  AddRanks(*traced, state->report);
  return Explained(std::move(state));
}

}  // namespace lockstep::explain
