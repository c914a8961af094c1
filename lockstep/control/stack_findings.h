// Who holds the job up, by the stacks that all agents kept of one moment: detect/stack_groups.h, live. Beside what led
// to the incident, and never reason to act by force unless what ranks noted of their communication agrees. Pure. Cost:
// that of AggregateStacks, so it is not asked of jobs whose stacks would hold the coordinator up.
//
//   StackTexts texts;
//   texts.Add(node, {epoch, text});                                        // by each agent, before StacksKept
//   if (auto finding = texts.Find(spec, log)) ...
#pragma once

#include <map>
#include <optional>
#include <string>

#include "lockstep/control/link.h"
#include "lockstep/trace/comm_log.h"

namespace lockstep::control {

class StackTexts {
 public:
  void Clear() { texts_.clear(); }
  void Add(int node, StacksSeen seen) { texts_[node] = std::move(seen.text); }
  // nullopt: no stacks, nobody waits, or a text of another form, which can't be judged.
  std::optional<incident::Finding> Find(const JobSpec& spec, const trace::CommLog& log) const;

 private:
  std::map<int, std::string> texts_;  // by node
};

}  // namespace lockstep::control
