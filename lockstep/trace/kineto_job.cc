#include "lockstep/trace/kineto_job.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "lockstep/base/median.h"
#include "lockstep/base/wall_time.h"
#include "lockstep/trace/kineto_alike.h"
#include "lockstep/trace/kineto_awaits.h"
#include "lockstep/trace/kineto_match.h"
#include "lockstep/trace/kineto_steps.h"
#include "lockstep/trace/meetings.h"
#include "lockstep/trace/untold_transfers.h"

namespace lockstep::trace {
namespace {

float ToSeconds(int64_t ns) { return static_cast<float>(static_cast<double>(ns) / 1e9); }

class Builder {
 public:
  explicit Builder(std::vector<KinetoRank> ranks) : ranks_(std::move(ranks)) {}

  absl::StatusOr<KinetoJob> Build(const std::vector<StepRange>& wanted) {
    LS_RETURN_IF_ERROR(OrderAsOneJob(ranks_));
    LS_ASSIGN_OR_RETURN(steps_, FindSteps(ranks_, wanted));
    match_.emplace(ranks_, steps_);
    LS_ASSIGN_OR_RETURN(out_.clocks, match_->FitClocks());
    match_->MatchUntold();
    wraps_ = Wraps() || WrapsAroundTwo();
    if (steps_.pipelines) AwaitAllReceives();
    NumberOps();
    absl::Status built = BuildGraph();
    if (!built.ok() && ForgetInferred()) built = BuildGraph();
    LS_RETURN_IF_ERROR(built);
    if (ranks_.size() > 1) Count(steps_.counters, "unmatched_collectives", single_);
    Count(steps_.counters, kRanksWithoutPeers, RanksWithoutPeers());
    Fill();
    Describe();
    return std::move(out_);
  }

 private:
  // Ops of the graph: of each role its segments of compute, then its communications.
  void NumberOps() {
    std::map<std::string, size_t> kinds;
    const auto kind_of = [&](const std::string& name) {
      const auto [found, is_new] = kinds.emplace(name, out_.job.kinds.size());
      if (is_new) out_.job.kinds.push_back(name);
      return static_cast<int>(found->second);
    };
    int segments = 0;
    for (size_t role = 0; role < steps_.roles.size(); ++role) {
      const RoleForm& form = steps_.roles[role];
      const size_t rank = RankOf(role);
      const int stage = StageOf(rank);
      first_op_.push_back(static_cast<uint32_t>(ops_.size()));
      const std::vector<int> microbatches = Microbatches(role), alike = AlikeSegments(role);
      for (size_t i = 0; i + 1 < form.cuts; ++i)
        ops_.push_back({OpType::kSegment, stage, static_cast<int>(i), segments + alike[i], microbatches[i], -1,
                        kind_of(PartOf(form, i))});
      segments += static_cast<int>(Segments(role));
      first_collective_.push_back(static_cast<uint32_t>(ops_.size()));
      for (size_t i = 0; i < form.names.size(); ++i) {
        const OpType type = TypeOf(rank, i);
        ops_.push_back({type, stage, static_cast<int>(i), -1, -1, -1,
                        kind_of(type == OpType::kCollective ? form.names[i] : std::string(KindName(type)))});
      }
    }
  }

  // Of a role, (direction, communication); an exchange goes forward and comes backward, or the other way round.
  std::vector<std::pair<OpType, size_t>> TransfersOf(size_t role) const {
    const RoleForm& form = steps_.roles[role];
    std::vector<std::pair<OpType, size_t>> transfers;
    for (size_t i = 0; i < form.names.size(); ++i) {
      const OpType type = TypeOf(RankOf(role), i);
      if (!IsTransfer(type)) continue;
      transfers.emplace_back(type, i);
      if (form.names[i] == kExchange)
        transfers.emplace_back(type == OpType::kForwardSend ? OpType::kBackwardRecv : OpType::kBackwardSend, i);
    }
    return transfers;
  }

