#include "lockstep/store/postgres_journal.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <thread>

#include "lockstep/base/log.h"
#include "lockstep/store/postgres_session.h"
#include "lockstep/store/postgres_statements.h"

namespace lockstep::store {
namespace {

using std::chrono::steady_clock;
using Role = PostgresJournal::Role;
using Answer = PostgresSession::Answer;

constexpr int kFormat = 1;
constexpr std::string_view kOn = "on", kOff = "off";               // synchronous_commit
constexpr Seconds kOpen{5}, kReopen{2}, kStatement{1}, kRead{10};  // at most
constexpr std::chrono::milliseconds kBeat{500}, kLook{250}, kSoon{20};
constexpr std::chrono::milliseconds kFreeFor{1500};    // without a beat: the leader's session has ended
constexpr std::chrono::milliseconds kSilentFor{2500};  // without a beat: it holds the lock, or the server is new to us
constexpr std::chrono::milliseconds kUnsure{1500};     // less than what another one waits

constexpr size_t kPage = 20'000;  // events that are read at once: some 0.1 s

bool IsSame(const Event& a, const Event& b) {
  return a.at == b.at && a.wall == b.wall && a.type == b.type && a.payload == b.payload;
}

// Those behind `after`, one page of them: the last, if it is not full.
absl::StatusOr<std::vector<Event>> ReadPage(PostgresSession& session, const std::string& run, int64_t after,
                                            Seconds at_most = kRead) {
  LS_ASSIGN_OR_RETURN(const Answer answer,
                      session.Query(kReadEvents, {run, std::to_string(after), std::to_string(kPage)}, at_most));
  std::vector<Event> events;
  events.reserve(answer.rows.size());
  for (const std::vector<std::string>& row : answer.rows) {
    Event event{{std::stoll(row[1])}, {std::stoll(row[2])}, row[3], row[4], std::stoll(row[0])};
    const int64_t expected = after + static_cast<int64_t>(events.size()) + 1;
    if (event.sequence != expected) return DataLoss("the journal of run {}: event {} is missing", run, expected);
    events.push_back(std::move(event));
  }
  return events;
}

// page(after): as ReadPage.
template <typename Page>
absl::StatusOr<std::vector<Event>> ReadEvents(int64_t after, const Page& page) {
  std::vector<Event> events;
  for (bool more = true; more;) {
    LS_ASSIGN_OR_RETURN(std::vector<Event> next, page(events.empty() ? after : events.back().sequence));
    more = next.size() == kPage;
    events.insert(events.end(), std::make_move_iterator(next.begin()), std::make_move_iterator(next.end()));
  }
  return events;
}

absl::StatusOr<int64_t> LastSequence(PostgresSession& session, const std::string& run) {
  LS_ASSIGN_OR_RETURN(
      const Answer last,
      session.Query("SELECT coalesce(max(sequence), 0) FROM lockstep_journal WHERE run = $1", {run}, kStatement));
  return std::stoll(last.rows[0][0]);
}

absl::StatusOr<bool> HasTables(PostgresSession& session) {
  LS_ASSIGN_OR_RETURN(const Answer found,
                      session.Query("SELECT to_regclass('lockstep_schema') IS NOT NULL", {}, kStatement));
  return found.rows[0][0] == "t";
}

absl::Status CheckFormat(PostgresSession& session) {
  LS_ASSIGN_OR_RETURN(const Answer answer, session.Query("SELECT version FROM lockstep_schema", {}, kStatement));
  const std::string found = answer.rows.size() == 1 ? answer.rows[0][0] : fmt::format("{} rows", answer.rows.size());
  if (found == std::to_string(kFormat)) return absl::OkStatus();
  return InvalidArgument("lockstep_schema in PostgreSQL: journal format {}, but this Lockstep reads format {}", found,
                         kFormat);
}

class Elected final : public PostgresJournal {
 public:
  Elected(Options options, const Clock& clock) : options_(std::move(options)), clock_(clock) {}
  ~Elected() override = default;

