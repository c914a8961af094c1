// A journal in PostgreSQL that the coordinators of a job share, and the election of the one among them that leads: it
// alone may write. The others stand in: they wait until it is gone.
//
// The leader holds an advisory lock by its session, and beats twice a second: it counts `beat` up in the row of its
// run. A session that ends frees the lock at once; whoever sees it free and no beat for 1.5 s takes it. A leader that
// holds it and does not beat for 2.5 s (it is frozen, or cut off) has its session ended by whoever stands in. Taking
// over counts `term` up, and everything that a leader writes is conditioned on its term: what an older one sends later
// changes nothing, and it hears that it is deposed. A leader that only lost its session, as when the server was started
// anew, makes another one and goes on. Who stands in gives it 2.5 s for that.
//
// Append is one transaction, which the server has when it returns: it survives kill -9 of this process at once. The
// server's disk has it with the next beat, and when Sync returns; until then it is kept here, and goes in again should
// the server have lost it. An append that was cut off may have arrived: the next one looks, and leaves out what is
// there. No call waits for a server that does not answer for more than 2 s, and none at all while there is no session:
// it fails with Unavailable. Thread-safe. Sessions are made, and beats and the election done, in a thread of its own.
//
//   LS_ASSIGN_OR_RETURN(auto journal, PostgresJournal::Open({url, "gpt-7b", "lead:29400", token}, clock));
//   if (journal->role() == PostgresJournal::Role::kLeads) ... journal->Read(0), journal->Append(...)
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/store/journal.h"

namespace lockstep::store {

class PostgresJournal : public Journal {
 public:
  struct Options {
    std::string url;
    std::string run;     // the name of the journal in that database
    std::string leader;  // what others are told about us
    std::string token;   // of the run, should we be the first
    double pace = 1;     // of all times above; tests are quicker
  };
  enum class Role { kStandsIn, kLeads, kDeposed };  // from left to right only
  struct Term {
    int64_t number = 0;
    std::string token;  // of the run, as the first one named it
    Nanos ahead;        // what is added to our clock to go on with that of the leader before
  };

  // Fails if there is no session within 5 s, or if what is there was not made by this version.
  static absl::StatusOr<std::unique_ptr<PostgresJournal>> Open(Options options, const Clock& clock);

  virtual Role role() const = 0;
  virtual Term term() const = 0;
  // Who leads, or deposed us: "lead:29400, since 2026-01-31 12:00:00 UTC". Empty: not known yet.
  virtual std::string leader() const = 0;
  // It leads, but has not been able to beat for so long that somebody else may lead by now.
  virtual bool MayBeReplaced() const = 0;
};

// Who leads this run now, as leader() has it. Empty: nobody has said so for some seconds.
absl::StatusOr<std::string> LeaderOf(const std::string& url, const std::string& run);
// Of a run that anybody leads, or nobody. NotFound: there is no such run.
absl::StatusOr<std::unique_ptr<Journal>> OpenPostgresReader(const std::string& url, const std::string& run);

}  // namespace lockstep::store
