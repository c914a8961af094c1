#include "lockstep/trace/flight_recorder.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "lockstep/base/json_at.h"
#include "lockstep/base/number.h"
#include "lockstep/base/parallel.h"
#include "lockstep/trace/byte_source.h"
#include "lockstep/trace/dump.h"

namespace lockstep::trace {
namespace {

constexpr std::string_view kBackends[] = {"nccl:", "gloo:", "xccl:", "ucc:", "mpi:", "hccl:", "rccl:"};

constexpr size_t kBatch = 64;  // files held at a time
// A job launches ops all the time; one that hangs was dumped at the end of a timeout. What was launched after the first
// file was written shows that the job went on.
constexpr int64_t kStillNs = 2'000'000'000;
// Files that are older than what they tell by more were copied or unpacked, and their times say nothing.
constexpr int64_t kWrittenWithinNs = 3'600'000'000'000;

struct DumpFile {
  std::string path;
  int rank = -1;
  bool named = false;  // by itself, not by its directory
};

// The last number of a file's name.
std::optional<int> RankOfName(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  const size_t last = name.find_last_of("0123456789");
  if (last == std::string::npos) return std::nullopt;
  const size_t before = name.find_last_not_of("0123456789", last);
  const size_t first = before == std::string::npos ? 0 : before + 1;
  return WholeNumber<int>(std::string_view(name).substr(first, last + 1 - first));
}

bool LooksLikeADump(const std::string& path) {
  const std::string begin = FirstBytes(path, 64);
  const size_t at = begin.find_first_not_of(" \t\r\n");
  return begin.starts_with('\x80') || (at != std::string::npos && begin[at] == '{');
}

// "[0, 1, 5]", or a list.
std::vector<int> RanksOf(const Json& group) {
  const Json& ranks = At(group, "ranks");
  const Json list = ranks.is_string() ? Json::parse(ranks.get<std::string>(), nullptr, false) : ranks;
  std::vector<int> all;
  if (!list.is_array()) return all;
  for (const Json& rank : list)
    if (const std::optional<int> one = RankFrom(rank)) all.push_back(*one);
  return all;
}

// "[4096, 1, 5120] BFloat16".
std::string ShapeOf(const Json& entry) {
  const Json &sizes = At(entry, "input_sizes"), &types = At(entry, "input_dtypes");
  if (!sizes.is_array()) return "";
  std::string shape;
  for (const Json& size : sizes)
    shape += (shape.empty() ? "" : " ") + size.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (types.is_array() && !types.empty() && types.front().is_string()) shape += " " + types.front().get<std::string>();
  return shape;
}

OpState StateOf(const std::string& text) {
  return text == "completed" ? OpState::kCompleted : text == "started" ? OpState::kStarted : OpState::kScheduled;
}

// "send 1->2", "recv 1<-2": places in the group.
struct Transfer {
  Direction direction;
  int64_t peer;
};
std::optional<Transfer> ParseTransfer(std::string_view name) {
  const bool sends = name.starts_with("send ");
  if (!sends && !name.starts_with("recv ")) return std::nullopt;
  const size_t arrow = name.find(sends ? "->" : "<-");
  if (arrow == std::string_view::npos) return std::nullopt;
  const auto peer = WholeNumber<int64_t>(name.substr(arrow + 2));
  if (!peer || *peer < 0) return std::nullopt;
  return Transfer{sends ? Direction::kSend : Direction::kReceive, *peer};
}

// Puts the dumps of all ranks into one log.
class Collector {
 public:
  absl::Status Add(int rank, const Json& dump) {
    const Json& entries = At(dump, "entries");
    if (!entries.is_array())
      return InvalidArgument("no list \"entries\"; expected a dump of PyTorch's Flight Recorder");
    ReadGroups(dump);
    std::map<std::string, std::string> name_of_id;  // of groups, as pg_status numbers them
    const uint64_t unreadable = unreadable_, without_peer = without_peer_;
    batch_of_.clear();
    id_of_.clear();
    int64_t last = -1;
    for (const Json& entry : entries) {
      Take(rank, entry, name_of_id);
      last = std::max(last, IntegerAt(entry, "record_id", INT64_MAX));
    }
    DropDestroyed(rank);
    if (!entries.empty() && unreadable_ - unreadable == entries.size())
      return InvalidArgument("none of its {} entries tells its process group and number", entries.size());
    ReadCounts(rank, dump, std::move(name_of_id));
    log_.reported.push_back(rank);
    // Old ones are overwritten, and ended ones may be left out.
    if (std::cmp_equal(last, entries.size() - 1) && without_peer_ == without_peer) log_.whole.insert(rank);
    return absl::OkStatus();
  }

