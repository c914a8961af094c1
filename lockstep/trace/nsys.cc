#include "lockstep/trace/nsys.h"

#include <sqlite3.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "lockstep/trace/byte_source.h"
#include "lockstep/trace/kernel_name.h"
#include "lockstep/trace/kineto_name.h"
#include "lockstep/trace/time_range.h"

namespace lockstep::trace {
namespace {

constexpr std::string_view kMagic = "SQLite format 3";
constexpr char kGraphs[] = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE";  // each launch as a whole, without its kernels
constexpr int kProcessShift = 24;                              // of a globalPid or globalTid: below it is the thread

class Row {
 public:
  explicit Row(sqlite3_stmt* statement) : statement_(statement) {}
  int64_t Integer(int column) const { return sqlite3_column_int64(statement_, column); }
  std::string_view Text(int column) const {
    const unsigned char* text = sqlite3_column_text(statement_, column);
    return text == nullptr ? std::string_view() : std::string_view(reinterpret_cast<const char*>(text));
  }

 private:
  sqlite3_stmt* statement_;
};

// Errors name the file.
class Database {
 public:
  static absl::StatusOr<Database> Open(const std::string& path) {
    Database database(path);
    sqlite3* handle = nullptr;
    const int error = sqlite3_open_v2(path.c_str(), &handle, SQLITE_OPEN_READONLY, nullptr);
    database.handle_.reset(handle);
    if (error != SQLITE_OK) return database.Error();
    LS_RETURN_IF_ERROR(database.Each("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')",
                                     [&](const Row& row) { database.tables_.emplace(row.Text(0)); }));
    return database;
  }

  bool Has(const std::string& table) const { return tables_.contains(table); }

  absl::Status Each(const std::string& sql, const std::function<void(const Row&)>& use) const {
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(handle_.get(), sql.c_str(), -1, &statement, nullptr) != SQLITE_OK) return Error();
    const std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> owner(statement, sqlite3_finalize);
    int result = SQLITE_ROW;
    while ((result = sqlite3_step(statement)) == SQLITE_ROW) use(Row(statement));
    return result == SQLITE_DONE ? absl::OkStatus() : Error();
  }

 private:
  explicit Database(std::string path) : path_(std::move(path)), handle_(nullptr, sqlite3_close) {}
  absl::Status Error() const { return InvalidArgument("{}: {}", path_, sqlite3_errmsg(handle_.get())); }

  std::string path_;
  std::unique_ptr<sqlite3, int (*)(sqlite3*)> handle_;
  std::set<std::string, std::less<>> tables_;
};

class Reader {
 public:
  Reader(const std::string& path, const Database& database) : database_(database) { rank_.path = path; }

  absl::StatusOr<KinetoRank> Read(std::optional<int> given_rank) {
    const KinetoName name = ParseKinetoName(rank_.path);
    rank_.rank = given_rank.value_or(name.rank.value_or(-1));
    if (rank_.rank < 0)
      return InvalidArgument("{}: the file's name does not tell the rank: name it rank-N.sqlite, or say --rank N",
                             rank_.path);
    if (!database_.Has("CUPTI_ACTIVITY_KIND_KERNEL") && !database_.Has(kGraphs))
      return InvalidArgument("{}: no kernels; expected the export of a profile taken with --trace=cuda,nvtx",
                             rank_.path);
    LS_RETURN_IF_ERROR(ReadOrigin());
    LS_RETURN_IF_ERROR(ReadLaunches());
    LS_RETURN_IF_ERROR(ReadWork());
    LS_RETURN_IF_ERROR(ReadSteps());
    if (processes_.size() > 1)
      return InvalidArgument(
          "{}: the work of {} processes, and nothing tells which is which rank; profile each by itself, with nsys "
          "inside of torchrun: -o rank-%q{{RANK}}",
          rank_.path, processes_.size());
    std::stable_sort(rank_.ops.begin(), rank_.ops.end(), [](const DeviceOp& a, const DeviceOp& b) {
      return std::tuple(a.stream, a.begin_ns) < std::tuple(b.stream, b.begin_ns);
    });
    KeepOutermostSteps();
    Count(rank_.counters, "ops_without_launch", without_launch_);
    Count(rank_.counters, "times_out_of_range", out_of_range_);
    return std::move(rank_);
  }

 private:
  // Times are since the begin of the recording.
  absl::Status ReadOrigin() {
    if (!database_.Has("TARGET_INFO_SESSION_START_TIME")) return absl::OkStatus();
    return database_.Each("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME",
                          [&](const Row& row) { origin_ns_ = IsInRange(row.Integer(0)) ? row.Integer(0) : 0; });
  }

  absl::Status ReadLaunches() {
    if (!database_.Has("CUPTI_ACTIVITY_KIND_RUNTIME")) return absl::OkStatus();
    return database_.Each("SELECT globalTid, correlationId, start FROM CUPTI_ACTIVITY_KIND_RUNTIME",
                          [&](const Row& row) {
                            if (!IsInRecording(row.Integer(2))) return;
                            launches_[Key(row.Integer(0), row.Integer(1))] = row.Integer(2);
                          });
  }