  // Also where the receive was never seen to be awaited, because something else took longer in every step.
  void AwaitAllReceives() {
    for (const RoleForm& form : steps_.roles) seen_awaited_.push_back(form.awaited_cut);
    for (size_t role = 0; role < steps_.roles.size(); ++role) {
      std::map<OpType, std::vector<size_t>> by_type;
      for (const auto& [type, i] : TransfersOf(role)) by_type[type].push_back(i);
      if (wraps_) {
        AwaitReceivesBeside(steps_.roles[role], by_type[OpType::kForwardRecv], by_type[OpType::kBackwardRecv]);
        AwaitReceivesBeside(steps_.roles[role], by_type[OpType::kBackwardRecv], by_type[OpType::kForwardRecv]);
        continue;
      }
      const std::vector<size_t>&forward = by_type[OpType::kForwardSend], &backward = by_type[OpType::kBackwardSend];
      AwaitReceives(steps_.roles[role], by_type[OpType::kForwardRecv], forward, backward);
      AwaitReceives(steps_.roles[role], by_type[OpType::kBackwardRecv], backward, {});
    }
  }

  // Of the segments of a role; without pipelines all are of one. Where model chunks wrap around, the n-th forward is
  // not of the same as the n-th backward.
  std::vector<int> Microbatches(size_t role) const {
    if (!steps_.pipelines) return std::vector<int>(Segments(role), 0);
    if (wraps_) return std::vector<int>(Segments(role), -1);
    const RoleForm& form = steps_.roles[role];
    std::vector<TransferOfRole> transfers;
    for (const auto& [type, i] : TransfersOf(role))
      transfers.push_back({type, form.input_cut[i] - 1, form.awaited_cut[i]});
    return MicrobatchesOf(Segments(role), transfers);
  }

  // Of a role. Where chunks wrap around two stages, what one sends to the other may be of a forward or of a backward
  // pass: only the times tell these apart.
  std::vector<SegmentKind> KindsOf(size_t role) const {
    std::vector<OpType> types;
    for (size_t i = 0; i < steps_.roles[role].names.size(); ++i) types.push_back(TypeOf(RankOf(role), i));
    std::vector<SegmentKind> kinds = KindsByTransfers(steps_.roles[role], types);
    if (!wraps_ || !OnTwoStages()) return kinds;
    const std::vector<UsualTime> times = UsualTimes(role);
    std::vector<SegmentKind> all;
    for (const SegmentKind& kind : kinds) std::ranges::move(KindsByTime(kind, times), std::back_inserter(all));
    return all;
  }

  // Of each segment of a role, the first that is like it.
  std::vector<int> AlikeSegments(size_t role) const {
    std::vector<int> alike(Segments(role));
    for (const SegmentKind& kind : KindsOf(role))
      for (const size_t i : kind) alike[i] = static_cast<int>(kind.front());
    return alike;
  }

  // Of the segments of a role, from the begin of the first op to the end of the last.
  std::vector<UsualTime> UsualTimes(size_t role) const {
    std::vector<std::vector<double>> shares(Segments(role));
    for (const std::vector<RankStep>& step : steps_.ops)
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (steps_.role_of[rank] != role) continue;
        const auto op = [&](size_t i) -> const DeviceOp& { return ranks_[rank].ops[step[rank].computes[i]]; };
        const std::vector<size_t>& cuts = step[rank].cuts;
        std::vector<double> times;
        for (size_t i = 0; i < shares.size(); ++i)
          times.push_back(
              cuts[i] < cuts[i + 1] ? static_cast<double>(op(cuts[i + 1] - 1).end_ns() - op(cuts[i]).begin_ns) : 0);
        const double all = std::accumulate(times.begin(), times.end(), 0.0);
        for (size_t i = 0; i < shares.size() && all > 0; ++i) shares[i].push_back(times[i] / all);
      }
    std::vector<UsualTime> usual;
    for (const std::vector<double>& of_segment : shares) usual.push_back(UsualTimeOf(of_segment));
    return usual;
  }

