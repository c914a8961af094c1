// Processes that are at the same place, by role. Stacks are compared as normal frames (stack_frames.h), and of one that
// is in communication only from its outermost call of it on: what the library does inside of it differs by the moment.
// One whose Python frames can't be read is compared by its native call with those of all members whose can.
//
// Pure; the clusters are a function of the set of processes, whatever their order. Cost: a pass over the
// text of each frame that can tell, and each that differs by more than numbers once more.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/detect/hang.h"
#include "lockstep/detect/stack_frames.h"
#include "lockstep/trace/process_stack.h"

namespace lockstep::detect {

struct StackCluster {
  trace::ProcessRole role = trace::ProcessRole::kTrainer;
  std::vector<int> ranks;  // ascending, each once
  size_t processes = 0;
  InCollective in_communication = InCollective::kUnknown;
  Partners partners = Partners::kUnknown;       // in communication: for whom they wait
  std::optional<cluster::Dimension> dimension;  // ... in whose groups
  std::string place;                            // the innermost frame that counts
  std::vector<std::string> frames;              // normal, innermost first: what they have in common
  int example = -1;                             // the first rank, whose stack this is as it was read
  std::vector<std::string> example_frames;
};

struct Trainer {
  static constexpr int kUnread = -1;
  int rank = -1;
  std::string node;
  int cluster = kUnread;  // index
  bool stopped = false;
  std::string unreadable;
};

struct StackClusters {
  std::vector<StackCluster> clusters;  // by role, the largest first
  std::vector<Trainer> trainers;       // by rank
  size_t processes = 0, unread = 0;
};

StackClusters ClusterStacks(std::span<const trace::ProcessStack> stacks, Lines lines = Lines::kDrop);

}  // namespace lockstep::detect
