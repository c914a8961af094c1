// Slurm as a Driver, by its commands. A machine is asked for by a job of one node that is named after the run, so that
// whoever leads the run next finds it and asks for no other. It is on its way until its host is, or was, among those
// that are `here`, or it has run for long without coming; it is cancelled while it has not begun and is not wanted any
// more, and never later, for it may be training. One that never comes is asked for again, later and later.
// Thread-safe. One thread of its own, which sleeps while nothing is wanted; each command has `at_most` to answer.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/units.h"
#include "lockstep/schedule/driver.h"
#include "lockstep/schedule/slurm.h"

namespace lockstep::schedule {

struct SlurmOptions {
  std::string request_name{};  // RequestName()
  std::string job{};           // ours, whose kind of machine is asked for; empty: we are in none
  std::string coordinator{};   // where a machine that comes finds us
  std::string script{};        // the user's batch script that brings one; empty: `command` does
  Words command{};             // program and arguments, but for `run --node-name NAME`; empty: nothing can be asked for
  Words begin_now{};           // runs BeginNowMain() of the job behind it, and outlives us; empty: nobody does
  Seconds at_most{30};         // for each command
  Seconds look_again{5};       // whether what was asked for is still on its way
  Seconds comes_within{300};   // from the begin of its job, or it is not on its way any more
  Seconds ask_again{30};       // when it is not: the first time; doubled each time
};

// NotFound: Slurm's commands are not on PATH.
absl::Status CheckSlurm();
absl::StatusOr<std::unique_ptr<Driver>> StartSlurm(const SlurmOptions& options);

// A job that was requeued may begin as soon as what is left of it has ended, and not two minutes later, as Slurm has
// it. Waits for that; it is to run outside of the job's last processes. Returns an exit status.
int BeginNowMain(const std::string& job, Seconds at_most = Seconds{60});

}  // namespace lockstep::schedule
