#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lockstep/plan/dlrm.h"

namespace lockstep::plan {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr int kMostMoves = 2000;
constexpr double kGain = 1e-9;  // of a move, in shares of the load: below it there is none

// A shard's share of what its accelerator has to do and to hold.
struct Piece {
  Shard shard;
  double seconds = 0, bytes = 0;
};

// Pieces on accelerators, and what each has of them.
class Balance {
 public:
  Balance(std::vector<Piece> pieces, int ranks, double capacity)
      : pieces_(std::move(pieces)),
        seconds_(size_t(ranks)),
        bytes_(size_t(ranks)),
        on_(size_t(ranks)),
        capacity_(capacity) {}

  // The largest first, each where least is so far and there is room; where there is none, where most is left.
  void Fill(const std::function<double(const Piece&)>& size) {
    std::vector<double> filled(seconds_.size());
    std::vector<size_t> order(pieces_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return size(pieces_[i]); });
    for (const size_t i : order) {
      size_t best = 0;
      const auto rank_of = [&](size_t rank) {
        const bool has_room = bytes_[rank] + pieces_[i].bytes <= capacity_;
        return std::tuple(!has_room, has_room ? filled[rank] : bytes_[rank], bytes_[rank]);
      };
      for (size_t rank = 1; rank < filled.size(); ++rank)
        if (rank_of(rank) < rank_of(best)) best = rank;
      filled[best] += size(pieces_[i]);
      Put(i, best);
    }
  }

  // Moves a piece of the slowest accelerator away, or swaps it, as long as that makes the slower of both faster.
  void Improve() {
    for (int moves = 0; moves < kMostMoves && MoveOne(); ++moves) {
    }
  }

  Sharding Result() const {
    Sharding sharding;
    for (const Piece& piece : pieces_) sharding.push_back(piece.shard);
    return sharding;
  }

 private:
  void Put(size_t piece, size_t rank) {
    pieces_[piece].shard.rank = static_cast<int>(rank);
    seconds_[rank] += pieces_[piece].seconds;
    bytes_[rank] += pieces_[piece].bytes;
    on_[rank].push_back(piece);
  }
  void Take(size_t piece, size_t rank) {
    seconds_[rank] -= pieces_[piece].seconds;
    bytes_[rank] -= pieces_[piece].bytes;
    std::erase(on_[rank], piece);
  }

  // Of pieces in a row that are alike, as those of equal tables are, the first.
  std::vector<size_t> Kinds(size_t rank) const {
    std::vector<size_t> kinds;
    const auto is_like = [&](size_t a, size_t b) {
      return pieces_[a].seconds == pieces_[b].seconds && pieces_[a].bytes == pieces_[b].bytes;
    };
    std::ranges::unique_copy(on_[rank], std::back_inserter(kinds), is_like);
    return kinds;
  }

  bool MoveOne() {
    const auto slowest = size_t(std::ranges::max_element(seconds_) - seconds_.begin());
    double best = seconds_[slowest] * (1 - kGain);
    size_t away = pieces_.size(), back = pieces_.size(), other = slowest;
    const auto consider = [&](size_t rank, size_t from, size_t to) {  // to: none, or what comes back
      const double seconds = pieces_[from].seconds - (to < pieces_.size() ? pieces_[to].seconds : 0);
      const double bytes = pieces_[from].bytes - (to < pieces_.size() ? pieces_[to].bytes : 0);
      if (bytes_[rank] + bytes > capacity_ || bytes_[slowest] - bytes > capacity_) return;
      const double slower = std::max(seconds_[slowest] - seconds, seconds_[rank] + seconds);
      if (slower < best) best = slower, away = from, back = to, other = rank;
    };
    const std::vector<size_t> candidates = Kinds(slowest);
    for (size_t rank = 0; rank < seconds_.size(); ++rank) {
      if (rank == slowest) continue;
      const std::vector<size_t> others = Kinds(rank);
      for (const size_t from : candidates) {
        consider(rank, from, pieces_.size());
        for (const size_t to : others) consider(rank, from, to);
      }
    }
    if (away == pieces_.size()) return false;
    Take(away, slowest);
    if (back < pieces_.size()) Take(back, other), Put(back, slowest);
    Put(away, other);
    return true;
  }

