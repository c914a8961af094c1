// Between a coordinator and the scheduler of its cluster (--cluster): what the state wants goes there, and what came of
// it comes back as events. Nothing here waits for the scheduler until the job is over.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/control/machine.h"
#include "lockstep/node/options.h"
#include "lockstep/schedule/driver.h"

namespace lockstep::node {

class Scheduler {
 public:
  // Whether the one that was asked for is here.
  static absl::Status Check(const RunOptions& options);
  // nullptr: --cluster none.
  static absl::StatusOr<std::unique_ptr<Scheduler>> Start(const RunOptions& options, const std::string& job,
                                                          const std::string& run_token);
  explicit Scheduler(std::unique_ptr<schedule::Driver> driver) : driver_(std::move(driver)) {}

  std::vector<control::ClusterDid> Tick(const control::State& state);
  int machines_wanted() const { return machines_wanted_; }
  Json Status() const;
  // The job is over; where it ended for want of a node, it is begun anew if the scheduler may do that. Blocks, for some
  // seconds at most.
  void End(const control::State& state, const std::function<void(const std::string&)>& line);

 private:
  std::unique_ptr<schedule::Driver> driver_;
  int machines_wanted_ = 0;
};

}  // namespace lockstep::node
