#include "lockstep/detect/pipeline_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

namespace lockstep::detect {
namespace {

using trace::CommOp;
using trace::Direction;
using Pairs = std::vector<std::pair<const CommOp*, const CommOp*>>;

// Calls `add` with the part of a time that lies in each step.
template <typename Add>
void Split(int64_t from_ns, int64_t to_ns, const std::vector<int64_t>& ends_ns, const Add& add) {
  size_t step = static_cast<size_t>(std::ranges::upper_bound(ends_ns, from_ns) - ends_ns.begin());
  for (step = std::max<size_t>(step, 1); step < ends_ns.size() && ends_ns[step - 1] < to_ns; ++step)
    add(step - 1, std::min(to_ns, ends_ns[step]) - std::max(from_ns, ends_ns[step - 1]));
}

// But for a few, as many of one as of the other.
bool AreEven(size_t one, size_t other) {
  constexpr size_t kFew = 2, kOneOf = 100;
  const size_t apart = one > other ? one - other : other - one;
  return apart <= kFew + std::max(one, other) / kOneOf;
}

// The rank did nothing else when the message was there: it ended then, on its clock.
bool TellsWhenItWasThere(const CommOp& op) { return op.held_up_ns > kHeldUpNs; }

// What messages of as many bytes take between two ranks, either way, once both have launched their ends. Who launches
// last and waits takes that long; of a quarter of the messages at least somebody does.
class WireTimes {
 public:
  explicit WireTimes(const Pairs& pairs) {
    std::map<Kind, std::vector<int64_t>> took;
    for (const auto& [send, receive] : pairs)
      took[KindOf(*send)].push_back(std::min(send->duration_ns, receive->duration_ns));
    for (auto& [kind, ns] : took) {
      const auto quarter = ns.begin() + static_cast<std::ptrdiff_t>(ns.size() / 4);
      std::ranges::nth_element(ns, quarter);
      usual_ns_[kind] = *quarter;
    }
  }
  int64_t Of(const CommOp& op) const { return usual_ns_.at(KindOf(op)); }

 private:
  using Kind = std::tuple<int, int, uint64_t>;
  static Kind KindOf(const CommOp& op) { return {std::min(op.rank, op.peer), std::max(op.rank, op.peer), op.bytes}; }

  std::map<Kind, int64_t> usual_ns_;
};

// A message is there at one moment for both ends: who launched its end later came last. Of an end whose rank was
// elsewhere by then, at work or in another wait, no more is known than that it was launched before that was over: then
// the other waited for it if it waited for longer than the way takes.
bool WaitsFor(const CommOp& one, const CommOp& other, int64_t usual_ns) {
  constexpr int64_t kUneven = 2;
  if (!TellsWhenItWasThere(one)) return false;
  if (one.duration_ns > other.duration_ns + kHeldUpNs) return true;
  return !TellsWhenItWasThere(other) && one.duration_ns > kUneven * usual_ns + kHeldUpNs;
}

bool IsWithin(const CommOp& op, int64_t from_ns, int64_t to_ns) { return EndOf(op) > from_ns && EndOf(op) <= to_ns; }

}  // namespace

PipelineTimes::PipelineTimes(const trace::CommLog& log, const Lanes& lanes, std::vector<int> ranks)
    : log_(log), lanes_(lanes), ranks_(std::move(ranks)), waits_(ranks_.size()) {
  Learn();
  LearnMeetings();
  for (std::vector<Waiting>& own : waits_) std::ranges::sort(own, {}, &Waiting::end_ns);
  Bound();
}

bool PipelineTimes::IsOne(int rank) const { return std::ranges::binary_search(ranks_, rank); }
size_t PipelineTimes::IndexOf(int rank) const {
  return static_cast<size_t>(std::ranges::lower_bound(ranks_, rank) - ranks_.begin());
}

void PipelineTimes::Learn() {
  Pairs pairs;
  for (const auto& [ends, lane] : lanes_) {
    for (const auto* ops : {&lane.sends, &lane.receives})
      for (const CommOp* op : *ops)
        if (IsOne(op->rank)) waits_[IndexOf(op->rank)].push_back({EndOf(*op) - op->held_up_ns, EndOf(*op), op});
    if (IsOne(std::get<1>(ends)) && IsOne(std::get<2>(ends)))
      std::ranges::move(PairsOf(lane), std::back_inserter(pairs));
  }
  const WireTimes wire(pairs);
  for (const auto& [send, receive] : pairs) {
    if (WaitsFor(*send, *receive, wire.Of(*send))) waits_for_[send] = receive;
    if (WaitsFor(*receive, *send, wire.Of(*send))) waits_for_[receive] = send;
  }
}

void PipelineTimes::LearnMeetings() {
  std::map<std::pair<uint32_t, int64_t>, const CommOp*> last;  // who came last to each
  const auto tells = [&](const CommOp& op) {
    return op.direction == Direction::kCollective && op.state == trace::OpState::kCompleted && op.created_ns >= 0 &&
           op.duration_ns >= 0 && IsOne(op.rank);
  };
  for (const CommOp& op : log_.ops) {
    if (!tells(op)) continue;
    waits_[IndexOf(op.rank)].push_back({op.created_ns, EndOf(op), &op});
    const CommOp*& known = last.try_emplace({op.communicator, op.sequence}, &op).first->second;
    if (op.duration_ns < known->duration_ns) known = &op;
  }
  for (const CommOp& op : log_.ops) {
    if (!tells(op)) continue;
    const CommOp* const other = last.at({op.communicator, op.sequence});
    if (op.duration_ns > other->duration_ns + kHeldUpNs) waits_for_[&op] = other;
  }
}

// Of ways that are used often: where only the newest messages of each are told, nothing is known before. Where some of
// a rank's are overwritten, they are so alike.
void PipelineTimes::Bound() {
  constexpr size_t kOften = 4;  // at least this part of those of the way that is used most
  std::vector<std::vector<std::pair<size_t, int64_t>>> ways(ranks_.size());  // of each: how many, and the first
  for (const auto& [ends, lane] : lanes_)
    for (const auto* ops : {&lane.sends, &lane.receives})
      if (!ops->empty() && IsOne(ops->front()->rank))
        ways[IndexOf(ops->front()->rank)].emplace_back(ops->size(), ops->front()->created_ns);
  begin_ns_ = std::numeric_limits<int64_t>::min();
  end_ns_ = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (waits_[i].empty() || ways[i].empty()) {
      begin_ns_ = end_ns_ = 0;
      return;
    }
    const size_t most = std::ranges::max(ways[i]).first;
    for (const auto& [count, first_ns] : ways[i])
      if (kOften * count >= most) begin_ns_ = std::max(begin_ns_, first_ns);
    end_ns_ = std::min(end_ns_, waits_[i].back().end_ns);
  }
}

