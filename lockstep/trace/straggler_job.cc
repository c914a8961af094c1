#include "lockstep/trace/straggler_job.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>

#include "lockstep/base/check.h"
#include "lockstep/base/large_pages.h"
#include "lockstep/base/parallel.h"
#include "lockstep/trace/lost_rows.h"
#include "lockstep/trace/pipeline.h"
#include "lockstep/trace/row_numbers.h"
#include "lockstep/trace/unknown_transfers.h"
#include "lockstep/trace/untold_clocks.h"
#include "lockstep/trace/worker_clocks.h"

namespace lockstep::trace {
namespace {

constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();

// Numbers the ops of all stages: types of a stage together, by sequence.
class OpTable {
 public:
  // kInvalidArgument: a number that no lane has, below one that some has.
  static absl::StatusOr<OpTable> Make(const StragglerRows& rows, size_t threads) {
    OpTable table;
    std::vector<std::vector<uint8_t>> seen(table.first_.size());
    std::mutex joining;
    ParallelFor(rows.pieces.size(), threads, [&](size_t i, size_t /*worker*/) {
      std::vector<std::vector<uint8_t>> in_piece(seen.size());
      for (const StragglerRow& row : rows.pieces[i]) {
        std::vector<uint8_t>& of_place = in_piece[Place(row)];
        if (of_place.size() <= row.sequence) of_place.resize(row.sequence + size_t{1});
        of_place[row.sequence] = 1;
      }
      const std::lock_guard lock(joining);
      for (size_t place = 0; place < seen.size(); ++place) {
        seen[place].resize(std::max(seen[place].size(), in_piece[place].size()));
        for (size_t sequence = 0; sequence < in_piece[place].size(); ++sequence)
          seen[place][sequence] |= in_piece[place][sequence];
      }
    });
    for (size_t place = 0; place < seen.size(); ++place) {
      table.first_[place] = static_cast<uint32_t>(table.ops_.size());
      const auto type = static_cast<OpType>(place % kSchemaTypes);
      const auto stage = static_cast<int>(place / kSchemaTypes);
      for (size_t sequence = 0; sequence < seen[place].size(); ++sequence) {
        table.ops_.push_back({type, stage, static_cast<int>(sequence), -1, -1, -1});
        if (seen[place][sequence] == 0)
          return InvalidArgument("{} is nowhere, but a later one is: seq_id counts from 0 without gaps",
                                 NameOf(table.ops_.back()));
      }
    }
    return table;
  }
  uint32_t Of(const StragglerRow& row) const { return first_[Place(row)] + row.sequence; }
  std::vector<JobOp>& ops() { return ops_; }
  const std::vector<JobOp>& ops() const { return ops_; }

 private:
  OpTable() : first_(kStages * kSchemaTypes) {}
  static constexpr size_t kStages = std::numeric_limits<uint8_t>::max() + size_t{1};
  static size_t Place(const StragglerRow& row) {
    return row.stage * size_t{kSchemaTypes} + static_cast<size_t>(row.type);
  }

