// Why no fsync happens in Append: in WAL mode with synchronous=NORMAL SQLite syncs only when it checkpoints and when it
// begins the WAL anew. Both are left to the background thread: automatic checkpoints are off, and after its own
// checkpoint it makes the write that begins the WAL anew.
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "lockstep/base/file.h"
#include "lockstep/base/log.h"
#include "lockstep/store/journal.h"
#include "lockstep/store/writer_lock.h"

namespace lockstep::store {
namespace {

constexpr int kApplicationId = 0x4C534A31;  // "LSJ1"
constexpr int kFormat = 1;
constexpr auto kSyncDelay = std::chrono::milliseconds(500);
// For a lock that somebody else holds. Whoever appends has others waiting, and can append again.
constexpr int kOpenWaitMs = 2000, kAppendWaitMs = 50;
constexpr int kAppendsPerCheckpoint = 512;  // about 4 MiB of WAL at two 4 KiB pages an append
constexpr const char* kBeginWalAnew = "UPDATE wal SET turns = turns + 1";

struct CloseConnection {
  void operator()(sqlite3* connection) const { sqlite3_close_v2(connection); }
};
struct FinalizeStatement {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Connection = std::unique_ptr<sqlite3, CloseConnection>;
using Statement = std::unique_ptr<sqlite3_stmt, FinalizeStatement>;

// SQLite does not always tell why it could not write.
bool IsDiskFull(sqlite3* connection) {
  constexpr uint64_t kLeast = 64 << 10;
  const char* path = sqlite3_db_filename(connection, "main");
  struct statvfs disk{};
  return path != nullptr && statvfs(path, &disk) == 0 && disk.f_bavail * disk.f_frsize < kLeast;
}

// Likewise of `ulimit -f`.
bool IsAtLimit(sqlite3* connection) {
  constexpr rlim_t kLeast = 64 << 10;
  const char* path = sqlite3_db_filename(connection, "main");
  struct stat file{};
  rlimit limit{};
  return path != nullptr && stat(path, &file) == 0 && getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
         limit.rlim_cur < static_cast<rlim_t>(file.st_size) + kLeast;
}

// "what: SQLite's words", with the code that callers act on: a full disk, a damaged file, a missing one.
absl::Status SqliteError(sqlite3* connection, std::string_view what) {
  const int code = sqlite3_errcode(connection);
  const int error = sqlite3_system_errno(connection);
  const std::string text = fmt::format("{}: {}", what, sqlite3_errmsg(connection));
  if (code == SQLITE_FULL || error == ENOSPC || error == EDQUOT || (code == SQLITE_IOERR && IsDiskFull(connection)))
    return MakeError(absl::StatusCode::kResourceExhausted,
                     fmt::format("{}: the disk is full ({})", what, sqlite3_errmsg(connection)));
  if (error == EFBIG || (code == SQLITE_IOERR && IsAtLimit(connection)))
    return MakeError(absl::StatusCode::kResourceExhausted, text + ": File too large; raise `ulimit -f`");
  if (error == EMFILE) return Errno(error, "{}", text);
  if (code == SQLITE_NOTADB || code == SQLITE_CORRUPT) return MakeError(absl::StatusCode::kDataLoss, text);
  if (code == SQLITE_CANTOPEN && error == ENOENT) return MakeError(absl::StatusCode::kNotFound, text);
  return MakeError(absl::StatusCode::kUnavailable, text);
}

absl::Status Execute(sqlite3* connection, const std::string& what, const char* sql) {
  if (sqlite3_exec(connection, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return absl::OkStatus();
  return SqliteError(connection, what);
}

absl::StatusOr<Statement> Prepare(sqlite3* connection, const std::string& what, const char* sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(connection, sql, -1, &statement, nullptr) != SQLITE_OK) return SqliteError(connection, what);
  return Statement(statement);
}

// The one integer that `sql` answers.
absl::StatusOr<int64_t> QueryInt(sqlite3* connection, const std::string& what, const char* sql) {
  LS_ASSIGN_OR_RETURN(const Statement statement, Prepare(connection, what, sql));
  if (sqlite3_step(statement.get()) != SQLITE_ROW) return SqliteError(connection, what);
  return sqlite3_column_int64(statement.get(), 0);
}

absl::StatusOr<Connection> Connect(const std::string& path, int flags) {
  sqlite3* raw = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &raw, flags | SQLITE_OPEN_FULLMUTEX, nullptr);
  Connection connection(raw);
  if (code != SQLITE_OK) return SqliteError(raw, fmt::format("cannot open the journal {}", path));
  sqlite3_busy_timeout(raw, kOpenWaitMs);
  return connection;
}

// Refuses whatever is not a journal before anything is written to it. Returns false for a file in which nothing was
// ever stored.
absl::StatusOr<bool> IsJournal(sqlite3* connection, const std::string& path) {
  const std::string what = fmt::format("{} is not a Lockstep journal", path);
  LS_ASSIGN_OR_RETURN(const int64_t id, QueryInt(connection, what, "PRAGMA application_id"));
  LS_ASSIGN_OR_RETURN(const int64_t tables, QueryInt(connection, what, "SELECT count(*) FROM sqlite_master"));
  if (id == 0 && tables == 0) return false;
  if (id != kApplicationId)
    return InvalidArgument("{}: it is another SQLite database (application id {:#x})", what, id);
  LS_ASSIGN_OR_RETURN(const int64_t format, QueryInt(connection, what, "PRAGMA user_version"));
  if (format != kFormat)
    return InvalidArgument("{}: journal format {}, but this Lockstep reads format {}", path, format, kFormat);
  return true;
}

absl::Status CreateTables(sqlite3* connection, const std::string& path) {
  const std::string sql = fmt::format(
      "BEGIN IMMEDIATE;"
      "CREATE TABLE event (sequence INTEGER PRIMARY KEY, at_ns INTEGER NOT NULL, wall_ns INTEGER NOT NULL, type TEXT "
      "NOT NULL, payload TEXT NOT NULL);"
      "CREATE TABLE wal (turns INTEGER NOT NULL);"
      "INSERT INTO wal VALUES (0);"
      "PRAGMA application_id = {}; PRAGMA user_version = {};"
      "COMMIT;",
      kApplicationId, kFormat);
  return Execute(connection, fmt::format("cannot create the journal {}", path), sql.c_str());
}

std::string ColumnText(sqlite3_stmt* statement, int column) {
  const void* data = sqlite3_column_blob(statement, column);
  const int bytes = sqlite3_column_bytes(statement, column);
  return data ? std::string(static_cast<const char*>(data), static_cast<size_t>(bytes)) : std::string();
}

Event RowEvent(sqlite3_stmt* row) {
  Event event{{sqlite3_column_int64(row, 1)}, {sqlite3_column_int64(row, 2)}, ColumnText(row, 3), ColumnText(row, 4)};
  event.sequence = sqlite3_column_int64(row, 0);
  return event;
}

absl::StatusOr<std::vector<Event>> ReadEvents(sqlite3* connection, const std::string& path, int64_t after) {
  const std::string what = fmt::format("cannot read the journal {}", path);
  LS_ASSIGN_OR_RETURN(
      const Statement query,
      Prepare(connection, what,
              "SELECT sequence, at_ns, wall_ns, type, payload FROM event WHERE sequence > ? ORDER BY sequence"));
  sqlite3_bind_int64(query.get(), 1, after);
  std::vector<Event> events;
  int code = SQLITE_DONE;
  while ((code = sqlite3_step(query.get())) == SQLITE_ROW) {
    events.push_back(RowEvent(query.get()));
    const int64_t expected = after + static_cast<int64_t>(events.size());
    if (events.back().sequence != expected) return DataLoss("{}: event {} is missing", what, expected);
  }
  if (code != SQLITE_DONE) return SqliteError(connection, what);
  return events;
}

class Reader final : public Journal {
 public:
  Reader(std::string path, Connection connection) : path_(std::move(path)), connection_(std::move(connection)) {}
  absl::Status Append(std::vector<Event>) override { return FailedPrecondition("{} is open for reading only", path_); }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<Event>> Read(int64_t after) override {
    return ReadEvents(connection_.get(), path_, after);
  }