  absl::Status Begin() {
    LS_ASSIGN_OR_RETURN(session_, Connect(kOpen));
    keeper_ = std::jthread([this](const std::stop_token& stop) { Keep(stop); });
    return absl::OkStatus();
  }

  absl::Status Append(std::vector<Event> events) override;
  absl::Status Sync() override;
  absl::StatusOr<std::vector<Event>> Read(int64_t after) override;

  Role role() const override { return Told(role_); }
  Term term() const override { return Told(term_); }
  std::string leader() const override { return Told(leader_); }
  bool MayBeReplaced() const override {
    const std::scoped_lock lock(told_);
    return role_ == Role::kLeads && steady_clock::now() - confirmed_ >= Paced(kUnsure);
  }

 private:
  template <typename Value>
  Value Told(const Value& value) const {
    const std::scoped_lock lock(told_);
    return value;
  }
  std::chrono::milliseconds Paced(std::chrono::milliseconds time) const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time * options_.pace);
  }
  absl::StatusOr<std::unique_ptr<PostgresSession>> Connect(Seconds at_most);
  absl::StatusOr<bool> MakeRow(PostgresSession& session) const;
  void Keep(const std::stop_token& stop);
  std::chrono::milliseconds Turn();
  void Complain(const absl::Status& status);
  absl::StatusOr<std::chrono::milliseconds> StandIn();
  absl::Status Take(const std::vector<std::string>& seen, Nanos ahead);
  absl::Status Confirm();
  absl::Status LockAgain();
  absl::Status CountBeat(std::string_view synchronous_commit);
  absl::Status NotTheRow();
  absl::Status Depose();
  absl::Status EndHolder();
  void Drop();
  absl::Status CheckLeads() const;
  absl::Status CheckReach() const;
  absl::Status Reconcile();
  absl::Status Kept(absl::Status status);
  absl::Status Write(std::vector<Event> events);
  absl::Status Insert(std::vector<Event> events);

  const Options options_;
  const Clock& clock_;

  std::mutex mutex_;  // guards the use of the session, and what follows
  std::unique_ptr<PostgresSession> session_;
  std::string key_;                     // of the advisory lock
  bool locked_ = false;                 // by this session
  int64_t last_sequence_ = 0;           // in the journal, as far as is known
  std::vector<Event> unsynced_;         // the newest of them: a server that crashes may lose them
  std::vector<Event> lost_;             // that it did lose: they go in again, before all others
  std::vector<Event> arrived_;          // though no answer said so: who appended them may do it again
  bool unsure_ = false;                 // whether the journal ends there: a session was lost
  std::string seen_;                    // term and beat of the leader, while we stand in
  bool held_ = false;                   // this session saw the lock held
  steady_clock::time_point changed_{};  // when seen_ did

  mutable std::mutex told_;  // guards what follows; taken after mutex_
  Role role_ = Role::kStandsIn;
  Term term_;
  std::string leader_;
  steady_clock::time_point confirmed_{};  // our term, by a beat

  std::atomic<bool> confirms_ = false;  // the server, our term, by this session: until then nobody waits for it

  std::string complaint_;  // the keeper's
  std::condition_variable_any wake_;
  std::jthread keeper_;  // last: it goes first
};

// ---- sessions

absl::StatusOr<std::unique_ptr<PostgresSession>> Elected::Connect(Seconds at_most) {
  LS_ASSIGN_OR_RETURN(auto session,
                      PostgresSession::Open(options_.url, "lockstep coordinator " + options_.run, at_most));
  LS_RETURN_IF_ERROR(session->Query(kSettings, {}, kStatement).status());
  LS_ASSIGN_OR_RETURN(const bool has_tables, HasTables(*session));
  if (!has_tables) LS_RETURN_IF_ERROR(session->Query(kCreate, {}, at_most).status());
  LS_RETURN_IF_ERROR(CheckFormat(*session));
  LS_RETURN_IF_ERROR(MakeRow(*session).status());
  return session;
}

// False: there is one, or nobody may make one but who leads.
absl::StatusOr<bool> Elected::MakeRow(PostgresSession& session) const {
  LS_ASSIGN_OR_RETURN(const Answer made, session.Query(kMakeRow, {options_.run, options_.token}, kStatement));
  return made.affected == 1;
}