  std::vector<Piece> pieces_;
  std::vector<double> seconds_, bytes_;
  std::vector<std::vector<size_t>> on_;
  const double capacity_;
};

// Each table in pieces of at most so many columns.
std::vector<Piece> PiecesOf(const Dlrm& model, const DlrmCluster& cluster, const Rates& rates, int most_columns) {
  std::vector<Piece> pieces;
  const DlrmTime none = PredictDlrm(model, cluster, rates, {});
  for (size_t table = 0; table < model.tables.size(); ++table) {
    const int dim = model.tables[table].dim, parts = (dim + most_columns - 1) / most_columns;
    for (int part = 0; part < parts; ++part) {
      const int columns = dim * (part + 1) / parts - dim * part / parts;
      const Shard shard{static_cast<int>(table), columns, 0};
      const DlrmTime alone = PredictDlrm(model, cluster, rates, {shard});
      pieces.push_back(
          {shard, alone.lookup + alone.exchange - none.lookup - none.exchange, alone.memory - none.memory});
    }
  }
  return pieces;
}

struct Way {
  const char* name;
  std::function<double(const Piece&)> size;
};

}  // namespace

std::vector<ShardingChoice> Shardings(const Dlrm& model, const DlrmCluster& cluster, const Rates& rates) {
  const double dense = PredictDlrm(model, cluster, rates, {}).memory, capacity = cluster.machine.memory - dense;
  const Way ways[] = {{"by time", [](const Piece& one) { return one.seconds; }},
                      {"by size", [](const Piece& one) { return one.bytes; }},
                      {"in turn", [](const Piece&) { return 1.0; }}};
  std::vector<ShardingChoice> all;
  int widest = 0;
  for (const EmbeddingTable& table : model.tables) widest = std::max(widest, table.dim);
  for (int columns = widest; columns >= std::min(widest, 8); columns /= 2) {
    const std::vector<Piece> pieces = PiecesOf(model, cluster, rates, columns);
    for (const Way& way : ways)
      for (const bool improves : {false, true}) {
        Balance balance(pieces, cluster.accelerators, capacity);
        balance.Fill(way.size);
        if (improves) balance.Improve();
        ShardingChoice choice{
            fmt::format("{}, {}{}", way.name, columns == widest ? "whole" : fmt::format("{} columns at most", columns),
                        improves ? ", improved" : ""),
            balance.Result(),
            {},
            false};
        choice.time = PredictDlrm(model, cluster, rates, choice.sharding);
        choice.fits = choice.time.memory <= cluster.machine.memory;
        all.push_back(std::move(choice));
      }
  }
  std::ranges::stable_sort(all, {}, [](const ShardingChoice& one) { return std::pair(!one.fits, one.time.total()); });
  return all;
}

absl::StatusOr<Json> DlrmReport(const Dlrm& model, const DlrmCluster& cluster, const Rates& rates) {
  const std::vector<ShardingChoice> all = Shardings(model, cluster, rates);
  const ShardingChoice& best = all.front();
  if (!best.fits)
    return MakeError(
        absl::StatusCode::kResourceExhausted,
        fmt::format("no sharding fits the memory: the fullest accelerator needs {:.1f} GiB of {:.1f}; what "
                    "would help, cheapest first: smaller embedding_bytes, more accelerators",
                    best.time.memory / kGiB, cluster.machine.memory / kGiB));
  Json tried = Json::array(), shards = Json::array();
  for (const ShardingChoice& one : all)
    tried.push_back({{"how", one.how},
                     {"step_time_s", one.time.total()},
                     {"memory_gib", one.time.memory / kGiB},
                     {"fits", one.fits}});
  for (const Shard& shard : best.sharding)
    shards.push_back({{"table", model.tables[static_cast<size_t>(shard.table)].name},
                      {"columns", shard.columns},
                      {"rank", shard.rank}});
  return Json{{"step_time_s", best.time.total()},
              {"samples_per_s", model.batch / best.time.total()},
              {"breakdown",
               {{"lookup", best.time.lookup},
                {"exchange", best.time.exchange},
                {"dense", best.time.dense},
                {"reduce", best.time.reduce},
                {"step", best.time.step}}},
              {"memory_gib", best.time.memory / kGiB},
              {"how", best.how},
              {"tried", tried},
              {"shards", shards}};
}

}  // namespace lockstep::plan
