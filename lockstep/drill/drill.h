// Carries a plan out on a running job and says what it did. Whatever is in force is undone at the end, also when
// SIGINT, SIGTERM or SIGHUP ends it early.
//
//   Drill drill(spec, plan, {.status = ..., .announce = ..., .say = ...}, clock);
//   LS_ASSIGN_OR_RETURN(const Report report, drill.Run());
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/agent/spec.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/poller.h"
#include "lockstep/drill/hold.h"
#include "lockstep/drill/inject.h"
#include "lockstep/drill/plan.h"

namespace lockstep::drill {

// How a drill reaches the process that watches the run, and people.
struct Rim {
  std::function<absl::StatusOr<Json>()> status;
  // Has the watcher write the drill down: {fault, rank, epoch} in, {step, watcher_pid} out. An error: it must not be.
  // With "withdrawn": it did not strike after all.
  std::function<absl::StatusOr<Json>(const Json& drill)> announce;
  std::function<void(const std::string& line)> say;
};

struct Injected {
  Fault fault;
  Nanos at, wall;
  int64_t step = -1;
  pid_t pid = 0;  // 0: it struck no process
};

struct Report {
  uint64_t seed = 0;
  Nanos began;
  std::vector<Injected> faults;
  std::vector<std::string> failed;  // what was planned and did not come to be, and why
};
// {seed, faults: [{at_s, at, step, fault, rank, pid}], failed: [...]}
Json ToJson(const Report& report);

class Drill {
 public:
  // The plan's seed and ranks are drawn. `clock` must outlive the drill.
  Drill(agent::RunSpec spec, Plan plan, Rim rim, const Clock& clock);
  // To the end of the plan and of everything in force. Call once, before the process has other threads.
  Report Run();

 private:
  struct InForce {
    Fault fault;
    uint64_t epoch;
    HoldPtr hold;
  };
  void Tick();
  void Look();
  void LookAt(const Json& status);
  bool IsDue(const Planned& planned, const Json& status) const;
  void Strike(const Fault& fault, const Json& status);
  absl::Status TryToStrike(const Fault& fault, const Json& status);
  absl::Status Break(const Fault& fault, const Target& target, const Json& announced);
  void Withdraw(const Fault& fault, uint64_t epoch);
  void KeepHolds(Nanos now);
  void GiveUp(const std::string& why);

  agent::RunSpec spec_;
  Rim rim_;
  const Clock& clock_;
  Poller poller_;
  std::vector<Planned> waiting_;
  std::vector<InForce> in_force_;
  Report report_;
  Nanos looked_;
  Nanos ready_;  // when the job last ran, or the drill began
};

}  // namespace lockstep::drill