std::string PipelineTimes::WhyNot(int64_t from_ns, int64_t to_ns) const {
  const auto count = [&](const std::vector<const CommOp*>& ops) {
    return static_cast<size_t>(
        std::ranges::count_if(ops, [&](const CommOp* op) { return IsWithin(*op, from_ns, to_ns); }));
  };
  for (const auto& [ends, lane] : lanes_) {
    const auto [communicator, sender, receiver] = ends;
    if (IsOne(sender) && IsOne(receiver) && !AreEven(count(lane.sends), count(lane.receives)))
      return fmt::format("sends from rank {} to rank {}, or their receives, are lost", sender, receiver);
  }
  std::map<std::pair<uint32_t, int>, size_t> met;  // by communicator and rank
  for (const auto& own : waits_)
    for (const Waiting& wait : own)
      if (wait.op->direction == Direction::kCollective && IsWithin(*wait.op, from_ns, to_ns))
        ++met[{wait.op->communicator, wait.op->rank}];
  for (size_t i = 0; i < log_.communicators.size(); ++i) {
    const auto communicator = static_cast<uint32_t>(i);
    const trace::Communicator& one = log_.communicators[i];
    size_t most = 0;
    for (const int rank : one.ranks)
      if (const auto found = met.find({communicator, rank}); found != met.end()) most = std::max(most, found->second);
    if (most > 0 && (one.told_one_of > 1 || one.long_told_one_of > 1)) return "a part of the collectives alone is told";
    for (const int rank : one.ranks)
      if (IsOne(rank) && !AreEven(most, met[{communicator, rank}]))
        return fmt::format("records of collectives of rank {} are lost", rank);
  }
  return "";
}

PipelineTimes::BySteps PipelineTimes::Alone(const std::vector<int64_t>& ends_ns) const {
  BySteps alone(ranks_.size(), std::vector<int64_t>(ends_ns.size() - 1));
  for (size_t i = 0; i < ranks_.size(); ++i) {
    int64_t since_ns = ends_ns.front();
    std::vector<std::pair<int64_t, int64_t>> waits;
    for (const Waiting& wait : waits_[i]) waits.emplace_back(wait.begin_ns, wait.end_ns);
    std::ranges::sort(waits);
    waits.emplace_back(ends_ns.back(), ends_ns.back());
    for (const auto& [begin_ns, end_ns] : waits) {
      const int64_t until_ns = std::min(begin_ns, ends_ns.back());
      if (until_ns > since_ns)
        Split(since_ns, until_ns, ends_ns, [&](size_t step, int64_t ns) { alone[i][step] += ns; });
      since_ns = std::max(since_ns, end_ns);
    }
  }
  return alone;
}

PipelineTimes::BySteps PipelineTimes::WaitedFor(const std::vector<int64_t>& ends_ns) const {
  BySteps waited_for(ranks_.size(), std::vector<int64_t>(ends_ns.size() - 1));
  size_t left = 0;  // where clocks or pairs are wrong it would not end
  for (const auto& own : waits_) left += own.size();
  size_t rank = 0;  // whichever: what they wait for at the end is soon the same
  int64_t now_ns = ends_ns.back();
  while (left-- > 0 && now_ns > ends_ns.front()) {
    const std::vector<Waiting>& own = waits_[rank];
    auto wait = std::ranges::upper_bound(own, now_ns, {}, &Waiting::end_ns);
    if (wait == own.end() || wait->begin_ns >= now_ns) {  // it is by itself
      const int64_t since_ns =
          wait == own.begin() ? ends_ns.front() : std::max(ends_ns.front(), std::prev(wait)->end_ns);
      Split(since_ns, now_ns, ends_ns, [&](size_t step, int64_t ns) { waited_for[rank][step] += ns; });
      if (wait == own.begin()) break;
      --wait;
    }
    // What ended at one moment with another is not looked at again.
    now_ns = std::min(wait->begin_ns, wait->end_ns - 1);
    const auto other = waits_for_.find(wait->op);
    if (other == waits_for_.end()) continue;
    rank = IndexOf(other->second->rank);
    now_ns = other->second->created_ns;
  }
  return waited_for;
}

}  // namespace lockstep::detect
