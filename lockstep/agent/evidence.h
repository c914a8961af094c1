// The stacks of all ranks, Python and native, as evidence: for the detector while a stall is on, and for people before
// anything is killed. Runs in the background thread; bounded in time, also for processes that can't answer (stopped,
// frozen, no right to look).
#pragma once

#include <string>
#include <vector>

#include "lockstep/agent/spec.h"
#include "lockstep/agent/stacks.h"
#include "lockstep/agent/workers.h"
#include "lockstep/detect/hang.h"

namespace lockstep::agent {

struct OneRankStacks {
  RankId rank;
  pid_t pid = 0;
  StackDump native;
  PythonStack python;
};
using RankStacks = std::vector<OneRankStacks>;

RankStacks CollectStacks(const RunSpec& spec, uint64_t epoch, const std::vector<Worker>& workers);
// For people: one headed section per rank, Python first; what could not be read says why.
std::string StacksText(const RankStacks& stacks);
// For the detector.
std::vector<detect::StackSample> Samples(const RankStacks& stacks, Nanos at);

}  // namespace lockstep::agent
