#include "lockstep/trace/duckdb.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "lockstep/base/child.h"

namespace lockstep::trace {
namespace {

namespace fs = std::filesystem;

constexpr char kLibrary[] = "libduckdb.so";
constexpr char kVariable[] = "LOCKSTEP_DUCKDB";  // path of the library

// The C interface, as far as it is used (DuckDB 1.x). Handles are pointers; a state is 0 when it worked.
struct Result {
  uint64_t deprecated_columns, deprecated_rows, deprecated_changed;
  void* deprecated_column;
  char* deprecated_error;
  void* internal;
};

struct Api {
  int (*open)(const char* path, void** database);
  int (*connect)(void* database, void** connection);
  void (*disconnect)(void** connection);
  void (*close)(void** database);
  int (*prepare)(void* connection, const char* sql, void** statement);
  const char* (*prepare_error)(void* statement);
  void (*destroy_prepare)(void** statement);
  int (*execute_prepared_streaming)(void* statement, Result* result);
  const char* (*result_error)(Result* result);
  void (*destroy_result)(Result* result);
  void* (*fetch_chunk)(Result result);
  void (*destroy_data_chunk)(void** chunk);
  uint64_t (*data_chunk_get_size)(void* chunk);
  void* (*data_chunk_get_vector)(void* chunk, uint64_t column);
  void* (*vector_get_data)(void* vector);
  uint64_t* (*vector_get_validity)(void* vector);
};

// Beside an installation (PREFIX/bin/lockstep), or in the source tree of a build (TREE/build/PRESET/bin/...).
std::vector<std::string> Places() {
  std::vector<std::string> places;
  if (const char* named = std::getenv(kVariable)) return {named};
  std::error_code error;
  const fs::path binary = OwnBinary().value_or("");
  const fs::path prefix = binary.parent_path().parent_path();
  const fs::path node_modules = prefix.parent_path().parent_path() / "node_modules/@duckdb/node-bindings-linux-x64";
  for (const fs::path& folder : {prefix / "lib/lockstep", node_modules})
    if (fs::exists(folder / kLibrary, error)) places.push_back(folder / kLibrary);
  places.emplace_back(kLibrary);  // where the dynamic linker looks
  return places;
}

template <typename Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

absl::StatusOr<Api> Load() {
  std::string tried;
  for (const std::string& place : Places()) {
    void* library = dlopen(place.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) {
      tried += fmt::format("{}{}", tried.empty() ? "" : "; ", dlerror());
      continue;
    }
    Api api{};
    const bool complete = Find(library, "duckdb_open", api.open) && Find(library, "duckdb_connect", api.connect) &&
                          Find(library, "duckdb_disconnect", api.disconnect) &&
                          Find(library, "duckdb_close", api.close) && Find(library, "duckdb_prepare", api.prepare) &&
                          Find(library, "duckdb_prepare_error", api.prepare_error) &&
                          Find(library, "duckdb_destroy_prepare", api.destroy_prepare) &&
                          Find(library, "duckdb_execute_prepared_streaming", api.execute_prepared_streaming) &&
                          Find(library, "duckdb_result_error", api.result_error) &&
                          Find(library, "duckdb_destroy_result", api.destroy_result) &&
                          Find(library, "duckdb_fetch_chunk", api.fetch_chunk) &&
                          Find(library, "duckdb_destroy_data_chunk", api.destroy_data_chunk) &&
                          Find(library, "duckdb_data_chunk_get_size", api.data_chunk_get_size) &&
                          Find(library, "duckdb_data_chunk_get_vector", api.data_chunk_get_vector) &&
                          Find(library, "duckdb_vector_get_data", api.vector_get_data) &&
                          Find(library, "duckdb_vector_get_validity", api.vector_get_validity);
    if (complete) return api;
    tried += fmt::format("{}{}: {}", tried.empty() ? "" : "; ", place, dlerror());
  }
  return Unavailable("Parquet needs DuckDB's C library: `./dev setup` fetches it, or set {} to a {}, or write CSV ({})",
                     kVariable, kLibrary, tried);
}

const absl::StatusOr<Api>& Library() {
  static const absl::StatusOr<Api> api = Load();
  return api;
}

// The first line: behind it DuckDB repeats the query.
std::string FirstLine(const char* message) {
  const std::string_view text = message == nullptr ? "no reason given" : message;
  return std::string(text.substr(0, text.find('\n')));
}

// Ends what it holds.
struct Statement {
  explicit Statement(const Api& functions) : api(functions) {}
  Statement(const Statement&) = delete;
  ~Statement() {
    if (has_result) api.destroy_result(&result);
    api.destroy_prepare(&handle);
    api.disconnect(&connection);
  }
  const Api& api;
  void *connection = nullptr, *handle = nullptr;
  Result result{};
  bool has_result = false;
};

}  // namespace

std::string SqlText(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("''") : std::string(1, c);
  return quoted + "'";
}

size_t DuckDb::Chunk::rows() const { return Library()->data_chunk_get_size(handle_); }

const void* DuckDb::Chunk::Data(size_t column) const {
  return Library()->vector_get_data(Library()->data_chunk_get_vector(handle_, column));
}

std::optional<size_t> DuckDb::Chunk::FirstNull(size_t column) const {
  constexpr size_t kBits = 64;
  const uint64_t* valid = Library()->vector_get_validity(Library()->data_chunk_get_vector(handle_, column));
  if (valid == nullptr) return std::nullopt;
  for (size_t row = 0, count = rows(); row < count; ++row)
    if ((valid[row / kBits] >> (row % kBits) & 1U) == 0) return row;
  return std::nullopt;
}

absl::StatusOr<DuckDb> DuckDb::Open() {
  LS_RETURN_IF_ERROR(Library().status());
  DuckDb database;
  if (Library()->open(nullptr, &database.database_) != 0) return Unavailable("DuckDB can't make a database in memory");
  for (const char* setting :
       {"SET threads = 1", "SET autoinstall_known_extensions = false", "SET autoload_known_extensions = false"})
    LS_RETURN_IF_ERROR(database.Query(setting, [](const Chunk&) { return absl::OkStatus(); }));
  return database;
}

DuckDb::DuckDb(DuckDb&& other) noexcept : database_(std::exchange(other.database_, nullptr)) {}

DuckDb::~DuckDb() {
  if (database_ != nullptr) Library()->close(&database_);
}

absl::Status DuckDb::Query(const std::string& sql, const Use& use) const {
  const Api& api = *Library();
  Statement statement(api);
  if (api.connect(database_, &statement.connection) != 0) return Unavailable("DuckDB takes no further connection");
  if (api.prepare(statement.connection, sql.c_str(), &statement.handle) != 0)
    return InvalidArgument("{}", FirstLine(api.prepare_error(statement.handle)));
  statement.has_result = true;
  if (api.execute_prepared_streaming(statement.handle, &statement.result) != 0)
    return InvalidArgument("{}", FirstLine(api.result_error(&statement.result)));
  while (void* chunk = api.fetch_chunk(statement.result)) {
    const absl::Status used = use(Chunk(chunk));
    api.destroy_data_chunk(&chunk);
    LS_RETURN_IF_ERROR(used);
  }
  if (const char* error = api.result_error(&statement.result)) return InvalidArgument("{}", FirstLine(error));
  return absl::OkStatus();
}

}  // namespace lockstep::trace
