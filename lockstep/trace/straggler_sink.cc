#include "lockstep/trace/straggler_sink.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "lockstep/trace/pipeline.h"

namespace lockstep::trace {
namespace {

constexpr int kMaxDp = std::numeric_limits<uint16_t>::max(), kMaxStages = std::numeric_limits<uint8_t>::max();

// s; what a float says of later times is a millisecond and more off
constexpr float kLatest = 1e4F, kLongest = 1e4F;

absl::Status OutOfRange(const char* column, int64_t value, int64_t least, int64_t most) {
  return InvalidArgument("{} is {}, expected {} to {}", column, value, least, most);
}

inline absl::Status Within(const char* column, int64_t value, int64_t least, int64_t most) {
  return value >= least && value <= most ? absl::OkStatus() : OutOfRange(column, value, least, most);
}

// One kernel that sends and receives: who waits for whom is not in the row.
bool IsFused(std::string_view name) {
  return name == "forward-send-backward-recv" || name == "backward-send-forward-recv";
}

}  // namespace

StragglerSink::StragglerSink(const StragglerMeta& meta, std::vector<StepRange> wanted)
    : meta_(meta), wanted_(std::move(wanted)) {
  rows_.ranks.assign(static_cast<size_t>(meta.dp), std::vector<int32_t>(static_cast<size_t>(meta.pp), -1));
}

bool IsWanted(const std::vector<StepRange>& wanted, int64_t step) {
  return wanted.empty() || std::any_of(wanted.begin(), wanted.end(), [step](const StepRange& range) {
           return step >= range.first && step <= range.last;
         });
}

uint32_t StragglerSink::IndexOf(int64_t step) {
  if (step == last_step_ && last_index_ != ~0U) return last_index_;
  const auto [found, is_new] = index_of_step_.emplace(step, static_cast<uint32_t>(rows_.steps.size()));
  if (is_new) rows_.steps.push_back(step);
  last_step_ = step;
  return last_index_ = found->second;
}

bool StragglerSink::IsFirst(const StragglerRow& row) {
  if (seen_.size() <= row.step) seen_.resize(row.step + size_t{1});
  const uint64_t op = uint64_t{row.dp} << 32 | uint64_t{row.stage} << 24 |
                      uint64_t{static_cast<uint8_t>(row.type)} << 16 | row.sequence;
  return seen_[row.step].insert(op).second;
}

// The first that is told stands.
void StragglerSink::TellRank(size_t dp, size_t stage, int32_t rank) {
  int32_t& known = rows_.ranks[dp][stage];
  if (known < 0) known = rank;
  if (known != rank) of_several_ranks_.insert({dp, stage});
}

absl::Status StragglerSink::Add(const RawRow& raw) {
  LS_RETURN_IF_ERROR(Within("dp_rank", raw.dp_rank, 0, std::min(meta_.dp - 1, kMaxDp)));
  LS_RETURN_IF_ERROR(Within("stage", raw.stage, 0, std::min(meta_.pp - 1, kMaxStages)));
  LS_RETURN_IF_ERROR(Within("seq_id", raw.seq_id, 0, std::numeric_limits<uint16_t>::max()));
  LS_RETURN_IF_ERROR(Within("rank", raw.rank, 0, meta_.world_size - 1));
  const std::optional<OpType> type = raw.type ? raw.type : OpTypeFromName(raw.optype);
  const int least = type && IsPass(*type) ? 0 : -1;
  LS_RETURN_IF_ERROR(Within("mc", raw.mc, least, std::numeric_limits<int8_t>::max()));
  LS_RETURN_IF_ERROR(Within("mb_id", raw.mb_id, least, std::numeric_limits<int16_t>::max()));
  LS_RETURN_IF_ERROR(Within("gmc", raw.gmc, least, std::numeric_limits<int16_t>::max()));
  if (!type && IsFused(raw.optype))
    return InvalidArgument("optype {}: a fused send and receive can't be taken apart; trace with separate ones",
                           raw.optype);
  if (!IsWanted(wanted_, raw.step)) return absl::OkStatus();
  if (!type) {
    Count(unknown_, fmt::format("{}{}", kUnknownOpType, raw.optype), 1);
    return absl::OkStatus();
  }
  if (!std::isfinite(raw.start_ts) || !std::isfinite(raw.duration)) return ++without_time_, absl::OkStatus();
  if (std::abs(raw.start_ts) > kLatest)
    return InvalidArgument("start_ts {:g}: expected seconds since the first op of the same step", raw.start_ts);
  if (raw.duration > kLongest)
    return InvalidArgument("duration {:g}: expected seconds, at most {:g}", raw.duration, kLongest);
  if (raw.duration < 0) ++negative_durations_;
  TellRank(static_cast<size_t>(raw.dp_rank), static_cast<size_t>(raw.stage), static_cast<int32_t>(raw.rank));
  const StragglerRow row{IndexOf(raw.step),
                         static_cast<uint16_t>(raw.dp_rank),
                         static_cast<uint8_t>(raw.stage),
                         *type,
                         static_cast<uint16_t>(raw.seq_id),
                         static_cast<int16_t>(raw.gmc),
                         static_cast<int16_t>(raw.mb_id),
                         static_cast<int8_t>(raw.mc),
                         raw.start_ts,
                         std::max(raw.duration, 0.0F)};
  if (refuses_twice_ && !IsFirst(row))
    return InvalidArgument("{} is there twice in step {}, data-parallel rank {}",
                           NameOf({*type, row.stage, row.sequence, row.chunk, row.microbatch, row.global_chunk}),
                           raw.step, row.dp);
  rows_.Add(row);
  return absl::OkStatus();
}

void StragglerSink::Join(StragglerSink&& next) {
  std::vector<uint32_t> index;  // of its steps
  index.reserve(next.rows_.steps.size());
  for (const int64_t step : next.rows_.steps) index.push_back(IndexOf(step));
  bool same = true;
  for (size_t i = 0; i < index.size(); ++i) same = same && index[i] == i;
  for (std::vector<StragglerRow>& piece : next.rows_.pieces) {
    if (!same)
      for (StragglerRow& row : piece) row.step = index[row.step];
    rows_.pieces.push_back(std::move(piece));
  }
  for (size_t dp = 0; dp < rows_.ranks.size(); ++dp)
    for (size_t stage = 0; stage < rows_.ranks[dp].size(); ++stage)
      if (next.rows_.ranks[dp][stage] >= 0) TellRank(dp, stage, next.rows_.ranks[dp][stage]);
  for (const Counter& counter : next.unknown_) Count(unknown_, counter.name, counter.count);
  without_time_ += next.without_time_;
  negative_durations_ += next.negative_durations_;
  of_several_ranks_.merge(next.of_several_ranks_);
}

uint64_t StragglerSink::RanksOfSeveralWorkers() const {
  std::map<int32_t, size_t> workers;
  for (const std::vector<int32_t>& stages : rows_.ranks)
    for (const int32_t rank : stages) ++workers[rank];
  return static_cast<uint64_t>(
      std::ranges::count_if(workers, [](const auto& one) { return one.first >= 0 && one.second > 1; }));
}

std::vector<Counter> StragglerSink::Counters() const {
  std::vector<Counter> counters = unknown_;
  Count(counters, "rows_without_time", without_time_);
  Count(counters, "negative_durations", negative_durations_);
  Count(counters, "workers_of_several_ranks", of_several_ranks_.size());
  Count(counters, "ranks_of_several_workers", RanksOfSeveralWorkers());
  return counters;
}

}  // namespace lockstep::trace
