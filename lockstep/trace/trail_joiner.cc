#include "lockstep/trace/trail_joiner.h"

#include <fmt/format.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

#include "lockstep/trace/clocks.h"
#include "lockstep/trace/collectives.h"
#include "lockstep/trace/process_alone.h"

namespace lockstep::trace {
namespace {

constexpr std::array<std::string_view, LS_FUNCTIONS> kFunctions = {
    "other",  "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce",
    "gather", "scatter",    "all_to_all", "barrier",        "send",      "recv"};

constexpr uint64_t kMostKnown = 1 << 24;  // members, of all communicators

// A communicator as its members' trails tell of it.
struct Members {
  uint32_t size = 0;
  int64_t created_ns = 0;  // wall
  std::string name;
  bool tagged = false;  // the library numbers its collectives itself
  absl::btree_map<uint32_t, int> rank_of_place;
  uint32_t index = 0;  // in the log

  // -1: not known.
  int RankOf(int32_t place) const {
    const auto found = rank_of_place.find(static_cast<uint32_t>(place));
    return place < 0 || found == rank_of_place.end() ? -1 : found->second;
  }
  int64_t SequenceOf(uint32_t number, uint32_t tag) const {
    return tagged ? static_cast<int64_t>(tag) : static_cast<int64_t>(number);
  }
};

bool IsTransfer(const ls_op_body& op) { return op.function == LS_SEND || op.function == LS_RECEIVE; }
// Nobody can say that it is waited in.
bool IsOnlyLaunched(const ls_op_body& op) { return op.state == LS_OP_LAUNCHED; }

// Puts trails, of which each rank has one of each library, into one log.
class Joiner {
 public:
  explicit Joiner(const std::vector<TrailSnapshot>& trails) : trails_(trails) {}

  CommLog Run() {
    for (const std::string_view name : kFunctions) log_.functions.emplace_back(name);
    for (const TrailSnapshot& trail : trails_) TakeCommunicators(trail);
    NameCommunicators();
    size_t records = 0;
    for (const TrailSnapshot& trail : trails_) records += trail.ended.size() + trail.under_way.size();
    log_.ops.reserve(records);
    log_.transfers.reserve(records);  // what is not used is never touched
    for (const TrailSnapshot& trail : trails_) NoteToldOneOf(trail);
    NoteSteps();
    for (const TrailSnapshot& trail : trails_) NoteBegun(trail);
    NoteAtRest();
    for (const TrailSnapshot& trail : trails_) TakeRecords(trail);
    TellElsewhere();
    // A process may have a trail of each library.
    std::sort(log_.reported.begin(), log_.reported.end());
    log_.reported.erase(std::unique(log_.reported.begin(), log_.reported.end()), log_.reported.end());
    std::set_difference(log_.reported.begin(), log_.reported.end(), cut_.begin(), cut_.end(),
                        std::inserter(log_.whole, log_.whole.end()));
    if (only_launched_ > 0)
      log_.AddBlindSpot(
          fmt::format("of {} ops only the launch is known: no network had a part in them, or nobody saw how they "
                      "ended",
                      only_launched_));
    if (ahead_ > 0 && ahead_alone_ == 0)
      log_.AddBlindSpot(
          "what devices did between two collectives is not known, so that who comes late can't be told: not all that "
          "were launched before were seen to end (LOCKSTEP_NCCL_EVERY leaves some out), or none is a ring "
          "(LOCKSTEP_NCCL_KERNELS=1 tells of all)");
    if (not_known_ > 0)
      log_.AddBlindSpot(fmt::format("of {} members of communicators the ranks are not known", not_known_));
    if (!unseen_.empty()) TellUnseen();
    TellLibraries();
    FitHosts();
    log_.hosts = std::move(host_of_);
    return std::move(log_);
  }

 private:
  using HostEnds = std::vector<std::pair<size_t, int64_t>>;