void Elected::Keep(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const std::chrono::milliseconds pause = Turn();
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, stop, Paced(pause), [] { return false; });
  }
}

std::chrono::milliseconds Elected::Turn() {
  const Role role = this->role();
  if (role == Role::kDeposed) return kBeat;
  std::unique_lock lock(mutex_);
  if (!session_) {
    lock.unlock();  // nobody waits for a server that may not be there
    absl::StatusOr<std::unique_ptr<PostgresSession>> session = Connect(kReopen);
    if (!session.ok()) {
      Complain(session.status());
      return kLook;
    }
    lock.lock();
    session_ = *std::move(session);
  }
  if (role == Role::kLeads) {
    const absl::Status confirmed = Confirm();
    if (absl::IsFailedPrecondition(confirmed)) return kBeat;  // it is deposed, and says so by its role
    Complain(confirmed);
    if (!confirmed.ok()) Drop();
    return session_ ? kBeat : kSoon;
  }
  const absl::StatusOr<std::chrono::milliseconds> pause = StandIn();
  Complain(pause.status());
  if (!pause.ok() && !absl::IsNotFound(pause.status())) Drop();
  return pause.value_or(kLook);
}

// Once until it is over: this is tried four times a second.
void Elected::Complain(const absl::Status& status) {
  const std::string text = Message(status);
  if (!status.ok() && text != complaint_) Log(LogLevel::kWarning, "the journal of {}: {}", options_.run, text);
  complaint_ = text;
}

// Nothing that it was asked is answered any more; what it locked is free.
void Elected::Drop() {
  session_.reset();
  locked_ = held_ = confirms_ = false;
  unsure_ = true;
  seen_.clear();
}

// ---- the election

absl::StatusOr<std::chrono::milliseconds> Elected::StandIn() {
  if (key_.empty()) {
    LS_ASSIGN_OR_RETURN(const Answer key, session_->Query("SELECT hashtextextended('lockstep run ' || $1, 0)",
                                                          {options_.run}, kStatement));
    key_ = key.rows[0][0];
  }
  const std::string look = fmt::format(
      "SELECT term, beat, {}, leader || ', since ' || {}, token, EXISTS (SELECT {}) FROM lockstep_run r WHERE run = $2",
      kLeadersClock, kSince, kHolders);
  LS_ASSIGN_OR_RETURN(const Answer answer, session_->Query(look, {key_, options_.run}, kStatement));
  if (answer.rows.empty()) {
    LS_ASSIGN_OR_RETURN(const bool made, MakeRow(*session_));
    if (made) return kSoon;
    return NotFound(
        "the row of run {} in lockstep_run is gone, and its journal is there: whoever leads it puts the row back; "
        "where nobody does, give the new run another name with --job",
        options_.run);
  }
  const std::vector<std::string>& row = answer.rows[0];
  const auto now = steady_clock::now();
  if (const std::string seen = row[0] + " " + row[1]; seen != seen_) {
    seen_ = seen;
    changed_ = now;
  }
  {
    const std::scoped_lock lock(told_);
    leader_ = row[3];
  }
  const bool held = row[5] == "t", nobody_ever_led = row[0] == "0";
  held_ = held_ || held;
  const auto patience = !held && nobody_ever_led ? std::chrono::milliseconds{} : !held && held_ ? kFreeFor : kSilentFor;
  if (now - changed_ < Paced(patience)) return kLook;
  if (held) {
    LS_RETURN_IF_ERROR(EndHolder());
    return kSoon;
  }
  const Nanos ahead = row[2].empty() ? Nanos{} : Nanos{std::stoll(row[2])} - clock_.Now();
  LS_RETURN_IF_ERROR(Take(row, ahead));
  return kSoon;
}

