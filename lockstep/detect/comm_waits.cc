#include "lockstep/detect/comm_waits.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

namespace lockstep::detect {
namespace {

using trace::CommOp;
using trace::Direction;

// Strongly connected components of the graph rank → the wait it is in → ranks behind: Tarjan's algorithm, with a stack
// of its own. Those of several ranks are circles. Waits are nodes, so that what many ranks are in is gone through
// once.
class Components {
 public:
  // `behind`: which of them.
  Components(const Waits& waits, std::vector<int> Wait::* behind) : waits_(waits), behind_(behind) {
    for (const Wait& wait : waits.all())
      for (const int rank : wait.in)
        if (!index_.contains(rank)) Visit(rank);
  }
  const std::vector<std::vector<int>>& several() const { return several_; }

 private:
  using Node = int64_t;  // a rank, or -1 - the index of a wait
  struct Frame {
    Node node;
    size_t next = 0;  // of its edges
  };

  std::optional<Node> Edge(const Frame& frame) const {
    if (frame.node < 0) {
      const std::vector<int>& behind = waits_.all()[static_cast<size_t>(-1 - frame.node)].*behind_;
      return frame.next < behind.size() ? std::optional<Node>(behind[frame.next]) : std::nullopt;
    }
    const Wait* wait = waits_.Of(static_cast<int>(frame.node));
    return wait != nullptr && frame.next == 0 ? std::optional<Node>(-1 - (wait - waits_.all().data())) : std::nullopt;
  }

  void Open(Node node) {
    index_[node] = low_[node] = next_index_++;
    stack_.push_back(node);
    on_stack_.insert(node);
  }

  void Visit(Node root) {
    std::vector<Frame> frames = {{root}};
    Open(root);
    while (!frames.empty()) {
      Frame& frame = frames.back();
      if (const std::optional<Node> other = Edge(frame)) {
        ++frame.next;
        if (!index_.contains(*other)) {
          Open(*other);
          frames.push_back({*other});
        } else if (on_stack_.contains(*other)) {
          low_[frame.node] = std::min(low_[frame.node], index_[*other]);
        }
        continue;
      }
      const Node node = frame.node;
      frames.pop_back();
      if (!frames.empty()) low_[frames.back().node] = std::min(low_[frames.back().node], low_[node]);
      if (low_[node] == index_[node]) Close(node);
    }
  }

  void Close(Node root) {
    std::vector<int> ranks;
    Node node = 0;
    do {
      node = stack_.back();
      stack_.pop_back();
      on_stack_.erase(node);
      if (node >= 0) ranks.push_back(static_cast<int>(node));
    } while (node != root);
    if (ranks.size() < 2) return;
    std::sort(ranks.begin(), ranks.end());
    several_.push_back(std::move(ranks));
  }