 private:
  const std::string path_;
  const Connection connection_;
};

// A file of a journal that somebody may remove, replace or empty while it is written: SQLite notices none of it.
class FileInUse {
 public:
  FileInUse(std::string path, bool may_shrink) : path_(std::move(path)), may_shrink_(may_shrink) {}
  // OK also where that cannot be found out.
  absl::Status Look() {
    struct stat now{};
    const bool is_gone = stat(path_.c_str(), &now) != 0;
    if (is_gone && errno != ENOENT) return absl::OkStatus();
    if (is_gone) return Lost("removed");
    if (seen_ && (now.st_dev != seen_->st_dev || now.st_ino != seen_->st_ino)) return Lost("replaced by another file");
    if (seen_ && now.st_size == 0 && seen_->st_size > 0 && !may_shrink_) return Lost("emptied");
    seen_ = now;
    return absl::OkStatus();
  }

 private:
  absl::Status Lost(const char* how) const {
    return DataLoss(
        "{} was {} under the run, which nobody can resume any more: if its watcher ends, only a new one goes on", path_,
        how);
  }
  const std::string path_;
  const bool may_shrink_;  // a shell's checkpoint empties a WAL
  std::optional<struct stat> seen_;
};

class Writer final : public Journal {
 public:
  static absl::StatusOr<std::unique_ptr<Journal>> Open(const std::string& path);
  ~Writer() override;
  absl::Status Append(std::vector<Event> events) override;
  absl::Status Sync() override;
  absl::StatusOr<std::vector<Event>> Read(int64_t after) override {
    return ReadEvents(connection_.get(), path_, after);
  }

