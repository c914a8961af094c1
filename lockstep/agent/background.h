// One thread for what may take a while (stacks of workers, CRCs of checkpoints), so that the loop keeps hearing deaths
// at once. Jobs run in order; each returns what is to happen with its result, which then runs in the poller's thread.
//
//   background.Run([pids] { auto dumps = Collect(pids); return [dumps] { Use(dumps); }; });
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

#include "lockstep/base/mailbox.h"
#include "lockstep/base/poller.h"

namespace lockstep::agent {

class Background {
 public:
  using Completion = std::function<void()>;
  using Job = std::function<Completion()>;

  explicit Background(Poller& poller);
  ~Background();
  void Run(Job job);
  // From within a job: this happens in the poller's thread, while the job goes on.
  void Post(Completion completion) { completions_.Post(std::move(completion)); }
  // For jobs that wait for others.
  std::stop_token stopping() const { return thread_.get_stop_token(); }

 private:
  void Loop(const std::stop_token& stop);

  Mailbox completions_;
  std::mutex mutex_;  // guards jobs_
  std::condition_variable_any changed_;
  std::deque<Job> jobs_;
  std::jthread thread_;
};

}  // namespace lockstep::agent
