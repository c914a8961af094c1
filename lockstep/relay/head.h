// The head of a batch as it comes from another machine: what stands before the items in a slot (client/feed_ring.h).
#pragma once

#include <string_view>

#include "lockstep/base/units.h"
#include "lockstep/feed/ring.h"

namespace lockstep::relay {

// Bytes of it: struct ls_feed_batch, ids, labels.
uint64_t HeadBytes(const feed::RingShape& shape);

// DataLoss: it is not what a service of this version sends as that batch of such a ring.
absl::StatusOr<ls_feed_batch> ReadHead(std::string_view head, const feed::RingShape& shape, uint64_t ticket);

// On this machine's clock (CLOCK_BOOTTIME).
struct Journey {
  Nanos asked;      // the relay was ready for it
  Nanos head_came;  // it is complete where it was made
  Nanos arrived;
};

// Tells the times of a batch as if it had been made here: clocks of two machines differ, spans do not. What passed
// between its head and its end went into carrying it, and counts as reading.
void TellTimesHere(ls_feed_batch& batch, const Journey& journey);

}  // namespace lockstep::relay
