#include "lockstep/explain/notes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "lockstep/base/status.h"
#include "lockstep/trace/untold_transfers.h"
#include "lockstep/trace/worker_clocks.h"

namespace lockstep::explain {
namespace {

constexpr size_t kMostNamed = 3;

std::string WorkerText(const trace::TracedJob& job, int dp, int stage) {
  return fmt::format("rank {} (dp {}, stage {})", job.ranks[static_cast<size_t>(dp)][static_cast<size_t>(stage)], dp,
                     stage);
}

// The first of them; "and 5 more".
std::string Listed(const std::vector<std::string>& workers) {
  const size_t named = std::min(workers.size(), kMostNamed);
  std::string list;
  for (size_t i = 0; i < named; ++i) list += (i == 0 ? "" : "; ") + workers[i];
  return named < workers.size() ? list + fmt::format("; and {} more", workers.size() - named) : list;
}

bool HasRows(const trace::TracedJob& job, int stage, size_t lane) {
  for (uint32_t op = 0; op < job.ops.size(); ++op)
    if (job.ops[op].stage == stage && !job.graph.IsAbsent(job.graph.Cell(op, lane))) return true;
  return false;
}

// The steps of which a worker has rows, of its data-parallel rank's lanes.
std::vector<int64_t> StepsOf(const trace::TracedJob& job, int stage, const std::vector<size_t>& lanes) {
  std::vector<int64_t> steps;
  for (const size_t lane : lanes)
    if (HasRows(job, stage, lane)) steps.push_back(job.lanes[lane].step);
  return steps;
}

void AddAbsent(const trace::TracedJob& job, Notes& notes) {
  std::vector<std::string> without_rows, without_all;
  std::vector<std::vector<size_t>> lanes_of(static_cast<size_t>(job.dp));
  for (size_t lane = 0; lane < job.lanes.size(); ++lane)
    lanes_of[static_cast<size_t>(job.lanes[lane].dp)].push_back(lane);
  for (int dp = 0; dp < job.dp; ++dp)
    for (int stage = 0; stage < job.pp; ++stage) {
      if (job.ranks[static_cast<size_t>(dp)][static_cast<size_t>(stage)] < 0) {
        without_rows.push_back(fmt::format("dp {}, stage {}", dp, stage));
        continue;
      }
      const std::vector<int64_t> steps = StepsOf(job, stage, lanes_of[static_cast<size_t>(dp)]);
      if (steps.size() == job.steps.size() || steps.empty()) continue;
      without_all.push_back(fmt::format("{} has {} of them, {} to {}", WorkerText(job, dp, stage), steps.size(),
                                        steps.front(), steps.back()));
    }
  const auto add = [&](const char* counter, const std::vector<std::string>& workers, const std::string& text) {
    if (workers.empty()) return;
    trace::Count(notes.counters, counter, workers.size());
    notes.texts.push_back(text + ": " + Listed(workers));
  };
  add(kWorkersWithoutRows, without_rows,
      fmt::format("of {} of {} workers the trace has no rows, so nothing is said of them", without_rows.size(),
                  job.dp * job.pp));
  add("workers_without_all_steps", without_all,
      fmt::format("the trace has {} steps, {} to {}, but not of {} workers; what they lack is compared without them",
                  job.steps.size(), job.steps.front(), job.steps.back(), without_all.size()));
}

// Of rows: a stage that computes backward what it never computed forward.
void AddWithoutForward(const trace::TracedJob& job, Notes& notes) {
  std::vector<bool> forward(static_cast<size_t>(job.pp)), backward(forward);
  for (const trace::JobOp& op : job.ops) {
    if (op.type == trace::OpType::kForwardCompute) forward[static_cast<size_t>(op.stage)] = true;
    if (op.type == trace::OpType::kBackwardCompute) backward[static_cast<size_t>(op.stage)] = true;
  }
  std::vector<std::string> without;
  for (size_t stage = 0; stage < forward.size(); ++stage)
    if (backward[stage] && !forward[stage]) without.push_back(fmt::format("stage {}", stage));
  if (without.empty()) return;
  trace::Count(notes.counters, kStagesWithoutForward, without.size());
  notes.texts.push_back("the trace has no forward-compute, so steps seem shorter than they were, on " +
                        Listed(without));
}

void AddClocks(const trace::TracedJob& job, Notes& notes) {
  std::vector<std::string> off;
  for (const auto& [place, offset] : job.clock_offsets)
    off.push_back(fmt::format("{} up to {:.3g} s {}", WorkerText(job, place.first, place.second), std::abs(offset),
                              offset < 0 ? "ahead" : "behind"));
  if (!off.empty())
    notes.texts.push_back(
        fmt::format("the clocks of {} of {} workers were off; their times are taken as if they had not been: {}",
                    off.size(), job.dp * job.pp, Listed(off)));
  const std::vector<double> shares = trace::MendedShares(job);
  const auto worst = std::ranges::max_element(shares);
  if (worst == shares.end() || *worst < trace::kClocksDisagree) return;
  const auto worker = static_cast<int>(worst - shares.begin());
  notes.clocks_disagree = true;
  notes.texts.push_back(fmt::format(
      "clocks disagree: {:.0f} % of the receives and collectives of {} seem to end before its peers came, so its clock "
      "or theirs is off; no link whose ends disagree is named",
      100 * *worst, WorkerText(job, worker / job.pp, worker % job.pp)));
}

// "3 in step 10, 1 in step 20 and 4 more steps".
std::string StepsText(const std::map<int64_t, size_t>& rows_in) {
  std::string text;
  size_t named = 0;
  for (const auto& [step, rows] : rows_in) {
    if (named == kMostNamed) return text + fmt::format(" and {} more steps", rows_in.size() - named);
    text += fmt::format("{}{} in step {}", named++ == 0 ? "" : ", ", rows, step);
  }
  return text;
}

// Rows that were mended, or could not be.
struct Some {
  size_t rows = 0, workers = 0;
  std::string text;  // who, and in which steps
};
Some SomeRows(const trace::TracedJob& job, trace::PutBack why) {
  std::map<std::pair<int, int>, std::map<int64_t, size_t>> rows_of;  // by dp and stage, by step
  Some some;
  for (uint32_t op = 0; op < job.ops.size(); ++op)
    for (size_t lane = 0; lane < job.lanes.size(); ++lane) {
      if (PutBackOf(job, job.graph.Cell(op, lane)) != why) continue;
      ++rows_of[{job.lanes[lane].dp, job.ops[op].stage}][job.lanes[lane].step];
      ++some.rows;
    }
  std::vector<std::string> workers;
  for (const auto& [place, rows_in] : rows_of)
    workers.push_back(fmt::format("{} {}", WorkerText(job, place.first, place.second), StepsText(rows_in)));
  some.workers = workers.size();
  some.text = Listed(workers);
  return some;
}

void AddPutBack(const trace::TracedJob& job, Notes& notes) {
  for (const trace::Counter& counter : job.counters)
    if (counter.name == trace::kLostRowsLeftOut)
      notes.texts.push_back(
          fmt::format("{} ops that lanes lack are not put back: with them the trace fits no schedule", counter.count));
  const Some back = SomeRows(job, trace::PutBack::kLost);
  if (back.rows == 0) return;
  notes.texts.push_back(
      fmt::format("{} rows that the tracer lost are put back where other rows say, of {} of {} "
                  "workers: {}",
                  back.rows, back.workers, job.dp * job.pp, back.text));
}

void AddDoubtful(const trace::TracedJob& job, Notes& notes) {
  const Some rows = SomeRows(job, trace::PutBack::kDoubtful);
  if (rows.rows == 0) return;
  notes.texts.push_back(
      fmt::format("{} rows of {} of {} workers may be of other ops than their seq_id says, of which the tracer lost "
                  "some; they are taken as lost, too: {}",
                  rows.rows, rows.workers, job.dp * job.pp, rows.text));
  if (job.untold_clocks.empty()) return;
  std::vector<std::string> workers;
  for (const auto& [dp, stage] : job.untold_clocks) workers.push_back(WorkerText(job, dp, stage));
  notes.texts.push_back(
      fmt::format("of {} of them no other row tells the clock, so they are taken to begin each step with the others, "
                  "as far as that may be: {}",
                  workers.size(), Listed(workers)));
}

void AddUntold(const trace::TracedJob& job, Notes& notes) {
  const auto untold = std::ranges::find(job.counters, trace::kUntoldTransfers, &trace::Counter::name);
  if (untold == job.counters.end()) return;
  std::string text = fmt::format(
      "of {} sends and receives nothing tells between whom they are (newer profilers do, but not where a CUDA graph "
      "replays them)",
      untold->count);
  std::vector<std::string> stages;
  for (int dp = 0; dp < job.dp; ++dp)
    if (MayBeStage(job, dp)) stages.push_back(std::to_string(job.ranks[static_cast<size_t>(dp)][0]));
  if (!stages.empty())
    text += fmt::format(
        ", so {} of {} ranks may be stages of a pipeline, which are held against nobody for what they compute or when "
        "they begin: {}",
        stages.size(), job.dp, Listed(stages));
  notes.texts.push_back(std::move(text));
}

}  // namespace

Notes NotesOf(const trace::TracedJob& job) {
  Notes notes;
  AddAbsent(job, notes);
  AddPutBack(job, notes);
  AddDoubtful(job, notes);
  AddWithoutForward(job, notes);
  AddClocks(job, notes);
  AddUntold(job, notes);
  return notes;
}

}  // namespace lockstep::explain