// It is ours if nobody was quicker, and nothing has been heard of the leader since.
absl::Status Elected::Take(const std::vector<std::string>& seen, Nanos ahead) {
  LS_ASSIGN_OR_RETURN(const Answer locked,
                      session_->Query("SELECT pg_try_advisory_lock($1::bigint)", {key_}, kStatement));
  if (locked.rows[0][0] != "t") return absl::OkStatus();
  LS_ASSIGN_OR_RETURN(
      const Answer taken,
      session_->Query(kTake,
                      {options_.run, seen[0], seen[1], std::to_string((clock_.Now() + ahead).value), options_.leader},
                      kRead));
  if (taken.affected != 1) return session_->Query("SELECT pg_advisory_unlock($1::bigint)", {key_}, kStatement).status();
  LS_ASSIGN_OR_RETURN(last_sequence_, LastSequence(*session_, options_.run));
  unsynced_.clear();
  lost_.clear();
  arrived_.clear();
  locked_ = confirms_ = true;
  unsure_ = false;
  const std::scoped_lock lock(told_);
  role_ = Role::kLeads;
  term_ = {std::stoll(seen[0]) + 1, seen[4], ahead};
  confirmed_ = steady_clock::now();
  return absl::OkStatus();
}

absl::Status Elected::Confirm() {
  if (!locked_) LS_RETURN_IF_ERROR(LockAgain());
  LS_RETURN_IF_ERROR(Write({}));
  return CountBeat(unsynced_.empty() ? kOff : kOn);
}

// A new session of the leader: the term, not the lock, says that it still is. The lock may be held by its old session,
// of which the server has not heard yet that it is lost.
absl::Status Elected::LockAgain() {
  LS_ASSIGN_OR_RETURN(
      const Answer answer,
      session_->Query("SELECT pg_try_advisory_lock($2::bigint) FROM lockstep_run WHERE run = $1 AND term = $3::bigint",
                      {options_.run, key_, std::to_string(term().number)}, kStatement));
  if (answer.rows.empty()) return NotTheRow();
  locked_ = answer.rows[0][0] == "t";
  return locked_ ? absl::OkStatus() : EndHolder();
}

absl::Status Elected::CountBeat(std::string_view synchronous_commit) {
  const Term term = this->term();
  LS_ASSIGN_OR_RETURN(const Answer answer, session_->Query(kCountBeat,
                                                           {options_.run, std::to_string(term.number),
                                                            std::to_string((clock_.Now() + term.ahead).value),
                                                            std::string(synchronous_commit)},
                                                           kStatement));
  if (answer.affected != 1) return NotTheRow();
  confirms_ = true;
  if (synchronous_commit == kOn) unsynced_.clear();  // a commit that waits for the disk waits for all before it
  const std::scoped_lock lock(told_);
  confirmed_ = steady_clock::now();
  return absl::OkStatus();
}

// There is none of our term: a newer one's, or somebody has deleted it, which is no reason to end a job. Never OK.
absl::Status Elected::NotTheRow() {
  const Term term = this->term();
  LS_ASSIGN_OR_RETURN(const Answer answer,
                      session_->Query(kPutBack,
                                      {options_.run, std::to_string(term.number),
                                       std::to_string((clock_.Now() + term.ahead).value), options_.leader, term.token},
                                      kStatement));
  if (answer.affected != 1) return Depose();
  return Unavailable("the row of the run in lockstep_run was gone, and is put back");
}

// Our term is over: who has it now is said, if that can be found out.
absl::Status Elected::Depose() {
  const absl::StatusOr<Answer> who =
      session_->Query(fmt::format("SELECT leader || ', since ' || {} FROM lockstep_run WHERE run = $1", kSince),
                      {options_.run}, kStatement);
  {
    const std::scoped_lock lock(told_);
    role_ = Role::kDeposed;
    leader_ = who.ok() && who->rows.size() == 1 ? who->rows[0][0] : "";
  }
  Drop();
  return CheckLeads();
}

// The advisory lock's holder is frozen, cut off, or a lost session of our own.
absl::Status Elected::EndHolder() {
  return session_->Query(fmt::format("SELECT pg_terminate_backend(pid) {}", kHolders), {key_}, kStatement).status();
}

// ---- the journal

