#include "lockstep/trace/flight_recorder.h"

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
#include "lockstep/base/json_text.h"
#include "lockstep/base/number.h"
#include "lockstep/base/parallel.h"
#include "lockstep/trace/destroyed_groups.h"
#include "lockstep/trace/dump.h"
#include "lockstep/trace/dump_files.h"
#include "lockstep/trace/dump_moments.h"
#include "lockstep/trace/group_counts.h"
#include "lockstep/trace/overrun_rings.h"
#include "lockstep/trace/unknown_members.h"

namespace lockstep::trace {
namespace {

constexpr std::string_view kBackends[] = {"nccl:", "gloo:", "xccl:", "ucc:", "mpi:", "hccl:", "rccl:"};

constexpr size_t kBatch = 64;  // files held at a time
// A job launches ops all the time; one that hangs was dumped at the end of a timeout. What was launched after the first
// file was written shows that the job went on.
constexpr int64_t kStillNs = 2'000'000'000;
// Files that are older than what they tell by more were copied or unpacked, and their times say nothing.
constexpr int64_t kWrittenWithinNs = 3'600'000'000'000;

// "[0, 1, 5]", or a list.
std::vector<int> RanksOf(const Json& group) {
  const Json& ranks = At(group, "ranks");
  const Json list = ranks.is_string() ? ParseJson(ranks.get<std::string>()) : ranks;
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
  absl::Status Add(int rank, const Json& dump, int64_t written_ns) {
    const Json& entries = At(dump, "entries");
    if (dump.is_array())
      return InvalidArgument(
          "a bare list; expected a dump of PyTorch's Flight Recorder, an object that has such a list as \"entries\"");
    if (!entries.is_array())
      return InvalidArgument("no list \"entries\"; expected a dump of PyTorch's Flight Recorder");
    ReadGroups(dump);
    LS_RETURN_IF_ERROR(CheckRank(rank));
    std::map<std::string, std::string> name_of_id;  // of groups, as pg_status numbers them
    const uint64_t unreadable = unreadable_, without_peer = without_peer_;
    batch_of_.clear();
    id_of_.clear();
    counts_ = GroupCounts(At(dump, "pg_status"));
    std::set<int64_t> records;
    bool some_ended = false;
    ToldMoment told;
    for (const Json& entry : entries) {
      Take(rank, entry, name_of_id);
      records.insert(IntegerAt(entry, "record_id", INT64_MAX));
      some_ended = some_ended || StateOf(TextAt(entry, "state")) == OpState::kCompleted;
      told.Take(entry);
    }
    rings_.Take(rank, dump, records, !some_ended);
    const bool open_alone = !some_ended && LacksEnded(records, dump);
    DumpMoment moment = MomentOf(written_ns, told.Ns());
    if (open_alone) EndBatches(records);
    if (LacksUnderWay()) rings_.LacksUnderWay(rank);
    destroyed_.Drop(rank, id_of_, log_);
    if (!entries.empty() && unreadable_ - unreadable == entries.size())
      return InvalidArgument("none of its {} entries tells its process group and number", entries.size());
    ReadCounts(rank, dump, std::move(name_of_id));
    log_.reported.push_back(rank);
    moments_[rank] = std::move(moment);
    // Old ones are overwritten, and ended ones may be left out.
    const bool all_told = !open_alone && (records.empty() || std::cmp_equal(*records.rbegin(), entries.size() - 1));
    if (all_told && without_peer_ == without_peer) log_.whole.insert(rank);
    return absl::OkStatus();
  }

  const std::map<int, DumpMoment>& moments() const { return moments_; }

  CommLog Finish() {
    destroyed_.DropLeftBehind(log_);
    FindMotion();
    std::sort(log_.reported.begin(), log_.reported.end());
    if (worlds_.size() == 1) log_.world = *worlds_.begin();
    // A communicator's counters count its collectives, unless it has transfers too: then the last of either.
    std::vector<bool> mixed(log_.communicators.size());
    for (const CommOp& op : log_.ops)
      if (op.direction != Direction::kCollective) mixed[op.communicator] = true;
    std::erase_if(log_.counts, [&](const CommCount& count) { return mixed[count.communicator]; });
    FillUnknownMembers(log_);
    TellOfOverrunRings();
    FindAbsentDevices();
    Count(log_.counters, "ops_of_destroyed_groups", destroyed_.dropped());
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

  // Of the dump that is being read.
  DumpMoment MomentOf(int64_t written_ns, int64_t dumped_ns) {
    DumpMoment moment{written_ns, dumped_ns, -1, nullptr};
    for (size_t i = log_.ops.size() - batch_of_.size(); i < log_.ops.size(); ++i)
      moment.newest_ns = std::max(moment.newest_ns, log_.ops[i].created_ns);
    if (const auto world = groups_.find("0"); world != groups_.end() && !world->second.ranks.empty()) {
      std::vector<int> ranks = world->second.ranks;
      std::sort(ranks.begin(), ranks.end());
      moment.world = &*worlds_.insert(std::move(ranks)).first;
    }
    return moment;
  }

  // Of a job that moved it counts for how long an op had been under way.
  void FindMotion() {
    int64_t dumped = -1, written = INT64_MAX, newest = -1;
    for (const auto& [rank, moment] : moments_) dumped = std::max(dumped, moment.dumped_ns);
    for (auto& [rank, moment] : moments_) {
      if (moment.dumped_ns >= 0)
        moment.written_ns = moment.dumped_ns;
      else if (dumped >= 0)
        moment.written_ns = std::min(moment.written_ns, dumped);
      written = std::min(written, moment.written_ns);
      newest = std::max(newest, moment.newest_ns);
    }
    const int64_t still_ns = written - newest;
    log_.moving = newest >= 0 && still_ns < kStillNs && still_ns > -kWrittenWithinNs;
    if (!log_.moving) return;
    log_.blind_spot = "the job was moving when it was dumped: look again some seconds later";
    for (CommOp& op : log_.ops)
      if (op.state != OpState::kCompleted && op.created_ns >= 0)
        op.age_ns = std::max<int64_t>(0, moments_.at(op.rank).written_ns - op.created_ns);
  }

  void TellOfOverrunRings() {
    const std::set<int> ranks = rings_.Ranks(log_);
    if (ranks.empty()) return;
    log_.unseen = true;
    log_.AddBlindSpot(fmt::format(
        "what {} rank(s), {} the first of them, are in may be overwritten in their dumps (raise TORCH_FR_BUFFER_SIZE)",
        ranks.size(), *ranks.begin()));
  }

  // Where ops are timed, a device that comes to one is seen to.
  void FindAbsentDevices() {
    std::set<std::pair<uint32_t, int64_t>> begun;
    const auto number = [](const CommOp& op) { return std::pair(op.communicator, op.sequence); };
    for (const CommOp& op : log_.ops)
      if (op.direction == Direction::kCollective && op.state == OpState::kStarted) begun.insert(number(op));
    for (CommOp& op : log_.ops)
      op.awaits_device =
          op.direction == Direction::kCollective && op.state == OpState::kScheduled && begun.contains(number(op));
  }

  void ReadGroups(const Json& dump) {
    groups_.clear();
    index_of_name_.clear();
    const Json& config = At(dump, "pg_config");
    if (!config.is_object()) return;
    for (const auto& [name, group] : config.items()) groups_[name] = {name, TextAt(group, "desc"), RanksOf(group)};
  }

  // A process tells of the groups that it is in.
  absl::Status CheckRank(int rank) const {
    const auto may_hold = [rank](const auto& group) {
      const std::vector<int>& ranks = group.second.ranks;
      return ranks.empty() || std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
    };
    if (groups_.empty() || std::any_of(groups_.begin(), groups_.end(), may_hold)) return absl::OkStatus();
    return InvalidArgument("rank {}, as its name has it, is in none of its groups (pg_config): {}", rank, kRankRule);
  }

  uint32_t CommunicatorOf(const std::string& name, const std::string& description) {
    const auto before = index_of_name_.find(name);
    if (before != index_of_name_.end()) return before->second;
    const auto known = groups_.find(name);
    Communicator one = known != groups_.end() ? known->second : Communicator{name, description, {}};
    if (one.description.empty()) one.description = description;
    const auto [found, is_new] =
        index_.emplace(std::pair(name, one.ranks), static_cast<uint32_t>(log_.communicators.size()));
    if (is_new) log_.communicators.push_back(std::move(one));
    return index_of_name_[name] = found->second;
  }

  uint32_t FunctionOf(std::string name) {
    for (const std::string_view backend : kBackends)
      if (name.starts_with(backend)) name.erase(0, backend.size());
    return IndexOf(name, functions_, log_.functions);
  }

  static uint32_t IndexOf(const std::string& text, std::map<std::string, uint32_t>& known,
                          std::vector<std::string>& all) {
    const auto [found, is_new] = known.emplace(text, static_cast<uint32_t>(all.size()));
    if (is_new) all.push_back(text);
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
    op.shape = IndexOf(ShapeOf(entry), shapes_, log_.shapes);
    const std::string& function = log_.functions[op.function];
    const int64_t collective = IntegerAt(entry, "collective_seq_id", IntegerAt(entry, "seq_id", -1));
    const int64_t transfer = IntegerAt(entry, "p2p_seq_id", -1);
    const Batch batch{op.communicator, collective, transfer};
    // Before version 2.1 the name alone tells; of a batch's end, what the batch has.
    const bool ends_transfers = function == "coalesced" && !batch_of_.empty() && batch_of_.back() == batch &&
                                log_.ops.back().direction != Direction::kCollective;
    const bool is_transfer = BooleanAt(entry, "is_p2p", false) || ends_transfers || ParseTransfer(function).has_value();
    if (function == "coalesced" && collective >= 0 && EndBatch(batch, op.state, is_transfer)) return;
    op.sequence = is_transfer ? transfer : collective;
    counts_.Take(id, collective, transfer);
    if (is_transfer) {
      FindPeer(function, op);
    } else if (op.sequence < 0) {
      ++unreadable_;
      return;
    }
    if (is_transfer && transfer >= 0)
      op.batch = !batch_of_.empty() && batch_of_.back() == batch ? log_.ops.back().batch : ++batches_;
    log_.ops.push_back(std::move(op));
    batch_of_.push_back(function == "coalesced" ? kEnded : batch);
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
      std::fill(end.base(), batch_of_.end(), kEnded);
      return count > 0;
    }
    log_.ops.resize(log_.ops.size() - count);
    batch_of_.resize(batch_of_.size() - count);
    id_of_.resize(batch_of_.size());
    return false;
  }

  // Records in between are left out, as those of ended ops are in a dump of what is under way alone; or there are none
  // of what is counted.
  static bool LacksEnded(const std::set<int64_t>& records, const Json& dump) {
    if (records.empty()) return false;
    if (HasGaps(records)) return true;
    const Json& status = At(dump, "pg_status");
    return status.is_object() && std::any_of(status.begin(), status.end(), [](const Json& counts) {
             return GroupCounts::NumberAt(counts, "last_completed_collective") > 0;
           });
  }

  // Where what has ended is left out, so is the end of a batch, and what was launched in it stays `scheduled`.
  void EndBatches(const std::set<int64_t>& records) {
    const size_t begin = log_.ops.size() - batch_of_.size();
    for (size_t first = 0, next = 0; first < batch_of_.size(); first = next) {
      while (next < batch_of_.size() && batch_of_[next] == batch_of_[first]) ++next;
      if (batch_of_[first] == kEnded) continue;
      const CommOp& last = log_.ops[begin + next - 1];
      const bool is_transfer = last.direction != Direction::kCollective, several = next - first > 1;
      const bool left_out = !records.contains(last.order + 1), at_end = last.order == *records.rbegin();
      if (is_transfer && (!left_out || last.sequence < 0)) continue;  // none of a batch: its state is its own
      const std::optional<int64_t> ended = counts_.Ended(id_of_[first], is_transfer);
      if (!(ended ? last.sequence <= *ended : left_out && (several || (is_transfer && !at_end)))) continue;
      log_.unseen = log_.unseen || (!ended && (at_end || !several));
      for (size_t i = first; i < next; ++i) log_.ops[begin + i].state = OpState::kCompleted;
    }
  }

  // By the counters, what was launched in a group before all that is told of it has not ended either.
  bool LacksUnderWay() const {
    std::map<std::pair<int64_t, bool>, const CommOp*> firsts;  // by group, and whether it is a transfer
    for (size_t i = 0; i < id_of_.size(); ++i) {
      const CommOp& op = log_.ops[log_.ops.size() - id_of_.size() + i];
      const CommOp*& first = firsts[{id_of_[i], op.direction != Direction::kCollective}];
      if (first == nullptr || op.sequence < first->sequence) first = &op;
    }
    return std::ranges::any_of(firsts, [&](const auto& known) {
      const std::optional<int64_t> ended = counts_.Ended(known.first.first, known.first.second);
      return ended && known.second->state != OpState::kCompleted && known.second->sequence > *ended + 1;
    });
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
      if (destroyed_.IsDestroyed(communicator, rank, WholeNumber<int64_t>(id).value_or(-1))) continue;
      log_.counts.push_back({communicator, rank, GroupCounts::NumberAt(counts, "last_enqueued_collective"),
                             GroupCounts::NumberAt(counts, "last_completed_collective")});
    }
  }

