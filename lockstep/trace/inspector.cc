#include "lockstep/trace/inspector.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include "lockstep/base/json_at.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/median.h"
#include "lockstep/base/parallel.h"
#include "lockstep/trace/byte_source.h"
#include "lockstep/trace/clocks.h"
#include "lockstep/trace/line_reader.h"

namespace lockstep::trace {
namespace {

// Beyond these, what a line says was not measured.
constexpr int64_t kMostRanks = 1 << 20;
constexpr int64_t kLongestUs = int64_t{86'400} * 1'000'000;  // of an op: a day
constexpr int64_t kMostUs = int64_t{1} << 51;                // of wall time: the year 2041
constexpr int64_t kSpanNs = 30 * kLongestUs * 1000;          // of the times of a job
constexpr uint64_t kMostMembers = 1 << 22;                   // of communicators whose members are all known by number

struct Process {
  std::string host;
  int64_t pid;
  int64_t part = -1;  // of several ranks that are told as one process
  auto operator<=>(const Process&) const = default;
};

// Collectives of one function are numbered in a communicator; each process has such a stream of them.
struct StreamKey {
  Process process;
  std::string id, function;
  int64_t rank, size;  // in the communicator
  auto operator<=>(const StreamKey&) const = default;
};

struct Done {
  int64_t sequence;
  uint64_t bytes;
  int64_t duration_ns;
  int64_t launched_ns;         // wall; by the host, -1 unknown
  int64_t began_ns, ended_ns;  // wall; its kernels, -1 unknown
  int64_t line;
  int64_t alone_ns = -1;
};

struct Stream {
  std::vector<Done> ops;
  int64_t dumped_us = 0;          // the last of them
  bool beside_transfers = false;  // the process has sends and receives, too
};
using Streams = std::map<StreamKey, Stream>;

struct Content {  // of a file
  Streams streams;
  uint64_t transfers = 0, unreadable = 0;
  uint64_t first_unreadable = 0;  // its number
  absl::Status status;
};

// ---- a line ----

// Whole microseconds as nanoseconds; nothing: not there, or not to be believed.
std::optional<int64_t> NanosAt(const Json& object, std::string_view key, int64_t most_us) {
  const Json& value = At(object, key);
  if (!value.is_number()) return std::nullopt;
  const double us = value.get<double>();
  if (!std::isfinite(us) || us < 0 || us > static_cast<double>(most_us)) return std::nullopt;
  return value.is_number_integer() ? value.get<int64_t>() * 1000 : std::llround(us * 1000);
}

// The first start and the last stop of its channels' kernels; both or none.
void TakeKernels(const Json& trace, Done& done) {
  const Json& kernels = At(trace, "kernel_events");
  if (!kernels.is_array() || kernels.empty()) return;
  int64_t began = INT64_MAX, ended = 0;
  for (const Json& kernel : kernels) {
    const auto start = NanosAt(kernel, "kernel_start_ts", kMostUs), stop = NanosAt(kernel, "kernel_stop_ts", kMostUs);
    // A channel whose end was not noted has a stop of 0.
    if (!start || !stop || *start == 0 || *stop < *start) return;
    began = std::min(began, *start);
    ended = std::max(ended, *stop);
  }
  if (ended - began > kLongestUs * 1000) return;
  done.began_ns = began;
  done.ended_ns = ended;
}

std::optional<StreamKey> KeyOf(const Json& line) {
  const Json &header = At(line, "header"), &metadata = At(line, "metadata");
  const Json& id = At(header, "id");
  StreamKey key;
  key.id = id.is_number_integer() ? OneLine(id) : TextAt(header, "id");
  key.function = TextAt(At(line, "coll_perf"), "coll");
  key.rank = IntegerAt(header, "rank", -1);
  key.size = IntegerAt(header, "n_ranks", -1);
  key.process = {TextAt(metadata, "hostname"), IntegerAt(metadata, "pid", -1)};
  const bool whole = !key.id.empty() && !key.function.empty() && !key.process.host.empty() && key.process.pid >= 0;
  const bool fits = key.size >= 1 && key.size <= kMostRanks && key.rank >= 0 && key.rank < key.size;
  return whole && fits ? std::optional(std::move(key)) : std::nullopt;
}

std::optional<Done> DoneOf(const Json& line, int64_t number) {
  const Json& measured = At(line, "coll_perf");
  const auto duration = NanosAt(measured, "coll_exec_time_us", kLongestUs);
  Done done{IntegerAt(measured, "coll_sn", -1), 0, duration.value_or(-1), -1, -1, -1, number};
  if (!duration || done.sequence < 0 || done.sequence >= kMostRanks * kMostRanks) return std::nullopt;
  done.bytes = static_cast<uint64_t>(std::max<int64_t>(0, IntegerAt(measured, "coll_msg_size_bytes", 0)));
  const Json& trace = At(measured, "event_trace_ts");
  done.launched_ns = NanosAt(trace, "coll_start_ts", kMostUs).value_or(-1);
  if (done.launched_ns == 0) done.launched_ns = -1;
  TakeKernels(trace, done);
  return done;
}

bool TakeLine(std::string_view text, int64_t number, Content& content) {
  const Json line = ParseJson(text);
  if (At(line, "header").is_object() && At(line, "p2p_perf").is_object()) return ++content.transfers > 0;
  auto key = KeyOf(line);
  const auto done = DoneOf(line, number);
  if (!key || !done) return false;
  Stream& stream = content.streams[std::move(*key)];
  stream.ops.push_back(*done);
  stream.dumped_us = std::max(stream.dumped_us, IntegerAt(At(line, "metadata"), "dump_timestamp_us", 0));
  return true;
}

// ---- files ----

Content ReadContent(const std::string& path) {
  Content content;
  absl::StatusOr<LineReader> lines = LineReader::Open(path);
  if (!lines.ok()) {
    content.status = lines.status();
    return content;
  }
  while (lines->Next()) {
    if (lines->line().find_first_not_of(" \t") == std::string_view::npos) continue;
    if (TakeLine(lines->line(), static_cast<int64_t>(lines->number()), content)) continue;
    if (content.unreadable++ == 0) content.first_unreadable = lines->number();
  }
  for (auto& [key, stream] : content.streams) stream.beside_transfers = content.transfers > 0;
  if (!content.streams.empty()) {
    content.unreadable += lines->status().ok() ? 0 : 1;
    return content;
  }
  content.status = lines->status();
  if (content.status.ok())
    content.status = InvalidArgument(
        "{}:{}: no collective of NCCL's Inspector; expected an object with header {{id, rank, n_ranks}}, metadata "
        "{{hostname, pid}} and coll_perf {{coll, coll_sn, coll_exec_time_us}} on each line",
        path, std::max<uint64_t>(content.first_unreadable, 1));
  return content;
}

bool LooksLikeInspector(const std::string& path) {
  constexpr size_t kBegin = 4096;
  const std::string begin = FirstBytes(path, kBegin);
  const auto skip = [&](size_t at) { return std::min(begin.find_first_not_of(" \t\r\n", at), begin.size()); };
  const size_t brace = skip(0);
  if (brace == begin.size() || begin[brace] != '{') return false;
  return begin.find("\"coll_perf\"") != std::string::npos || begin.compare(skip(brace + 1), 8, "\"header\"") == 0;
}

struct File {
  std::string path;
  bool named;  // by itself, not by its directory
};

std::vector<std::string> FilesIn(const std::string& folder, std::error_code& error) {
  std::vector<std::string> files;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::error_code of_entry;
    if (entry->is_regular_file(of_entry)) files.push_back(entry->path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

absl::StatusOr<std::vector<File>> FindFiles(const std::vector<std::string>& paths, std::vector<Counter>& counters) {
  std::vector<File> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back({path, true});
      continue;
    }
    error.clear();
    for (std::string& file : FilesIn(path, error))
      if (LooksLikeInspector(file))
        files.push_back({std::move(file), false});
      else
        Count(counters, "other_files", 1);
    if (error) return ErrnoError(error.value(), path);
  }
  return files;
}

// ---- times of a process ----

// From `from` on, until `until`, the process may have been in collectives that are not told.
struct Gap {
  int64_t from_ns, until_ns;
};

// Numbers of a stream that are left out: lost, or too small to be dumped. All streams of a process are dumped together,
// so none is left out behind the last one.
void AddGaps(const std::vector<Done>& ops, std::vector<Gap>& gaps) {
  constexpr int64_t kFirst = 1;  // or 0
  int64_t next = kFirst, from = INT64_MIN;
  for (const Done& op : ops) {
    if (op.began_ns < 0) continue;
    if (op.sequence > next) gaps.push_back({from, op.began_ns});
    next = op.sequence + 1;
    from = op.began_ns;
  }
}

// Time since the process had left all that it was in before, of ops between which none is missing. What it waited in a
// receive would be taken for time by itself.
void MeasureAlone(const std::vector<Stream*>& streams) {
  std::vector<Done*> ops;
  std::vector<Gap> gaps;
  for (Stream* stream : streams) {
    if (stream->beside_transfers) return;
    AddGaps(stream->ops, gaps);
    for (Done& op : stream->ops)
      if (op.began_ns >= 0) ops.push_back(&op);
  }
  std::sort(ops.begin(), ops.end(), [](const Done* a, const Done* b) { return a->began_ns < b->began_ns; });
  std::sort(gaps.begin(), gaps.end(), [](const Gap& a, const Gap& b) { return a.from_ns < b.from_ns; });
  int64_t left = -1, unknown_until = INT64_MIN;
  size_t gap = 0;
  for (Done* op : ops) {
    for (; gap < gaps.size() && gaps[gap].from_ns < op->began_ns; ++gap)
      unknown_until = std::max(unknown_until, gaps[gap].until_ns);
    const int64_t alone = std::max<int64_t>(0, op->began_ns - left);
    if (left >= 0 && op->began_ns > unknown_until && alone <= kLongestUs * 1000) op->alone_ns = alone;
    left = std::max(left, op->ended_ns);
  }
}

int64_t Created(const Done& op) { return op.began_ns >= 0 ? op.began_ns : op.launched_ns; }

// ---- a log of all processes ----

class Joiner {
 public:
  explicit Joiner(Streams streams) : streams_(std::move(streams)) {}

  CommLog Run() {
    for (auto& [key, stream] : streams_) DropTwice(stream);
    DropTimesWithoutSense();
    FindLargest();
    PartProcesses();
    std::map<Process, std::vector<Stream*>> of_process;
    for (auto& [key, stream] : streams_) of_process[key.process].push_back(&stream);
    for (const auto& [process, streams] : of_process) MeasureAlone(streams);
    FindRanks();
    FitHosts();
    NameCommunicators();
    for (const auto& [key, stream] : streams_) Add(key, stream);
    log_.blind_spot = BlindSpot();
    log_.doubt = "whether the job sends between its ranks (pipelines), of which such files may not tell";
    return std::move(log_);
  }

 private:
  void DropTwice(Stream& stream) {
    std::vector<Done>& ops = stream.ops;
    std::stable_sort(ops.begin(), ops.end(), [](const Done& a, const Done& b) { return a.sequence < b.sequence; });
    const auto twice =
        std::unique(ops.begin(), ops.end(), [](const Done& a, const Done& b) { return a.sequence == b.sequence; });
    Count(log_.counters, "ops_told_twice", static_cast<uint64_t>(ops.end() - twice));
    ops.erase(twice, ops.end());
  }

  // Those far from all others.
  void DropTimesWithoutSense() {
    std::vector<int64_t> times;
    for (const auto& [key, stream] : streams_)
      for (const Done& op : stream.ops)
        if (Created(op) >= 0) times.push_back(Created(op));
    if (times.empty()) return;
    const int64_t middle = UpperMedian(std::move(times));
    for (auto& [key, stream] : streams_)
      for (Done& op : stream.ops)
        if (Created(op) >= 0 && std::abs(Created(op) - middle) > kSpanNs / 2) {
          op.launched_ns = op.began_ns = op.ended_ns = -1;
          Count(log_.counters, "times_without_sense", 1);
        }
  }

  // Of several the one that was written of last.
  void FindLargest() {
    std::tuple<int64_t, int64_t, std::string> world;
    for (const auto& [key, stream] : streams_) world = std::max(world, {key.size, stream.dumped_us, key.id});
    world_ = std::get<std::string>(world);
  }

  // Containers have process numbers of their own. Ranks of one process are known apart in the largest communicator
  // alone: what they did in others is nobody's.
  void PartProcesses() {
    std::map<Process, std::set<int64_t>> ranks;
    for (const auto& [key, stream] : streams_)
      if (key.id == world_) ranks[key.process].insert(key.rank);
    std::erase_if(ranks, [](const auto& one) { return one.second.size() == 1; });
    for (const auto& [process, several] : ranks) Count(log_.counters, "ranks_of_one_process", several.size());
    Streams parted;
    for (auto& [key, stream] : streams_) {
      StreamKey own = key;
      if (ranks.contains(key.process)) own.process.part = key.rank;
      if (key.id == world_ || !ranks.contains(key.process)) parted.emplace(std::move(own), std::move(stream));
    }
    streams_ = std::move(parted);
  }

  // Of the largest communicator.
  void FindRanks() {
    std::map<int, Process> process_of;
    for (const auto& [key, stream] : streams_) {
      if (key.id != world_ || rank_of_.contains(key.process)) continue;
      const auto rank = static_cast<int>(key.rank);
      if (process_of.emplace(rank, key.process).second)
        rank_of_[key.process] = rank;
      else
        Count(log_.counters, "ranks_told_twice", 1);
    }
    for (const auto& [rank, process] : process_of) log_.reported.push_back(rank);
    std::set<Process> others;
    for (const auto& [key, stream] : streams_)
      if (!rank_of_.contains(key.process)) others.insert(key.process);
    Count(log_.counters, "processes_outside_of_the_largest_communicator", others.size());
    std::erase_if(streams_, [&](const auto& one) { return others.contains(one.first.process); });
  }

  // Times of all hosts onto one clock, by what ends on all members together.
  void FitHosts() {
    std::map<std::string, size_t> hosts;
    std::map<std::tuple<std::string, std::string, int64_t>, std::vector<std::pair<size_t, int64_t>>> ends;
    for (const auto& [key, stream] : streams_) {
      const size_t host = hosts.emplace(key.process.host, hosts.size()).first->second;
      for (const Done& op : stream.ops)
        if (op.ended_ns >= 0) ends[{key.id, key.function, op.sequence}].emplace_back(host, op.ended_ns);
    }
    if (hosts.size() < 2) return;
    std::vector<std::vector<std::pair<size_t, int64_t>>> together;
    together.reserve(ends.size());
    for (auto& [op, of_members] : ends) together.push_back(std::move(of_members));
    const std::vector<ClockOffset> offsets = FitClocks(hosts.size(), together);
    for (const auto& [host, index] : hosts) offset_ns_[host] = static_cast<int64_t>(offsets[index].offset_ns);
  }

  // Who is in them, by their place in them. Of the largest one that is known without having heard of them.
  void NameCommunicators() {
    std::map<std::string, std::map<int64_t, int>> members;
    std::map<std::string, int64_t> sizes;
    std::set<std::pair<std::string, std::string>> functions;
    for (const auto& [key, stream] : streams_) {
      const bool is_new = members[key.id].emplace(key.rank, rank_of_.at(key.process)).second;
      if (!is_new && members[key.id][key.rank] != rank_of_.at(key.process)) Count(log_.counters, "ranks_told_twice", 1);
      sizes[key.id] = std::max(sizes[key.id], key.size);
      functions.emplace(key.id, key.function);
    }
    uint64_t spelled = 0;
    for (const auto& [id, function] : functions) {
      std::map<int64_t, int>& known = members[id];
      if (id == world_) spelled += static_cast<uint64_t>(sizes[id]);
      if (id == world_ && spelled <= kMostMembers)
        for (int64_t rank = 0; rank < sizes[id]; ++rank) known.emplace(rank, static_cast<int>(rank));
      Communicator communicator{id, "", {}};
      for (const auto& [place, rank] : known) communicator.ranks.push_back(rank);
      index_[{id, function}] = static_cast<uint32_t>(log_.communicators.size());
      log_.communicators.push_back(std::move(communicator));
      log_.functions.push_back(function);
    }
    for (const auto& [id, known] : members)
      Count(log_.counters, "members_not_known", static_cast<uint64_t>(sizes[id]) - known.size());
  }

  // A communicator and its function have the same index.
  void Add(const StreamKey& key, const Stream& stream) {
    const uint32_t index = index_.at({key.id, key.function});
    const auto offset = offset_ns_.find(key.process.host);
    for (const Done& done : stream.ops) {
      CommOp op;
      op.communicator = op.function = index;
      op.rank = rank_of_.at(key.process);
      op.sequence = done.sequence;
      op.order = Created(done) >= 0 ? Created(done) : done.line;
      op.created_ns = Created(done);
      if (op.created_ns >= 0 && offset != offset_ns_.end())
        op.created_ns = std::max<int64_t>(0, op.created_ns + offset->second);
      op.state = OpState::kCompleted;
      op.duration_ns = done.duration_ns;
      op.alone_ns = done.alone_ns;
      op.bytes = done.bytes;
      log_.ops.push_back(std::move(op));
    }
  }

  std::string BlindSpot() const {
    std::string text =
        "NCCL's Inspector tells of collectives that have ended: not of what is under way, of who waits for whom, or of "
        "sends and receives";
    const auto any = [&](auto known) { return std::any_of(log_.ops.begin(), log_.ops.end(), known); };
    if (!any([](const CommOp& op) { return op.created_ns >= 0; }))
      return text + "; nor of times, so that who comes late can't be told: set NCCL_INSPECTOR_DUMP_VERBOSE=1";
    if (!any([](const CommOp& op) { return op.alone_ns >= 0; }))
      return text +
             "; what ranks did between two collectives is not known, so that who comes late can't be told: they sent "
             "or received, or collectives are missing (NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0 dumps all)";
    return text;
  }

  Streams streams_;
  CommLog log_;
  std::string world_;  // id
  std::map<Process, int> rank_of_;
  std::map<std::string, int64_t> offset_ns_;  // by host
  std::map<std::pair<std::string, std::string>, uint32_t> index_;
};

void Merge(Streams from, Streams& into) {
  for (auto& [key, stream] : from) {
    Stream& whole = into[key];
    whole.ops.insert(whole.ops.end(), stream.ops.begin(), stream.ops.end());
    whole.dumped_us = std::max(whole.dumped_us, stream.dumped_us);
    whole.beside_transfers = whole.beside_transfers || stream.beside_transfers;
  }
}

}  // namespace

bool HasInspector(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) return LooksLikeInspector(path);
  if (!std::filesystem::is_directory(path, error)) return false;
  error.clear();
  const std::vector<std::string> files = FilesIn(path, error);
  return std::any_of(files.begin(), files.end(), LooksLikeInspector);
}

absl::StatusOr<CommLog> ReadInspector(const std::vector<std::string>& paths) {
  std::vector<Counter> counters;
  LS_ASSIGN_OR_RETURN(const std::vector<File> files, FindFiles(paths, counters));
  std::vector<Content> contents(files.size());
  ParallelFor(files.size(), std::thread::hardware_concurrency(),
              [&](size_t i, size_t /*worker*/) { contents[i] = ReadContent(files[i].path); });
  Streams streams;
  std::vector<std::string> damaged;
  absl::Status damage;
  for (size_t i = 0; i < files.size(); ++i) {
    Content& content = contents[i];
    if (!content.status.ok()) {
      if (files[i].named) return content.status;
      if (damage.ok()) damage = content.status;
      damaged.push_back(Message(content.status));
      continue;
    }
    Count(counters, "unreadable_lines", content.unreadable);
    Count(counters, "transfers_left_out", content.transfers);
    Merge(std::move(content.streams), streams);
  }
  Count(counters, "damaged_files", damaged.size());
  if (streams.empty() && !damage.ok()) return damage;
  if (streams.empty()) return InvalidArgument("{}: no file of NCCL's Inspector", paths.empty() ? "" : paths.front());
  CommLog log = Joiner(std::move(streams)).Run();
  for (const Counter& counter : counters) Count(log.counters, counter.name, counter.count);
  log.damaged = std::move(damaged);
  return log;
}

}  // namespace lockstep::trace