absl::Status Elected::CheckLeads() const {
  const std::scoped_lock lock(told_);
  if (role_ == Role::kLeads) return absl::OkStatus();
  if (role_ == Role::kStandsIn) return FailedPrecondition("this coordinator stands in for {}", leader_);
  return FailedPrecondition("another coordinator leads run {}: {}", options_.run,
                            leader_.empty() ? "its name is not known" : leader_);
}

// The keeper may be waiting for an answer, with the session: nobody else waits for it then.
absl::Status Elected::CheckReach() const {
  LS_RETURN_IF_ERROR(CheckLeads());
  return confirms_ ? absl::OkStatus()
                   : Unavailable("the journal's PostgreSQL server is out of reach, or does not answer");
}

absl::Status Elected::Append(std::vector<Event> events) {
  LS_RETURN_IF_ERROR(CheckReach());
  const std::scoped_lock lock(mutex_);
  LS_RETURN_IF_ERROR(CheckLeads());
  if (!session_) return CheckReach();
  if (unsure_) LS_RETURN_IF_ERROR(Kept(Reconcile()));
  const auto count = static_cast<std::ptrdiff_t>(arrived_.size());
  if (arrived_.size() <= events.size() && std::equal(arrived_.begin(), arrived_.end(), events.begin(), IsSame))
    events.erase(events.begin(), events.begin() + count);
  LS_RETURN_IF_ERROR(Write(std::move(events)));
  arrived_.clear();
  return absl::OkStatus();
}

// Of no events: what a lost session has left to be done, if there is any.
absl::Status Elected::Write(std::vector<Event> events) {
  absl::Status status = unsure_ ? Reconcile() : absl::OkStatus();
  if (status.ok() && !(lost_.empty() && events.empty())) status = Insert(std::move(events));
  return Kept(std::move(status));
}

// A session that failed is not gone on with.
absl::Status Elected::Kept(absl::Status status) {
  if (absl::IsUnavailable(status) || absl::IsDataLoss(status)) Drop();
  return status;
}

// After a session was lost: an append that was cut off may have arrived, and what the server had not yet on its disk
// may be gone. Nobody else had our term, so what is found is ours. `lost_` becomes what is missing; what is there
// beyond all that was answered joins `arrived_`, for it will be appended again.
absl::Status Elected::Reconcile() {
  int64_t synced = last_sequence_ - static_cast<int64_t>(unsynced_.size());
  LS_ASSIGN_OR_RETURN(std::vector<Event> found, ReadEvents(synced, [&](int64_t after) {
                        return ReadPage(*session_, options_.run, after, kStatement);
                      }));
  if (found.empty()) {
    LS_ASSIGN_OR_RETURN(const int64_t last, LastSequence(*session_, options_.run));
    if (last < synced)
      Log(LogLevel::kWarning, "the journal of {}: {} events that were on disk are gone; was a replica promoted?",
          options_.run, synced - last);
    synced = std::min(synced, last);
  }
  std::vector<Event> known = unsynced_;
  known.insert(known.end(), lost_.begin(), lost_.end());
  const size_t both = std::min(known.size(), found.size());
  const auto at = [](std::vector<Event>& events, size_t index) {
    return events.begin() + static_cast<std::ptrdiff_t>(index);
  };
  const bool are_alike = std::equal(known.begin(), at(known, both), found.begin(), IsSame);
  lost_.clear();  // where the journal differs from what we know, it stays as it is
  if (are_alike) lost_.assign(at(known, both), known.end());
  if (are_alike) arrived_.insert(arrived_.end(), at(found, both), found.end());
  last_sequence_ = synced + static_cast<int64_t>(found.size());
  unsynced_ = std::move(found);
  unsure_ = false;
  return absl::OkStatus();
}

