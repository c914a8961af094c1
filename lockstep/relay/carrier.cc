#include "lockstep/relay/carrier.h"

#include <sys/socket.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "lockstep/base/json_text.h"
#include "lockstep/base/log.h"
#include "lockstep/base/packets.h"
#include "lockstep/base/report.h"
#include "lockstep/relay/head.h"

namespace lockstep::relay {
namespace {

constexpr uint64_t kMostItemBytes = uint64_t{1} << 30, kMostCapacity = 1 << 20;

}  // namespace

Carrier::Carrier(const Far& far, Join join, int guest, Carried& carried, const Clock& clock)
    : far_(far), join_(std::move(join)), guest_(guest), carried_(carried), clock_(clock) {
  far_.Sign(context_);
  thread_ = std::thread([this] { Run(); });
}

Carrier::~Carrier() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  context_.TryCancel();
  thread_.join();
  if (!ring_) return;
  carried_.ring_bytes -= feed::RingBytes(ring_->shape());
  --carried_.ranks;
}

void Carrier::Wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

void Carrier::Run() {
  const std::unique_ptr<Batches::Stub> stub = far_.Reach();
  const std::unique_ptr<Reader> reader = stub->Stream(&context_, join_);
  absl::Status end = Carry(*reader);
  context_.TryCancel();
  const grpc::Status said = reader->Finish();
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || absl::IsCancelled(end)) return;
  }
  const bool refused = end.code() == absl::StatusCode::kFailedPrecondition;
  if (end.code() == absl::StatusCode::kUnavailable && !said.ok()) end = far_.Problem(said);
  if (refused) return Tell("error", end);
  Log(LogLevel::kWarning, "{}", Message(end));
  if (!ring_) return Tell(end.code() == absl::StatusCode::kUnavailable ? "gone" : "error", end);
  shutdown(guest_, SHUT_RDWR);
}

void Carrier::Tell(const char* what, const absl::Status& why) const {
  const Json packet{{what, Message(why)}};
  // A loader that takes no packets is gone.
  if (!SendPacket(guest_, OneLine(packet)).ok()) shutdown(guest_, SHUT_RDWR);
}

// Unavailable: the stream has ended, and Finish() knows why. FailedPrecondition: a sentence for the loader's user.
absl::Status Carrier::Read(Reader& reader, Part& part) const {
  if (!reader.Read(&part)) return Unavailable("feed://{}: the data service has ended the stream", far_.address);
  if (part.part_case() == Part::kRefusal) return FailedPrecondition("{}", part.refusal());
  return absl::OkStatus();
}

absl::Status Carrier::Carry(Reader& reader) {
  Part part;
  LS_RETURN_IF_ERROR(Read(reader, part));
  if (part.part_case() != Part::kJoined) return DataLoss("feed://{}: an answer without a ring", far_.address);
  LS_RETURN_IF_ERROR(MakeRing(part.joined()));
  const Fd memory = ring_->TakeFd();
  const int fd = memory.get();
  if (!SendPacket(guest_, part.joined().answer(), std::span(&fd, 1)).ok())
    return absl::CancelledError("");  // it is gone
  for (uint64_t ticket = 0;; ++ticket) {
    const std::optional<uint32_t> slot = AwaitSlot();
    if (!slot) return absl::OkStatus();
    LS_RETURN_IF_ERROR(Fill(reader, *slot, ticket));
    ring_->Publish(*slot, ticket);
  }
}

absl::Status Carrier::MakeRing(const Joined& joined) {
  if (joined.version() != LS_FEED_VERSION)
    return FailedPrecondition("feed://{}: rings of version {} there and {} here: install both anew", far_.address,
                              joined.version(), LS_FEED_VERSION);
  const feed::RingShape shape{joined.slots(), joined.capacity(), joined.item_bytes()};
  if (shape.slots < 1 || shape.slots > LS_FEED_MAX_SLOTS || shape.capacity < 1 || shape.capacity > kMostCapacity ||
      shape.item_bytes > kMostItemBytes)
    return DataLoss("feed://{}: a ring of {} slots of {} items of {} bytes", far_.address, shape.slots, shape.capacity,
                    shape.item_bytes);
  const uint64_t others = carried_.ring_bytes.fetch_add(feed::RingBytes(shape));
  absl::Status room = feed::CheckRingMemory(shape, others, carried_.ring_limit);
  absl::StatusOr<feed::Ring> ring = room.ok() ? feed::Ring::Create(shape) : room;
  if (!ring.ok()) {
    carried_.ring_bytes -= feed::RingBytes(shape);
    return FailedPrecondition("{}", Message(ring.status()));
  }
  ++carried_.ranks;
  ring_.emplace(*std::move(ring));
  return absl::OkStatus();
}

// None: it is over.
std::optional<uint32_t> Carrier::AwaitSlot() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (const auto slot = ring_->TakeFree()) return slot;
    ring_->AskForSlot();
    if (const auto slot = ring_->TakeFree()) return slot;  // released before we had asked
    changed_.wait(lock, [this] { return woken_ || stopped_; });
    woken_ = false;
  }
  return std::nullopt;
}

absl::Status Carrier::Fill(Reader& reader, uint32_t slot, uint64_t ticket) {
  Journey journey{.asked = clock_.Now(), .head_came = {}, .arrived = {}};
  Part part;
  LS_RETURN_IF_ERROR(Read(reader, part));
  journey.head_came = clock_.Now();
  LS_ASSIGN_OR_RETURN(ls_feed_batch batch, ReadHead(part.head(), ring_->shape(), ticket));
  const feed::SlotView view = ring_->Slot(slot);
  std::memcpy(view.batch, part.head().data(), part.head().size());
  std::byte* to = view.payload;
  for (uint64_t left = feed::PayloadBytes(ring_->shape(), batch); left > 0;) {
    LS_RETURN_IF_ERROR(Read(reader, part));
    const std::string& piece = part.payload();
    if (piece.empty() || piece.size() > left)
      return DataLoss("feed://{}: {} bytes of a batch came, expected 1 to {}", far_.address, piece.size(), left);
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
    left -= piece.size();
    carried_.bytes += piece.size();
  }
  journey.arrived = clock_.Now();
  TellTimesHere(batch, journey);
  *view.batch = batch;
  ++carried_.batches;
  return absl::OkStatus();
}

}  // namespace lockstep::relay