  CommLog log_;
  std::vector<Batch> batch_of_;        // the ops of the dump that is being read
  std::vector<int64_t> id_of_;         // their groups' ids
  GroupCounts counts_;                 // the same
  std::map<int, DumpMoment> moments_;  // by rank
  DestroyedGroups destroyed_;
  OverrunRings rings_;
  std::map<std::string, Communicator> groups_;  // of the dump that is being read, by name
  std::map<std::pair<std::string, std::vector<int>>, uint32_t> index_;
  std::map<std::string, uint32_t> index_of_name_;  // the same, of the dump that is being read: a list may be long
  std::set<std::vector<int>> worlds_;              // of default groups, ascending, each once
  std::map<std::string, uint32_t> functions_, shapes_ = {{"", 0}};
  int64_t batches_ = 0;
  uint64_t unreadable_ = 0, without_peer_ = 0;
};

// Reads them all into `collector`.
absl::Status ReadFiles(const std::vector<DumpFile>& files, Collector& collector) {
  std::vector<absl::StatusOr<Json>> dumps;  // a batch of them
  absl::Status damage;
  size_t whole = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    if (i % kBatch == 0) {
      dumps.assign(std::min(kBatch, files.size() - i), absl::UnknownError("not read"));
      ParallelFor(dumps.size(), std::thread::hardware_concurrency(),
                  [&](size_t k, size_t /*worker*/) { dumps[k] = ReadDump(files[i + k].path); });
    }
    const absl::StatusOr<Json>& dump = dumps[i % kBatch];
    absl::Status read = dump.ok() ? collector.Add(files[i].rank, *dump, WrittenNs(files[i].path)) : dump.status();
    if (read.ok()) {
      ++whole;
      continue;
    }
    read = InvalidArgument("{}: {}", files[i].path, Message(read));
    if (files[i].named) return read;
    collector.Damaged(Message(read));
    if (damage.ok()) damage = read;
  }
  return whole == 0 ? damage : absl::OkStatus();
}