  CommLog Finish(int64_t first_written_ns) {
    int64_t newest = -1;
    for (const CommOp& op : log_.ops) newest = std::max(newest, op.created_ns);
    DropLeftBehind();
    const int64_t still_ns = first_written_ns - newest;
    log_.moving = newest >= 0 && still_ns < kStillNs && still_ns > -kWrittenWithinNs;
    std::sort(log_.reported.begin(), log_.reported.end());
    // A communicator's counters count its collectives, unless it has transfers too: then the last of either.
    std::vector<bool> mixed(log_.communicators.size());
    for (const CommOp& op : log_.ops)
      if (op.direction != Direction::kCollective) mixed[op.communicator] = true;
    std::erase_if(log_.counts, [&](const CommCount& count) { return mixed[count.communicator]; });
    FillUnknownMembers();
    Count(log_.counters, "ops_of_destroyed_groups", destroyed_);
    Count(log_.counters, "unreadable_entries", unreadable_);
    Count(log_.counters, "transfers_without_peer", without_peer_);
    return std::move(log_);
  }

  void CountOthers(uint64_t files) { Count(log_.counters, "other_files", files); }
  void Damaged(const std::string& why) {
    log_.damaged.push_back(why);
    Count(log_.counters, "damaged_files", 1);
  }

 private:
  // Communicator and both numbers: alike only for what is launched together.
  using Batch = std::tuple<uint32_t, int64_t, int64_t>;
  static constexpr Batch kEnded{UINT32_MAX, -1, -1};

  // What a rank launched in the newest group of a name and ranks, and before in others: wall times.
  struct Use {
    int64_t id = -1;  // as the process counts groups
    int groups = 0;   // of that name and ranks in which it is known to have launched something
    int64_t first_ns = INT64_MAX, last_ns = -1, before_ns = -1;
  };

  // Of a name and ranks that were given anew.
  struct Anew {
    int64_t end_ns = -1, begin_ns = INT64_MAX;  // of the groups before, and of the newest: wall times
    int groups = 0;                             // the most that a rank is known to have launched something in
  };

  // Names are given anew once the default group, "0", is destroyed, with numbers from 1 on, and what was launched
  // before is still there. Ids go on, and the default group has the first.
  void DropDestroyed(int rank) {
    std::map<uint32_t, Use> uses;
    const size_t begin = log_.ops.size() - id_of_.size();
    int64_t oldest = INT64_MAX, newest = -1;  // of the default group
    for (size_t i = 0; i < id_of_.size(); ++i) {
      const uint32_t communicator = log_.ops[begin + i].communicator;
      Use& use = uses[communicator];
      if (id_of_[i] > use.id) {
        use.id = id_of_[i];
        ++use.groups;
      }
      if (log_.communicators[communicator].name != "0") continue;
      if (oldest == INT64_MAX && id_of_[i] > 0) ++use.groups;  // what was launched in the first, 0, is overwritten
      oldest = std::min(oldest, id_of_[i]);
      newest = std::max(newest, id_of_[i]);
    }
    if (oldest < newest)
      for (auto& [communicator, use] : uses) use.id = std::max(use.id, newest);
    size_t kept = begin;
    for (size_t i = 0; i < id_of_.size(); ++i) {
      CommOp& op = log_.ops[begin + i];
      Use& use = uses.at(op.communicator);
      if (id_of_[i] < use.id) {
        use.before_ns = std::max(use.before_ns, op.created_ns);
        continue;
      }
      use.first_ns = std::min(use.first_ns, op.created_ns);
      use.last_ns = std::max(use.last_ns, op.created_ns);
      if (kept != begin + i) log_.ops[kept] = std::move(op);
      ++kept;
    }
    destroyed_ += log_.ops.size() - kept;
    log_.ops.resize(kept);
    for (const auto& [communicator, use] : uses) uses_[{communicator, rank}] = use;
  }

