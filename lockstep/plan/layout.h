// A layout as people write and read it.
//
//   LS_RETURN_IF_ERROR(TakeLayout("tp=8,pp=4,vp=2,mbs=1,recompute=full", workload));
//   LayoutText(workload);   // "tp 8, pp 4, dp 2, vp 2, zero 1, mbs 1, recompute full"
#pragma once

#include <string>

#include "lockstep/plan/workload.h"

namespace lockstep::plan {

// KEY=VALUE, with the keys of a table of measured runs, and schedule=1f1b|zb-h1|zb-2p|dualpipe, stages=11+12x6+9, the
// layers of each stage, shard=N, so many replicas share what ZeRO 3 shares, moe_chunks=N, pieces in which experts
// exchange and compute, moe_gather=1, Parm's S2, seq_parallel=0|1, recompute=full:N, N layers of each stage,
// offload=optimizer|weights|activations, or one of the former with +activations, what lies in the host's memory. dp
// follows where it is missing. kInvalidArgument: what CheckLayout says, too.
absl::Status TakeLayout(const std::string& text, Workload& workload);

// What no run can have, and which values would do: experts that ranks can't share; microbatches that the batch is not
// made of.
absl::Status CheckExperts(const Workload& workload);
absl::Status CheckBatch(const Workload& workload);
// That, and what Workload::Validate lets pass because published runs have it, but nobody wants: a rest wherever
// something is split.
absl::Status CheckLayout(const Workload& workload);

std::string LayoutText(const Workload& workload);

absl::StatusOr<Offload> ParseOffload(std::string_view name);
std::string OffloadText(Offload offload);
// kInvalidArgument: what the machine's host has is not known, but needed; or this training can't, whatever the layout.
absl::Status CheckOffload(const Workload& workload, Offload offload);

}  // namespace lockstep::plan
