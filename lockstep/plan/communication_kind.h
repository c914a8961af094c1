// Which kind of parallelism a communication belongs to: by what its group is called, else by which ranks it has, else
// by what the layout leaves. docs/models/plan.md has the rules.
#pragma once

#include "lockstep/base/status.h"
#include "lockstep/plan/step_parts.h"
#include "lockstep/plan/workload.h"
#include "lockstep/trace/kineto.h"

namespace lockstep::plan {

struct CommunicationKind {
  StepPart part = StepPart::kOther;
  bool spans_stages = false;  // of a pipeline: who waits in it, waits for another stage
};

// kInvalidArgument: by its name it is of a kind of parallelism that the layout has in another size.
absl::Status CheckGroup(const trace::ProcessGroup& group, const Workload& layout);
// False: its ranks are a part of what shares tensors, or lie across dimensions of which it has a part only, as those of
// another layout would. With experts any group may be one.
bool FitsLayout(const trace::ProcessGroup& group, const Workload& layout);

// `group`: null: not told. Ranks lie as in Megatron-LM and torchtitan: neighbours share tensors, then the sequence,
// then come replicas, then stages.
CommunicationKind KindOfCommunication(const trace::Collective& collective, const trace::ProcessGroup* group,
                                      const Workload& layout);

}  // namespace lockstep::plan
