// What postgres_journal.cc says to the server; docs/formats/journal.md has the tables. Only that file includes this.
#pragma once

namespace lockstep::store {

// Two coordinators may be the first at once.
inline constexpr char kCreate[] =
    "BEGIN;"
    "SELECT pg_advisory_xact_lock(hashtextextended('lockstep_schema', 0));"
    "CREATE TABLE IF NOT EXISTS lockstep_schema (version int NOT NULL);"
    "INSERT INTO lockstep_schema SELECT 1 WHERE NOT EXISTS (SELECT FROM lockstep_schema);"
    "CREATE TABLE IF NOT EXISTS lockstep_run (run text PRIMARY KEY, term bigint NOT NULL DEFAULT 0,"
    " beat bigint NOT NULL DEFAULT 0, beat_at timestamptz, at bigint NOT NULL DEFAULT 0, leader text NOT NULL DEFAULT "
    "'',"
    " since timestamptz, token text NOT NULL);"
    "CREATE TABLE IF NOT EXISTS lockstep_journal (run text, sequence bigint, at bigint NOT NULL, wall bigint NOT NULL,"
    " type text NOT NULL, payload text NOT NULL, PRIMARY KEY (run, sequence));"
    "COMMIT";

// A statement that we gave up must not go on behind the next session's back. No append waits for the server's disk.
inline constexpr char kSettings[] =
    "SET statement_timeout = '5s'; SET lock_timeout = '2s'; SET synchronous_commit = off;"
    "SET tcp_keepalives_idle = 2; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 3";

// Sessions of this database that hold the advisory lock $1.
inline constexpr char kHolders[] =
    "FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND pid <> pg_backend_pid()"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND ((classid::bigint << 32) | objid::bigint) = $1::bigint";

// What the leader's clock says now, if it runs on; its last event may be younger than its last beat.
inline constexpr char kLeadersClock[] =
    "greatest(at + (extract(epoch FROM clock_timestamp() - beat_at) * 1000000000)::bigint,"
    " (SELECT j.at FROM lockstep_journal j WHERE j.run = r.run ORDER BY sequence DESC LIMIT 1))";
inline constexpr char kSince[] = "to_char(since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS \"UTC\"')";

// A run that has begun has its row, or whoever leads it puts that back: what we would make is another run's.
inline constexpr char kMakeRow[] =
    "INSERT INTO lockstep_run (run, token) SELECT $1, $2 WHERE NOT EXISTS (SELECT FROM lockstep_journal WHERE run = $1)"
    " ON CONFLICT DO NOTHING";
// The leader's own, which is gone, or older than its term.
inline constexpr char kPutBack[] =
    "INSERT INTO lockstep_run AS r (run, term, beat, beat_at, at, leader, since, token)"
    " VALUES ($1, $2::bigint, 1, clock_timestamp(), $3::bigint, $4, clock_timestamp(), $5) ON CONFLICT (run) DO UPDATE"
    " SET term = EXCLUDED.term, beat = r.beat + 1, beat_at = EXCLUDED.beat_at, at = EXCLUDED.at,"
    " leader = EXCLUDED.leader, since = EXCLUDED.since, token = EXCLUDED.token WHERE r.term < EXCLUDED.term";

// set_config holds until the end of the transaction, which is this statement.
inline constexpr char kTake[] =
    "UPDATE lockstep_run SET term = term + 1, beat = beat + 1, beat_at = clock_timestamp(), at = $4::bigint,"
    " leader = $5, since = clock_timestamp() WHERE run = $1 AND term = $2::bigint AND beat = $3::bigint"
    " AND set_config('synchronous_commit', 'on', true) IS NOT NULL";
inline constexpr char kCountBeat[] =
    "UPDATE lockstep_run SET beat = beat + 1, beat_at = clock_timestamp(), at = $3::bigint"
    " WHERE run = $1 AND term = $2::bigint AND set_config('synchronous_commit', $4, true) IS NOT NULL";

// A takeover waits for this to end, or this for the takeover, whose term it then sees.
inline constexpr char kAppend[] =
    "WITH own AS (SELECT run FROM lockstep_run WHERE run = $1 AND term = $2::bigint FOR SHARE)"
    " INSERT INTO lockstep_journal SELECT own.run, new.* FROM own,"
    " unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::text[]) AS new";

inline constexpr char kReadEvents[] =
    "SELECT sequence, at, wall, type, payload FROM lockstep_journal WHERE run = $1 AND sequence > $2::bigint"
    " ORDER BY sequence LIMIT $3::bigint";

}  // namespace lockstep::store