  // What the records of one trail told so far.
  struct Told {
    std::vector<const Members*> communicators;         // as its records number them; null: not known
    absl::flat_hash_map<uint64_t, int64_t> sequences;  // of collectives, by Key
    absl::flat_hash_set<std::tuple<uint32_t, int64_t, Direction, int32_t>> transfers;  // by communicator, launch, peer
    std::map<uint32_t, int64_t> first_open, newest_ended;                              // sequence, by communicator
    bool launches_ahead = false;  // what it launches begins when a device has come
    int64_t last_end_ns = 0;      // where it launches ahead

    const Members* Of(uint32_t communicator) const {
      return communicator < communicators.size() ? communicators[communicator] : nullptr;
    }
  };

  static bool IsWhole(const TrailSnapshot& trail) {
    return trail.told_one_of.empty() && trail.missed == 0 && trail.no_place == 0 && trail.no_communicator == 0 &&
           trail.no_cell == 0;
  }
  static uint64_t Key(uint32_t communicator, uint32_t number) { return uint64_t{communicator} << 32 | number; }
  static int64_t Wall(const TrailSnapshot& trail, int64_t boot_ns) { return boot_ns + trail.wall_minus_boot_ns; }

  void TakeCommunicators(const TrailSnapshot& trail) {
    for (const ls_communicator& own : trail.communicators) {
      if (own.id == 0) continue;
      Members& members = members_[own.id];
      members.size = std::max(members.size, own.size);
      const int64_t created = Wall(trail, own.created_ns);
      members.created_ns = members.created_ns == 0 ? created : std::min(members.created_ns, created);
      members.name.assign(own.name, strnlen(own.name, sizeof own.name));
      members.tagged = members.tagged || own.tags > 1;
      members.rank_of_place[own.rank] = static_cast<int>(trail.origin.rank);
    }
  }

  // Who is in a communicator of all ranks is known without having heard of them.
  void KnowAll(Members& members, uint32_t world) {
    if (members.size != world) return;
    known_ += world;
    if (known_ > kMostKnown) return;
    for (uint32_t place = 0; place < world; ++place) members.rank_of_place.emplace(place, static_cast<int>(place));
  }

  // In the order in which they were made.
  void NameCommunicators() {
    std::vector<std::pair<int64_t, uint64_t>> order;
    order.reserve(members_.size());
    for (const auto& [id, members] : members_) order.emplace_back(members.created_ns, id);
    std::sort(order.begin(), order.end());
    const uint32_t world = trails_.empty() ? 0 : trails_.front().origin.world;
    for (const auto& [created, id] : order) {
      Members& members = members_[id];
      members.index = static_cast<uint32_t>(log_.communicators.size());
      Communicator communicator;
      communicator.name = std::to_string(log_.communicators.size());
      communicator.description = !members.name.empty()   ? members.name
                                 : members.size == world ? "all ranks"
                                                         : fmt::format("{} ranks", members.size);
      communicator.size = members.size;
      KnowAll(members, world);
      for (const auto& [place, rank] : members.rank_of_place) communicator.ranks.push_back(rank);
      Count(log_.counters, "members_not_known", communicator.unknown());
      not_known_ += communicator.unknown();
      log_.communicators.push_back(std::move(communicator));
    }
  }

  void NoteToldOneOf(const TrailSnapshot& trail) {
    for (size_t i = 0; i < trail.communicators.size(); ++i) {
      if (trail.communicators[i].id == 0) continue;
      Communicator& communicator = log_.communicators[members_.at(trail.communicators[i].id).index];
      const auto raise = [i](const std::vector<uint32_t>& all, int64_t& one_of) {
        if (i < all.size()) one_of = std::max(one_of, int64_t{all[i]});
      };
      raise(trail.told_one_of, communicator.told_one_of);
      raise(trail.long_told_one_of, communicator.long_told_one_of);
    }
  }