  std::vector<uint32_t> first_;  // number of the first op of each [stage][type]
  std::vector<JobOp> ops_;
};

// The lanes that have rows, by step, then by data-parallel rank.
struct LaneTable {
  std::vector<JobLane> lanes;
  std::vector<int64_t> steps;
  std::vector<uint32_t> first_lane;
  std::vector<std::vector<uint32_t>> lane_of;  // [index of the step in the rows][dp]
  std::vector<uint32_t> rows, recorded_rows;   // of each lane: with those that are put back, without
};

// Leaves out steps of which there is no forward or backward compute, as where a trace ends in the middle of one: they
// would be steps that ideally take no time. Answers how many.
size_t LeaveOutIdleSteps(StragglerRows& rows) {
  std::vector<uint8_t> computes(rows.steps.size());
  for (const auto& piece : rows.pieces)
    for (const StragglerRow& row : piece)
      if (IsPass(row.type)) computes[row.step] = 1;
  const auto idle = static_cast<size_t>(std::count(computes.begin(), computes.end(), 0));
  if (idle == 0 || idle == computes.size()) return 0;
  std::vector<uint32_t> number(computes.size());
  std::vector<int64_t> steps;
  for (size_t step = 0; step < computes.size(); ++step) {
    number[step] = static_cast<uint32_t>(steps.size());
    if (computes[step] != 0) steps.push_back(rows.steps[step]);
  }
  for (auto& piece : rows.pieces) {
    std::erase_if(piece, [&](const StragglerRow& row) { return computes[row.step] == 0; });
    for (StragglerRow& row : piece) row.step = number[row.step];
  }
  rows.steps = std::move(steps);
  return idle;
}

// Of tables by step and data-parallel rank; refused: more, of a few rows.
absl::Status CheckSize(const StragglerRows& rows, int dp) {
  constexpr size_t kMostCells = 10'000'000, kPerRow = 16;
  const size_t cells = rows.steps.size() * static_cast<size_t>(dp);
  if (cells <= std::max(kMostCells, kPerRow * rows.size())) return absl::OkStatus();
  return InvalidArgument("{} rows for {} steps of {} data-parallel ranks: expected some of most; is dp_size right?",
                         rows.size(), rows.steps.size(), dp);
}

LaneTable Lanes(const StragglerRows& rows, int dp, size_t threads) {
  constexpr uint32_t kNone = ~0U;
  LaneTable table;
  table.lane_of.assign(rows.steps.size(), std::vector<uint32_t>(static_cast<size_t>(dp), kNone));
  std::vector<std::vector<std::vector<uint32_t>>> of_worker(threads);  // [worker][step][dp]
  ParallelFor(rows.pieces.size(), threads, [&](size_t i, size_t worker) {
    if (of_worker[worker].empty())
      of_worker[worker].assign(rows.steps.size(), std::vector<uint32_t>(static_cast<size_t>(dp), 0));
    for (const StragglerRow& row : rows.pieces[i]) ++of_worker[worker][row.step][row.dp];
  });
  std::vector<size_t> order(rows.steps.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rows.steps[a] < rows.steps[b]; });
  for (const size_t step : order) {
    table.steps.push_back(rows.steps[step]);
    table.first_lane.push_back(static_cast<uint32_t>(table.lanes.size()));
    for (int rank = 0; rank < dp; ++rank) {
      uint32_t count = 0;
      for (const auto& counts : of_worker)
        if (!counts.empty()) count += counts[step][static_cast<size_t>(rank)];
      if (count == 0) continue;
      table.lane_of[step][static_cast<size_t>(rank)] = static_cast<uint32_t>(table.lanes.size());
      table.lanes.push_back({rows.steps[step], rank});
      table.rows.push_back(count);
    }
  }
  table.first_lane.push_back(static_cast<uint32_t>(table.lanes.size()));
  table.recorded_rows = table.rows;
  return table;
}

// The step of each lane: its index in the rows.
std::vector<uint32_t> StepsOf(const LaneTable& lanes) {
  std::vector<uint32_t> step_of(lanes.lanes.size());
  for (uint32_t step = 0; step < lanes.lane_of.size(); ++step)
    for (const uint32_t lane : lanes.lane_of[step])
      if (lane < step_of.size()) step_of[lane] = step;
  return step_of;
}

// What was made of rows of which some were lost.
struct Mends {
  Renumbered renumbered;
  UntoldClocks untold;
  std::vector<std::pair<StragglerRow*, StragglerRow>> moved;  // rows in doubt, as they were
  std::vector<LostRow> put_back;
  bool refused = false;  // with them the rows fit no schedule, so they were taken back
};

NumberedRows TableOf(StragglerRows& rows, OpTable& table, const LaneTable& lanes) {
  const size_t width = lanes.lanes.size();
  NumberedRows numbered{table.ops(), lanes.lanes, lanes.first_lane,
                        std::vector<StragglerRow*>(table.ops().size() * width)};
  for (auto& piece : rows.pieces)
    for (StragglerRow& row : piece) numbered.rows[table.Of(row) * width + lanes.lane_of[row.step][row.dp]] = &row;
  return numbered;
}

// Rows in doubt are no word of when their op was.
RecordedTimes TimesOf(const StragglerRows& rows, OpTable& table, const LaneTable& lanes,
                      std::vector<uint8_t> in_doubt) {
  const size_t width = lanes.lanes.size(), cells = table.ops().size() * width;
  RecordedTimes recorded{table.ops(),
                         lanes.lanes,
                         lanes.first_lane,
                         std::vector<float>(cells, kMissing),
                         std::vector<float>(cells, kMissing),
                         std::move(in_doubt)};
  for (const auto& piece : rows.pieces)
    for (const StragglerRow& row : piece) {
      const size_t cell = table.Of(row) * width + lanes.lane_of[row.step][row.dp];
      if (!recorded.in_doubt.empty() && recorded.in_doubt[cell] != 0) continue;
      recorded.starts[cell] = row.start;
      recorded.ends[cell] = row.start + row.duration;
    }
  return recorded;
}

// Adds the rows that were lost where the others tell of them, as a last piece, and moves those in doubt there.
void PutBackLostRows(StragglerRows& rows, OpTable& table, LaneTable& lanes, std::vector<uint8_t> in_doubt,
                     size_t threads, Mends& mends) {
  std::vector<const StragglerRow*> like(table.ops().size());
  for (const auto& piece : rows.pieces)
    for (const StragglerRow& row : piece) like[table.Of(row)] = &row;
  std::map<std::pair<uint32_t, uint32_t>, StragglerRow*> doubtful;  // by op and lane
  for (const DoubtfulRow& one : mends.renumbered.doubtful) doubtful[{one.op, one.lane}] = one.row;
  const std::vector<uint32_t> step_of = StepsOf(lanes);
  std::vector<StragglerRow> back;
  for (const LostRow& lost : FindLostRows(TimesOf(rows, table, lanes, std::move(in_doubt)), threads)) {
    const auto found = doubtful.find({lost.op, lost.lane});
    const bool is_there = found != doubtful.end();
    if (is_there)
      mends.moved.emplace_back(found->second, *found->second);
    else
      mends.put_back.push_back(lost);
    StragglerRow& row = is_there ? *found->second : back.emplace_back(*like[lost.op]);
    row.step = step_of[lost.lane];
    row.dp = static_cast<uint16_t>(lanes.lanes[lost.lane].dp);
    row.start = lost.start;
    row.duration = lost.end - lost.start;
  }
  if (back.empty()) return;
  rows.pieces.push_back(std::move(back));
  // Else the order is told by a lane that was recorded whole.
  if (std::find(lanes.rows.begin(), lanes.rows.end(), table.ops().size()) == lanes.rows.end())
    for (const LostRow& lost : mends.put_back) ++lanes.rows[lost.lane];
}

Mends MendRows(StragglerRows& rows, OpTable& table, LaneTable& lanes, size_t threads) {
  Mends mends;
  if (rows.size() >= table.ops().size() * lanes.lanes.size()) return mends;
  std::vector<uint8_t> in_doubt;
  {
    NumberedRows numbered = TableOf(rows, table, lanes);
    mends.renumbered = Renumber(numbered, threads);
    if (!mends.renumbered.doubtful.empty()) {
      in_doubt.resize(numbered.rows.size());
      for (const DoubtfulRow& one : mends.renumbered.doubtful) in_doubt[one.op * lanes.lanes.size() + one.lane] = 1;
      mends.untold = BeginWithOthers(numbered, mends.renumbered.doubtful, in_doubt);
    }
  }
  PutBackLostRows(rows, table, lanes, std::move(in_doubt), threads, mends);
  return mends;
}

void TakeBack(Mends& mends, StragglerRows& rows, LaneTable& lanes) {
  for (const auto& [row, was] : mends.moved) *row = was;
  for (const auto& [row, start] : mends.untold.as) row->start = start;
  for (const RenumberedRow& one : mends.renumbered.rows) one.row->sequence = one.sequence;
  if (!mends.put_back.empty()) rows.pieces.pop_back();
  lanes.rows = lanes.recorded_rows;
  mends = Mends();
  mends.refused = true;
}

// When each step begins and how long it takes. An op that is lost in a slow step would else seem to come early.
class Spans {
 public:
  explicit Spans(const StragglerRows& rows)
      : begin_(rows.steps.size(), std::numeric_limits<float>::infinity()),
        end_(rows.steps.size(), -std::numeric_limits<float>::infinity()) {
    for (const auto& piece : rows.pieces)
      for (const StragglerRow& row : piece) {
        begin_[row.step] = std::min<float>(begin_[row.step], row.start);
        end_[row.step] = std::max<float>(end_[row.step], row.start + row.duration);
      }
    for (size_t step = 0; step < begin_.size(); ++step) mean_ += double{end_[step]} - double{begin_[step]};
    mean_ /= static_cast<double>(std::max<size_t>(begin_.size(), 1));
  }