absl::Status Elected::Insert(std::vector<Event> events) {
  events.insert(events.begin(), lost_.begin(), lost_.end());
  std::vector<std::string> sequences, ats, walls, types, payloads;
  int64_t sequence = last_sequence_;
  for (Event& event : events) {
    if (event.payload.find('\0') != std::string::npos || event.type.find('\0') != std::string::npos)
      return InvalidArgument("PostgreSQL holds no text with a zero byte, found one in an event of type {}", event.type);
    event.sequence = ++sequence;
    sequences.push_back(std::to_string(sequence));
    ats.push_back(std::to_string(event.at.value));
    walls.push_back(std::to_string(event.wall.value));
    types.push_back(event.type);
    payloads.push_back(event.payload);
  }
  LS_ASSIGN_OR_RETURN(
      const Answer answer,
      session_->Query(kAppend,
                      {options_.run, std::to_string(term().number), PostgresArray(sequences), PostgresArray(ats),
                       PostgresArray(walls), PostgresArray(types), PostgresArray(payloads)},
                      kStatement));
  if (answer.affected == 0) return NotTheRow();
  last_sequence_ = sequence;
  lost_.clear();
  unsynced_.insert(unsynced_.end(), std::make_move_iterator(events.begin()), std::make_move_iterator(events.end()));
  return absl::OkStatus();
}

absl::Status Elected::Sync() {
  LS_RETURN_IF_ERROR(CheckReach());
  const std::scoped_lock lock(mutex_);
  LS_RETURN_IF_ERROR(CheckLeads());
  if (!session_) return CheckReach();
  absl::Status status = Write({});
  if (status.ok()) status = CountBeat(kOn);
  if (absl::IsUnavailable(status)) Drop();
  return status;
}

// A beat goes out between two pages: who reads a long journal still leads.
absl::StatusOr<std::vector<Event>> Elected::Read(int64_t after) {
  return ReadEvents(after, [this](int64_t behind) -> absl::StatusOr<std::vector<Event>> {
    const std::scoped_lock lock(mutex_);
    if (!session_) return Unavailable("the journal's PostgreSQL server is out of reach");
    return ReadPage(*session_, options_.run, behind);
  });
}

class Reader final : public Journal {
 public:
  Reader(std::unique_ptr<PostgresSession> session, std::string run)
      : session_(std::move(session)), run_(std::move(run)) {}
  absl::Status Append(std::vector<Event>) override {
    return FailedPrecondition("run {} is open for reading only", run_);
  }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<Event>> Read(int64_t after) override {
    const std::scoped_lock lock(mutex_);
    return ReadEvents(after, [&](int64_t behind) { return ReadPage(*session_, run_, behind); });
  }

 private:
  std::mutex mutex_;
  const std::unique_ptr<PostgresSession> session_;
  const std::string run_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PostgresJournal>> PostgresJournal::Open(Options options, const Clock& clock) {
  auto journal = std::make_unique<Elected>(std::move(options), clock);
  LS_RETURN_IF_ERROR(journal->Begin());
  return journal;
}

absl::StatusOr<std::string> LeaderOf(const std::string& url, const std::string& run) {
  LS_ASSIGN_OR_RETURN(auto session, PostgresSession::Open(url, "lockstep reader " + run, kOpen));
  const std::string beats = fmt::format("beat_at > clock_timestamp() - interval '{} ms'", kSilentFor.count());
  const std::string who =
      fmt::format("SELECT leader || ', since ' || {} FROM lockstep_run WHERE run = $1 AND {}", kSince, beats);
  LS_ASSIGN_OR_RETURN(const Answer found, session->Query(who, {run}, kStatement));
  return found.rows.empty() ? "" : found.rows[0][0];
}

absl::StatusOr<std::unique_ptr<Journal>> OpenPostgresReader(const std::string& url, const std::string& run) {
  LS_ASSIGN_OR_RETURN(auto session, PostgresSession::Open(url, "lockstep reader " + run, kOpen));
  LS_ASSIGN_OR_RETURN(const bool has_tables, HasTables(*session));
  if (has_tables) {
    LS_RETURN_IF_ERROR(CheckFormat(*session));
    LS_ASSIGN_OR_RETURN(const Answer found,
                        session->Query("SELECT FROM lockstep_run WHERE run = $1", {run}, kStatement));
    if (!found.rows.empty()) return std::make_unique<Reader>(std::move(session), run);
  }
  return NotFound("no run {} in this PostgreSQL database", run);
}

}  // namespace lockstep::store