  bool OnTwoStages() const { return steps_.pipelines && steps_.pipelines->stages() == 2; }

  // By whom they send to nothing tells of two stages whether chunks wrap around. But else segments between the same
  // transfers do the same.
  bool WrapsAroundTwo() const {
    constexpr size_t kSurely = 2;
    size_t others = 0;
    for (size_t role = 0; role < steps_.roles.size() && OnTwoStages(); ++role) {
      const std::vector<UsualTime> times = UsualTimes(role);
      for (const SegmentKind& kind : KindsOf(role)) others += CountOthers(kind, times);
    }
    return others >= kSurely;
  }

  // A first stage receives no forward.
  bool Wraps() const {
    for (size_t rank = 0; rank < ranks_.size() && steps_.pipelines; ++rank)
      for (size_t i = 0; i < steps_.ops[0][rank].collectives.size() && StageOf(rank) == 0; ++i)
        if (TypeOf(rank, i) == OpType::kForwardRecv) return true;
    return false;
  }

  // Ranks that do what no other does. The stages of a single pipeline are held against each other, and a rank given
  // alone was not meant to be.
  uint64_t RanksWithoutPeers() const {
    if (ranks_.size() == 1 || (steps_.pipelines && PipelineCount() == 1)) return 0;
    std::vector<int64_t> ranks(steps_.roles.size());
    for (const size_t role : steps_.role_of) ++ranks[role];
    return static_cast<uint64_t>(std::ranges::count(ranks, 1));
  }

  // Any rank that has this role.
  size_t RankOf(size_t role) const {
    return static_cast<size_t>(std::find(steps_.role_of.begin(), steps_.role_of.end(), role) - steps_.role_of.begin());
  }

  // Without pipelines each rank is one of its own, of one stage.
  int StageOf(size_t rank) const { return steps_.pipelines ? steps_.pipelines->StageOf(rank) : 0; }
  size_t PipelineOf(size_t rank) const {
    return steps_.pipelines ? static_cast<size_t>(steps_.pipelines->PipelineOf(rank)) : rank;
  }
  size_t PipelineCount() const { return steps_.pipelines ? steps_.pipelines->ranks().size() : ranks_.size(); }
  uint32_t LaneOf(size_t step, size_t rank) const {
    return static_cast<uint32_t>(step * PipelineCount() + PipelineOf(rank));
  }

  const Collective& CollectiveOf(size_t rank, size_t i) const {
    return ranks_[rank].collectives[match_->OpOf(0, rank, i).collective];
  }
  OpType TypeOf(size_t rank, size_t i) const {
    if (!steps_.pipelines) return OpType::kCollective;
    return steps_.pipelines->TypeOf(rank, CollectiveOf(rank, i)).value_or(OpType::kCollective);
  }

  static std::string PartOf(const RoleForm& form, size_t segment) {
    const bool told = segment < form.parts.size() && !form.parts[segment].empty();
    return told ? form.parts[segment] : "compute";
  }

  size_t Segments(size_t role) const { return steps_.roles[role].cuts - 1; }

  // What was not seen but inferred, in case that it contradicts itself: one rank's order is not another's. False: there
  // is nothing of that kind.
  bool ForgetInferred() {
    bool any = false;
    for (size_t role = 0; role < steps_.roles.size(); ++role) {
      RoleForm& form = steps_.roles[role];
      const std::vector<size_t> none(form.behind.size(), RoleForm::kNever);
      any |= form.behind != none || (!seen_awaited_.empty() && form.awaited_cut != seen_awaited_[role]);
      form.behind = none;
      if (!seen_awaited_.empty()) form.awaited_cut = seen_awaited_[role];
    }
    builder_ = graph::OpGraphBuilder();
    if (any) Count(steps_.counters, "contradictory_waits", 1);
    return any;
  }