  // Of the rank in the middle: one alone may have others.
  void NoteSteps() {
    std::vector<const TrailSnapshot*> tell;
    for (const TrailSnapshot& trail : trails_)
      if (!trail.step_ends_ns.empty()) tell.push_back(&trail);
    if (tell.empty()) return;
    const auto middle = tell.begin() + static_cast<std::ptrdiff_t>(tell.size() / 2);
    std::ranges::nth_element(tell, middle, {},
                             [](const TrailSnapshot* one) { return std::pair{one->step_ns, one->origin.rank}; });
    steps_host_ = (*middle)->host();
    log_.step_ns = (*middle)->step_ns;
    for (const int64_t end_ns : (*middle)->step_ends_ns) log_.step_ends_ns.push_back(Wall(**middle, end_ns));
  }

  // Members that have fewer of a communicator's collectives tell of more than others do.
  bool IsToldByAll(const TrailSnapshot& trail, const ls_record& op, const Communicator& communicator) const {
    const auto is_picked = [&](int64_t one_of) { return one_of > 0 && IsPicked(op, static_cast<uint32_t>(one_of)); };
    return trail.told_one_of.empty() || is_picked(communicator.told_one_of) ||
           (trail.IsLong(op) && is_picked(communicator.long_told_one_of));
  }

  void TakeRecords(const TrailSnapshot& trail) {
    const int rank = static_cast<int>(trail.origin.rank);
    host_of_[rank] = trail.host();
    TakeDataWaits(trail, rank);
    if (trail.owner().second == kDataLibrary) return;  // it says nothing of communication
    log_.reported.push_back(rank);
    if (!IsWhole(trail)) cut_.insert(rank);
    // Else they are single ops, of objects that were not understood.
    if (trail.no_communicator > 0 && trail.communicators.size() >= LS_TRAIL_COMMUNICATORS) unseen_.insert(rank);
    Told told;
    for (const ls_communicator& own : trail.communicators)
      told.communicators.push_back(own.id == 0 ? nullptr : &members_.at(own.id));
    told.launches_ahead = LaunchesAhead(trail);
    libraries_[rank] |= trail.libraries;
    if (told.launches_ahead) tells_devices_.insert(rank);
    if (told.launches_ahead)
      for (const ls_record& record : trail.ended) told.last_end_ns = std::max(told.last_end_ns, record.time_ns);
    told.sequences.reserve(trail.ended.size() + trail.under_way.size());
    // Of an op that a device comes to later what came of it counts before that it was launched, which may be told, too.
    const auto take = [&](const std::vector<ls_record>& records, bool is_under_way, bool only_launched) {
      for (const ls_record& record : records)
        if (record.kind == LS_RECORD_OP &&
            (told.launches_ahead && record.body.op.state == LS_OP_LAUNCHED) == only_launched)
          TakeOp(trail, record, is_under_way, told);
    };
    take(trail.ended, false, false);
    take(trail.under_way, true, false);
    take(trail.ended, false, true);
    take(trail.under_way, true, true);
    for (const ls_record& record : trail.ended)
      if (record.kind == LS_RECORD_TRANSFER) TakeTransfer(trail, record, told);
    TakeCounts(trail, told);
    Count(log_.counters, "records_overwritten", trail.missed);
    for (const auto& [count, name] : {std::pair{trail.no_place, "ops_without_place"},
                                      {trail.no_communicator, "ops_of_unknown_communicators"},
                                      {trail.no_peer, "messages_without_sum"},
                                      {trail.no_cell, "records_without_cell"},
                                      {trail.no_op, "calls_without_op"}})
      Count(log_.counters, name, count);
  }

  // Ranks may be in ops of communicators of which nothing is told.
  void TellUnseen() {
    log_.unseen = true;
    log_.doubt = "how long it waits in communicators of which nothing is told";
    log_.AddBlindSpot(fmt::format("of some communicators of {} rank(s), {} the first of them, nothing is told",
                                  unseen_.size(), *unseen_.begin()));
  }

