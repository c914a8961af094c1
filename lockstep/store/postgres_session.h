// A session with a PostgreSQL server, by libpq (libpq.so.5, loaded when the first session is opened: whoever keeps
// journals in files does not need it). No call blocks beyond the time it is given, whatever the server or the network
// does; a name server may take longer when a session is opened. A session that was lost, or whose time was up, is of no
// use any more: whether its last statement took effect is not known then.
// Thread-compatible. Cost of a statement: one way to the server and back.
//
//   LS_ASSIGN_OR_RETURN(auto session, PostgresSession::Open("postgresql://db.example/lockstep", "a test", Seconds{5}));
//   LS_ASSIGN_OR_RETURN(const auto answer, session->Query("SELECT $1::int + 1", {"41"}, Seconds{1}));
//   answer.rows[0][0] == "42"
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::store {

// postgresql://... or postgres://...
bool IsPostgresUrl(std::string_view text);

class PostgresSession {
 public:
  struct Answer {
    std::vector<std::vector<std::string>> rows;  // "" for NULL
    int64_t affected = 0;                        // rows that were written
  };

  // `name`: what the server's administrators see us as. Unavailable: there is no such server, it won't have us, or
  // libpq is not installed.
  static absl::StatusOr<std::unique_ptr<PostgresSession>> Open(const std::string& url, const std::string& name,
                                                               Seconds at_most);
  virtual ~PostgresSession() = default;

  // Without parameters these may be several statements. Unavailable: the session was lost. ResourceExhausted: the
  // server's disk is full.
  virtual absl::StatusOr<Answer> Query(const std::string& sql, const std::vector<std::string>& parameters,
                                       Seconds at_most) = 0;
  virtual bool lost() const = 0;
};

// Text of an array literal: {"a","b \"c\""}.
std::string PostgresArray(const std::vector<std::string>& elements);

}  // namespace lockstep::store