  absl::Status BuildGraph() {
    for (size_t op = 0; op < ops_.size(); ++op) builder_.AddOp();
    for (size_t role = 0; role < steps_.roles.size(); ++role) AddRole(role);
    std::vector<uint32_t> first_lane;
    for (size_t step = 0; step <= steps_.numbers.size(); ++step)
      first_lane.push_back(static_cast<uint32_t>(step * PipelineCount()));
    AddGroups(first_lane);
    LS_ASSIGN_OR_RETURN(graph::OpGraphBuilder::Built built, builder_.Build(std::move(first_lane), [&](uint32_t op) {
      return fmt::format("{} {}", out_.job.kinds[static_cast<size_t>(ops_[op].kind)], ops_[op].sequence);
    }));
    out_.job.graph = std::move(built.graph);
    number_ = std::move(built.number);
    return absl::OkStatus();
  }

  void AddRole(size_t role) {
    const RoleForm& form = steps_.roles[role];
    // Segment n lies between cuts n and n + 1.
    const auto segment = [&](size_t number) { return first_op_[role] + static_cast<uint32_t>(number); };
    for (uint32_t i = 1; i < Segments(role); ++i) builder_.AddDependency(first_op_[role] + i - 1, first_op_[role] + i);
    std::map<uint32_t, uint32_t> last_on;  // stream
    for (uint32_t i = 0; i < form.names.size(); ++i) {
      const uint32_t op = first_collective_[role] + i;
      if (form.input_cut[i] > 0) builder_.AddDependency(segment(form.input_cut[i] - 1), op);
      if (form.behind[i] != RoleForm::kNever)
        builder_.AddDependency(first_collective_[role] + static_cast<uint32_t>(form.behind[i]), op);
      if (form.streams[i] == kNoIndex) {
        builder_.AddFinal(op);
      } else {
        if (const auto last = last_on.find(form.streams[i]); last != last_on.end())
          builder_.AddDependency(last->second, op);
        last_on[form.streams[i]] = op;
      }
      if (form.awaited_cut[i] < Segments(role)) builder_.AddDependency(op, segment(form.awaited_cut[i]));
    }
    if (Segments(role) > 0) builder_.AddFinal(first_op_[role] + static_cast<uint32_t>(Segments(role)) - 1);
    for (const auto& [stream, op] : last_on) builder_.AddFinal(op);
  }

  void AddGroups(const std::vector<uint32_t>& first_lane) {
    std::vector<uint32_t> role_of_op, communications;
    for (size_t role = 0; role < steps_.roles.size(); ++role) {
      role_of_op.insert(role_of_op.end(), Segments(role) + steps_.roles[role].names.size(),
                        static_cast<uint32_t>(role));
      for (uint32_t i = 0; i < steps_.roles[role].names.size(); ++i)
        communications.push_back(first_collective_[role] + i);
    }
    Meetings meetings(std::move(role_of_op), first_lane);
    for (size_t step = 0; step < steps_.numbers.size(); ++step)
      for (const KinetoMatch::Members& members : match_->Candidates(step)) {
        std::vector<Meetings::Member> met;
        for (const auto& member : members) met.push_back({LaneOf(step, member.first), OpNumber(member)});
        meetings.Add(std::move(met), match_->EndTogether(step, members));
      }
    single_ = meetings.AddGroups(communications, builder_);
  }

  uint32_t OpNumber(const std::pair<size_t, size_t>& member) const {
    return first_collective_[steps_.role_of[member.first]] + static_cast<uint32_t>(member.second);
  }

