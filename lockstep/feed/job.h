// A job and its ranks, as the dispatcher knows them. All of it is guarded by the dispatcher's lock, but for the payload
// of a slot that is being filled: each place of it is written by the one thread that has the item for it; and for the
// walk of a step that takes long, which one thread has at a time.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/feed/dealt_steps.h"
#include "lockstep/feed/epochs.h"
#include "lockstep/feed/request.h"
#include "lockstep/feed/ring.h"
#include "lockstep/feed/steps.h"
#include "lockstep/prepare/recipe.h"
#include "lockstep/sampling/stream.h"

namespace lockstep::feed {

struct Rank;

struct Job {
  std::string name;
  std::string terms;  // what all its ranks must ask for alike
  EpochCut cut;
  prepare::Recipe recipe;
  std::shared_ptr<const sampling::ItemSet> set{};  // shared with who looks at it without the lock
  uint64_t seed = 0;
  uint64_t key = 0;  // of its chance, beside the seed: of its name
  Epochs epochs;
  DealtSteps dealt{};
  bool is_being_dealt = false;   // its walk is the threads'
  const Rank* leader = nullptr;  // that is furthest: what comes before is wanted or has been
  uint64_t items() const { return cut.items; }
  uint64_t delivered = 0, skipped = 0, batches = 0;
};

// A batch that is being filled.
struct OpenBatch {
  std::shared_ptr<Rank> rank;
  uint32_t slot = 0;
  uint64_t ticket = 0;
  SlotView view;
  std::vector<uint64_t> items;
  std::vector<bool> bad;  // those that could not be prepared
  size_t left = 0;
  // Of the threads' time: for these items, also where another rank's want led to it; and, when the batch was begun,
  // what had gone into work of any kind (Dispatcher::BusyNs).
  int64_t read_ns = 0, decode_ns = 0, busy_before_ns = 0;
};

// An item, wanted at a place of a batch. A batch lives as long as a want does.
struct Want {
  std::shared_ptr<OpenBatch> batch;
  size_t index = 0;
  uint64_t item() const { return batch->items[index]; }
};

// A connection. The ring outlives it until the last thread that fills a slot has done so.
struct Rank {
  std::shared_ptr<Job> job;  // of all its ranks
  uint32_t number = 0;
  Whose whose{};
  Ring ring;
  sampling::Stream stream;  // of the job, behind the last step that was planned
  uint64_t ticket = 0, step = 0;
  std::deque<Want> wants;
  Nanos joined;
  bool gone = false;
  std::optional<uint32_t> slot{};  // a free one, for the next batch, while its step is being dealt
  std::vector<Nanos> planned{};    // when its first batches were, once the ring was full: at the job's own pace
};

}  // namespace lockstep::feed
