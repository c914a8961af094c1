#include "lockstep/plan/measured_parts.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "lockstep/plan/communication_kind.h"
#include "lockstep/plan/kernel_kind.h"
#include "lockstep/trace/kineto_match.h"
#include "lockstep/trace/kineto_steps.h"

namespace lockstep::plan {
namespace {

constexpr double kNano = 1e-9;

struct Span {
  int64_t begin, end;
};
struct Piece {
  Span span;
  uint32_t op;  // of its rank
};

// Gives each moment of the open spans to the first piece that covers it; returns what none covers. Both by begin, open
// spans apart from each other.
template <typename Use>
std::vector<Span> Cover(const std::vector<Span>& open, std::vector<Piece> pieces, const Use& use) {
  std::ranges::stable_sort(pieces, {}, [](const Piece& piece) { return piece.span.begin; });
  std::vector<Span> left;
  size_t next = 0;
  const Piece* longest = nullptr;  // of those that began before the span
  for (Span span : open) {
    const auto take = [&](const Piece& piece) {
      const int64_t begin = std::max(span.begin, piece.span.begin), end = std::min(span.end, piece.span.end);
      if (end <= begin) return;
      if (begin > span.begin) left.push_back({span.begin, begin});
      use(piece.op, end - begin);
      span.begin = end;
    };
    if (longest != nullptr) take(*longest);
    for (; next < pieces.size() && pieces[next].span.begin < span.end; ++next) {
      take(pieces[next]);
      if (longest == nullptr || pieces[next].span.end > longest->span.end) longest = &pieces[next];
    }
    if (span.begin < span.end) left.push_back(span);
  }
  return left;
}

// When the last member of each communication began, by rank and op; kNoTime: not known.
using Arrivals = std::vector<std::vector<int64_t>>;

bool HasAllMembers(const trace::KinetoMatch::Members& members, const trace::Collective& one,
                   const trace::KinetoRank& rank, size_t ranks) {
  if (one.peer >= 0) return members.size() == 2;
  const std::vector<int>* group = one.group == trace::kNoIndex ? nullptr : &rank.groups[one.group].ranks;
  if (group != nullptr && !group->empty()) return members.size() == group->size();
  return members.size() == ranks && std::cmp_equal(ranks, rank.world_size);
}

class Measurement {
 public:
  Measurement(std::vector<trace::KinetoRank> ranks, const Workload& layout)
      : ranks_(std::move(ranks)), layout_(layout) {}

  absl::StatusOr<MeasuredParts> Measure() {
    LS_RETURN_IF_ERROR(Check());
    LS_ASSIGN_OR_RETURN(steps_, trace::FindSteps(ranks_, {}));
    LS_RETURN_IF_ERROR(FindArrivals());
    FindWhole();
    for (size_t rank = 0; rank < ranks_.size(); ++rank) MeasureRank(rank);
    Finish();
    return std::move(measured_);
  }

 private:
  absl::Status Check() const {
    for (const trace::KinetoRank& rank : ranks_) {
      if (rank.kernels.empty())
        return InvalidArgument("{}: no work on a device; a plan is of accelerators, so is what it is compared with",
                               rank.path);
      if (rank.steps.empty())
        return InvalidArgument("{}: no steps (ProfilerStep#N); call the profiler's step() at the end of each",
                               rank.path);
      if (rank.world_size > 0 && rank.world_size != layout_.accelerators)
        return InvalidArgument("{}: of {} ranks, but --cluster has {} accelerators; expected those of the job",
                               rank.path, rank.world_size, layout_.accelerators);
      if (rank.rank >= layout_.accelerators)
        return InvalidArgument("{}: rank {}, but --cluster has {} accelerators; expected those of the job", rank.path,
                               rank.rank, layout_.accelerators);
      for (const trace::ProcessGroup& group : rank.groups)
        if (std::ranges::find(group.ranks, rank.rank) != group.ranks.end())
          if (const absl::Status fits = CheckGroup(group, layout_); !fits.ok())
            return InvalidArgument("{}: {}", rank.path, Message(fits));
    }
    return absl::OkStatus();
  }

