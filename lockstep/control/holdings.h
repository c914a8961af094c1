// Which checkpoints the nodes of a job say to hold, counted so that the word of one costs no look at the others: which
// is whole on all of them, and up to which step no other one can become so any more.
// Pure. Cost: of a word, and of news, that of the checkpoints that are told of, which are few; none of the number of
// nodes.
//
//   Holdings holdings(nodes);
//   holdings.Begin(epoch);
//   if (holdings.Set(node, said)) Tell(holdings.News());
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/control/link.h"

namespace lockstep::control {

class Holdings {
 public:
  explicit Holdings(size_t nodes) : nodes_(nodes) { passed_[-1] = nodes; }

  // This epoch acts from now on, and nobody has said anything of it.
  void Begin(EpochId epoch);
  // True: because of this a checkpoint is whole on all nodes.
  bool Set(size_t node, const Holding& holding);
  // What ranks may now give up, when there is news of that since the last call.
  std::optional<Commit> News();
  // The oldest that may still become whole and is not: ranks wait for it.
  std::optional<CheckpointId> Pending() const;
  // Who does not say to hold it.
  std::vector<int> Without(const CheckpointId& point) const;
  // All agents were away, or one was, up to this step of the job, and are there again. False: that is known.
  bool MeetFrom(int64_t step) { return std::exchange(commit_.meet_from, std::max(commit_.meet_from, step)) < step; }
  // The newest such news.
  const Commit& commit() const { return commit_; }

 private:
  // Of a checkpoint: how many nodes hold it; how many hold it or may yet; how many of these have passed its step.
  struct Mentions {
    size_t held = 0, mentioned = 0, passed = 0;
  };

  void Count(const Holding& holding, bool more);
  bool IsDead(const CheckpointId& point, const Mentions& mentions) const;
  int64_t DeadStep() const;

  std::vector<Holding> nodes_;
  std::map<CheckpointId, Mentions> mentions_;
  std::map<int64_t, size_t> passed_;  // by step, how many nodes have passed just so much
  Commit commit_;
};

}  // namespace lockstep::control