  // All ranks are there when groups are made anew: whose last launch was before any began with the new one has launched
  // nothing in that. Times of hosts differ: they are not asked about a rank that launched in as many as any.
  void DropLeftBehind() {
    std::map<uint32_t, Anew> all;  // by communicator
    for (const auto& [user, use] : uses_)
      if (use.before_ns >= 0) {
        Anew& anew = all[user.first];
        anew.end_ns = std::max(anew.end_ns, use.before_ns);
        anew.groups = std::max(anew.groups, use.groups);
      }
    if (all.empty()) return;
    for (const auto& [user, use] : uses_)
      if (const auto found = all.find(user.first);
          found != all.end() && use.before_ns >= 0 && use.first_ns > found->second.end_ns)
        found->second.begin_ns = std::min(found->second.begin_ns, use.first_ns);
    const auto is_left = [&](const auto& one) {
      const auto found = all.find(one.communicator);
      const auto use = uses_.find({one.communicator, one.rank});
      return found != all.end() && found->second.begin_ns != INT64_MAX && use != uses_.end() &&
             use->second.groups < found->second.groups && use->second.last_ns < found->second.begin_ns;
    };
    destroyed_ += std::erase_if(log_.ops, is_left);
    std::erase_if(log_.counts, is_left);
  }

  // Where no dump tells the ranks of a group: the default one has all, others at least those that used it.
  void FillUnknownMembers() {
    std::map<uint32_t, std::set<int>> users;
    for (const CommOp& op : log_.ops) users[op.communicator].insert(op.rank);
    for (uint32_t i = 0; i < log_.communicators.size(); ++i) {
      Communicator& one = log_.communicators[i];
      if (!one.ranks.empty()) continue;
      one.ranks = one.name == "0" ? log_.reported : std::vector<int>(users[i].begin(), users[i].end());
    }
  }

  void ReadGroups(const Json& dump) {
    groups_.clear();
    const Json& config = At(dump, "pg_config");
    if (!config.is_object()) return;
    for (const auto& [name, group] : config.items()) groups_[name] = {name, TextAt(group, "desc"), RanksOf(group)};
  }

  uint32_t CommunicatorOf(const std::string& name, const std::string& description) {
    const auto known = groups_.find(name);
    Communicator one = known != groups_.end() ? known->second : Communicator{name, description, {}};
    if (one.description.empty()) one.description = description;
    const auto [found, is_new] =
        index_.emplace(std::pair(name, one.ranks), static_cast<uint32_t>(log_.communicators.size()));
    if (is_new) log_.communicators.push_back(std::move(one));
    return found->second;
  }

  uint32_t FunctionOf(std::string name) {
    for (const std::string_view backend : kBackends)
      if (name.starts_with(backend)) name.erase(0, backend.size());
    const auto [found, is_new] = functions_.emplace(name, static_cast<uint32_t>(log_.functions.size()));
    if (is_new) log_.functions.push_back(name);
    return found->second;
  }

