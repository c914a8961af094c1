#include "lockstep/store/postgres_session.h"

#include <dlfcn.h>
#include <libpq-fe.h>
#include <poll.h>

#include <cerrno>
#include <chrono>

#include "lockstep/base/steady.h"

namespace lockstep::store {
namespace {

constexpr char kLibrary[] = "libpq.so.5";
constexpr char kDiskFull[] = "53100";  // of SQL's states: docs "Appendix A, PostgreSQL Error Codes"

using std::chrono::steady_clock;

// What is used of libpq, by the names it has there.
struct Libpq {
  decltype(&::PQconnectStartParams) connect_start;
  decltype(&::PQconnectPoll) connect_poll;
  decltype(&::PQstatus) status;
  decltype(&::PQsocket) socket;
  decltype(&::PQerrorMessage) error_message;
  decltype(&::PQsetnonblocking) set_nonblocking;
  decltype(&::PQsendQuery) send_query;
  decltype(&::PQsendQueryParams) send_query_params;
  decltype(&::PQflush) flush;
  decltype(&::PQconsumeInput) consume_input;
  decltype(&::PQisBusy) is_busy;
  decltype(&::PQgetResult) get_result;
  decltype(&::PQresultStatus) result_status;
  decltype(&::PQresultErrorField) result_error_field;
  decltype(&::PQntuples) ntuples;
  decltype(&::PQnfields) nfields;
  decltype(&::PQgetvalue) getvalue;
  decltype(&::PQgetlength) getlength;
  decltype(&::PQcmdTuples) cmd_tuples;
  decltype(&::PQclear) clear;
  decltype(&::PQfinish) finish;
  decltype(&::PQsetNoticeProcessor) set_notice_processor;
};

template <typename Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

absl::StatusOr<Libpq> Load() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return Unavailable("a journal in PostgreSQL needs its client library {}, on Debian the package libpq5 ({})",
                       kLibrary, dlerror());
  Libpq pq{};
  const bool complete =
      Find(library, "PQconnectStartParams", pq.connect_start) && Find(library, "PQconnectPoll", pq.connect_poll) &&
      Find(library, "PQstatus", pq.status) && Find(library, "PQsocket", pq.socket) &&
      Find(library, "PQerrorMessage", pq.error_message) && Find(library, "PQsetnonblocking", pq.set_nonblocking) &&
      Find(library, "PQsendQuery", pq.send_query) && Find(library, "PQsendQueryParams", pq.send_query_params) &&
      Find(library, "PQflush", pq.flush) && Find(library, "PQconsumeInput", pq.consume_input) &&
      Find(library, "PQisBusy", pq.is_busy) && Find(library, "PQgetResult", pq.get_result) &&
      Find(library, "PQresultStatus", pq.result_status) && Find(library, "PQresultErrorField", pq.result_error_field) &&
      Find(library, "PQntuples", pq.ntuples) && Find(library, "PQnfields", pq.nfields) &&
      Find(library, "PQgetvalue", pq.getvalue) && Find(library, "PQgetlength", pq.getlength) &&
      Find(library, "PQcmdTuples", pq.cmd_tuples) && Find(library, "PQclear", pq.clear) &&
      Find(library, "PQfinish", pq.finish) && Find(library, "PQsetNoticeProcessor", pq.set_notice_processor);
  if (!complete) return Unavailable("{} lacks a function: {}", kLibrary, dlerror());
  return pq;
}

const absl::StatusOr<Libpq>& Library() {
  static const absl::StatusOr<Libpq> library = Load();
  return library;
}

// libpq ends its messages with a line's end, and may use several lines.
std::string OneLine(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos;) text.replace(at, 1, "; ");
  return text;
}

class Session final : public PostgresSession {
 public:
  explicit Session(const Libpq& pq) : pq_(pq) {}
  Session(const Session&) = delete;
  ~Session() override {
    if (connection_ != nullptr) pq_.finish(connection_);
  }

  absl::Status Connect(const std::string& url, const std::string& name, Seconds at_most);
  absl::StatusOr<Answer> Query(const std::string& sql, const std::vector<std::string>& parameters,
                               Seconds at_most) override;
  bool lost() const override { return lost_; }

 private:
  absl::Status Lost(const std::string& why) {
    lost_ = true;
    return Unavailable("PostgreSQL: {}", why);
  }
  std::string ErrorText() const { return OneLine(pq_.error_message(connection_)); }
  void Await(Seconds at_most) { deadline_ = steady_clock::now() + SteadyDuration(at_most); }
  // False: the time is up.
  bool Poll(short events) const;
  bool Send(const std::string& sql, const std::vector<std::string>& parameters);
  absl::Status AwaitResult();
  absl::Status Take(PGresult* result, Answer& answer) const;

  const Libpq& pq_;
  PGconn* connection_ = nullptr;
  steady_clock::time_point deadline_;
  bool lost_ = false;
};

bool Session::Poll(short events) const {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - steady_clock::now()).count();
  if (left <= 0) return false;
  pollfd wait{pq_.socket(connection_), events, 0};
  const int ready = poll(&wait, 1, static_cast<int>(left));
  return ready > 0 || (ready < 0 && errno == EINTR);
}

