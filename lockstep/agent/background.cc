#include "lockstep/agent/background.h"

#include "lockstep/base/background_thread.h"

namespace lockstep::agent {

Background::Background(Poller& poller) : completions_(poller) {
  thread_ = std::jthread([this](const std::stop_token& stop) { Loop(stop); });
}

Background::~Background() {
  thread_.request_stop();
  thread_.join();
  completions_.Close();
}

void Background::Run(Job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void Background::Loop(const std::stop_token& stop) {
  TakeNoSignals();
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !jobs_.empty(); })) {
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    completions_.Post(job());
    lock.lock();
  }
}

}  // namespace lockstep::agent
