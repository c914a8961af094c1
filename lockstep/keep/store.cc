#include "lockstep/keep/store.h"

#include <algorithm>
#include <chrono>

#include "lockstep/base/check.h"
#include "lockstep/checkpoint/budget.h"
#include "lockstep/client/commit.h"

namespace lockstep::keep {
namespace {

constexpr size_t kOwnParts = 2;  // a rank has two slots

ls_checkpoint Shipped(const checkpoint::Point& point) { return {point.epoch.value(), point.step.value()}; }

std::span<const std::byte> ContentOf(const OwnPart& part, const Place& place) {
  return part.contents[place.slot].subspan(place.offset, place.bytes);
}

}  // namespace

absl::StatusOr<std::span<const std::byte>> Image::Content(size_t chunk) const {
  const Piece& piece = pieces[chunk];
  if (piece.is_foreign || HashOf(piece.content) == outline.chunks[chunk]) return piece.content;
  return DataLoss("node {}'s checkpoint of step {}: what it shared with this node's ranks has been written over",
                  outline.node, outline.point.step.value());
}

absl::StatusOr<std::vector<std::byte>> Image::CopyOf(size_t slot) const {
  std::vector<std::byte> copy;
  copy.reserve(outline.slots[slot].bytes);
  for (size_t chunk = 0; chunk < places.size(); ++chunk) {
    if (places[chunk].slot != slot) continue;
    LS_ASSIGN_OR_RETURN(const std::span<const std::byte> content, Content(chunk));
    copy.insert(copy.end(), content.begin(), content.end());
  }
  return copy;
}

std::span<std::byte> Incoming::Room(size_t chunk) {
  const Piece& piece = image_->pieces[chunk];
  // Nobody else has it yet: the holder is our own, fresh from the pool.
  return {const_cast<std::byte*>(piece.content.data()), piece.content.size()};
}

bool Incoming::Accept(size_t chunk) {
  if (HashOf(image_->pieces[chunk].content) != image_->outline.chunks[chunk]) return false;
  for (const size_t other : alike_[chunk]) image_->pieces[other] = image_->pieces[chunk];
  return true;
}

void Store::SetOwn(std::shared_ptr<const OwnPart> part) {
  {
    const std::lock_guard lock(mutex_);
    const checkpoint::Point point = part->outline.point;
    own_[point] = std::move(part);
    while (own_.size() > kOwnParts) own_.erase(own_.begin());
  }
  own_came_.notify_all();
}

void Store::AwaitOwn(const checkpoint::Point& point, Seconds at_most) {
  std::unique_lock lock(mutex_);
  own_came_.wait_for(lock, std::chrono::duration<double>(at_most.value),
                     [&] { return !own_.empty() && own_.rbegin()->first >= point; });
}

// Our own slots first: what they share needs no memory.
Store::Known Store::KnownFor(const checkpoint::Point& point) const {
  Known known;
  if (const auto own = own_.find(point); own != own_.end()) {
    const std::vector<Place> places = PlacesOf(own->second->outline.slots);
    for (size_t i = 0; i < places.size(); ++i)
      known.try_emplace(own->second->outline.chunks[i], Piece{own->second, ContentOf(*own->second, places[i]), false});
  }
  for (const auto& [name, image] : images_) {
    for (size_t i = 0; i < image->pieces.size(); ++i)
      if (image->pieces[i].is_foreign) known.try_emplace(image->outline.chunks[i], image->pieces[i]);
  }
  return known;
}

absl::StatusOr<Incoming> Store::Begin(Outline outline) {
  LS_RETURN_IF_ERROR(Validate(outline));
  Incoming incoming;
  incoming.image_ = std::make_shared<Image>();
  Image& image = *incoming.image_;
  image.places = PlacesOf(outline.slots);
  image.pieces.resize(image.places.size());
  Known known;
  {
    const std::lock_guard lock(mutex_);
    newest_ = std::max(newest_, outline.point.epoch);
    FollowRule();
    known = KnownFor(outline.point);
  }
  std::unordered_map<Hash, size_t> asked;
  uint64_t wanted = 0;
  for (size_t i = 0; i < image.places.size(); ++i) {
    const auto here = known.find(outline.chunks[i]);
    if (here != known.end() && here->second.content.size() == image.places[i].bytes) {
      image.pieces[i] = here->second;
      continue;
    }
    const auto [first, is_new] = asked.try_emplace(outline.chunks[i], i);
    if (!is_new && image.places[first->second].bytes == image.places[i].bytes) {
      incoming.alike_[first->second].push_back(i);
      continue;
    }
    incoming.missing_.push_back(i);
    wanted += image.places[i].bytes;
  }
  if (!pool_->Reserve(wanted, limit_.value)) {
    return MakeError(absl::StatusCode::kResourceExhausted,
                     fmt::format("to keep {} more for node {} there is no room: {} of {} are in use",
                                 checkpoint::HumanBytes(Bytes{wanted}), outline.node,
                                 checkpoint::HumanBytes(Bytes{bytes()}), checkpoint::HumanBytes(limit_)));
  }
  for (const size_t chunk : incoming.missing_) {
    Chunk memory = pool_->Take(image.places[chunk].bytes);
    image.pieces[chunk].content = {memory.get(), image.places[chunk].bytes};
    image.pieces[chunk].holder = std::move(memory);
  }
  image.outline = std::move(outline);
  return incoming;
}

void Store::Finish(Incoming incoming) {
  const std::shared_ptr<Image> image = std::move(incoming.image_);
  const bool whole = std::all_of(image->pieces.begin(), image->pieces.end(),
                                 [](const Piece& piece) { return piece.holder != nullptr; });
  LS_CHECK(whole, "an image of {} chunks is not whole", image->pieces.size());
  const std::lock_guard lock(mutex_);
  images_[{image->outline.node, image->outline.point}] = image;
}

std::shared_ptr<const Image> Store::Find(int node, const checkpoint::Point& point) const {
  const std::lock_guard lock(mutex_);
  const auto found = images_.find({node, point});
  return found == images_.end() ? nullptr : found->second;
}

std::vector<std::pair<int, checkpoint::Point>> Store::Kept() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<int, checkpoint::Point>> kept;
  for (const auto& [name, image] : images_) kept.push_back(name);
  return kept;
}

void Store::Clear() {
  const std::lock_guard lock(mutex_);
  images_.clear();
  own_.clear();
  rule_ = {};
}

void Store::GiveUp(const checkpoint::Point& committed, int64_t dead_step, EpochId epoch) {
  const std::lock_guard lock(mutex_);
  rule_ = {committed, dead_step, epoch};
  FollowRule();
}

void Store::FollowRule() {
  if (std::max(newest_, rule_.committed.epoch) < rule_.epoch) return;
  std::erase_if(images_, [&](const auto& image) {
    return ls_can_give_up(Shipped(image.first.second), Shipped(rule_.committed), rule_.dead_step, rule_.epoch.value());
  });
}

}  // namespace lockstep::keep
