#include "lockstep/trace/record_file.h"

#include <string.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <tuple>
#include <utility>

#include "lockstep/record/file.h"

namespace lockstep::trace {
namespace {

constexpr size_t kCommunicatorCells = sizeof(ls_communicator) / LS_CELL_BYTES;

struct Counts {
  uint64_t no_place, no_communicator, no_peer, no_cell, missed, no_op, libraries, reserved;
};
static_assert(sizeof(Counts) == LS_CELL_BYTES && sizeof(ls_origin::host) == LS_CELL_BYTES);

size_t CellsBehind(const ls_snapshot_body& body) {
  return 2 + kCommunicatorCells * body.communicators + body.under_way;
}

std::vector<ls_record> CellsOf(const TrailSnapshot& snapshot) {
  const Counts counts{snapshot.no_place, snapshot.no_communicator, snapshot.no_peer,   snapshot.no_cell,
                      snapshot.missed,   snapshot.no_op,           snapshot.libraries, 0};
  ls_record head{};
  ls_snapshot_body& body = head.body.snapshot;
  head.kind = LS_RECORD_SNAPSHOT;
  head.epoch = snapshot.origin.epoch;
  head.time_ns = snapshot.taken_ns;
  body.wall_minus_boot_ns = snapshot.wall_minus_boot_ns;
  body.rank = snapshot.origin.rank;
  body.world = snapshot.origin.world;
  body.pid = snapshot.origin.pid;
  body.communicators = static_cast<uint32_t>(snapshot.communicators.size());
  body.under_way = static_cast<uint32_t>(snapshot.under_way.size());
  body.alive = snapshot.stopped ? LS_PROCESS_STOPPED : snapshot.alive ? LS_PROCESS_RAN : LS_PROCESS_GONE;
  memcpy(body.source, snapshot.origin.source, sizeof body.source);
  head.more = static_cast<uint16_t>(CellsBehind(body));
  std::vector<ls_record> cells(1 + CellsBehind(body) + snapshot.ended.size());
  ls_record* at = cells.data();
  *at++ = head;
  memcpy(at++, snapshot.origin.host, LS_CELL_BYTES);
  memcpy(at++, &counts, LS_CELL_BYTES);
  if (body.communicators > 0)
    memcpy(at, snapshot.communicators.data(), sizeof(ls_communicator) * snapshot.communicators.size());
  at = std::copy(snapshot.under_way.begin(), snapshot.under_way.end(), at + kCommunicatorCells * body.communicators);
  std::copy(snapshot.ended.begin(), snapshot.ended.end(), at);
  return cells;
}

// All but what had ended. Requires the cells behind the record to be there.
TrailSnapshot SnapshotOf(const ls_record* cells) {
  const ls_snapshot_body& body = cells->body.snapshot;
  TrailSnapshot snapshot;
  snapshot.origin.rank = body.rank;
  snapshot.origin.world = body.world;
  snapshot.origin.epoch = cells->epoch;
  snapshot.origin.pid = body.pid;
  memcpy(snapshot.origin.source, body.source, sizeof body.source);
  memcpy(snapshot.origin.host, cells + 1, LS_CELL_BYTES);
  snapshot.wall_minus_boot_ns = body.wall_minus_boot_ns;
  snapshot.taken_ns = cells->time_ns;
  snapshot.alive = body.alive != LS_PROCESS_GONE;
  snapshot.stopped = body.alive == LS_PROCESS_STOPPED;
  Counts counts{};
  memcpy(&counts, cells + 2, sizeof counts);
  snapshot.no_place = counts.no_place;
  snapshot.no_communicator = counts.no_communicator;
  snapshot.no_peer = counts.no_peer;
  snapshot.no_cell = counts.no_cell;
  snapshot.missed = counts.missed;
  snapshot.no_op = counts.no_op;
  snapshot.libraries = counts.libraries;
  snapshot.communicators.resize(body.communicators);
  if (body.communicators > 0)
    memcpy(snapshot.communicators.data(), cells + 3, sizeof(ls_communicator) * body.communicators);
  const ls_record* under_way = cells + 3 + kCommunicatorCells * body.communicators;
  snapshot.under_way.assign(under_way, under_way + body.under_way);
  return snapshot;
}

class Reader {
 public:
  // The trail whose records follow; null: what follows belongs to none.
  TrailSnapshot* Take(const ls_record* cells) {
    const ls_snapshot_body& body = cells->body.snapshot;
    if (body.communicators > LS_TRAIL_COMMUNICATORS || body.under_way > LS_TRAIL_PLACES ||
        CellsBehind(body) != cells->more)
      return nullptr;
    TrailSnapshot now = SnapshotOf(cells);
    const std::tuple key{now.owner(), now.host(), now.origin.pid, now.born_ns()};
    TrailSnapshot& of_process = by_process_[key];
    now.ended = std::move(of_process.ended);
    now.missed += of_process.missed;
    of_process = std::move(now);
    return &of_process;
  }
  std::vector<TrailSnapshot> Finish() {
    std::vector<TrailSnapshot> all;
    all.reserve(by_process_.size());
    for (auto& [key, snapshot] : by_process_) {
      // A second recorder begins with what is in the trail, which the first one had kept.
      const bool ascends = std::is_sorted(snapshot.ended.begin(), snapshot.ended.end(),
                                          [](const auto& a, const auto& b) { return a.time_ns < b.time_ns; });
      if (!ascends) DropTwice(snapshot.ended);
      all.push_back(std::move(snapshot));
    }
    return all;
  }