  // A moment of a step, as if each took as long as the mean of them.
  double Scaled(uint32_t step, double moment) const {
    const double span = double{end_[step]} - double{begin_[step]};
    return span > 0 ? (moment - double{begin_[step]}) / span * mean_ : moment;
  }

 private:
  std::vector<float> begin_, end_;  // s
  double mean_ = 0;                 // s
};

// The first lane that has every op; without one, the mean over the lanes that have each.
ReferenceLane Reference(const StragglerRows& rows, OpTable& table, const LaneTable& lanes) {
  const size_t ops = table.ops().size();
  const auto complete = std::find(lanes.rows.begin(), lanes.rows.end(), ops);
  // Which is told by step and rank: there are many rows.
  const auto wanted = static_cast<size_t>(complete - lanes.rows.begin());
  const JobLane* const only = complete == lanes.rows.end() ? nullptr : &lanes.lanes[wanted];
  const auto step = only == nullptr ? rows.steps.end() : std::find(rows.steps.begin(), rows.steps.end(), only->step);
  const auto step_index = static_cast<uint32_t>(step - rows.steps.begin());
  std::vector<double> starts(ops), ends(ops);
  std::vector<uint32_t> seen(ops);
  std::optional<Spans> spans;  // where lanes of several steps are averaged
  if (only == nullptr) spans.emplace(rows);
  const auto moment = [&](uint32_t in_step, float at) {
    return spans ? spans->Scaled(in_step, static_cast<double>(at)) : static_cast<double>(at);
  };
  for (const auto& piece : rows.pieces)
    for (const StragglerRow& row : piece) {
      if (only != nullptr && (row.step != step_index || row.dp != only->dp)) continue;
      const uint32_t op = table.Of(row);
      table.ops()[op].chunk = int16_t{row.chunk};  // -1: none
      table.ops()[op].microbatch = row.microbatch;
      table.ops()[op].global_chunk = row.global_chunk;
      starts[op] += moment(row.step, row.start);
      ends[op] += moment(row.step, row.start + row.duration);
      ++seen[op];
    }
  ReferenceLane lane{table.ops(), std::vector<float>(ops), std::vector<float>(ops)};
  for (size_t op = 0; op < ops; ++op) {
    lane.starts[op] = static_cast<float>(starts[op] / std::max(seen[op], 1U));
    lane.ends[op] = static_cast<float>(ends[op] / std::max(seen[op], 1U));
  }
  return lane;
}

absl::StatusOr<graph::OpGraphBuilder::Built> GraphOf(const StragglerRows& rows, OpTable& table, const LaneTable& lanes,
                                                     const StragglerMeta& meta) {
  const ReferenceLane reference = Reference(rows, table, lanes);
  graph::OpGraphBuilder builder;
  for (size_t op = 0; op < table.ops().size(); ++op) builder.AddOp();
  LS_RETURN_IF_ERROR(AddPipelineRules(reference, meta, builder));
  return builder.Build(lanes.first_lane, [&](uint32_t op) { return NameOf(table.ops()[op]); });
}

// Puts the rows into starts and durations. Answers how many places are left empty.
absl::StatusOr<uint64_t> Fill(TracedJob& job, const StragglerRows& rows, const OpTable& table, const LaneTable& lanes,
                              const std::vector<uint32_t>& number, size_t threads) {
  const size_t width = job.lanes.size(), cells = number.size() * width;
  ParallelFor(2, threads, [&](size_t i, size_t /*worker*/) {
    i == 0 ? FillOnLargePages(job.starts, cells, kMissing) : FillOnLargePages(job.durations, cells, 0.0F);
  });
  // Two pieces may have a row for the same place, which is an error, but no race.
  const auto put = [](float& place, float value) {
    std::atomic_ref<float>(place).store(value, std::memory_order_relaxed);
  };
  ParallelFor(rows.pieces.size(), threads, [&](size_t i, size_t /*worker*/) {
    for (const StragglerRow& row : rows.pieces[i]) {
      const size_t cell = number[table.Of(row)] * width + lanes.lane_of[row.step][row.dp];
      put(job.starts[cell], row.start);
      put(job.durations[cell], row.duration);
    }
  });
  const auto missing = static_cast<uint64_t>(
      std::count_if(job.starts.begin(), job.starts.end(), [](float start) { return std::isnan(start); }));
  if (cells - missing != rows.size())
    return MakeError(absl::StatusCode::kAlreadyExists,
                     fmt::format("{} rows tell of an op that another row tells of", rows.size() - (cells - missing)));
  return missing;
}

// Ops that a lane does not have begin and end nowhere.
void MarkAbsent(TracedJob& job, uint64_t missing) {
  if (missing == 0) return;
  job.graph.absent.resize(job.starts.size());
  for (size_t cell = 0; cell < job.starts.size(); ++cell) {
    job.graph.absent[cell] = std::isnan(job.starts[cell]) ? 1 : 0;
    if (job.graph.absent[cell] != 0) job.starts[cell] = 0;
  }
}

void MarkPutBack(TracedJob& job, const Mends& mends, const std::vector<uint32_t>& number) {
  if (mends.put_back.empty() && mends.renumbered.doubtful.empty()) return;
  job.put_back.resize(job.starts.size());
  for (const LostRow& one : mends.put_back) job.put_back[job.graph.Cell(number[one.op], one.lane)] = PutBack::kLost;
  for (const DoubtfulRow& one : mends.renumbered.doubtful)
    job.put_back[job.graph.Cell(number[one.op], one.lane)] = PutBack::kDoubtful;
}

// In the order of the op types; ops of a type are held against each other.
void NameKinds(TracedJob& job) {
  for (int type = 0; type < kSchemaTypes; ++type) {
    const std::string_view kind = KindName(static_cast<OpType>(type));
    for (JobOp& op : job.ops) {
      if (op.type != static_cast<OpType>(type)) continue;
      auto found = std::find(job.kinds.begin(), job.kinds.end(), kind);
      if (found == job.kinds.end()) found = job.kinds.insert(found, std::string(kind));
      op.kind = static_cast<int>(found - job.kinds.begin());
    }
  }
  for (const JobOp& op : job.ops) job.ideal_class.push_back(static_cast<uint32_t>(op.type));
}

Origin OriginOf(const StragglerMeta& meta) {
  Origin origin{meta.day, {}};
  const auto hosts = static_cast<int64_t>(meta.hosts.size());
  for (int64_t rank = 0; rank < meta.world_size && hosts > 0; ++rank)
    origin.host_of[static_cast<int32_t>(rank)] = meta.hosts[static_cast<size_t>(rank * hosts / meta.world_size)];
  return origin;
}

// With the clocks that the rows were recorded with. Not measured yet.
absl::StatusOr<TracedJob> JobOf(const StragglerRows& rows, const OpTable& table, const LaneTable& lanes,
                                const Mends& mends, graph::OpGraphBuilder::Built built, const StragglerMeta& meta,
                                size_t threads) {
  TracedJob job;
  job.name = meta.trial_name;
  job.world_size = meta.world_size;
  job.origin = OriginOf(meta);
  job.graph = std::move(built.graph);
  job.ops.resize(table.ops().size());
  for (size_t op = 0; op < job.ops.size(); ++op) job.ops[built.number[op]] = table.ops()[op];
  job.lanes = lanes.lanes;
  job.steps = lanes.steps;
  job.dp = meta.dp;
  job.pp = meta.pp;
  job.ranks = rows.ranks;
  job.untold_clocks = mends.untold.workers;
  LS_ASSIGN_OR_RETURN(const uint64_t missing, Fill(job, rows, table, lanes, built.number, threads));
  NameKinds(job);
  Count(job.counters, kAbsentRanks, job.steps.size() * static_cast<size_t>(job.dp) - job.lanes.size());
  Count(job.counters, "absent_ops", mends.put_back.size() + missing);
  Count(job.counters, "lost_rows_put_back", mends.put_back.size());
  Count(job.counters, "rows_renumbered", mends.renumbered.rows.size());
  Count(job.counters, "rows_left_as_numbered", mends.renumbered.doubtful.size());
  Count(job.counters, kLostRowsLeftOut, mends.refused ? missing : 0);
  MarkAbsent(job, missing);
  MarkPutBack(job, mends, built.number);
  return job;
}

// What contradicts the schedule is taken back.
absl::StatusOr<graph::OpGraphBuilder::Built> GraphOfMended(StragglerRows& rows, OpTable& table, LaneTable& lanes,
                                                           Mends& mends, const StragglerMeta& meta) {
  absl::StatusOr<graph::OpGraphBuilder::Built> graph = GraphOf(rows, table, lanes, meta);
  if (graph.ok() || (mends.put_back.empty() && mends.renumbered.rows.empty() && mends.moved.empty())) return graph;
  TakeBack(mends, rows, lanes);
  return GraphOf(rows, table, lanes, meta);
}

void Shift(StragglerRows& rows, const LaneTable& lanes, const StragglerMeta& meta, const ClockShifts& shifts) {
  std::vector<const std::vector<float>*> of_step;  // by the step's index in the rows
  for (const int64_t step : rows.steps)
    of_step.push_back(&shifts[static_cast<size_t>(std::ranges::lower_bound(lanes.steps, step) - lanes.steps.begin())]);
  for (auto& piece : rows.pieces)
    for (StragglerRow& row : piece)
      row.start += (*of_step[row.step])[row.dp * static_cast<size_t>(meta.pp) + row.stage];
}

void Measure(TracedJob& job, size_t threads) {
  TimeSteps(job, threads);
  MeasureParts(job, threads);
}

}  // namespace