  void Take(int rank, const Json& entry, std::map<std::string, std::string>& name_of_id) {
    const Json& group = At(entry, "process_group");
    const int64_t id = IntegerAt(entry, "pg_id", -1);
    const bool named = group.is_array() && !group.empty() && group.front().is_string();
    if (!named && id < 0) {
      ++unreadable_;
      return;
    }
    // Before version 2 an entry has the number alone.
    const std::string name = named ? group.front().get<std::string>() : std::to_string(id);
    const std::string description =
        named && group.size() > 1 && group[1].is_string() ? group[1].get<std::string>() : "";
    name_of_id[std::to_string(id)] = name;
    CommOp op;
    op.communicator = CommunicatorOf(name, description);
    op.rank = rank;
    op.order = IntegerAt(entry, "record_id", static_cast<int64_t>(log_.ops.size()));
    op.created_ns = IntegerAt(entry, "time_created_ns", -1);
    op.state = StateOf(TextAt(entry, "state"));
    op.function = FunctionOf(TextAt(entry, "profiling_name"));
    op.shape = ShapeOf(entry);
    const std::string& function = log_.functions[op.function];
    const int64_t collective = IntegerAt(entry, "collective_seq_id", IntegerAt(entry, "seq_id", -1));
    const int64_t transfer = IntegerAt(entry, "p2p_seq_id", -1);
    const bool is_transfer = BooleanAt(entry, "is_p2p", false);
    const Batch batch{op.communicator, collective, transfer};
    if (function == "coalesced" && collective >= 0 && EndBatch(batch, op.state, is_transfer)) return;
    op.sequence = is_transfer ? transfer : collective;
    if (is_transfer) {
      FindPeer(function, op);
    } else if (op.sequence < 0) {
      ++unreadable_;
      return;
    }
    if (is_transfer && transfer >= 0)
      op.batch = !batch_of_.empty() && batch_of_.back() == batch ? log_.ops.back().batch : ++batches_;
    log_.ops.push_back(std::move(op));
    batch_of_.push_back(batch);
    id_of_.push_back(id);
  }

  void FindPeer(const std::string& function, CommOp& op) {
    const std::optional<Transfer> transfer = ParseTransfer(function);
    const std::vector<int>& ranks = log_.communicators[op.communicator].ranks;
    // What may be several holds its rank up as a receive does.
    op.direction = transfer ? transfer->direction : Direction::kReceive;
    if (transfer && static_cast<size_t>(transfer->peer) < ranks.size()) {
      op.peer = ranks[static_cast<size_t>(transfer->peer)];
    } else {
      ++without_peer_;
    }
  }

  // Of ops that are launched together torch records each, whose state it then leaves as it is, and behind them one that
  // has the state of all. True: it adds nothing more. Collectives have a number together, and are one.
  bool EndBatch(const Batch& batch, OpState state, bool is_transfer) {
    const auto end = std::find_if(batch_of_.rbegin(), batch_of_.rend(), [&](const Batch& one) { return one != batch; });
    const auto count = static_cast<size_t>(end - batch_of_.rbegin());
    if (is_transfer) {
      for (size_t i = 1; i <= count; ++i) {
        OpState& one = log_.ops[log_.ops.size() - i].state;
        if (one == OpState::kScheduled) one = state;
      }
      if (count > 0) batch_of_.back() = kEnded;
      return count > 0;
    }
    log_.ops.resize(log_.ops.size() - count);
    batch_of_.resize(batch_of_.size() - count);
    id_of_.resize(batch_of_.size());
    return false;
  }

  // pg_status numbers groups as the process made them; pg_config names them. Names count up in the same order, which
  // tells the names of groups that have no entry, as long as it agrees with those that have.
  void ReadCounts(int rank, const Json& dump, std::map<std::string, std::string> name_of_id) {
    const Json& status = At(dump, "pg_status");
    if (!status.is_object()) return;
    std::vector<int64_t> ids, names;
    for (const auto& [id, counts] : status.items()) ids.push_back(WholeNumber<int64_t>(id).value_or(-1));
    for (const auto& [name, group] : groups_) names.push_back(WholeNumber<int64_t>(name).value_or(-1));
    std::sort(ids.begin(), ids.end());
    std::sort(names.begin(), names.end());
    std::map<std::string, std::string> by_order;
    if (ids.size() == names.size() && !ids.empty() && ids.front() >= 0 && names.front() >= 0)
      for (size_t i = 0; i < ids.size(); ++i) by_order[std::to_string(ids[i])] = std::to_string(names[i]);
    const bool agrees = std::all_of(name_of_id.begin(), name_of_id.end(), [&](const auto& known) {
      const auto found = by_order.find(known.first);
      return found != by_order.end() && found->second == known.second;
    });
    if (agrees) name_of_id.merge(by_order);
    for (const auto& [id, counts] : status.items()) {
      const auto name = name_of_id.find(id);
      if (name == name_of_id.end() || !groups_.contains(name->second)) continue;
      const uint32_t communicator = CommunicatorOf(name->second, "");
      const auto use = uses_.find({communicator, rank});
      if (use != uses_.end() && WholeNumber<int64_t>(id).value_or(-1) < use->second.id) continue;  // destroyed
      log_.counts.push_back({communicator, rank, CountAt(counts, "last_enqueued_collective"),
                             CountAt(counts, "last_completed_collective")});
    }
  }

