#include "lockstep/agent/keeping.h"

#include "lockstep/agent/collectors.h"
#include "lockstep/agent/points.h"
#include "lockstep/base/host.h"
#include "lockstep/checkpoint/budget.h"
#include "lockstep/client/commit.h"

namespace lockstep::agent {
namespace {

constexpr Seconds kPatience{10};
constexpr size_t kRemembered = 8;  // a rank has two slots

// The keeper's share of this machine's memory: what the ranks' own buffers may have at most.
Bytes LimitOf(const RunSpec& spec) {
  if (spec.checkpoint_budget.value > 0) return spec.checkpoint_budget;
  const absl::StatusOr<Bytes> available = checkpoint::AvailableMemory({});
  return available.ok() ? Bytes{available->value / 2} : Bytes{};
}

// Nothing mapped: it has gone meanwhile.
keep::OwnPart PartOf(const RunSpec& spec, const control::CheckpointId& id, const ls_board& board,
                     std::shared_ptr<const MappedBuffers> mapped) {
  keep::OwnPart part{{spec.place.node, ToPoint(id), board.world_size, {}, {}}, {}, {}};
  for (uint32_t rank = 0; rank < board.ranks; ++rank) {
    const int index = ls_slot_find(&board.rank[rank], {id.epoch.value(), id.step});
    if (index < 0) return {};
    const ls_slot& slot = board.rank[rank].slot[index];
    const std::span<const std::byte> content = mapped->slots()[rank].slot[index];
    if (content.size() < slot.bytes) return {};
    part.outline.slots.push_back({slot.bytes, slot.meta_bytes, slot.crc32c, slot.proof});
    part.contents.push_back(content.first(slot.bytes));
  }
  part.mapping = std::move(mapped);
  return part;
}

}  // namespace

Keeping::Keeping(const RunSpec& spec, Poller& poller, const Clock& clock, Listener listener)
    : spec_(spec), clock_(clock), listener_(std::move(listener)), mailbox_(poller) {}

Keeping::~Keeping() {
  mailbox_.Close();
  sender_.reset();
}

absl::Status Keeping::Open() {
  keeper_ = std::make_unique<keep::Keeper>(spec_.run_token, LimitOf(spec_));
  LS_RETURN_IF_ERROR(keeper_->Open(IsLoopback(spec_.address)));
  sender_ = std::make_unique<keep::Sender>(
      spec_.run_token, keeper_->store(),
      keep::Sender::Listener{
          .kept = [this](const checkpoint::Point& point) { mailbox_.Post([this, point] { Kept(point); }); },
          .trouble = [this](const absl::Status& why) { mailbox_.Post([this, why] { Trouble(why); }); },
          .busy = [this] { return traffic_.IsUnderWay(); }});
  return absl::OkStatus();
}

void Keeping::SendTo(const control::KeepWith& keeper) {
  keeper_name_ = keeper.name;
  if (keeper.port != 0) alone_since_ = {};
  sender_->SendTo(keeper.port == 0 ? std::nullopt : std::optional(keep::Address{keeper.host, keeper.port}));
}

void Keeping::Kept(const checkpoint::Point& point) {
  if (!std::exchange(why_alone_, "").empty())
    listener_.note(fmt::format("checkpoints are kept by node {} again", keeper_name_));
  alone_since_ = {};
  kept_.insert(ToId(point));
  if (kept_.size() > kRemembered) kept_.erase(kept_.begin());
  listener_.kept();
}

// A no is an answer; one who is out of reach may be back in a moment, and of what was written over meanwhile a copy was
// not needed any more.
void Keeping::Trouble(const absl::Status& why) {
  if (alone_since_.value == 0) alone_since_ = clock_.Now();
  was_spoilt_ = absl::IsAborted(why);
  if (!why_alone_.empty() || !absl::IsFailedPrecondition(why)) return;
  why_alone_ = Message(why);
  listener_.note(
      fmt::format("node {} keeps no copy of this node's checkpoints, which lie in this machine's memory only: {}",
                  keeper_name_, why_alone_));
  listener_.kept();
}

bool Keeping::IsKept(const control::CheckpointId& id) {
  const bool waits = alone_since_.value != 0 && clock_.Now() - alone_since_ >= ToNanos(kPatience);
  if (waits && why_alone_.empty()) {
    why_alone_ = keeper_name_.empty() ? "no other node offers to"
                 : was_spoilt_        ? fmt::format("copies to node {} take longer than checkpoints last", keeper_name_)
                                      : fmt::format("node {} is out of reach", keeper_name_);
    listener_.note(fmt::format(
        "nobody keeps a copy of this node's checkpoints, which lie in this machine's memory only: {}", why_alone_));
  }
  return kept_.contains(id) || !why_alone_.empty();
}

// The sender goes on with what it is offered last. An agent that is just back finds both slots of a rank whole, in any
// order: what is older than the newest would take its place, and nobody offers that again.
void Keeping::Offer(const control::CheckpointId& id, const ls_board& board,
                    std::shared_ptr<const MappedBuffers> mapped) {
  if (offered_ && id <= *offered_) return;
  keep::OwnPart part = PartOf(spec_, id, board, std::move(mapped));
  if (part.mapping == nullptr) return;
  offered_ = id;
  if (std::exchange(followed_, id.epoch) != id.epoch) traffic_.Follow(AliveTrails(spec_));
  if (keeper_name_.empty() && alone_since_.value == 0) alone_since_ = clock_.Now();
  sender_->Offer(std::move(part));
}

void Keeping::GiveUp(const control::CheckpointId& committed, int64_t dead_step, EpochId epoch) {
  keeper_->store().GiveUp(ToPoint(committed), dead_step, epoch);
}

std::vector<control::KeptFor> Keeping::Holds() const {
  std::vector<control::KeptFor> holds;
  for (const auto& [node, point] : keeper_->store().Kept()) holds.push_back({node, ToId(point)});
  return holds;
}

std::vector<control::Replica> Keeping::Replicas() const {
  std::vector<control::Replica> replicas;
  for (const auto& [node, point] : keeper_->store().Kept()) {
    const std::shared_ptr<const keep::Image> image = keeper_->store().Find(node, point);
    if (image == nullptr) continue;
    const keep::Hash hash = keep::HashOfReplicas(image->outline).value_or(keep::Hash{});
    replicas.push_back({node, ToId(point), hash.low, hash.high});
  }
  return replicas;
}

void Keeping::BeginAnew() {
  kept_.clear();
  offered_.reset();
  why_alone_.clear();
  alone_since_ = {};
  keeper_->store().Clear();
}

void Keeping::Forget() {
  kept_.clear();
  offered_.reset();
  keeper_name_.clear();
  why_alone_.clear();
  alone_since_ = {};
  sender_->SendTo(std::nullopt);
}

control::PeerCopies Keeping::Observe() const {
  control::PeerCopies copy;
  if (!kept_.empty()) copy.newest = *kept_.rbegin();
  copy.kept = Bytes{sender_->bytes_kept()};
  copy.sent = Bytes{sender_->bytes_sent()};
  copy.in_gaps = Bytes{sender_->bytes_in_gaps()};
  copy.held = Bytes{keeper_->store().bytes()};
  copy.error = why_alone_;
  copy.alone = why_alone_.empty() ? 0 : 1;
  return copy;
}

}  // namespace lockstep::agent
