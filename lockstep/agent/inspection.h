// The inspections of the agent's node (lockstep/inspect): a thread of its own reads what is due, and what became an
// alert, or is over, comes in the poller's thread. Nothing it reads can hold the agent up; if it never comes back,
// neither does the rest of the inspections, and the agent goes on without.
// Cost: below 0.1 % of a core (docs/models/inspect.md).
//
//   Inspection inspection(poller, clock, inspect::Settings(), {inspect::Tree(), {spec.checkpoint_dir}},
//                         [](const inspect::Alert& alert) { ... });
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/mailbox.h"
#include "lockstep/inspect/reader.h"

namespace lockstep::agent {

class Inspection {
 public:
  using Hear = std::function<void(const inspect::Alert&)>;

  // where.paths: what the job uses; the file systems of those that exist are watched.
  Inspection(Poller& poller, const Clock& clock, const inspect::Settings& settings, inspect::Where where, Hear hear);
  ~Inspection();

 private:
  void Loop(const std::stop_token& stop, const inspect::Settings& settings, inspect::Where where);

  const Clock& clock_;
  const Hear hear_;
  Mailbox alerts_;
  std::mutex mutex_;  // of wake_ alone: nothing is shared
  std::condition_variable_any wake_;
  std::jthread thread_;
};

}  // namespace lockstep::agent
