// The parts of `lockstep explain` in one process, on a trace of the straggler schema: how fast the replay kernel runs,
// and what each question costs. One thread, each figure repeated.
//
//   explain_rate TRACE META RUNS    prints {"ops", "bytes_per_op", "replay_s": [...], "attribution_s": [...], ...}
//   explain_rate --repeat TRACE DP STEPS OUT    writes the trace DP times side by side and STEPS times in a row, as
//   Parquet
#include <chrono>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/explain/causes.h"
#include "lockstep/explain/report.h"
#include "lockstep/trace/duckdb.h"
#include "lockstep/trace/straggler_file.h"
#include "lockstep/trace/straggler_meta.h"

namespace {

using namespace lockstep;

std::vector<double> Time(int runs, const std::function<void()>& what) {
  std::vector<double> seconds;
  for (int run = 0; run < runs; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    what();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return seconds;
}

absl::StatusOr<Json> Measure(const std::string& trace, const std::string& meta_path, int runs) {
  LS_ASSIGN_OR_RETURN(const trace::StragglerMeta meta, trace::ReadStragglerMeta(meta_path));
  Json answer;
  absl::StatusOr<trace::TracedJob> job;
  answer["read_s"] = Time(std::max(1, runs / 10), [&] { job = trace::ReadStragglerJob(trace, meta, {}); });
  LS_RETURN_IF_ERROR(job.status());
  const size_t cells = job->graph.ops() * job->graph.lanes();
  answer["ops"] = cells;
  answer["bytes_per_op"] =
      static_cast<double>(4 * sizeof(float) * cells + job->graph.absent.size()) / static_cast<double>(cells);
  const explain::WhatIf analysis(*job);
  const graph::Replay replay(job->graph, {job->transfers, job->delays, analysis.ideal_durations()});
  const graph::Scenario measured{{job->ops.size(), graph::Selection::kAll}, {job->ops.size(), graph::Selection::kNone}};
  graph::Replay::Scratch scratch;
  std::vector<double> times(job->steps.size());
  answer["replay_s"] = Time(10 * runs, [&] { replay.SetTimes(measured, scratch, times); });
  answer["attribution_s"] = Time(runs, [&] {
    const explain::WhatIf fresh(*job);
    for (const auto by : {explain::By::kKind, explain::By::kDp, explain::By::kStage}) fresh.Blocking(by);
  });
  answer["workers"] = meta.dp * meta.pp;
  answer["by_worker_s"] = Time(runs, [&] { analysis.ByWorker(); });
  answer["causes_s"] = Time(runs, [&] { explain::FindCauses(*job, analysis); });
  return answer;
}

absl::StatusOr<Json> Repeat(const std::string& trace, int dp, int steps, const std::string& out) {
  LS_ASSIGN_OR_RETURN(const trace::DuckDb database, trace::DuckDb::Open());
  const std::string sql = fmt::format(
      "COPY (SELECT t.* REPLACE (CAST(t.dp_rank + (SELECT max(dp_rank) + 1 FROM read_parquet({0})) * d.range AS "
      "SMALLINT) AS dp_rank, "
      "t.step + 100000 * s.range AS step) FROM range({1}) d, range({2}) s, read_parquet({0}) t) TO {3} (FORMAT "
      "parquet)",
      trace::SqlText(trace), dp, steps, trace::SqlText(out));
  LS_RETURN_IF_ERROR(database.Query(sql, [](const trace::DuckDb::Chunk&) { return absl::OkStatus(); }));
  return Json{{"written", out}};
}

}  // namespace

int main(int argc, char** argv) {
  absl::StatusOr<Json> answer = InvalidArgument("usage: explain_rate TRACE META RUNS, or --repeat TRACE DP STEPS OUT");
  if (argc == 4) answer = Measure(argv[1], argv[2], std::atoi(argv[3]));
  if (argc == 6 && std::string(argv[1]) == "--repeat")
    answer = Repeat(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), argv[5]);
  if (!answer.ok()) return fmt::print(stderr, "explain_rate: {}\n", Message(answer.status())), 2;
  fmt::print("{}\n", OneLine(*answer));
}