  // Ranks may wait for each other by other libraries.
  void TellLibraries() {
    std::set<int> ranks;
    for (const auto& [rank, libraries] : libraries_)
      if ((libraries & LS_LIBRARY_OF_DEVICES) != 0 && !tells_devices_.contains(rank)) ranks.insert(rank);
    if (ranks.empty()) return;
    constexpr std::string_view kOf = "libraries of its devices (NCCL, RCCL)";
    if (log_.doubt.empty()) log_.doubt = fmt::format("how long it waits in {}", kOf);
    log_.AddBlindSpot(fmt::format("{} rank(s), {} the first of them, may wait in {}, of which nothing is told",
                                  ranks.size(), *ranks.begin(), kOf));
  }

  void TakeDataWaits(const TrailSnapshot& trail, int rank) {
    for (const ls_record& record : trail.ended) {
      if (record.kind != LS_RECORD_DATA) continue;
      DataWait wait = ToDataWait(record);
      wait.rank = rank;
      wait.end_ns = Wall(trail, record.time_ns);
      log_.data_waits.push_back(std::move(wait));
    }
    for (const ls_record& record : trail.under_way)
      if (record.kind == LS_RECORD_DATA && trail.alive)
        log_.remarks[rank] =
            fmt::format("has waited {:.1f} s for a batch of the data set {}",
                        static_cast<double>(std::max<int64_t>(0, trail.taken_ns - record.time_ns)) / 1e9,
                        ToDataWait(record).data_set);
  }

  // Since it could begin; where nobody knows whether its process still runs, at the least; -1: not known.
  int64_t AgeOf(const TrailSnapshot& trail, const ls_record& record, const Told& told) const {
    if (!trail.alive && !trail.elsewhere) return -1;
    const int64_t begun = told.launches_ahead ? std::max(record.time_ns, told.last_end_ns) : record.time_ns;
    return std::max<int64_t>(0, (trail.alive ? trail.taken_ns : newest_on_.at(trail.host())) - begun);
  }

  void TellElsewhere() {
    if (elsewhere_.empty()) return;
    log_.AddBlindSpot(
        fmt::format("whether the processes of {} rank(s), {} the first of them, still run is known on their hosts "
                    "only, and so is whether they hang",
                    elsewhere_.size(), *elsewhere_.begin()));
  }

  // Whether it says something of the job.
  bool Tells(const TrailSnapshot& trail, const ls_record& record, const Members& members) const {
    const ls_op_body& body = record.body.op;
    if (IsTransfer(body)) return !HasGoneOn(trail, record);
    if (body.state >= LS_OP_COMPLETED && !IsToldByAll(trail, record, log_.communicators[members.index])) return false;
    // Where the library numbers its collectives, one without a number has sent nothing: nobody has met in it, or not
    // yet.
    return !(members.tagged && body.tag == LS_NO_TAG) && !HasGoneOn(trail, record);
  }

  // A rank that did something else after a failure.
  bool HasGoneOn(const TrailSnapshot& trail, const ls_record& record) const {
    return record.body.op.state == LS_OP_FAILED &&
           newest_begun_.at(static_cast<int>(trail.origin.rank)) > record.time_ns;
  }

  // Of one that has ended nobody asks: it was the same on all members.
  uint32_t ShapeOf(const ls_op_body& body) {
    const int32_t brings = ls_op_brings(&body);
    if (brings < 0 || body.state == LS_OP_COMPLETED) return 0;
    const auto [found, is_new] = shapes_.emplace(brings, static_cast<uint32_t>(log_.shapes.size()));
    if (is_new) log_.shapes.push_back(fmt::format("of {} bytes", brings));
    return found->second;
  }