// What the URL says wins over what comes before it here. A server or a network that says nothing is found out
// by the kernel too, should nobody ask for long.
absl::Status Session::Connect(const std::string& url, const std::string& name, Seconds at_most) {
  const char* keywords[] = {"keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout",
                            "dbname",          "client_encoding",     "application_name", nullptr};
  const char* values[] = {"2", "1", "3", "5000", url.c_str(), "UTF8", name.c_str(), nullptr};
  connection_ = pq_.connect_start(keywords, values, 1);
  if (connection_ == nullptr)
    return MakeError(absl::StatusCode::kResourceExhausted, "no memory for a PostgreSQL session");
  if (pq_.status(connection_) == CONNECTION_BAD) return Lost(ErrorText());
  pq_.set_notice_processor(connection_, [](void*, const char*) {}, nullptr);
  Await(at_most);
  for (PostgresPollingStatusType next = PGRES_POLLING_WRITING; next != PGRES_POLLING_OK;) {
    if (next == PGRES_POLLING_FAILED) return Lost(ErrorText());
    if (!Poll(next == PGRES_POLLING_READING ? POLLIN : POLLOUT))
      return Lost(fmt::format("no session within {} s", at_most.value));
    next = pq_.connect_poll(connection_);
  }
  pq_.set_nonblocking(connection_, 1);
  return absl::OkStatus();
}

bool Session::Send(const std::string& sql, const std::vector<std::string>& parameters) {
  if (parameters.empty()) return pq_.send_query(connection_, sql.c_str()) == 1;
  std::vector<const char*> values;
  values.reserve(parameters.size());
  for (const std::string& parameter : parameters) values.push_back(parameter.c_str());
  return pq_.send_query_params(connection_, sql.c_str(), static_cast<int>(values.size()), nullptr, values.data(),
                               nullptr, nullptr, 0) == 1;
}

// Until the next result can be had without waiting.
absl::Status Session::AwaitResult() {
  while (true) {
    const int unsent = pq_.flush(connection_);
    if (unsent < 0) return Lost(ErrorText());
    if (unsent == 0 && pq_.is_busy(connection_) == 0) return absl::OkStatus();
    if (!Poll(unsent > 0 ? POLLIN | POLLOUT : POLLIN)) return Lost("it does not answer");
    if (pq_.consume_input(connection_) == 0) return Lost(ErrorText());
  }
}

absl::Status Session::Take(PGresult* result, Answer& answer) const {
  const ExecStatusType status = pq_.result_status(result);
  if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK && status != PGRES_EMPTY_QUERY) {
    const char* state = pq_.result_error_field(result, PG_DIAG_SQLSTATE);
    const bool full = state != nullptr && std::string_view(state) == kDiskFull;
    return MakeError(full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable,
                     fmt::format("PostgreSQL: {}", ErrorText()));
  }
  answer = {};
  for (int row = 0; row < pq_.ntuples(result); ++row) {
    std::vector<std::string>& cells = answer.rows.emplace_back();
    for (int column = 0; column < pq_.nfields(result); ++column)
      cells.emplace_back(pq_.getvalue(result, row, column), static_cast<size_t>(pq_.getlength(result, row, column)));
  }
  const std::string affected = pq_.cmd_tuples(result);
  answer.affected = affected.empty() ? 0 : std::stoll(affected);
  return absl::OkStatus();
}

absl::StatusOr<PostgresSession::Answer> Session::Query(const std::string& sql,
                                                       const std::vector<std::string>& parameters, Seconds at_most) {
  if (lost_) return Lost("the session was lost");
  Await(at_most);
  if (!Send(sql, parameters)) return Lost(ErrorText());
  Answer answer;
  absl::Status status;
  while (true) {
    LS_RETURN_IF_ERROR(AwaitResult());
    PGresult* result = pq_.get_result(connection_);
    if (result == nullptr) break;
    if (status.ok()) status = Take(result, answer);
    pq_.clear(result);
    if (pq_.status(connection_) == CONNECTION_BAD) lost_ = true;  // the result says why
  }
  LS_RETURN_IF_ERROR(status);
  return answer;
}

}  // namespace

bool IsPostgresUrl(std::string_view text) {
  return text.starts_with("postgresql://") || text.starts_with("postgres://");
}

absl::StatusOr<std::unique_ptr<PostgresSession>> PostgresSession::Open(const std::string& url, const std::string& name,
                                                                       Seconds at_most) {
  const absl::StatusOr<Libpq>& library = Library();
  LS_RETURN_IF_ERROR(library.status());
  auto session = std::make_unique<Session>(*library);
  LS_RETURN_IF_ERROR(session->Connect(url, name, at_most));
  return session;
}

std::string PostgresArray(const std::vector<std::string>& elements) {
  std::string text = "{";
  for (const std::string& element : elements) {
    text += text.size() == 1 ? "\"" : ",\"";
    for (const char c : element) {
      if (c == '"' || c == '\\') text += '\\';
      text += c;
    }
    text += '"';
  }
  return text + "}";
}

}  // namespace lockstep::store