// "rank_2, rank_5 and 3 more".
std::string NamesOf(const std::vector<DumpFile>& files, const std::set<int>& ranks) {
  constexpr size_t kMost = 8;
  std::string names;
  size_t count = 0;
  for (const DumpFile& file : files)
    if (ranks.contains(file.rank) && ++count <= kMost)
      names += (names.empty() ? "" : ", ") + std::filesystem::path(file.path).filename().string();
  return count > kMost ? fmt::format("{} and {} more", names, count - kMost) : names;
}

void Note(std::string& text, const std::string& more) {
  if (!more.empty()) text += (text.empty() ? "" : "; ") + more;
}

// Who waits for whom can't be told from several moments.
void LeaveOut(CommLog& log, const DumpsApart& apart, const std::vector<DumpFile>& files) {
  log.ops.clear();
  log.counts.clear();
  log.moving = true;
  log.blind_spot = fmt::format(
      "the dumps are not of one moment ({}): dump all ranks again at once, or leave out what is of another "
      "time; behind the others: {}",
      apart.why, NamesOf(files, apart.ranks));
}

// Why there is nothing to read.
absl::Status NoDump(const std::vector<std::string>& paths) {
  std::vector<std::string> folders;
  std::error_code error;
  for (const std::string& path : paths)
    for (const auto& entry : std::filesystem::directory_iterator(path, error))
      if (entry.is_directory(error)) folders.push_back(entry.path().filename().string());
  std::sort(folders.begin(), folders.end());
  const std::string others =
      folders.empty() ? ""
                      : fmt::format("; of its {} folder(s), {} the first of them, give the one that has the dumps",
                                    folders.size(), folders.front());
  return InvalidArgument("{}: no dump of a Flight Recorder; expected a pickle or JSON per rank{}",
                         paths.empty() ? "" : paths.front(), others);
}

}  // namespace

absl::StatusOr<CommLog> ReadFlightRecorder(const std::vector<std::string>& paths) {
  uint64_t others = 0, old = 0;
  LS_ASSIGN_OR_RETURN(std::vector<DumpFile> files, FindDumpFiles(paths, others));
  if (files.empty()) return NoDump(paths);
  std::string left_out;
  while (true) {
    Collector collector;
    LS_RETURN_IF_ERROR(ReadFiles(files, collector));
    collector.CountOthers(others);
    CommLog log = collector.Finish();
    const DumpsApart apart = FindApart(log, collector.moments());
    if (apart.old.empty()) {
      Count(log.counters, "dumps_of_earlier_incidents", old);
      if (!apart.why.empty()) LeaveOut(log, apart, files);
      Note(log.blind_spot, left_out);
      return log;
    }
    old += apart.old.size();
    Note(left_out, fmt::format("left out, as much older than others: {} ({})", NamesOf(files, apart.old), apart.why));
    std::erase_if(files, [&](const DumpFile& file) { return apart.old.contains(file.rank); });
  }
}

}  // namespace lockstep::trace
