#include "lockstep/node/scheduler.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "lockstep/base/child.h"
#include "lockstep/control/needs.h"
#include "lockstep/schedule/slurm_driver.h"

namespace lockstep::node {
namespace {

// It must have trained, or it would end and begin for ever.
bool WasUseful(const control::State& state) {
  const control::Ledger::Sums sums = state.ledger.Total(state.now);
  return sums[static_cast<size_t>(control::Phase::kProductive)].value > 0;
}

}  // namespace

absl::Status Scheduler::Check(const RunOptions& options) {
  return options.cluster == "slurm" ? schedule::CheckSlurm() : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::Start(const RunOptions& options, const std::string& job,
                                                            const std::string& run_token) {
  if (options.cluster != "slurm") return std::unique_ptr<Scheduler>();
  schedule::SlurmOptions slurm;
  slurm.request_name = schedule::RequestName(job, run_token);
  const char* own = std::getenv("SLURM_JOB_ID");
  slurm.job = own != nullptr ? own : "";
  slurm.coordinator = options.nodes.endpoint;
  slurm.script = options.standby_job;
  slurm.command = options.standby_command;
  slurm.begin_now = {OwnBinary().value_or(""), "begin-now"};
  LS_ASSIGN_OR_RETURN(auto driver, schedule::StartSlurm(slurm));
  return std::make_unique<Scheduler>(std::move(driver));
}

std::vector<control::ClusterDid> Scheduler::Tick(const control::State& state) {
  const schedule::Wanted wanted = control::NeedsOf(state);
  machines_wanted_ = wanted.machines;
  driver_->Want(wanted);
  std::vector<control::ClusterDid> did;
  for (const schedule::Outcome& outcome : driver_->TakeOutcomes())
    did.push_back({outcome.incident, outcome.drained, outcome.text});
  return did;
}

Json Scheduler::Status() const {
  const schedule::Counts counts = driver_->counts();
  return {{"machines_wanted", machines_wanted_},
          {"asked", counts.asked},
          {"cancelled", counts.cancelled},
          {"drained", counts.drained},
          {"refused", counts.refused}};
}

void Scheduler::End(const control::State& state, const std::function<void(const std::string&)>& line) {
  driver_->End();
  if (state.exit_code != control::kExitLost || !WasUseful(state)) return;
  line("the job is to begin anew on other nodes: Slurm is asked to requeue it");
  if (const absl::Status requeued = driver_->Requeue(); !requeued.ok())
    line(fmt::format("Slurm does not begin the job anew: {}", Message(requeued)));
}

}  // namespace lockstep::node