 private:
  std::map<std::tuple<std::pair<uint32_t, std::string>, std::string, uint32_t, int64_t>, TrailSnapshot> by_process_;
};

}  // namespace

absl::StatusOr<RecordFileWriter> RecordFileWriter::Open(const std::string& path) {
  ls_record_reader there{};
  const ls_file_result result = ls_record_reader_open(&there, path.c_str());
  ls_record_reader_close(&there);
  if (result == LS_FILE_NOT_RECORDS)
    return InvalidArgument("{}: is there already and is no file of records; name another one", path);
  Fd file(ls_record_file_create(path.c_str()));
  if (!file.valid()) return InvalidArgument("{}: can't be written: {}", path, strerror(errno));
  return RecordFileWriter(path, std::move(file));
}

absl::Status RecordFileWriter::Write(const TrailSnapshot& snapshot) {
  const std::vector<ls_record> cells = CellsOf(snapshot);
  if (!ls_record_file_append(file_.get(), cells.data(), cells.size()))
    return InvalidArgument("{}: can't be written: {}", path_, strerror(errno));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TrailSnapshot>> ReadRecordFile(const std::string& path, std::vector<Counter>& counters) {
  ls_record_reader file{};
  const ls_file_result result = ls_record_reader_open(&file, path.c_str());
  if (result == LS_FILE_UNREADABLE) return InvalidArgument("{}: can't be read: {}", path, strerror(errno));
  if (result == LS_FILE_NOT_RECORDS)
    return InvalidArgument("{}: no file of records (it does not begin with LSKREC01)", path);
  Reader reader;
  TrailSnapshot* current = nullptr;
  uint64_t unreadable = 0;
  while (const ls_record* record = ls_record_reader_next(&file)) {
    if (record->kind == LS_RECORD_SNAPSHOT) {
      current = reader.Take(record);
      unreadable += current == nullptr;
    } else if (record->kind == LS_RECORD_OP || record->kind == LS_RECORD_TRANSFER || record->kind == LS_RECORD_DATA) {
      if (current != nullptr && record->more == 0)
        current->ended.push_back(*record);
      else
        ++unreadable;
    }
  }
  Count(counters, "unreadable_records", unreadable + file.unknown);
  Count(counters, "torn_bytes", file.torn_bytes);
  ls_record_reader_close(&file);
  std::vector<TrailSnapshot> snapshots = reader.Finish();
  if (snapshots.empty()) return InvalidArgument("{}: a file of records in which no rank's trail was kept", path);
  return snapshots;
}

}  // namespace lockstep::trace
