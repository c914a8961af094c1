#include "lockstep/relay/head.h"

#include <algorithm>
#include <cstring>

namespace lockstep::relay {

uint64_t HeadBytes(const feed::RingShape& shape) {
  return sizeof(ls_feed_batch) + uint64_t{shape.capacity} * (sizeof(uint64_t) + sizeof(int64_t));
}

absl::StatusOr<ls_feed_batch> ReadHead(std::string_view head, const feed::RingShape& shape, uint64_t ticket) {
  if (head.size() != HeadBytes(shape))
    return DataLoss("a batch's head of {} bytes, expected {}", head.size(), HeadBytes(shape));
  ls_feed_batch batch;
  std::memcpy(&batch, head.data(), sizeof batch);
  if (batch.ticket != ticket) return DataLoss("batch {} came, expected {}", batch.ticket, ticket);
  if (batch.items > shape.capacity || batch.skipped > shape.capacity - batch.items)
    return DataLoss("a batch of {} items and {} skipped ones, expected at most {}", batch.items, batch.skipped,
                    shape.capacity);
  if (batch.why_bytes > (batch.items == 0 && batch.skipped > 0 ? LS_FEED_ALIGN : 0U))
    return DataLoss("a batch of {} items with {} bytes about what it lost", batch.items, batch.why_bytes);
  if (std::memchr(batch.state, '\0', sizeof batch.state) == nullptr) return DataLoss("a batch's state has no end");
  return batch;
}

void TellTimesHere(ls_feed_batch& batch, const Journey& journey) {
  const int64_t made = std::max<int64_t>(batch.filled_ns - batch.began_ns, 0);
  const int64_t waited = std::max<int64_t>((journey.head_came - journey.asked).value, 0);
  const int64_t carried = std::max<int64_t>((journey.arrived - journey.head_came).value, 0);
  const int64_t making = std::min(made, waited);  // what of it passed while the relay waited for it
  const double share = made > 0 ? static_cast<double>(making) / static_cast<double>(made) : 0;
  const auto part = [share](uint64_t ns) { return static_cast<uint64_t>(static_cast<double>(ns) * share); };
  // As if all threads had carried it: so its share of the wait is its share of the time.
  const uint64_t carrying = static_cast<uint64_t>(carried) * std::max<uint64_t>(batch.threads, 1);
  batch.read_ns = part(batch.read_ns) + carrying;
  batch.decode_ns = part(batch.decode_ns);
  batch.busy_ns = part(batch.busy_ns) + carrying;
  batch.relayed = 1;
  batch.filled_ns = journey.arrived.value;
  batch.began_ns = journey.arrived.value - carried - making;
}

}  // namespace lockstep::relay
