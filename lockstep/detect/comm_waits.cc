#include "lockstep/detect/comm_waits.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

namespace lockstep::detect {
namespace {

using trace::CommOp;
using trace::Direction;

// Strongly connected components of the graph rank → the wait it is in → the ranks behind: Tarjan's algorithm, with a
// stack of its own. Those of several ranks are circles. Waits are nodes, so that what many ranks are in is gone through
// once.
class Components {
 public:
  explicit Components(const Waits& waits) : waits_(waits) {
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
      const std::vector<int>& behind = waits_.all()[static_cast<size_t>(-1 - frame.node)].behind;
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
  int next_index_ = 0;
  std::unordered_map<Node, int> index_, low_;
  std::vector<Node> stack_;
  std::unordered_set<Node> on_stack_;
  std::vector<std::vector<int>> several_;
};

}  // namespace

// A peer that is not known has told nothing itself. Where one member alone has not, it is that one; else nothing is
// said of who waits for it.
Waits::Waits(const Standing& standing) : standing_(standing) {
  std::set<int> silent;
  for (const trace::Communicator& communicator : standing.log().communicators)
    for (const int rank : communicator.ranks)
      if (!standing.HasReported(rank)) silent.insert(rank);
  if (silent.size() == 1) silent_ = *silent.begin();
  std::map<std::tuple<uint32_t, int64_t>, size_t> collectives;
  for (const auto& [rank, ops] : standing.open()) {
    const CommOp* op = standing.InOf(rank);
    size_t wait = waits_.size();
    if (op->direction != Direction::kCollective && op->peer < 0 && !silent_) continue;
    if (op->direction == Direction::kCollective)
      wait = collectives.emplace(std::tuple(op->communicator, op->sequence), wait).first->second;
    if (wait == waits_.size()) waits_.push_back({op, {}, {}, 0});
    waits_[wait].in.push_back(rank);
    wait_of_[rank] = wait;
  }
  for (Wait& wait : waits_) LookBehind(wait);
}

void Waits::LookBehind(Wait& wait) const {
  const CommOp& op = *wait.op;
  if (op.direction != Direction::kCollective) {
    const CommOp* other = standing_.Counterpart(op);
    const CommOp* in = standing_.InOf(op.peer);
    const bool is_there = other != nullptr && (in == nullptr || in->order >= other->order);
    if (op.peer < 0)
      wait.behind = {*silent_};
    else if (!is_there)
      wait.behind.push_back(op.peer);
    return;
  }
  for (const int member : standing_.MembersOf(op.communicator)) {
    if (standing_.IsIn(member, op)) continue;
    if (standing_.PlaceOf(op.communicator, member).completed() >= op.sequence) {
      ++wait.ended;
    } else {
      wait.behind.push_back(member);
    }
  }
}

const Wait* Waits::Of(int rank) const {
  const auto found = wait_of_.find(rank);
  return found == wait_of_.end() ? nullptr : &waits_[found->second];
}

bool Waits::IsEnd(int rank) const {
  const Wait* wait = Of(rank);
  return wait == nullptr || wait->behind.empty();
}

bool Waits::IsStuckTogether(int rank) const {
  const Wait* wait = Of(rank);
  return wait != nullptr && wait->behind.empty() && wait->ended == 0;
}

std::vector<std::vector<int>> FindCircles(const Waits& waits) {
  const Components components(waits);
  std::vector<std::vector<int>> closed;
  for (const std::vector<int>& ranks : components.several()) {
    const bool stays = std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
      const std::vector<int>& behind = waits.Of(rank)->behind;
      return std::all_of(behind.begin(), behind.end(),
                         [&](int other) { return std::binary_search(ranks.begin(), ranks.end(), other); });
    });
    if (stays) closed.push_back(ranks);
  }
  return closed;
}

}  // namespace lockstep::detect