 private:
  Writer(std::string path, WriterLock lock)
      : path_(std::move(path)), lock_(std::move(lock)), file_(path_, false), wal_file_(path_ + "-wal", true) {}
  absl::Status Prepare();
  absl::Status Insert(const std::vector<Event>& events);
  void SyncInBackground(const std::stop_token& stop);
  void Checkpoint();

  const std::string path_;
  const WriterLock lock_;
  Connection connection_;
  Connection checkpointer_;  // its own, so that a checkpoint's syncs hold up no append
  Statement insert_;
  Fd wal_;
  std::mutex mutex_;  // guards what follows and every use of insert_
  FileInUse file_, wal_file_;
  std::condition_variable_any wake_;
  bool dirty_ = false;
  int64_t last_sequence_ = 0;
  int appends_since_checkpoint_ = 0;
  std::jthread syncer_;
};

absl::StatusOr<std::unique_ptr<Journal>> Writer::Open(const std::string& path) {
  LS_ASSIGN_OR_RETURN(WriterLock lock, WriterLock::Take(path + ".lock"));
  std::unique_ptr<Writer> writer(new Writer(path, std::move(lock)));
  LS_RETURN_IF_ERROR(writer->Prepare());
  return writer;
}

absl::Status Writer::Prepare() {
  LS_ASSIGN_OR_RETURN(connection_, Connect(path_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE));
  LS_ASSIGN_OR_RETURN(const bool is_journal, IsJournal(connection_.get(), path_));
  const std::string what = fmt::format("cannot prepare the journal {}", path_);
  LS_RETURN_IF_ERROR(Execute(connection_.get(), what,
                             "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0"));
  if (!is_journal) LS_RETURN_IF_ERROR(CreateTables(connection_.get(), path_));
  LS_RETURN_IF_ERROR(Execute(connection_.get(), what, kBeginWalAnew));
  LS_ASSIGN_OR_RETURN(last_sequence_,
                      QueryInt(connection_.get(), what, "SELECT coalesce(max(sequence), 0) FROM event"));
  LS_ASSIGN_OR_RETURN(insert_, store::Prepare(connection_.get(), what, "INSERT INTO event VALUES (?, ?, ?, ?, ?)"));
  LS_ASSIGN_OR_RETURN(checkpointer_, Connect(path_, SQLITE_OPEN_READWRITE));
  // A connection learns that the database has a WAL by reading; without that its checkpoints would do nothing.
  LS_RETURN_IF_ERROR(QueryInt(checkpointer_.get(), what, "SELECT turns FROM wal").status());
  wal_ = Fd(open((path_ + "-wal").c_str(), O_RDONLY | O_CLOEXEC));
  if (!wal_.valid()) return Errno(errno, "cannot open {}-wal", path_);
  sqlite3_busy_timeout(connection_.get(), kAppendWaitMs);
  syncer_ = std::jthread([this](const std::stop_token& stop) { SyncInBackground(stop); });
  return absl::OkStatus();
}

Writer::~Writer() {
  if (!syncer_.joinable()) return;
  syncer_.request_stop();
  syncer_.join();
  if (const absl::Status status = Sync(); !status.ok()) Log(LogLevel::kWarning, "{}", Message(status));
}

absl::Status Writer::Append(std::vector<Event> events) {
  const std::scoped_lock lock(mutex_);
  const std::string what = fmt::format("cannot write to the journal {}", path_);
  LS_RETURN_IF_ERROR(file_.Look());
  LS_RETURN_IF_ERROR(wal_file_.Look());
  LS_RETURN_IF_ERROR(Execute(connection_.get(), what, "BEGIN IMMEDIATE"));
  absl::Status status = Insert(events);
  if (status.ok()) status = Execute(connection_.get(), what, "COMMIT");
  if (!status.ok()) {
    // A full disk may already have ended the transaction.
    if (sqlite3_get_autocommit(connection_.get()) == 0)
      sqlite3_exec(connection_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
    return status;
  }
  last_sequence_ += static_cast<int64_t>(events.size());
  ++appends_since_checkpoint_;
  if (!std::exchange(dirty_, true)) wake_.notify_one();
  return absl::OkStatus();
}

absl::Status Writer::Insert(const std::vector<Event>& events) {
  int64_t sequence = last_sequence_;
  for (const Event& event : events) {
    sqlite3_stmt* row = insert_.get();
    sqlite3_bind_int64(row, 1, ++sequence);
    sqlite3_bind_int64(row, 2, event.at.value);
    sqlite3_bind_int64(row, 3, event.wall.value);
    sqlite3_bind_text64(row, 4, event.type.data(), event.type.size(), SQLITE_STATIC, SQLITE_UTF8);
    sqlite3_bind_text64(row, 5, event.payload.data(), event.payload.size(), SQLITE_STATIC, SQLITE_UTF8);
    const int code = sqlite3_step(row);
    const absl::Status error =
        code == SQLITE_DONE ? absl::OkStatus()
                            : SqliteError(connection_.get(), fmt::format("cannot write to the journal {}", path_));
    sqlite3_reset(row);
    LS_RETURN_IF_ERROR(error);
  }
  return absl::OkStatus();
}

// What is no longer in the WAL was synced into the database file by the checkpoint that moved it there.
absl::Status Writer::Sync() {
  if (fdatasync(wal_.get()) != 0) return Errno(errno, "cannot sync {}-wal", path_);
  return absl::OkStatus();
}

// Waits first and syncs then: a burst of events (a restart) shares one sync, and that sync does not fall into the
// burst.
void Writer::SyncInBackground(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (wake_.wait(lock, stop, [this] { return dirty_; })) {
    wake_.wait_for(lock, stop, kSyncDelay, [] { return false; });
    dirty_ = false;
    const bool checkpoint = appends_since_checkpoint_ >= kAppendsPerCheckpoint;
    lock.unlock();
    if (const absl::Status status = Sync(); !status.ok()) Log(LogLevel::kWarning, "{}", Message(status));
    if (checkpoint) Checkpoint();
    lock.lock();
  }
}

// Moves the WAL into the database so that it stays small. A reader in the middle of a read only puts this off until the
// next time.
void Writer::Checkpoint() {
  int frames = 0;
  int moved = 0;
  const int code = sqlite3_wal_checkpoint_v2(checkpointer_.get(), nullptr, SQLITE_CHECKPOINT_PASSIVE, &frames, &moved);
  if (code != SQLITE_OK || moved < frames) return;
  const std::scoped_lock lock(mutex_);
  appends_since_checkpoint_ = 0;
  const absl::Status status =
      Execute(connection_.get(), fmt::format("cannot begin the WAL of {} anew", path_), kBeginWalAnew);
  if (!status.ok()) Log(LogLevel::kWarning, "{}", Message(status));
}

absl::StatusOr<std::unique_ptr<Journal>> OpenReader(const std::string& path) {
  LS_ASSIGN_OR_RETURN(Connection connection, Connect(path, SQLITE_OPEN_READONLY));
  LS_ASSIGN_OR_RETURN(const bool is_journal, IsJournal(connection.get(), path));
  if (!is_journal) return InvalidArgument("{} is not a Lockstep journal: it is empty", path);
  return std::make_unique<Reader>(path, std::move(connection));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Journal>> OpenSqliteJournal(const std::string& path, JournalMode mode) {
  return mode == JournalMode::kWrite ? Writer::Open(path) : OpenReader(path);
}

}  // namespace lockstep::store