  absl::Status FindArrivals() {
    trace::KinetoMatch match(ranks_, steps_);
    LS_RETURN_IF_ERROR(match.FitClocks().status());
    for (const trace::KinetoRank& rank : ranks_) arrivals_.emplace_back(rank.ops.size(), trace::kNoTime);
    size_t all = 0, matched = 0;
    for (size_t step = 0; step < steps_.numbers.size(); ++step) {
      for (const trace::RankStep& one : steps_.ops[step]) all += one.collectives.size();
      for (const auto& members : match.Candidates(step)) {
        const trace::KinetoRank& first = ranks_[members.front().first];
        const trace::DeviceOp& op = match.OpOf(step, members.front().first, members.front().second);
        if (!match.EndTogether(step, members) ||
            !HasAllMembers(members, first.collectives[op.collective], first, ranks_.size()))
          continue;
        int64_t last = INT64_MIN;
        for (const auto& [rank, i] : members) last = std::max(last, match.OpOf(step, rank, i).begin_ns);
        for (const auto& [rank, i] : members) arrivals_[rank][steps_.ops[step][rank].collectives[i]] = last;
        matched += members.size();
      }
    }
    if (all > 0) measured_.matched = static_cast<double>(matched) / static_cast<double>(all);
    return absl::OkStatus();
  }

  // Steps behind which there is another: they end where its first kernel begins.
  void FindWhole() {
    for (size_t i = 0; i + 1 < steps_.numbers.size(); ++i)
      if (steps_.numbers[i + 1] == steps_.numbers[i] + 1) whole_.push_back(i);
    measured_.ends_are_known = !whole_.empty();
    if (whole_.empty())
      for (size_t i = 0; i < steps_.numbers.size(); ++i) whole_.push_back(i);
    for (const size_t i : whole_) measured_.steps.push_back(steps_.numbers[i]);
  }

  Span OpsOf(size_t step, size_t rank) const {
    Span span{INT64_MAX, INT64_MIN};
    const trace::RankStep& one = steps_.ops[step][rank];
    for (const auto* ops : {&one.computes, &one.collectives})
      for (const uint32_t op : *ops) {
        span.begin = std::min(span.begin, ranks_[rank].ops[op].begin_ns);
        span.end = std::max(span.end, ranks_[rank].ops[op].end_ns());
      }
    return span;
  }

  std::vector<Span> WindowsOf(size_t rank) const {
    std::vector<Span> windows;
    for (const size_t step : whole_) {
      Span span = OpsOf(step, rank);
      if (measured_.ends_are_known) span.end = OpsOf(step + 1, rank).begin;
      if (!windows.empty()) span.begin = std::max(span.begin, windows.back().end);
      if (span.begin < span.end) windows.push_back(span);
    }
    return windows;
  }

  void MeasureRank(size_t rank) {
    const trace::KinetoRank& of = ranks_[rank];
    std::vector<StepPart> part_of_kernel, part_of_collective, waits_for;
    for (const std::string& name : of.kernels) part_of_kernel.push_back(KindOfKernel(name));
    for (const trace::Collective& one : of.collectives) {
      const trace::ProcessGroup* const group = one.group == trace::kNoIndex ? nullptr : &of.groups[one.group];
      if (group != nullptr && !FitsLayout(*group, layout_)) odd_groups_.insert(group->ranks);
      const CommunicationKind kind = KindOfCommunication(one, group, layout_);
      part_of_collective.push_back(kind.part);
      waits_for.push_back(kind.spans_stages ? StepPart::kBubble : StepPart::kStragglers);
    }
    const std::vector<int64_t> transfers = TransferBegins(rank);
    std::vector<Piece> computes, moves, waits;
    for (uint32_t i = 0; i < of.ops.size(); ++i) {
      const trace::DeviceOp& op = of.ops[i];
      if (op.collective == trace::kNoIndex) {
        computes.push_back({{op.begin_ns, op.end_ns()}, i});
        continue;
      }
      moves.push_back({{transfers[i], op.end_ns()}, i});
      waits.push_back({{op.begin_ns, transfers[i]}, i});
    }
    RankSeconds seconds{of.rank, 0, 0};
    std::vector<int64_t> of_kernel(of.kernels.size());
    const std::vector<Span> windows = WindowsOf(rank);
    std::vector<Span> open = Cover(windows, std::move(computes), [&](uint32_t op, int64_t ns) {
      if (of.ops[op].kernel == trace::kNoIndex) return Add(StepPart::kUnknown, ns);
      of_kernel[of.ops[op].kernel] += ns;
      seconds.computes += SecondsOfStep(ns);
      Add(part_of_kernel[of.ops[op].kernel], ns);
    });
    open = Cover(open, std::move(moves),
                 [&](uint32_t op, int64_t ns) { Add(part_of_collective[of.ops[op].collective], ns); });
    open = Cover(open, std::move(waits), [&](uint32_t op, int64_t ns) {
      seconds.waits += SecondsOfStep(ns);
      Add(waits_for[of.ops[op].collective], ns);
    });
    AddIdle(open, windows);
    for (size_t i = 0; i < of_kernel.size(); ++i)
      if (of_kernel[i] > 0) kernels_[{of.kernels[i], part_of_kernel[i]}] += SecondsOfStep(of_kernel[i]);
    measured_.ranks.push_back(seconds);
  }