  // Times of the cells, in seconds since the begin of their step.
  void Fill() {
    FindDoneBefore();
    TracedJob& job = out_.job;
    const size_t width = PipelineCount() * steps_.numbers.size();
    job.starts.assign(ops_.size() * width, 0.0F);
    job.durations.assign(ops_.size() * width, 0.0F);
    job.idle.assign(ops_.size() * width, 0.0F);
    job.graph.absent.assign(ops_.size() * width, 1);
    job.busy_until.resize(width * static_cast<size_t>(steps_.pipelines ? steps_.pipelines->stages() : 1));
    std::vector<int64_t> last_ends(ranks_.size(), INT64_MIN);
    for (size_t step = 0; step < steps_.numbers.size(); ++step) {
      const std::vector<int64_t> begins = Begins(step);
      const int64_t first = *std::min_element(begins.begin(), begins.end());
      const bool follows = Follows(step);
      const int64_t before = follows ? *std::max_element(last_ends.begin(), last_ends.end()) : first;
      const int64_t origin = std::min(first, before);
      const int64_t counted = follows ? CountedFrom(begins, last_ends) : first;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        const int64_t busy = follows ? std::max(int64_t{0}, std::min(last_ends[rank], begins[rank]) - origin) : 0;
        job.busy_until[static_cast<size_t>(StageOf(rank)) * width + LaneOf(step, rank)] = ToSeconds(busy);
        last_ends[rank] = std::max(last_ends[rank], FillLane(step, rank, origin));
      }
      job.step_times.push_back(ToSeconds(*std::max_element(last_ends.begin(), last_ends.end()) - counted));
    }
    if (std::find(job.graph.absent.begin(), job.graph.absent.end(), 1) == job.graph.absent.end())
      job.graph.absent.clear();
  }