  absl::Status ReadWork() {
    const bool names = database_.Has("StringIds");
    LS_RETURN_IF_ERROR(
        ReadTable("CUPTI_ACTIVITY_KIND_KERNEL", names ? "(SELECT value FROM StringIds WHERE id = shortName)" : "''"));
    LS_RETURN_IF_ERROR(ReadTable(kGraphs, "'CUDA graph'"));
    LS_RETURN_IF_ERROR(ReadTable("CUPTI_ACTIVITY_KIND_MEMCPY", "'Memcpy'"));
    return ReadTable("CUPTI_ACTIVITY_KIND_MEMSET", "'Memset'");
  }

  absl::Status ReadTable(const char* table, const char* name) {
    if (!database_.Has(table)) return absl::OkStatus();
    return database_.Each(
        fmt::format("SELECT start, end, deviceId, streamId, correlationId, globalPid, {} FROM {}", name, table),
        [&](const Row& row) {
          const int64_t begin = row.Integer(0), end = row.Integer(1);
          if (!IsInRecording(begin) || !IsInRecording(end) || end < begin) return void(++out_of_range_);
          processes_.insert(row.Integer(5) >> kProcessShift);
          DeviceOp op{origin_ns_ + begin, end - begin, kNoTime, StreamOf(row.Integer(2), row.Integer(3)), kNoIndex};
          const auto launch = launches_.find(Key(row.Integer(5), row.Integer(4)));
          launch == launches_.end() ? void(++without_launch_) : void(op.launch_ns = origin_ns_ + launch->second);
          op.kernel = kernels_.Of(row.Text(6), rank_.kernels);
          if (IsCommunication(row.Text(6))) op.collective = CollectiveNamed(CollectiveOfKernel(row.Text(6)));
          rank_.ops.push_back(op);
        });
  }

  absl::Status ReadSteps() {
    if (!database_.Has("NVTX_EVENTS")) return absl::OkStatus();
    constexpr char kRanges[] = "(59, 60)";  // pushed and popped; started and ended
    const char* text =
        database_.Has("StringIds") ? "coalesce(text, (SELECT value FROM StringIds WHERE id = textId))" : "text";
    static const std::regex step("(?:profilerstep|step|iteration|iter|batch)[ _#:=-]*([0-9]{1,18})", std::regex::icase);
    return database_.Each(
        fmt::format("SELECT start, end, {} FROM NVTX_EVENTS WHERE eventType IN {} AND end IS NOT NULL", text, kRanges),
        [&](const Row& row) {
          const std::string_view words = row.Text(2);
          std::match_results<std::string_view::const_iterator> match;
          if (!std::regex_match(words.begin(), words.end(), match, step)) return;
          const int64_t begin = row.Integer(0), end = row.Integer(1);
          if (!IsInRecording(begin) || !IsInRecording(end) || end < begin) return void(++out_of_range_);
          int64_t number = 0;
          std::from_chars(words.data() + match.position(1), words.data() + words.size(), number);
          rank_.steps.push_back({number, origin_ns_ + begin, end - begin});
        });
  }

  // Microbatches may have ranges, too, within those of the steps.
  void KeepOutermostSteps() {
    std::sort(rank_.steps.begin(), rank_.steps.end(), [](const ProfilerStep& a, const ProfilerStep& b) {
      return std::tuple(a.begin_ns, -a.duration_ns) < std::tuple(b.begin_ns, -b.duration_ns);
    });
    int64_t end = 0;
    std::erase_if(rank_.steps, [&end](const ProfilerStep& step) {
      const int64_t own = step.begin_ns + step.duration_ns;
      return own <= std::exchange(end, std::max(end, own));
    });
    std::set<int64_t> numbers;
    for (const ProfilerStep& step : rank_.steps) numbers.insert(step.number);
    Count(rank_.counters, "steps_of_the_same_number", rank_.steps.size() - numbers.size());
  }

  static uint64_t Key(int64_t process, int64_t correlation) {
    return (static_cast<uint64_t>(process) >> kProcessShift << 32U) ^ static_cast<uint64_t>(correlation);
  }
  uint32_t StreamOf(int64_t device, int64_t stream) {
    const auto [found, is_new] =
        streams_.emplace(std::pair(device, stream), static_cast<uint32_t>(rank_.streams.size()));
    if (is_new) rank_.streams.push_back(fmt::format("device {} stream {}", device, stream));
    return found->second;
  }
  uint32_t CollectiveNamed(const std::string& name) {
    const auto [found, is_new] = collectives_.emplace(name, static_cast<uint32_t>(rank_.collectives.size()));
    if (is_new) rank_.collectives.push_back({.name = name});
    return found->second;
  }

  const Database& database_;
  KinetoRank rank_;
  int64_t origin_ns_ = 0;
  std::unordered_map<uint64_t, int64_t> launches_;
  std::map<std::pair<int64_t, int64_t>, uint32_t> streams_;
  std::map<std::string, uint32_t> collectives_;
  KernelNames kernels_;
  std::set<int64_t> processes_;
  uint64_t without_launch_ = 0, out_of_range_ = 0;
};

}  // namespace

bool IsSqlite(const std::string& path) { return FirstBytes(path, kMagic.size()) == kMagic; }

absl::StatusOr<KinetoRank> ReadNsys(const std::string& path, std::optional<int> rank) {
  LS_ASSIGN_OR_RETURN(const Database database, Database::Open(path));
  return Reader(path, database).Read(rank);
}

}  // namespace lockstep::trace
