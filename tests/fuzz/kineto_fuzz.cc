// Any bytes as a profiler trace: it is refused, or two ranks that both have it are a job that can be explained.
#include <nlohmann/json.hpp>

#include "lockstep/base/check.h"
#include "lockstep/explain/causes.h"
#include "lockstep/explain/report.h"
#include "lockstep/trace/kineto_job.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const std::string path = FuzzFile(data, size);
  const auto rank = trace::ReadKineto(path, 0);
  if (!rank.ok()) {
    LS_CHECK(Message(rank.status()).starts_with(path), "{}", Message(rank.status()));
    return 0;
  }
  std::vector<trace::KinetoRank> ranks(2, *rank);
  ranks[1].rank = ranks[0].rank + 1;
  for (trace::DeviceOp& op : ranks[1].ops) op.begin_ns += 1000;
  const auto built = trace::BuildKinetoJob(std::move(ranks), {});
  if (!built.ok()) return 0;
  LS_CHECK(built->job.graph.Validate().ok(), "{}", Message(built->job.graph.Validate()));
  const explain::WhatIf analysis(built->job);
  Json report = explain::Report(built->job, analysis, explain::FindCauses(built->job, analysis));
  explain::AddRanks(*built, report);
  return 0;
}
