#include "lockstep/plan/dlrm.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"
#include "lockstep/plan/bandwidth.h"

namespace lockstep::plan {
namespace {

constexpr double kLine = 32;  // bytes that memory hands out at once
// Lookups as in arXiv 2404.12674: what rows get of a cache; bytes of offsets that a sample reads of a table, and of
// each row's number; how much longer rows of at most 64 and 32 columns take.
constexpr double kCached = .9, kOffsets = 96, kIndex = 4, kNarrow = 1.1, kNarrowest = 1.55;
constexpr double kDenseBytes = 2, kDenseState = 18;

class DlrmModel {
 public:
  DlrmModel(const Dlrm& model, const DlrmCluster& cluster, const Rates& rates)
      : d_(model), m_(cluster.machine), r_(rates), n_(cluster.accelerators) {}

  DlrmTime Predict(const Sharding& sharding) const {
    const auto ranks = static_cast<size_t>(n_);
    std::vector<double> lookup(ranks), sent(ranks), memory(ranks);
    for (const Shard& shard : sharding) {
      const auto rank = static_cast<size_t>(shard.rank);
      lookup[rank] += Lookup(shard);
      sent[rank] += double(d_.batch) * shard.columns * kDenseBytes * (n_ - 1) / n_;
      memory[rank] += Held(shard);
    }
    const double bottom = Layers(d_.bottom), top = Layers(d_.top) + Interaction();
    const double exchange = n_ == 1 ? 0 : *std::ranges::max_element(sent) / PairRate(m_, r_, n_) + r_.latency;
    DlrmTime time;
    // Forward once, backward twice: rows are read and written. Beside the forward half the bottom layers compute.
    const double slowest = *std::ranges::max_element(lookup);
    const double hidden = std::min(bottom, slowest + exchange);
    time.lookup = 3 * slowest;
    time.exchange = 2 * exchange;
    time.dense = 3 * (bottom + top) - hidden;
    time.reduce = std::max(0.0, Reduce() - r_.data_hidden * 2 * (bottom + top));
    time.step = r_.step;
    time.memory = *std::ranges::max_element(memory) + kDenseState * DenseParameters();
    return time;
  }

  // Of all samples' pooled rows: those that are not cached from memory, all through the cache.
  double Lookup(const Shard& shard) const {
    const EmbeddingTable& table = d_.tables[static_cast<size_t>(shard.table)];
    const double row = InLines(shard.columns * d_.embedding_bytes), rows = table.pooling * row;
    const double others = row + kOffsets + InLines(kIndex * table.pooling);
    const double room = kCached * m_.cache * std::min(1.0, shard.columns / ColumnsOfEach());
    const double missed = Missed(table.rows, d_.batch * table.pooling, room / row);
    const double memory = d_.batch * (rows * missed + others) / (m_.bandwidth * r_.stream);
    const double cache = m_.cache_bandwidth > 0 ? d_.batch * (rows + others) / m_.cache_bandwidth : 0;
    return std::max(memory, cache) * (shard.columns > 64 ? 1 : shard.columns > 32 ? kNarrow : kNarrowest);
  }
  double Held(const Shard& shard) const {  // rows, and of each a number of the optimizer (row-wise Adagrad)
    return d_.tables[static_cast<size_t>(shard.table)].rows * (shard.columns * d_.embedding_bytes + 4);
  }