  CommOp OpOf(const TrailSnapshot& trail, const ls_record& record, bool is_under_way, const Members& members,
              const Told& told) {
    const ls_op_body& body = record.body.op;
    const bool transfer = IsTransfer(body), ended = body.state >= LS_OP_COMPLETED, failed = body.state == LS_OP_FAILED;
    CommOp op;
    op.communicator = members.index;
    op.rank = static_cast<int>(trail.origin.rank);
    op.direction = !transfer                  ? Direction::kCollective
                   : body.function == LS_SEND ? Direction::kSend
                                              : Direction::kReceive;
    op.peer = transfer ? members.RankOf(body.peer) : -1;
    op.sequence = members.SequenceOf(body.number, body.tag);
    const int64_t launched = LaunchOf(record, is_under_way);
    op.duration_ns = ended ? record.time_ns - launched : -1;
    op.order = launched;
    op.created_ns = Wall(trail, launched);
    op.function = body.function;
    op.shape = ShapeOf(body);
    op.state = (ended && !failed) || IsOnlyLaunched(body) ? OpState::kCompleted : OpState::kStarted;
    // Each is carried out by itself once it has begun.
    if (transfer && op.state == OpState::kStarted) op.batch = CommOp::kUnderWay;
    op.age_ns = failed ? op.duration_ns : is_under_way ? AgeOf(trail, record, told) : -1;
    const int64_t alone_ns = body.alone == LS_UNKNOWN ? -1 : ls_delta_ns(body.alone, record.delta_shift);
    (transfer ? op.held_up_ns : op.alone_ns) = alone_ns;
    op.bytes = body.bytes;
    op.waits_for = ended ? -1 : members.RankOf(body.waits_for);
    op.messages = body.messages;
    op.ring = body.algorithm == LS_ALGORITHM_RING;
    op.after_long = !transfer && trail.IsLong(record);
    op.awaits_device = !ended && body.awaits == LS_OWN_DEVICE;
    return op;
  }

  // What one op tells of its trail and of the log as a whole. False: it is in there, for it ended while we read.
  bool Note(const CommOp& op, const ls_op_body& body, bool is_under_way, Told& told) {
    const bool transfer = IsTransfer(body), unknown = IsOnlyLaunched(body);
    const bool anew = transfer ? told.transfers.emplace(body.communicator, op.order, op.direction, body.peer).second
                               : told.sequences.emplace(Key(body.communicator, body.number), op.sequence).second;
    if (!anew) return false;
    only_launched_ += unknown;
    ahead_ += told.launches_ahead && !transfer;
    ahead_alone_ += told.launches_ahead && op.alone_ns >= 0;
    log_.unseen = log_.unseen || (unknown && is_under_way);
    if (!transfer && op.state == OpState::kCompleted) {
      int64_t& newest = told.newest_ended.emplace(body.communicator, op.sequence).first->second;
      newest = std::max(newest, op.sequence);
    }
    if (!transfer && op.state != OpState::kCompleted) {
      const auto [first, only] = told.first_open.emplace(body.communicator, op.sequence);
      if (!only) first->second = std::min(first->second, op.sequence);
    }
    return true;
  }

  void TakeOp(const TrailSnapshot& trail, const ls_record& record, bool is_under_way, Told& told) {
    const ls_op_body& body = record.body.op;
    const Members* const members = told.Of(body.communicator);
    if (members == nullptr || body.function >= LS_FUNCTIONS) {
      Count(log_.counters, "unreadable_records", 1);
      return;
    }
    if (!Tells(trail, record, *members)) return;
    CommOp op = OpOf(trail, record, is_under_way, *members, told);
    // Its process is gone, or may be: how long it had been there nobody knows.
    const bool elsewhere = is_under_way && trail.elsewhere && op.state != OpState::kCompleted;
    if (elsewhere) elsewhere_.insert(op.rank);
    log_.moving = log_.moving || elsewhere || (op.state != OpState::kCompleted && op.age_ns < 0);
    if (Note(op, body, is_under_way, told)) log_.ops.push_back(std::move(op));
  }

  static int64_t LaunchOf(const ls_record& record, bool is_under_way) {
    return record.time_ns - (is_under_way ? 0 : ls_delta_ns(record.body.op.duration, record.delta_shift));
  }