  // What is idle up to the end of a step lies between it and the next.
  void AddIdle(const std::vector<Span>& idle, const std::vector<Span>& windows) {
    auto window = windows.begin();
    for (const Span& span : idle) {
      while (window->end < span.end) ++window;
      Add(span.end == window->end ? StepPart::kBetweenSteps : StepPart::kLaunches, span.end - span.begin);
    }
  }

  // Of each op of a rank, where it is a communication.
  std::vector<int64_t> TransferBegins(size_t rank) {
    const trace::KinetoRank& of = ranks_[rank];
    std::map<std::tuple<std::string, uint32_t, int64_t, int64_t, int>, int64_t> shortest;
    const auto key = [&](const trace::DeviceOp& op) {
      const trace::Collective& one = of.collectives[op.collective];
      return std::tuple(one.name, one.group, one.elements_in, one.elements_out, one.peer);
    };
    for (const trace::DeviceOp& op : of.ops) {
      if (op.collective == trace::kNoIndex) continue;
      const auto [known, is_new] = shortest.emplace(key(op), op.duration_ns);
      if (!is_new) known->second = std::min(known->second, op.duration_ns);
    }
    std::vector<int64_t> begins(of.ops.size(), trace::kNoTime);
    for (size_t i = 0; i < of.ops.size(); ++i) {
      const trace::DeviceOp& op = of.ops[i];
      if (op.collective == trace::kNoIndex) continue;
      const int64_t last = arrivals_[rank][i];
      begins[i] = last == trace::kNoTime ? op.end_ns() - shortest[key(op)] : std::clamp(last, op.begin_ns, op.end_ns());
    }
    return begins;
  }

  double SecondsOfStep(int64_t ns) const {
    return kNano * static_cast<double>(ns) / static_cast<double>(whole_.size());
  }
  void Add(StepPart part, int64_t ns) {
    measured_.parts[part] += SecondsOfStep(ns) / static_cast<double>(ranks_.size());
  }

  void Finish() {
    for (const auto& [kernel, seconds] : kernels_)
      measured_.kernels.push_back({kernel.first, kernel.second, seconds / static_cast<double>(ranks_.size())});
    std::ranges::stable_sort(measured_.kernels, std::greater(), &KernelSeconds::seconds);
    measured_.odd_groups.assign(odd_groups_.begin(), odd_groups_.end());
    measured_.counters = steps_.counters;
    for (const trace::KinetoRank& rank : ranks_)
      for (const trace::Counter& counter : rank.counters) Count(measured_.counters, counter.name, counter.count);
  }

  std::vector<trace::KinetoRank> ranks_;
  const Workload& layout_;
  trace::KinetoSteps steps_;
  Arrivals arrivals_;
  std::vector<size_t> whole_;  // steps that are measured
  std::map<std::pair<std::string, StepPart>, double> kernels_;
  std::set<std::vector<int>> odd_groups_;
  MeasuredParts measured_;
};

}  // namespace

absl::StatusOr<MeasuredParts> MeasureParts(std::vector<trace::KinetoRank> ranks, const Workload& layout) {
  return Measurement(std::move(ranks), layout).Measure();
}

}  // namespace lockstep::plan
