// The writing half of a stream: gRPC takes one message at a time, so the others wait here. The reactor calls Done()
// when one is written. Bounded: a peer that takes nothing for long is to be cut off. Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

namespace lockstep::rpc {

inline constexpr size_t kMaxWaiting = 10'000;

template <typename Message>
class Outbox {
 public:
  // `write` begins to write a message, which stays where it is until Done().
  explicit Outbox(std::function<void(const Message*)> write) : write_(std::move(write)) {}

  // False: too many wait, or it is closed.
  bool Add(Message message) {
    const std::lock_guard lock(mutex_);
    if (closed_ || sealed_ || waiting_.size() >= kMaxWaiting) return false;
    waiting_.push_back(std::move(message));
    if (waiting_.size() == 1) write_(&waiting_.front());
    return true;
  }

  // True: that was the last, for it is sealed.
  bool Done() {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) return false;
    waiting_.pop_front();
    if (!closed_ && !waiting_.empty()) write_(&waiting_.front());
    return sealed_ && waiting_.empty();
  }

  // What waits is still written, and nothing behind it. True: nothing waits.
  bool Seal() {
    const std::lock_guard lock(mutex_);
    sealed_ = true;
    return waiting_.empty();
  }

  // No write begins any more.
  void Close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }

 private:
  std::function<void(const Message*)> write_;
  std::mutex mutex_;  // guards what follows
  std::deque<Message> waiting_;
  bool closed_ = false, sealed_ = false;
};

}  // namespace lockstep::rpc