  // Numbers begin at 1, and torch says -1 of none yet. -1: not told.
  static int64_t CountAt(const Json& counts, const char* key) {
    return At(counts, key).is_number_integer() ? std::max<int64_t>(0, IntegerAt(counts, key, -1)) : -1;
  }

  CommLog log_;
  std::vector<Batch> batch_of_;                   // the ops of the dump that is being read
  std::vector<int64_t> id_of_;                    // their groups' ids
  std::map<std::pair<uint32_t, int>, Use> uses_;  // by communicator and rank
  std::map<std::string, Communicator> groups_;    // of the dump that is being read, by name
  std::map<std::pair<std::string, std::vector<int>>, uint32_t> index_;
  std::map<std::string, uint32_t> functions_;
  int64_t batches_ = 0;
  uint64_t unreadable_ = 0, without_peer_ = 0, destroyed_ = 0;
};

// When a file was written, wall time; without one, the end of time.
int64_t WrittenNs(const std::string& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) return INT64_MAX;
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

absl::StatusOr<std::vector<DumpFile>> FindFiles(const std::vector<std::string>& paths, uint64_t& others) {
  std::vector<DumpFile> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back({path, -1, true});
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      if (!entry.is_regular_file(error)) continue;
      if (LooksLikeADump(entry.path().string()))
        files.push_back({entry.path().string(), -1, false});
      else
        ++others;
    }
    if (error) return ErrnoError(error.value(), path);
  }
  std::map<int, std::string> known;
  for (DumpFile& file : files) {
    const std::optional<int> rank = RankOfName(file.path);
    if (!rank)
      return InvalidArgument("{}: its name does not tell the rank: expected a number, as in rank_3.json", file.path);
    file.rank = *rank;
    const auto [found, is_new] = known.emplace(*rank, file.path);
    if (!is_new)
      return InvalidArgument("{}: rank {} is in {} too; expected one file per rank", file.path, *rank, found->second);
  }
  std::sort(files.begin(), files.end(), [](const DumpFile& a, const DumpFile& b) { return a.rank < b.rank; });
  return files;
}

}  // namespace

absl::StatusOr<CommLog> ReadFlightRecorder(const std::vector<std::string>& paths) {
  Collector collector;
  uint64_t others = 0;
  LS_ASSIGN_OR_RETURN(const std::vector<DumpFile> files, FindFiles(paths, others));
  std::vector<absl::StatusOr<Json>> dumps;  // a batch of them
  absl::Status damage;
  size_t whole = 0;
  int64_t first_written = INT64_MAX;
  for (size_t i = 0; i < files.size(); ++i) {
    if (i % kBatch == 0) {
      dumps.assign(std::min(kBatch, files.size() - i), absl::UnknownError("not read"));
      ParallelFor(dumps.size(), std::thread::hardware_concurrency(),
                  [&](size_t k, size_t /*worker*/) { dumps[k] = ReadDump(files[i + k].path); });
    }
    const absl::StatusOr<Json>& dump = dumps[i % kBatch];
    absl::Status read = dump.ok() ? collector.Add(files[i].rank, *dump) : dump.status();
    if (read.ok()) {
      ++whole;
      first_written = std::min(first_written, WrittenNs(files[i].path));
      continue;
    }
    read = InvalidArgument("{}: {}", files[i].path, Message(read));
    if (files[i].named) return read;
    collector.Damaged(Message(read));
    if (damage.ok()) damage = read;
  }
  if (!damage.ok() && whole == 0) return damage;
  if (whole == 0)
    return InvalidArgument("{}: no dump of a Flight Recorder; expected a pickle or JSON per rank",
                           paths.empty() ? "" : paths.front());
  collector.CountOthers(others);
  return collector.Finish(first_written);
}

}  // namespace lockstep::trace
