#include "lockstep/trace/straggler_parquet.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

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
  Parquet(const std::string& path, const DuckDb& database, StragglerSink& sink)
      : source_("read_parquet(" + SqlText(path) + ")"), database_(database), sink_(sink) {}

  absl::Status CheckColumns() const {
    std::map<std::string, std::string, std::less<>> types;
    LS_RETURN_IF_ERROR(database_.Query("DESCRIBE SELECT * FROM " + source_, [&](const DuckDb::Chunk& chunk) {
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

  absl::Status ReadRows() {
    std::string sql = "SELECT ";
    for (size_t i = 0; i < kColumns; ++i) {
      constexpr const char* kTypes[] = {"BIGINT", "FLOAT", "VARCHAR"};
      sql += fmt::format("{}CAST({} AS {})", i == 0 ? "" : ", ", kColumnNames[i],
                         kTypes[static_cast<size_t>(KindOf(static_cast<Column>(i)))]);
    }
    return database_.Query(sql + " FROM " + source_, [this](const DuckDb::Chunk& chunk) { return Add(chunk); });
  }

  uint64_t rows() const { return rows_; }

 private:
  absl::Status Add(const DuckDb::Chunk& chunk) {
    for (size_t i = 0; i < kColumns; ++i)
      if (const std::optional<size_t> row = chunk.FirstNull(i))
        return InvalidArgument("row {}: {} is null", rows_ + *row + 1, kColumnNames[i]);
    const auto integers = [&](Column column) { return chunk.Column<int64_t>(static_cast<size_t>(column)); };
    const auto floats = [&](Column column) { return chunk.Column<float>(static_cast<size_t>(column)); };
    const int64_t *dp = integers(Column::kDpRank), *stage = integers(Column::kStage), *rank = integers(Column::kRank),
                  *step = integers(Column::kStep), *sequence = integers(Column::kSeqId), *mc = integers(Column::kMc),
                  *microbatch = integers(Column::kMbId), *gmc = integers(Column::kGmc);
    const float *start = floats(Column::kStartTs), *duration = floats(Column::kDuration);
    for (size_t row = 0; row < chunk.rows(); ++row) {
      const absl::Status added =
          sink_.Add({dp[row], stage[row], rank[row], step[row], chunk.Text(static_cast<size_t>(Column::kOptype), row),
                     start[row], duration[row], sequence[row], mc[row], microbatch[row], gmc[row]});
      if (!added.ok()) return InvalidArgument("row {}: {}", rows_ + row + 1, Message(added));
    }
    rows_ += chunk.rows();
    return absl::OkStatus();
  }

  const std::string source_;
  const DuckDb& database_;
  StragglerSink& sink_;
  uint64_t rows_ = 0;
};

}  // namespace

absl::Status ReadStragglerParquet(const std::string& path, StragglerSink& sink) {
  LS_ASSIGN_OR_RETURN(const DuckDb database, DuckDb::Open());
  Parquet parquet(path, database, sink);
  absl::Status status = parquet.CheckColumns();
  if (status.ok()) status = parquet.ReadRows();
  return status.ok() ? status : InvalidArgument("{}: {}", path, Message(status));
}

}  // namespace lockstep::trace
