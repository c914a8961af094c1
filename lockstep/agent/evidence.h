// The stacks of all ranks, Python and native, as evidence: for the detector while a stall is on, and for people before
// anything is killed, with those of the processes that ranks have started. Runs in the background thread; bounded in
// time, also for processes that can't answer (stopped, frozen, no right to look).
#pragma once

#include <string>
#include <vector>

#include "lockstep/agent/spec.h"
#include "lockstep/agent/stacks.h"
#include "lockstep/agent/workers.h"
#include "lockstep/detect/hang.h"
#include "lockstep/trace/process_stack.h"

namespace lockstep::agent {

struct OneRankStacks {
  RankId rank;  // its own, or that of the worker below which it runs
  trace::ProcessRole role = trace::ProcessRole::kTrainer;
  pid_t pid = 0;
  StackDump native;
  PythonStack python;
};
using RankStacks = std::vector<OneRankStacks>;

RankStacks CollectStacks(const RunSpec& spec, uint64_t epoch, const std::vector<Worker>& workers);
// Adds the data workers, checkpoint writers and other processes of those, a few of each, behind them; a forked one that
// has its parent's faulthandler is asked for Python, after its parent, for both write to one file. Bounded in time,
// too.
void AddHelpers(const RunSpec& spec, uint64_t epoch, const std::vector<Worker>& workers, RankStacks& stacks);
// For people and for `lockstep diagnose` (docs/formats/stacks.md): one headed section per process, Python first; what
// could not be read says why. `node`: empty, if it is known anyway.
std::string StacksText(const RankStacks& stacks, const std::string& node = "");
// For the detector: of ranks alone.
std::vector<detect::StackSample> Samples(const RankStacks& stacks, Nanos at);

}  // namespace lockstep::agent