 private:
  static double InLines(double bytes) { return std::ceil(bytes / kLine) * kLine; }
  // The share of `lookups` of a table, each row as likely as any other, that find their row in no cache with room for
  // so many of them: each is fetched once, or, of more than there is room for, those that have none each time.
  static double Missed(double rows, double lookups, double room) {
    if (room <= 0) return 1;
    room = std::min({room, rows, lookups});
    const double touched = rows > 1 ? rows * -std::expm1(lookups * std::log1p(-1 / rows)) : 1;
    const double fetched = touched > room ? room + (lookups - room) * (rows - room) / rows : touched;
    return std::min(1.0, fetched / lookups);
  }
  // Of an accelerator, in the mean: by its columns a shard has its part of the cache.
  double ColumnsOfEach() const {
    double columns = 0;
    for (const EmbeddingTable& table : d_.tables) columns += table.dim;
    return columns / n_;
  }
  double LocalBatch() const { return double(d_.batch) / n_; }
  double Gemm(double m, double n, double k) const {
    const double reached = r_.gemm * m / (m + r_.half_m) * n / (n + r_.half_n) * k / (k + r_.half_k);
    return 2 * m * n * k / (m_.bf16 * reached);
  }
  double Layers(const std::vector<int>& widths) const {
    double seconds = 0;
    for (size_t i = 1; i < widths.size(); ++i)
      seconds += std::max(Gemm(LocalBatch(), widths[i], widths[i - 1]), r_.kernel);
    return seconds;
  }
  // Each pair of pooled vectors.
  double Interaction() const {
    const double columns = d_.bottom.back() + n_ * ColumnsOfEach();
    return LocalBatch() * columns * kDenseBytes * 2 / (m_.bandwidth * r_.stream);
  }
  double DenseParameters() const {
    double all = 0;
    for (const std::vector<int>* widths : {&d_.bottom, &d_.top})
      for (size_t i = 1; i < widths->size(); ++i) all += double((*widths)[i]) * (*widths)[i - 1];
    return all;
  }
  double Reduce() const {
    if (n_ == 1) return 0;
    return 2 * 4 * DenseParameters() * (n_ - 1) / n_ / GroupRate(m_, r_, n_, 1) + r_.latency * m_.LatenciesOfReduce(n_);
  }

  const Dlrm& d_;
  const Machine& m_;
  const Rates& r_;
  const int n_;
};

void ReadTable(cluster::TableReader& in, std::vector<EmbeddingTable>& tables) {
  EmbeddingTable table;
  int count = 1;
  in.Require({"rows", "dim"});
  in.Text("name", table.name);
  in.Number("rows", cluster::Sign::kPositive, table.rows);
  in.Integer("dim", {.least = 1, .most = 1 << 16}, table.dim);
  in.Number("pooling", cluster::Sign::kPositive, table.pooling);
  in.Integer("count", {.least = 1, .most = 1 << 16}, count);
  for (int i = 0; i < count; ++i) {
    tables.push_back(table);
    if (table.name.empty() || count > 1) tables.back().name += std::to_string(tables.size() - 1);
  }
}

void ReadLayers(cluster::TableReader& in, const char* key, std::vector<int>& widths) {
  in.Table(key, [&](cluster::TableReader& inner) {
    int input = 1, width = 1, layers = 1;
    inner.Require({"input", "width", "layers"});
    inner.Integer("input", {.least = 1, .most = 1 << 20}, input);
    inner.Integer("width", {.least = 1, .most = 1 << 20}, width);
    inner.Integer("layers", {.least = 1, .most = 1000}, layers);
    widths.assign(static_cast<size_t>(layers) + 1, width);
    widths.front() = input;
  });
}

}  // namespace

absl::Status Dlrm::Validate() const {
  if (tables.empty()) return InvalidArgument("table is missing: a recommendation model has at least one [[table]]");
  if (bottom.empty()) return InvalidArgument("bottom is missing: expected [bottom] with input, width and layers");
  if (top.empty()) return InvalidArgument("top is missing: expected [top] with input, width and layers");
  return absl::OkStatus();
}

absl::StatusOr<Dlrm> ReadDlrm(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  LS_ASSIGN_OR_RETURN(const cluster::TomlValue root, cluster::ParseToml(text, path));
  Dlrm model;
  cluster::TableReader in(root, path);
  in.Number("embedding_bytes", cluster::Sign::kPositive, model.embedding_bytes);
  ReadLayers(in, "bottom", model.bottom);
  ReadLayers(in, "top", model.top);
  in.Tables("table", [&](cluster::TableReader& inner) { ReadTable(inner, model.tables); });
  in.Check(model.Validate());
  LS_RETURN_IF_ERROR(in.Finish());
  return model;
}

DlrmTime PredictDlrm(const Dlrm& model, const DlrmCluster& cluster, const Rates& rates, const Sharding& sharding) {
  return DlrmModel(model, cluster, rates).Predict(sharding);
}

}  // namespace lockstep::plan
