#include "lockstep/plan/schedule_order.h"

#include <algorithm>
#include <array>
#include <deque>

#include "lockstep/synth/schedule.h"

namespace lockstep::plan {
namespace {

std::vector<Piece> Interleaved(const Workload& w, int stage) {
  std::vector<Piece> order;
  for (const synth::Compute& one : synth::Schedule(stage, w.pp, w.chunks, w.Microbatches()))
    order.push_back({one.forward ? Work::kForward : Work::kBackward, one.chunk, one.microbatch});
  return order;
}

// `ahead` forward passes before the first backward one; gradients of weights are `behind` those of inputs.
std::vector<Piece> ZeroBubble(int batches, int ahead, int behind) {
  std::vector<Piece> order;
  int forward = 0, weight = 0;
  while (forward < std::min(batches, ahead)) order.push_back({Work::kForward, 0, forward++});
  for (int input = 0; input < batches; ++input) {
    order.push_back({Work::kInput, 0, input});
    if (input - weight >= behind) order.push_back({Work::kWeight, 0, weight++});
    if (forward < batches) order.push_back({Work::kForward, 0, forward++});
  }
  while (weight < batches) order.push_back({Work::kWeight, 0, weight++});
  return order;
}

// Of a rank that is `depth` ranks away from the nearer end, in its eight phases (arXiv 2412.19437, section 3.2.1).
// "Near" is the direction that begins at that end.
class DualPipe {
 public:
  DualPipe(int stages, int batches, int stage)
      : half_(stages / 2),
        each_(batches / 2),
        near_(stage < half_ ? 0 : 1),
        depth_(stage < half_ ? stage : stages - 1 - stage) {}

  std::vector<Piece> Order() {
    const int inner = half_ - depth_ - 1;
    for (int i = 0; i < 2 * inner; ++i) Forward(Near());
    for (int i = 0; i <= depth_; ++i) Forward(Near()), Forward(Far());
    for (int i = 0; i < inner; ++i) Input(Far()), Weight(), Forward(Far());
    for (int i = 0; i < each_ - 2 * half_ + depth_ + 1; ++i) Pair(Near()), Pair(Far());
    for (int i = 0; i < inner; ++i) Backward(Far()), Pair(Far());
    Drain();
    for (int i = 0; i < inner; ++i) Weight(), Input(Near());
    while (!weights_.empty()) Weight();
    return std::move(order_);
  }

 private:
  int Near() const { return near_; }
  int Far() const { return 1 - near_; }
  void Add(Work work, int direction, int nth, bool joined = false) {
    order_.push_back({work, direction, 2 * nth + direction, joined});
  }
  void Forward(int direction) { Add(Work::kForward, direction, forwards_[size_t(direction)]++); }
  void Backward(int direction) { Add(Work::kBackward, direction, backwards_[size_t(direction)]++); }
  void Input(int direction) {
    Add(Work::kInput, direction, backwards_[size_t(direction)]++);
    weights_.push_back(order_.back());
  }
  void Weight() {
    const Piece input = weights_.front();
    weights_.pop_front();
    order_.push_back({Work::kWeight, input.chunk, input.microbatch});
  }
  // A forward pass of this direction together with a backward pass of the other.
  void Pair(int direction) {
    Forward(direction);
    Add(Work::kBackward, 1 - direction, backwards_[size_t(1 - direction)]++, true);
  }
  // The last backward passes of both directions; from the middle on, gradients of weights are put off.
  void Drain() {
    bool puts_off = false;
    const int turn = (depth_ + 1) / 2;
    for (int i = 0; i <= depth_; ++i) {
      puts_off = puts_off || (i == turn && depth_ % 2 == 1);
      puts_off ? Input(Far()) : Backward(Far());
      puts_off = puts_off || (i == turn && depth_ % 2 == 0);
      puts_off ? Input(Near()) : Backward(Near());
    }
  }

  const int half_, each_, near_, depth_;
  std::array<int, 2> forwards_{}, backwards_{};
  std::deque<Piece> weights_;
  std::vector<Piece> order_;
};

}  // namespace

std::vector<Piece> OrderOf(const Workload& w, int stage) {
  const int behind_it = w.pp - stage;
  switch (w.schedule) {
    case Schedule::kZeroBubbleH1:
      return ZeroBubble(w.Microbatches(), behind_it, stage);
    case Schedule::kZeroBubble2p:
      return ZeroBubble(w.Microbatches(), 2 * behind_it - 1, 2 * stage);
    case Schedule::kDualPipe:
      return DualPipe(w.pp, w.Microbatches(), stage).Order();
    default:
      return Interleaved(w, stage);
  }
}

}  // namespace lockstep::plan
