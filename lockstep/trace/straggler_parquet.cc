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
    LS_RETURN_IF_ERROR(
        database_.Query(fmt::format("DESCRIBE SELECT * FROM {}", Table("")), [&](const DuckDb::Chunk& chunk) {
          for (size_t row = 0; row < chunk.rows(); ++row) types[std::string(chunk.Text(0, row))] = chunk.Text(1, row);
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
    StragglerSink part = sink;
    absl::Status status = ReadRows(first, end, OpTypes::kNumbers, part);
    if (!absl::IsNotFound(status)) {
      sink.Join(std::move(part));
      return status;
    }
    return ReadRows(first, end, OpTypes::kText, sink);
  }

 private:
  // A file has a dozen op types, and DuckDB finds their numbers without making a text for each row: a third of its
  // time. One that has none takes the texts.
  enum class OpTypes : uint8_t { kNumbers, kText };

  // Directories on the way to the file, such as rank=3, are no columns.
  std::string Table(std::string_view options) const {
    return fmt::format("read_parquet({}, hive_partitioning = false{})", SqlText(path_), options);
  }

  static std::string Expression(Column column, OpTypes as) {
    const std::string_view name = kColumnNames[static_cast<size_t>(column)];
    constexpr const char* kTypes[] = {"BIGINT", "FLOAT", "VARCHAR"};
    std::string cast = fmt::format("CAST({} AS {})", name, kTypes[static_cast<size_t>(KindOf(column))]);
    if (column != Column::kOptype || as == OpTypes::kText) return cast;
    std::vector<std::string> names;
    names.reserve(kSchemaTypes);
    for (int type = 0; type < kSchemaTypes; ++type) names.push_back(SqlText(OpTypeName(static_cast<OpType>(type))));
    return fmt::format("CAST(coalesce(list_position([{}], {}), 0) AS BIGINT)", fmt::join(names, ","), cast);
  }

  // kNotFound: a type that has no number.
  absl::Status ReadRows(int64_t first, int64_t end, OpTypes as, StragglerSink& sink) const {
    std::string sql = "SELECT ";
    for (size_t i = 0; i < kColumns; ++i) sql += (i == 0 ? "" : ", ") + Expression(static_cast<Column>(i), as);
    sql += fmt::format(" FROM {} WHERE file_row_number >= {} AND file_row_number < {}",
                       Table(", file_row_number = true"), first, end);
    return database_.Query(sql, [&](const DuckDb::Chunk& chunk) {
      const absl::Status added = Add(chunk, first, as, sink);
      first += static_cast<int64_t>(chunk.rows());
      return added;
    });
  }

  static absl::Status Add(const DuckDb::Chunk& chunk, int64_t first, OpTypes as, StragglerSink& sink) {
    for (size_t i = 0; i < kColumns; ++i)
      if (const std::optional<size_t> row = chunk.FirstNull(i))
        return InvalidArgument("row {}: {} is null", first + static_cast<int64_t>(*row) + 1, kColumnNames[i]);
    const auto integers = [&](Column column) { return chunk.Column<int64_t>(static_cast<size_t>(column)); };
    const auto floats = [&](Column column) { return chunk.Column<float>(static_cast<size_t>(column)); };
    const int64_t *dp = integers(Column::kDpRank), *stage = integers(Column::kStage), *rank = integers(Column::kRank),
                  *step = integers(Column::kStep), *sequence = integers(Column::kSeqId), *mc = integers(Column::kMc),
                  *microbatch = integers(Column::kMbId), *gmc = integers(Column::kGmc),
                  *number = integers(Column::kOptype);
    const float *start = floats(Column::kStartTs), *duration = floats(Column::kDuration);
    const auto* text = chunk.Column<DuckDb::Chunk::StoredText>(static_cast<size_t>(Column::kOptype));
    for (size_t row = 0, rows = chunk.rows(); row < rows; ++row) {
      const bool numbered = as == OpTypes::kNumbers;
      if (numbered && number[row] == 0) return absl::NotFoundError("an op type without a number");
      const auto type = numbered ? std::optional(static_cast<OpType>(number[row] - 1)) : std::nullopt;
      const absl::Status added =
          sink.Add({dp[row], stage[row], rank[row], step[row], type ? std::string_view() : text[row].view(), start[row],
                    duration[row], sequence[row], mc[row], microbatch[row], gmc[row], type});
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
  const int64_t most = threads == 1 ? 1 : 3 * static_cast<int64_t>(threads);
  const int64_t parts = std::clamp(rows / kWorthAThread, int64_t{1}, most);
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
