// One call that may never come back (a file system whose server is gone, a driver that hangs, a name server that is
// silent), in a thread of its own.
// At most one is under way; while it is, asking again waits for the same one. The thread is let go when we are: what it
// uses must outlive it, so the call owns what it needs. (A thread that sleeps for ever in the kernel can't be ended;
// those of NFS end when the process is killed.) Thread-compatible.
//
//   SlowCall<int> call([] { return Ask(); });
//   call.Begin(now);
//   if (const std::optional<int> answer = call.Await(Seconds{0.1})) ...; else call.Silent(now);
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "lockstep/base/background_thread.h"
#include "lockstep/base/units.h"

namespace lockstep {

template <typename Answer>
class SlowCall {
 public:
  explicit SlowCall(std::function<Answer()> call) : call_(std::move(call)) {}

  // Nothing, if one is under way.
  void Begin(Nanos now = {}) {
    if (shared_ != nullptr) return;
    shared_ = std::make_shared<Shared>();  // shared with the thread, which may outlive us
    began_ = now;
    std::thread([shared = shared_, call = call_] {
      TakeNoSignals();
      Answer answer = call();
      const std::lock_guard lock(shared->mutex);
      shared->answer = std::move(answer);
      shared->changed.notify_one();
    }).detach();
  }

  // The answer of the call under way, if it comes within `patience` and before `stop`.
  std::optional<Answer> Await(Seconds patience, const std::stop_token& stop = {}) {
    if (shared_ == nullptr) return std::nullopt;
    std::unique_lock lock(shared_->mutex);
    if (!shared_->changed.wait_for(lock, stop, std::chrono::duration<double>(patience.value),
                                   [this] { return shared_->answer.has_value(); }))
      return std::nullopt;
    lock.unlock();
    const std::shared_ptr<Shared> answered = std::move(shared_);  // its thread has nothing more to say
    return std::move(answered->answer);
  }

  // For how long it has been without an answer; 0: none is under way.
  Seconds Silent(Nanos now) const { return shared_ == nullptr ? Seconds{0} : ToSeconds(now - began_); }

 private:
  struct Shared {
    std::mutex mutex;  // guards answer
    std::condition_variable_any changed;
    std::optional<Answer> answer;
  };
  std::function<Answer()> call_;
  std::shared_ptr<Shared> shared_;
  Nanos began_;
};

}  // namespace lockstep