  // [rank]
  std::vector<int64_t> Begins(size_t step) const {
    std::vector<int64_t> begins;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const RankStep& ops = steps_.ops[step][rank];
      int64_t& begin = begins.emplace_back(INT64_MAX);
      if (done_[step][rank] < ops.computes.size()) begin = BeginOf(step, rank, done_[step][rank]);
      if (!ops.collectives.empty()) begin = std::min(begin, ranks_[rank].ops[ops.collectives.front()].begin_ns);
      if (begin == INT64_MAX) begin = EndBefore(step, rank);
    }
    return begins;
  }

  // A host runs ahead: it has inputs copied for a step, beside the work of the step before. What a rank had done of a
  // step while it was still in that, takes no time of the step. Of a step before which nothing was recorded, that is as
  // much as in all others.
  void FindDoneBefore() {
    done_.assign(steps_.numbers.size(), std::vector<size_t>(ranks_.size()));
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      constexpr size_t kNone = ~size_t{0};
      size_t least = kNone;
      for (size_t step = 0; step < done_.size(); ++step) {
        const std::vector<uint32_t>& computes = steps_.ops[step][rank].computes;
        size_t& done = done_[step][rank];
        while (done < computes.size() && ranks_[rank].ops[computes[done]].end_ns() <= EndBefore(step, rank)) ++done;
        if (Follows(step)) least = std::min(least, done);
      }
      for (size_t step = 0; step < done_.size(); ++step)
        if (!Follows(step) && least < kNone) done_[step][rank] = std::max(done_[step][rank], least);
    }
  }
  bool Follows(size_t step) const { return step > 0 && steps_.numbers[step] == steps_.numbers[step - 1] + 1; }
  // Of what the rank launched in earlier steps; INT64_MIN: nothing.
  int64_t EndBefore(size_t step, size_t rank) const {
    const uint32_t last = steps_.ops[step][rank].last_before;
    return last == kNoIndex ? INT64_MIN : ranks_[rank].ops[last].end_ns();
  }
  int64_t BeginOf(size_t step, size_t rank, size_t compute) const {
    return std::max(ranks_[rank].ops[steps_.ops[step][rank].computes[compute]].begin_ns, EndBefore(step, rank));
  }

  // From where the step before ended, not from its own first op: what passes before that is the loading of data. And
  // ranks that need not wait for the others begin before those have ended; but one that communicates before it has
  // ended itself is in both steps at once, and both have that time.
  static int64_t CountedFrom(const std::vector<int64_t>& begins, const std::vector<int64_t>& last_ends) {
    int64_t from = *std::max_element(last_ends.begin(), last_ends.end());
    for (size_t rank = 0; rank < begins.size(); ++rank)
      if (begins[rank] < last_ends[rank]) from = std::min(from, begins[rank]);
    return from;
  }

  // Returns when the lane's last op ended.
  int64_t FillLane(size_t step, size_t rank, int64_t origin) {
    const RankStep& ops = steps_.ops[step][rank];
    const size_t role = steps_.role_of[rank], lane = LaneOf(step, rank);
    const size_t width = PipelineCount() * steps_.numbers.size();
    const std::vector<DeviceOp>& all = ranks_[rank].ops;
    const std::vector<int64_t> communicated = EndsOfCollectives(step, rank);
    const std::vector<std::string>& streams = ranks_[rank].streams;
    const bool on_host = std::find(streams.begin(), streams.end(), kHostStream) != streams.end();
    int64_t last = EndBefore(step, rank), computed = last;
    const auto put = [&](uint32_t op, int64_t begin, int64_t end) {
      const size_t cell = number_[op] * width + lane;
      out_.job.graph.absent[cell] = 0;
      out_.job.starts[cell] = ToSeconds(begin - origin);
      out_.job.durations[cell] = ToSeconds(end - begin);
      last = std::max(last, end);
    };
    for (size_t i = 0; i < Segments(role); ++i) {
      const size_t from = std::max(ops.cuts[i], done_[step][rank]), to = ops.cuts[i + 1];
      if (from >= to) continue;
      int64_t begin = BeginOf(step, rank, from);
      if (i > 0 && !on_host) begin = std::min(begin, HostFrom(all[ops.computes[from]], computed, communicated));
      int64_t end = begin, idle = 0;
      for (size_t k = from; k < to; ++k) {
        idle += std::max(int64_t{0}, BeginOf(step, rank, k) - end);
        end = std::max(end, all[ops.computes[k]].end_ns());
      }
      computed = std::max(computed, end);
      if (to < ops.computes.size()) end = std::min(end, BeginOf(step, rank, to));
      put(first_op_[role] + static_cast<uint32_t>(i), begin, end);
      out_.job.idle[number_[first_op_[role] + i] * width + lane] = ToSeconds(idle);
      TakeDataWaits(rank, lane, number_[first_op_[role] + static_cast<uint32_t>(i)], begin, end);
    }
    for (size_t i = 0; i < ops.collectives.size(); ++i) {
      const DeviceOp& op = all[ops.collectives[i]];
      put(first_collective_[role] + static_cast<uint32_t>(i), op.begin_ns, op.end_ns());
    }
    return last;
  }

  std::vector<int64_t> EndsOfCollectives(size_t step, size_t rank) const {
    std::vector<int64_t> ends;
    for (const uint32_t op : steps_.ops[step][rank].collectives) ends.push_back(ranks_[rank].ops[op].end_ns());
    std::sort(ends.begin(), ends.end());
    return ends;
  }

  // From when on nothing held a segment up but its host, which launched its first kernel after all that the rank had at
  // work before it had ended: from there on it is the segment's time, as small gaps within it are. INT64_MAX: never.
  static int64_t HostFrom(const DeviceOp& first, int64_t computed, const std::vector<int64_t>& communicated) {
    const auto behind = std::upper_bound(communicated.begin(), communicated.end(), first.begin_ns);
    const int64_t done = std::max(computed, behind == communicated.begin() ? INT64_MIN : behind[-1]);
    return first.launch_ns == kNoTime || first.launch_ns <= done || done == INT64_MIN ? INT64_MAX : done;
  }

  // What the rank waited for data while the op was at work.
  void TakeDataWaits(size_t rank, size_t lane, uint32_t op, int64_t begin, int64_t end) {
    TracedJob& job = out_.job;
    const auto offset = static_cast<int64_t>(std::llround(out_.clocks[rank].At(begin)));
    const std::vector<DataWait>& waits = ranks_[rank].data_waits;
    auto wait = std::ranges::lower_bound(waits, begin - offset, {}, &DataWait::boot_end_ns);
    for (; wait != waits.end(); ++wait) {
      const int64_t length = wait->parts.sum_ns(), wait_end = wait->boot_end_ns + offset;
      if (wait_end - length >= end) break;
      const int64_t within = std::min(end, wait_end) - std::max(begin, wait_end - length);
      if (within <= 0) continue;
      if (job.data_waits.empty()) job.data_waits.resize(job.durations.size());
      job.data_waits[op * PipelineCount() * steps_.numbers.size() + lane] += ToSeconds(within);
      job.data_sources[{static_cast<int>(PipelineOf(rank)), StageOf(rank)}].Add(
          *wait, static_cast<double>(within) / static_cast<double>(length));
    }
  }

  void Describe() {
    TracedJob& job = out_.job;
    job.ops.resize(ops_.size());
    for (size_t op = 0; op < ops_.size(); ++op) job.ops[number_[op]] = ops_[op];
    job.steps = steps_.numbers;
    job.tells_loading =
        std::any_of(steps_.roles.begin(), steps_.roles.end(), [](const RoleForm& form) { return !form.parts.empty(); });
    job.dp = static_cast<int>(PipelineCount());
    job.pp = steps_.pipelines ? steps_.pipelines->stages() : 1;
    for (const int64_t number : steps_.numbers)
      for (int dp = 0; dp < job.dp; ++dp) job.lanes.push_back({number, dp});
    job.ranks.assign(PipelineCount(), std::vector<int32_t>(static_cast<size_t>(job.pp)));
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const KinetoRank& one = ranks_[rank];
      job.ranks[PipelineOf(rank)][static_cast<size_t>(StageOf(rank))] = one.rank;
      out_.ranks.push_back(one.rank);
      for (const Counter& counter : one.counters) Count(job.counters, counter.name, counter.count);
    }
    job.counters.insert(job.counters.end(), steps_.counters.begin(), steps_.counters.end());
    DescribeUntold();
    Classify();
    MeasureParts(job);
    out_.world_size = ranks_.back().rank + 1;
    for (const KinetoRank& one : ranks_) out_.world_size = std::max(out_.world_size, one.world_size);
    job.world_size = out_.world_size;
    DescribeOrigin();
    for (int rank = 0; rank < out_.world_size; ++rank)
      if (!std::binary_search(out_.ranks.begin(), out_.ranks.end(), rank)) out_.absent_ranks.push_back(rank);
    out_.lacking_steps = steps_.lacking;
    FindAbsentPeers();
  }

  void DescribeUntold() {
    uint64_t count = 0;
    std::vector<bool> of_rank;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const uint64_t untold = match_->UntoldTransfers(rank);
      of_rank.push_back(untold > 0);
      count += untold;
    }
    Count(out_.job.counters, kUntoldTransfers, count);
    if (count > 0 && !steps_.pipelines && ranks_.size() > 1) out_.job.may_be_stage = std::move(of_rank);
  }

  // What ideally takes the same time: the n-th communication of a kind and size on all ranks; all transfers of a
  // direction and size; of compute what is alike on the ranks of a role.
  void Classify() {
    using Class = std::tuple<int, int64_t, size_t, size_t>;
    std::map<Class, uint32_t> classes;
    std::vector<uint32_t> class_of(ops_.size());
    const auto put = [&](size_t op, const Class& its) {
      class_of[op] = classes.emplace(its, static_cast<uint32_t>(classes.size())).first->second;
    };
    for (size_t role = 0; role < steps_.roles.size(); ++role) {
      const size_t rank = RankOf(role);
      for (size_t op = first_op_[role]; op < first_op_[role] + Segments(role); ++op)
        put(op, {-1, 0, 0, static_cast<size_t>(ops_[op].chunk)});
      std::map<Class, size_t> count;
      for (size_t i = 0; i < steps_.roles[role].names.size(); ++i) {
        const size_t op = first_collective_[role] + i;
        const Collective& one = CollectiveOf(rank, i);
        const size_t members = one.group == kNoIndex ? 0 : ranks_[rank].groups[one.group].ranks.size();
        const Class alike{ops_[op].kind, one.elements_in, members, 0};
        const size_t number = IsTransfer(ops_[op].type) ? 0 : count[alike]++;
        put(op, {ops_[op].kind, one.elements_in, members, number});
      }
    }
    out_.job.ideal_class.resize(ops_.size());
    for (size_t op = 0; op < ops_.size(); ++op) out_.job.ideal_class[number_[op]] = class_of[op];
  }

  void DescribeOrigin() {
    constexpr Nanos kPlausible{1'000'000'000'000'000'000};  // in 2001; before that no clock of the wall wrote the file
    Origin& origin = out_.job.origin;
    for (const KinetoRank& one : ranks_)
      if (!one.host.empty()) origin.host_of[one.rank] = one.host;
    const std::vector<DeviceOp>& ops = ranks_.front().ops;
    if (!ops.empty() && ops.front().begin_ns >= kPlausible.value) origin.day = IsoDay(Nanos{ops.front().begin_ns});
  }

  void FindAbsentPeers() {
    out_.absent_peers.resize(ops_.size());
    out_.has_peers.resize(ops_.size());
    // Groups may be as large as the job, and are the same for most collectives: each list is made once, and told an op
    // once.
    std::set<std::vector<int>> lists;
    std::map<std::vector<int>, const std::vector<int>*> known;
    const auto absent_of = [&](const std::vector<int>& peers) {
      const std::vector<int>*& list = known[peers];
      if (list != nullptr) return list;
      std::vector<int> absent;
      std::copy_if(peers.begin(), peers.end(), std::back_inserter(absent),
                   [&](int peer) { return !std::binary_search(out_.ranks.begin(), out_.ranks.end(), peer); });
      std::sort(absent.begin(), absent.end());
      absent.erase(std::unique(absent.begin(), absent.end()), absent.end());
      return list = &*lists.insert(std::move(absent)).first;
    };
    const std::vector<int>* const any = absent_of(out_.absent_ranks);
    std::set<std::pair<uint32_t, const std::vector<int>*>> told;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      std::vector<const std::vector<int>*> of_group;
      for (const auto& group : ranks_[rank].groups)
        of_group.push_back(group.ranks.empty() ? any : absent_of(group.ranks));
      for (size_t i = 0; i < steps_.ops[0][rank].collectives.size(); ++i) {
        const Collective& one = CollectiveOf(rank, i);
        const uint32_t op = number_[OpNumber({rank, i})];
        const std::vector<int>* list = one.group == kNoIndex ? any : of_group[one.group];
        size_t members = one.group == kNoIndex ? 0 : ranks_[rank].groups[one.group].ranks.size();
        if (members == 0) members = static_cast<size_t>(out_.world_size);
        if (one.peer >= 0) list = absent_of({one.peer}), members = 2;
        if (members > list->size() + 1 && !IsUntoldTransfer(one)) out_.has_peers[op] = true;
        if (!told.emplace(op, list).second) continue;
        std::vector<int>& absent = out_.absent_peers[op];
        std::vector<int> both;
        std::set_union(absent.begin(), absent.end(), list->begin(), list->end(), std::back_inserter(both));
        absent = std::move(both);
      }
    }
  }

  std::vector<KinetoRank> ranks_;
  KinetoSteps steps_;
  std::optional<KinetoMatch> match_;  // of the two above
  KinetoJob out_;
  graph::OpGraphBuilder builder_;
  std::vector<JobOp> ops_;
  std::vector<uint32_t> first_op_, first_collective_;  // [role]
  std::vector<uint32_t> number_;
  std::vector<std::vector<size_t>> done_;          // [step][rank]: so many of its computes, before the step began
  bool wraps_ = false;                             // model chunks, around the pipeline
  uint64_t single_ = 0;                            // communications that met none
  std::vector<std::vector<size_t>> seen_awaited_;  // RoleForm::awaited_cut of each role, as it was seen
};

}  // namespace

absl::StatusOr<KinetoJob> BuildKinetoJob(std::vector<KinetoRank> ranks, const std::vector<StepRange>& steps) {
  return Builder(std::move(ranks)).Build(steps);
}

}  // namespace lockstep::trace
