// Takes the rows of a straggler trace from any reader, checks each, and keeps it or counts why not.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/trace/straggler.h"

namespace lockstep::trace {

// The columns of a file.
enum class Column : uint8_t { kDpRank, kStage, kRank, kStep, kOptype, kStartTs, kDuration, kSeqId, kMc, kMbId, kGmc };
inline constexpr size_t kColumns = static_cast<size_t>(Column::kGmc) + 1;
inline constexpr std::array<std::string_view, kColumns> kColumnNames = {
    "dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id", "gmc"};

struct RawRow {
  int64_t dp_rank = 0, stage = 0, rank = 0, step = 0;
  std::string_view optype;
  float start_ts = 0, duration = 0;
  int64_t seq_id = 0, mc = -1, mb_id = -1, gmc = -1;
  std::optional<OpType> type{};  // nullopt: what `optype` says
};

// Which steps to read: all, or ranges with both ends.
struct StepRange {
  int64_t first = std::numeric_limits<int64_t>::min(), last = std::numeric_limits<int64_t>::max();
};

inline constexpr std::string_view kUnknownOpType = "unknown_optype ";  // how the counter of one begins

bool IsWanted(const std::vector<StepRange>& wanted, int64_t step);  // none: all are

class StragglerSink {
 public:
  StragglerSink(const StragglerMeta& meta, std::vector<StepRange> wanted);
  // From now on a row is refused if there is one of the same op in its lane. Takes some 50 bytes for each row.
  void RefuseTwice() { refuses_twice_ = true; }
  // kInvalidArgument: a value outside of what the metadata says; without the place, which the reader knows.
  absl::Status Add(const RawRow& row);
  StragglerRows TakeRows() { return std::move(rows_); }
  // Takes what another one, of the same job and steps, has of the rows behind these.
  void Join(StragglerSink&& next);
  // Of rows that were left out or mended, or are of doubtful workers.
  std::vector<Counter> Counters() const;

 private:
  uint32_t IndexOf(int64_t step);
  bool IsFirst(const StragglerRow& row);
  void TellRank(size_t dp, size_t stage, int32_t rank);
  uint64_t RanksOfSeveralWorkers() const;

  const StragglerMeta& meta_;
  std::vector<StepRange> wanted_;
  StragglerRows rows_;
  std::unordered_map<int64_t, uint32_t> index_of_step_;
  int64_t last_step_ = 0;
  uint32_t last_index_ = ~0U;  // of last_step_: rows of a step mostly stand together
  std::vector<Counter> unknown_;
  uint64_t without_time_ = 0, negative_durations_ = 0;
  std::set<std::pair<size_t, size_t>> of_several_ranks_;  // data-parallel rank and stage
  bool refuses_twice_ = false;
  std::vector<std::unordered_set<uint64_t>> seen_;  // by step, if it does
};

}  // namespace lockstep::trace
