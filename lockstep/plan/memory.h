// What a step needs of an accelerator's memory, by kind, on the stage that needs most: docs/models/plan.md has the
// formulas and their sources. Pure.
#pragma once

#include <vector>

#include "lockstep/plan/variant.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

struct MemoryUse {
  // Bytes. states: weights, gradients, optimizer. workspace: of the largest weight gradient, of gathered weights.
  // context: of the driver, of communication libraries, and what allocators lose.
  double states = 0, activations = 0, logits = 0, workspace = 0, context = 0;
  double host = 0;  // of the host's memory, for what is offloaded; no part of the total
  double total() const { return states + activations + logits + workspace + context; }
  // What a framework's own count says, which knows no context.
  double allocated() const { return total() - context; }
  // False: it does not run. With a small context, nothing lost, and 5 % less than predicted, for so far are predictions
  // from what is measured.
  bool MayFit(const Machine& machine) const { return .95 * allocated() + 2e9 <= machine.memory; }
  bool Fits(const Machine& machine) const { return total() <= machine.memory && host <= machine.host_memory; }
};

// In two halves, for a search: what all variants of a layout share, and the rest. PredictMemory(w) is
// UseOf(MemoryTermsOf(w), variant).
struct StageTerms {
  int stage = 0;
  // active: layers that have a backward pass. Parameters: trained weights without experts, trained experts, the same of
  // what is frozen, a layer, and of the first the embedding; bytes: logits.
  double layers = 0, active = 0, weights = 0, experts = 0, frozen = 0, frozen_experts = 0, widest = 0, embedding = 0,
         logits = 0;
};
struct MemoryTerms {
  std::vector<StageTerms> stages;           // that may need most
  double unit = 0;                          // tokens x hidden of a microbatch
  double all = 0, selected = 0, input = 0;  // bytes of a layer per unit, kept: all, with selective recomputation, input
  double buffers = 0, gathered = 0;         // per unit: of each microbatch under way; of what is gathered for a layer
  double workspace = 0;                     // of the widest weight's gradient, without ZeRO 3
  // replicas, expert_replicas: that share a state, where any do.
  double gradient_bytes = 4, adam_bytes = 12, replicas = 1, expert_replicas = 1, pp = 1, microbatches = 1;
  double capacity = 0, host_capacity = 0;
  bool adapts = false;  // LoRA
};
MemoryTerms MemoryTermsOf(const Workload& workload);
// The stages of the workload alone, where a search has changed those.
void TakeStages(const Workload& workload, MemoryTerms& terms);
// Sets the variant's recomputed_layers where it is kAsNeeded: the fewest with which it fits, in whole chunks.
MemoryUse UseOf(const MemoryTerms& terms, Variant& variant);

// All requires a valid workload.
MemoryUse PredictMemory(const Workload& workload);
// So many layers of a stage are computed again in the backward pass; 0: none, or what is selected of each.
int RecomputedLayers(const Workload& workload);
// Bytes that a layer keeps of a microbatch for its backward pass: all, with selective recomputation, its input alone.
struct KeptBytes {
  double all = 0, selected = 0, input = 0;
};
KeptBytes KeptBytesOf(const Workload& workload);

}  // namespace lockstep::plan
