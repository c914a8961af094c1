#include "lockstep/trace/straggler_parquet.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "lockstep/base/parallel.h"
#include "lockstep/trace/duckdb.h"

namespace lockstep::trace {
namespace {

constexpr std::array<std::string_view, 8> kIntegers = {"TINYINT",  "SMALLINT",  "INTEGER",  "BIGINT",
                                                       "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"};
constexpr std::array<std::string_view, 2> kFloats = {"FLOAT", "DOUBLE"};

// What a column is read as.
enum class Kind : uint8_t { kInteger, kFloat, kText };
Kind KindOf(Column column) {
  if (column == Column::kOptype) return Kind::kText;
  return column == Column::kStartTs || column == Column::kDuration ? Kind::kFloat : Kind::kInteger;
}

bool Fits(Kind kind, std::string_view type) {
  if (kind == Kind::kText) return type == "VARCHAR" || type.starts_with("ENUM");
  const bool integer = std::find(kIntegers.begin(), kIntegers.end(), type) != kIntegers.end();
  return kind == Kind::kInteger ? integer : integer || std::find(kFloats.begin(), kFloats.end(), type) != kFloats.end();
}

const char* Expected(Kind kind) {
  constexpr const char* kNames[] = {"an integer", "a float", "text"};
  return kNames[static_cast<size_t>(kind)];
}

class Parquet {
 public:
  Parquet(const std::string& path, const DuckDb& database) : path_(path), database_(database) {}

  absl::Status CheckColumns() const {
    std::map<std::string, std::string, std::less<>> types;
    LS_RETURN_IF_ERROR(database_.Query(fmt::format("DESCRIBE SELECT * FROM read_parquet({})", SqlText(path_)),
                                       [&](const DuckDb::Chunk& chunk) {
                                         for (size_t row = 0; row < chunk.rows(); ++row)
                                           types[std::string(chunk.Text(0, row))] = chunk.Text(1, row);
                                         return absl::OkStatus();
                                       }));
    for (size_t i = 0; i < kColumns; ++i) {
      const auto found = types.find(kColumnNames[i]);
      if (found == types.end())
        return InvalidArgument("no column {}; expected {}", kColumnNames[i], fmt::join(kColumnNames, ","));
      const Kind kind = KindOf(static_cast<Column>(i));
      if (!Fits(kind, found->second))
        return InvalidArgument("column {} has type {}, expected {}", kColumnNames[i], found->second, Expected(kind));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> CountRows() const {
    int64_t rows = 0;
    LS_RETURN_IF_ERROR(database_.Query(fmt::format("SELECT num_rows FROM parquet_file_metadata({})", SqlText(path_)),
                                       [&](const DuckDb::Chunk& chunk) {
                                         for (size_t row = 0; row < chunk.rows(); ++row)
                                           rows += chunk.Column<int64_t>(0)[row];
                                         return absl::OkStatus();
                                       }));
    return rows;
  }

  // Those from `first` on, and below `end`.
  absl::Status ReadRows(int64_t first, int64_t end, StragglerSink& sink) const {
    std::string sql = "SELECT ";
    for (size_t i = 0; i < kColumns; ++i) {
      constexpr const char* kTypes[] = {"BIGINT", "FLOAT", "VARCHAR"};
      sql += fmt::format("{}CAST({} AS {})", i == 0 ? "" : ", ", kColumnNames[i],
                         kTypes[static_cast<size_t>(KindOf(static_cast<Column>(i)))]);
    }
    sql += fmt::format(
        " FROM read_parquet({}, file_row_number = true) WHERE file_row_number >= {} AND file_row_number < {}",
        SqlText(path_), first, end);
    return database_.Query(sql, [&](const DuckDb::Chunk& chunk) {
      const absl::Status added = Add(chunk, first, sink);
      first += static_cast<int64_t>(chunk.rows());
      return added;
    });
  }

 private:
  static absl::Status Add(const DuckDb::Chunk& chunk, int64_t first, StragglerSink& sink) {
    for (size_t i = 0; i < kColumns; ++i)
      if (const std::optional<size_t> row = chunk.FirstNull(i))
        return InvalidArgument("row {}: {} is null", first + static_cast<int64_t>(*row) + 1, kColumnNames[i]);
    const auto integers = [&](Column column) { return chunk.Column<int64_t>(static_cast<size_t>(column)); };
    const auto floats = [&](Column column) { return chunk.Column<float>(static_cast<size_t>(column)); };
    const int64_t *dp = integers(Column::kDpRank), *stage = integers(Column::kStage), *rank = integers(Column::kRank),
                  *step = integers(Column::kStep), *sequence = integers(Column::kSeqId), *mc = integers(Column::kMc),
                  *microbatch = integers(Column::kMbId), *gmc = integers(Column::kGmc);
    const float *start = floats(Column::kStartTs), *duration = floats(Column::kDuration);
    const auto* optype = chunk.Column<DuckDb::Chunk::StoredText>(static_cast<size_t>(Column::kOptype));
    for (size_t row = 0; row < chunk.rows(); ++row) {
      const absl::Status added = sink.Add({dp[row], stage[row], rank[row], step[row], optype[row].view(), start[row],
                                           duration[row], sequence[row], mc[row], microbatch[row], gmc[row]});
      if (!added.ok()) return InvalidArgument("row {}: {}", first + static_cast<int64_t>(row) + 1, Message(added));
    }
    return absl::OkStatus();
  }

  const std::string& path_;
  const DuckDb& database_;
};

absl::Status ReadParts(const Parquet& parquet, StragglerSink& sink, size_t threads) {
  constexpr int64_t kWorthAThread = 1 << 20;  // rows: a tenth of a second
  LS_RETURN_IF_ERROR(parquet.CheckColumns());
  LS_ASSIGN_OR_RETURN(const int64_t rows, parquet.CountRows());
  const int64_t parts = std::clamp(rows / kWorthAThread, int64_t{1}, static_cast<int64_t>(threads));
  if (parts == 1) return parquet.ReadRows(0, rows, sink);
  std::vector<StragglerSink> sinks(static_cast<size_t>(parts), sink);
  std::vector<absl::Status> statuses(sinks.size());
  ParallelFor(sinks.size(), threads, [&](size_t i, size_t /*worker*/) {
    const auto part = static_cast<int64_t>(i);
    statuses[i] = parquet.ReadRows(rows * part / parts, rows * (part + 1) / parts, sinks[i]);
  });
  for (size_t i = 0; i < sinks.size(); ++i) {
    LS_RETURN_IF_ERROR(statuses[i]);
    sink.Join(std::move(sinks[i]));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadStragglerParquet(const std::string& path, StragglerSink& sink, size_t threads) {
  LS_ASSIGN_OR_RETURN(const DuckDb database, DuckDb::Open());
  const absl::Status status = ReadParts(Parquet(path, database), sink, threads);
  return status.ok() ? status : InvalidArgument("{}: {}", path, Message(status));
}

}  // namespace lockstep::trace