  // When the rank last made a communicator or launched an op, of whatever library; when it last told of any, and when
  // its host last told anything.
  void NoteBegun(const TrailSnapshot& trail) {
    const int rank = static_cast<int>(trail.origin.rank);
    int64_t& newest = newest_begun_[rank];
    int64_t& newest_there = newest_on_[trail.host()];
    int64_t told = 0;
    for (const ls_communicator& own : trail.communicators)
      if (own.id != 0) newest = std::max(newest, own.created_ns);
    for (const bool is_under_way : {false, true})
      for (const ls_record& record : is_under_way ? trail.under_way : trail.ended) {
        newest_there = std::max(newest_there, record.time_ns);
        if (record.kind != LS_RECORD_OP) continue;
        newest = std::max(newest, LaunchOf(record, is_under_way));
        told = std::max(told, record.time_ns);
      }
    if (!trail.alive || trail.owner().second == kDataLibrary) return;
    const int64_t quiet = std::max<int64_t>(0, trail.taken_ns - std::max(told, newest));
    if (const auto [known, anew] = log_.quiet_ns.emplace(rank, quiet); !anew)
      known->second = std::min(known->second, quiet);
  }

  // Ranks of which no process that communicates goes on: one that waited for data may have been another, an evaluation
  // say, and one that was started again may not have used all libraries yet. Where none runs, somebody paused the job,
  // or it is over, and nobody knows who was gone first.
  void NoteAtRest() {
    std::map<int, std::string> at_rest;
    std::set<int> run;
    for (const TrailSnapshot& trail : trails_) {
      if (trail.owner().second == kDataLibrary) continue;
      const int rank = static_cast<int>(trail.origin.rank);
      if (trail.stopped)
        at_rest[rank] = "its process is stopped (state T)";
      else if (trail.alive || trail.elsewhere)
        run.insert(rank);
      else
        at_rest.emplace(rank, "its process is gone");
    }
    if (run.empty()) at_rest.clear();
    for (const int rank : run) at_rest.erase(rank);
    log_.at_rest = std::move(at_rest);
  }

  void TakeTransfer(const TrailSnapshot& trail, const ls_record& record, const Told& told) {
    const ls_transfer_body& body = record.body.transfer;
    const Members* const members = told.Of(body.communicator);
    const auto op = told.sequences.find(Key(body.communicator, body.number));
    const bool alone = body.number == 0;
    if (members == nullptr || (!alone && op == told.sequences.end())) return;  // its op was overwritten
    CommTransfer transfer;
    transfer.communicator = members->index;
    transfer.sequence = alone ? CommTransfer::kAlone : op->second;
    transfer.ended_ns = Wall(trail, record.time_ns);
    transfer.rank = static_cast<int>(trail.origin.rank);
    transfer.peer = members->RankOf(body.peer);
    transfer.direction = body.direction == LS_SEND ? Direction::kSend : Direction::kReceive;
    transfer.count = body.count;
    transfer.bytes = body.bytes;
    transfer.waited_ns = ls_delta_ns(body.waited, record.delta_shift);
    transfer.first_ns = ls_delta_ns(body.first, record.delta_shift);
    if (told.launches_ahead) transfer.first_ns = -1;  // it counts from when a proxy asked for it
    if (transfer.direction == Direction::kSend && body.credit != LS_UNKNOWN) transfer.wire_ns = transfer.waited_ns;
    transfer.port = body.port;
    if (transfer.peer >= 0) log_.transfers.push_back(transfer);
  }

  // Where ops found no place, the rank may be in one of them. -1: not known.
  static int64_t SeenToEnd(const ls_communicator& own, const Members& members, const Told& told, uint32_t index) {
    const auto newest = told.newest_ended.find(index);
    const int64_t told_of = newest == told.newest_ended.end() ? -1 : newest->second;
    return members.tagged ? told_of : std::max(told_of, static_cast<int64_t>(own.ended));
  }

  // They hold where records were overwritten.
  void TakeCounts(const TrailSnapshot& trail, const Told& told) {
    for (uint32_t i = 0; i < trail.communicators.size(); ++i) {
      const ls_communicator& own = trail.communicators[i];
      const Members* const members = told.Of(i);
      if (members == nullptr) continue;
      CommCount count;
      count.communicator = members->index;
      count.rank = static_cast<int>(trail.origin.rank);
      count.enqueued = members->tagged ? static_cast<int64_t>(own.tags) - 1 : static_cast<int64_t>(own.launched);
      const auto first_open = told.first_open.find(i);
      count.completed = first_open != told.first_open.end() ? first_open->second - 1
                        : trail.no_place == 0               ? count.enqueued
                                                            : SeenToEnd(own, *members, told, i);
      log_.counts.push_back(count);
    }
  }