absl::StatusOr<TracedJob> BuildStragglerJob(StragglerRows rows, const StragglerMeta& meta, size_t threads) {
  if (rows.size() == 0) return InvalidArgument("no rows, or none of the steps asked for (--steps)");
  const size_t idle_steps = LeaveOutIdleSteps(rows);
  LS_RETURN_IF_ERROR(CheckSize(rows, meta.dp));
  LS_ASSIGN_OR_RETURN(OpTable table, OpTable::Make(rows, threads));
  LaneTable lanes = Lanes(rows, meta.dp, threads);
  Mends mends = MendRows(rows, table, lanes, threads);
  LS_ASSIGN_OR_RETURN(graph::OpGraphBuilder::Built built, GraphOfMended(rows, table, lanes, mends, meta));
  LS_ASSIGN_OR_RETURN(TracedJob job, JobOf(rows, table, lanes, mends, std::move(built), meta, threads));
  const bool untold = !mends.untold.workers.empty();
  if (!untold) rows.pieces = {};  // what follows needs as much memory
  Measure(job, threads);
  const ClockShifts shifts = MendClocks(job, threads);
  if (untold && !shifts.empty()) {
    // Workers whose clocks are untold begin with the others, and what is put back ends with them: so rows are mended
    // once more, now that the others' clocks are right.
    job = TracedJob();
    TakeBack(mends, rows, lanes);
    Shift(rows, lanes, meta, shifts);
    mends = MendRows(rows, table, lanes, threads);
    LS_ASSIGN_OR_RETURN(built, GraphOfMended(rows, table, lanes, mends, meta));
    LS_ASSIGN_OR_RETURN(job, JobOf(rows, table, lanes, mends, std::move(built), meta, threads));
    rows.pieces = {};
    Measure(job, threads);
  }
  Count(job.counters, "steps_without_compute", idle_steps);
  TellClocks(job, shifts);
  BoundUnknownTransfers(job);
  return job;
}

}  // namespace lockstep::trace
