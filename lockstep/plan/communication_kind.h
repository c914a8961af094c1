// Which kind of parallelism a communication belongs to: by what its group is called, else by which ranks it has, else
// by what the layout leaves. docs/models/plan.md has the rules.
#pragma once

#include "lockstep/plan/step_parts.h"
#include "lockstep/plan/workload.h"
#include "lockstep/trace/kineto.h"

namespace lockstep::plan {

struct CommunicationKind {
  StepPart part = StepPart::kOther;
  bool spans_stages = false;  // of a pipeline: who waits in it, waits for another stage
};

// `group`: null: not told. Ranks lie as in Megatron-LM and torchtitan: neighbours share tensors, then the sequence,
// then come replicas, then stages.
CommunicationKind KindOfCommunication(const trace::Collective& collective, const trace::ProcessGroup* group,
                                      const Workload& layout);

}  // namespace lockstep::plan