  const Waits& waits_;
  std::vector<int> Wait::* const behind_;
  int next_index_ = 0;
  std::unordered_map<Node, int> index_, low_;
  std::vector<Node> stack_;
  std::unordered_set<Node> on_stack_;
  std::vector<std::vector<int>> several_;
};

}  // namespace

Waits::Waits(const Standing& standing) : standing_(standing), silent_(NoReport(standing.log())) {
  std::map<std::tuple<uint32_t, int64_t>, size_t> collectives;
  for (const auto& [rank, ops] : standing.open()) {
    const CommOp* op = standing.InOf(rank);
    size_t wait = waits_.size();
    if (op->direction == Direction::kCollective)
      wait = collectives.emplace(std::tuple(op->communicator, op->sequence), wait).first->second;
    if (wait == waits_.size()) waits_.push_back({op, {}, {}, {}, 0, false, false, {}, {}});
    waits_[wait].in.push_back(rank);
    wait_of_[rank] = wait;
  }
  for (Wait& wait : waits_) LookBehind(wait);
  FindHeld();
}

void Waits::LookBehind(Wait& wait) {
  const CommOp& op = *wait.op;
  if (op.direction != Direction::kCollective) return LookAtTransfers(wait);
  for (const int member : standing_.MembersOf(op.communicator)) {
    if (standing_.IsIn(member, op)) continue;
    const Place place = standing_.PlaceOf(op.communicator, member);
    if (place.completed() >= op.sequence) {
      ++wait.ended;
    } else if (place.front == op.sequence && standing_.InOf(member) == nullptr &&
               wait_of_.emplace(member, &wait - waits_.data()).second) {
      wait.in.push_back(member);  // by its counters: what it told of the op is lost
    } else {
      wait.behind.push_back(member);
      const bool told = place.counted || place.enqueued != Place::kNone;
      if (told && place.enqueued < op.sequence) wait.yet_to_launch.push_back(member);
    }
  }
  std::sort(wait.in.begin(), wait.in.end());
  // What some have ended, all have launched.
  if (wait.ended == 0 && standing_.log().communicators[op.communicator].unknown() > 0) LookForUnknown(op, wait);
}

void Waits::LookAtTransfers(Wait& wait) {
  const CommOp& first = *wait.op;
  const std::vector<const CommOp*> all = standing_.Together(first);
  for (const CommOp* op : all) {
    if (op->peer < 0)
      LookForUnknown(*op, wait);
    else if (IsBehind(*op, wait)) {
      wait.behind.push_back(op->peer);
      if (standing_.Counterpart(*op) == nullptr && standing_.PeerHasLaunched(*op) == false)
        wait.yet_to_launch.push_back(op->peer);
    } else {
      wait.together.push_back(op);
      continue;
    }
    wait.apart.push_back(op);
  }
  std::sort(wait.behind.begin(), wait.behind.end());
  wait.behind.erase(std::unique(wait.behind.begin(), wait.behind.end()), wait.behind.end());
  // It may be one of those that are there on both sides that does not end, or what was launched behind.
  const bool more = first.batch == CommOp::kUnderWay && all.size() < standing_.open().at(first.rank).size();
  wait.guessed = wait.guessed || more || !wait.together.empty();
}

bool Waits::IsBehind(const CommOp& op, Wait& wait) const {
  if (const CommOp* other = standing_.Counterpart(op)) {
    if (other->batch == CommOp::kUnderWay) return false;
    const CommOp* in = standing_.InOf(op.peer);
    return in->order < other->order && !RunTogether(*in, *other);
  }
  const std::optional<bool> launched = standing_.PeerHasLaunched(op);
  wait.guessed = wait.guessed || !launched;
  return !launched.value_or(false);
}

// From those that wait, and those that are not there, to whom they hold.
void Waits::FindHeld() {
  std::map<int, std::vector<const Wait*>> held_by;
  std::vector<int> holders;
  for (const Wait& wait : waits_) {
    if (!IsStuckTogether(wait.in.front())) {
      if (!IsEnd(wait.in.front())) holders.insert(holders.end(), wait.in.begin(), wait.in.end());
      continue;
    }
    for (const int rank : wait.in)
      for (const CommOp* send : standing_.SendsBefore(rank)) {
        held_by[send->peer].push_back(&wait);
        if (IsNotThere(*send)) holders.push_back(send->peer);
      }
    for (const CommOp* op : wait.together)
      if (standing_.IsInOtherEnd(*op)) held_by[op->peer].push_back(&wait);
  }
  while (!holders.empty()) {
    const int holder = holders.back();
    holders.pop_back();
    const auto held = held_by.find(holder);
    if (held == held_by.end()) continue;
    for (const Wait* wait : held->second)
      if (held_.insert(wait->op).second) holders.insert(holders.end(), wait->in.begin(), wait->in.end());
  }
}

// A member that is not known has told nothing itself. Where just as many have told nothing, it is those; else nobody
// knows who it is.
void Waits::LookForUnknown(const CommOp& op, Wait& wait) {
  const trace::Communicator& communicator = standing_.log().communicators[op.communicator];
  const size_t wanted = op.direction == Direction::kCollective ? communicator.unknown() : 1;
  const bool may_know = communicator.unknown() > 0 && silent_.size() <= communicator.ranks.size() + wanted;
  const std::vector<int>* may = may_know ? &SilentOutside(op.communicator) : nullptr;
  const bool known = may != nullptr && may->size() == wanted;
  wait.somebody = wait.somebody || !known;
  if (known) wait.behind.insert(wait.behind.end(), may->begin(), may->end());
}

// Of those that have told nothing, who is no known member of it. Once for each, though thousands may wait in it.
const std::vector<int>& Waits::SilentOutside(uint32_t communicator) {
  const auto [found, is_new] = silent_outside_.try_emplace(communicator);
  if (is_new) {
    const std::vector<int>& members = standing_.MembersOf(communicator);
    const std::set<int> known(members.begin(), members.end());
    std::ranges::copy_if(silent_, std::back_inserter(found->second), [&](int rank) { return !known.contains(rank); });
  }
  return found->second;
}

const Wait* Waits::Of(int rank) const {
  const auto found = wait_of_.find(rank);
  return found == wait_of_.end() ? nullptr : &waits_[found->second];
}

bool Waits::IsEnd(int rank) const {
  const Wait* wait = Of(rank);
  return wait == nullptr || (wait->behind.empty() && !wait->somebody);
}

bool Waits::IsStuckTogether(int rank) const {
  const Wait* wait = Of(rank);
  return wait != nullptr && IsEnd(rank) && wait->ended == 0;
}

bool Waits::IsNotThere(const CommOp& send) const {
  return send.peer >= 0 && Of(send.peer) == nullptr && !standing_.PeerHasLaunched(send).value_or(false);
}

std::vector<std::vector<int>> FindCircles(const Waits& waits) {
  const Components components(waits, &Wait::behind);
  std::vector<std::vector<int>> closed;
  for (const std::vector<int>& ranks : components.several()) {
    const bool stays = std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
      const Wait& wait = *waits.Of(rank);
      return !wait.somebody && std::all_of(wait.behind.begin(), wait.behind.end(), [&](int other) {
        return std::binary_search(ranks.begin(), ranks.end(), other);
      });
    });
    if (stays) closed.push_back(ranks);
  }
  return closed;
}

std::vector<std::vector<int>> FindOpenCircles(const Waits& waits) {
  return Components(waits, &Wait::yet_to_launch).several();
}

}  // namespace lockstep::detect
