// Recommendation models (DLRM, arXiv 1906.00091): how long a step takes when embedding tables are split over
// accelerators and the dense layers are replicated, and how to split them. docs/models/plan.md has the formulas. Pure;
// deterministic.
//
//   LS_ASSIGN_OR_RETURN(const Dlrm model, ReadDlrm("dlrm.toml"));
//   Shardings(model, cluster, rates).front().time.total();
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/plan/rates.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

struct EmbeddingTable {
  std::string name;
  double rows = 0, pooling = 1;  // pooling: rows that are summed for a sample
  int dim = 0;
};

struct Dlrm {
  std::vector<EmbeddingTable> tables;
  std::vector<int> bottom, top;  // widths of the layers, the input's first; the top's input is what they make together
  int batch = 0;                 // samples of a step, of all accelerators
  double embedding_bytes = 4;    // of a number in a table

  absl::Status Validate() const;
};
absl::StatusOr<Dlrm> ReadDlrm(const std::string& path);

struct DlrmCluster {
  Machine machine;
  int accelerators = 1;
};

// Some columns of a table, on one accelerator.
struct Shard {
  int table = 0, columns = 0, rank = 0;
};
using Sharding = std::vector<Shard>;

struct DlrmTime {
  // Seconds. lookup, exchange: of the accelerator that takes longest, there and back; what the bottom layers hide is
  // left out. reduce: of dense gradients, what the backward pass does not hide.
  double lookup = 0, exchange = 0, dense = 0, reduce = 0, step = 0;
  double memory =
      0;  // bytes on the fullest accelerator: tables with their optimizer (a number per row), dense with Adam
  double total() const { return lookup + exchange + dense + reduce + step; }
};
DlrmTime PredictDlrm(const Dlrm& model, const DlrmCluster& cluster, const Rates& rates, const Sharding& sharding);

struct ShardingChoice {
  std::string how;  // "by time, columns of at least 32, improved"
  Sharding sharding;
  DlrmTime time;
  bool fits = false;
};
// Balanced by predicted time, by size, or in turn, with tables whole or in so many columns at most, each with and
// without moves and swaps that make the slowest accelerator faster. Those that fit first, by time.
std::vector<ShardingChoice> Shardings(const Dlrm& model, const DlrmCluster& cluster, const Rates& rates);

// {step_time_s, breakdown, samples_per_s, memory_gib, how, tried [{how, step_time_s, memory_gib, fits}], shards
// [{table, columns, rank}]}. kResourceExhausted where none fits, with what is missing.
absl::StatusOr<Json> DlrmReport(const Dlrm& model, const DlrmCluster& cluster, const Rates& rates);

}  // namespace lockstep::plan