  // Times of all hosts onto one clock.
  void FitHosts() {
    std::map<std::string, size_t> hosts;
    for (const auto& [rank, host] : host_of_) hosts.emplace(host, hosts.size());
    if (hosts.size() < 2) return;
    std::vector<size_t> of_rank(static_cast<size_t>(host_of_.rbegin()->first) + 1);
    for (const auto& [rank, host] : host_of_) of_rank[static_cast<size_t>(rank)] = hosts.at(host);
    const std::vector<ClockOffset> offsets = FitClocks(hosts.size(), EndsOfHosts(of_rank));
    for (CommOp& op : log_.ops)
      op.created_ns += static_cast<int64_t>(offsets[of_rank[static_cast<size_t>(op.rank)]].offset_ns);
    if (const auto host = hosts.find(steps_host_); host != hosts.end())
      for (int64_t& end_ns : log_.step_ends_ns) end_ns += static_cast<int64_t>(offsets[host->second].offset_ns);
    for (DataWait& wait : log_.data_waits)
      wait.end_ns += static_cast<int64_t>(offsets[of_rank[static_cast<size_t>(wait.rank)]].offset_ns);
  }

  // Of each collective the last end of each host: members that share a clock tell nothing about it.
  std::vector<HostEnds> EndsOfHosts(const std::vector<size_t>& host_of_rank) const {
    const Collectives collectives(log_.ops);
    std::vector<HostEnds> ends(collectives.size());
    for (size_t i = 0; i < log_.ops.size(); ++i) {
      if (collectives.of(i) == Collectives::kNone) continue;
      const CommOp& op = log_.ops[i];
      HostEnds& of_hosts = ends[collectives.of(i)];
      const size_t host = host_of_rank[static_cast<size_t>(op.rank)];
      const int64_t end = op.created_ns + op.duration_ns;
      if (of_hosts.empty() || of_hosts.back().first != host)
        of_hosts.emplace_back(host, end);
      else
        of_hosts.back().second = std::max(of_hosts.back().second, end);
    }
    std::vector<HostEnds> together;
    for (const uint32_t one : collectives.InOrder()) {
      HostEnds& of_hosts = ends[one];
      std::sort(of_hosts.begin(), of_hosts.end(), [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first < b.first : a.second > b.second;
      });
      const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
      of_hosts.erase(std::unique(of_hosts.begin(), of_hosts.end(), same), of_hosts.end());
      if (of_hosts.size() > 1) together.push_back(std::move(of_hosts));
    }
    return together;
  }

  const std::vector<TrailSnapshot>& trails_;
  CommLog log_;
  std::string steps_host_;               // whose clock tells when steps ended
  std::map<uint64_t, Members> members_;  // by the communicator's id
  uint64_t known_ = 0, not_known_ = 0, only_launched_ = 0;
  uint64_t ahead_ = 0,
           ahead_alone_ = 0;            // collectives of devices, and those that tell how long these were alone before
  std::map<int32_t, uint32_t> shapes_;  // by bytes
  std::map<int, std::string> host_of_;
  std::map<int, int64_t> newest_begun_;       // of ranks, on their host's clock
  std::map<std::string, int64_t> newest_on_;  // of hosts
  std::set<int> elsewhere_;                   // ranks that are in an op, and nobody knows whether they still run
  std::set<int> cut_;                         // ranks of whose records some were lost
  std::set<int> unseen_;                      // ranks that have communicators of which nothing is told
  std::map<int, uint64_t> libraries_;         // of ranks, that may communicate too
  std::set<int> tells_devices_;               // ranks that have a trail of NCCL
};

}  // namespace

CommLog JoinChosen(const std::vector<TrailSnapshot>& trails) { return Joiner(trails).Run(); }

}  // namespace lockstep::trace
