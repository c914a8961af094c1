// What this node keeps in memory for others: images of their parts of a checkpoint, by node and point. An image is
// complete or it is not here. Content that is here anyway is not kept twice: chunks of other images are shared, and
// what this node's own ranks hold of the same checkpoint is referred to where it lies. Invariants: images are
// immutable; a chunk that came from outside has the hash it was announced with; one that refers to our ranks' slots may
// have been written over since, which whoever reads it finds out by its hash. That happens only once a newer checkpoint
// is kept everywhere, for both are given up by one rule (client/commit.h). Bounded by `limit`. Thread-safe.
//
//   Store store(limit);
//   LS_ASSIGN_OR_RETURN(Incoming incoming, store.Begin(outline));
//   for (size_t chunk : incoming.missing()) { receive into incoming.Room(chunk); incoming.Accept(chunk); }
//   store.Finish(std::move(incoming));
//   if (const auto image = store.Find(node, point)) ...
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/keep/outline.h"
#include "lockstep/keep/pool.h"

namespace lockstep::keep {

// A node's own part, as it lies in its ranks' slots. `mapping` keeps the memory mapped; what lies there may be written
// over at any time.
struct OwnPart {
  Outline outline;
  std::vector<std::span<const std::byte>> contents;  // by slot
  std::shared_ptr<const void> mapping;
};

// One chunk of an image and what keeps it in memory.
struct Piece {
  std::shared_ptr<const void> holder;
  std::span<const std::byte> content;
  bool is_foreign = true;  // false: it lies in our own ranks' slots, and may change
};

struct Image {
  Outline outline;
  std::vector<Place> places;
  std::vector<Piece> pieces;  // by chunk
  // The content, or DataLoss: our ranks have written over it.
  absl::StatusOr<std::span<const std::byte>> Content(size_t chunk) const;
  // A copy of all chunks of a slot.
  absl::StatusOr<std::vector<std::byte>> CopyOf(size_t slot) const;
};

// An image that is still being filled, by one thread.
class Incoming {
 public:
  const std::vector<size_t>& missing() const { return missing_; }
  std::span<std::byte> Room(size_t chunk);
  // Its content is in Room(chunk). False: it is not what was announced.
  bool Accept(size_t chunk);

 private:
  friend class Store;
  std::shared_ptr<Image> image_;  // shared once it is finished
  std::vector<size_t> missing_;
  std::map<size_t, std::vector<size_t>> alike_;  // by the missing one: other chunks with its content
};

class Store {
 public:
  explicit Store(Bytes limit) : limit_(limit) {}

  // Our own ranks hold this.
  void SetOwn(std::shared_ptr<const OwnPart> part);
  // Returns when our own part of this checkpoint, or of a newer one, is known, or after so long.
  void AwaitOwn(const checkpoint::Point& point, Seconds at_most);

  // ResourceExhausted: there is no room for it. InvalidArgument: it is none.
  absl::StatusOr<Incoming> Begin(Outline outline);
  // Requires that all that was missing has been accepted.
  void Finish(Incoming incoming);
  std::shared_ptr<const Image> Find(int node, const checkpoint::Point& point) const;
  // Complete ones, by node.
  std::vector<std::pair<int, checkpoint::Point>> Kept() const;
  // Nothing is kept any more, and nothing known of our own.
  void Clear();
  // `committed` is kept everywhere, or `epoch` begins from it; of `epoch`, nothing else up to dead_step can become so:
  // what ranks may give up, we do. But what was kept before `epoch` stays until something of it comes: of what it
  // begins from there may be no copy, and until its ranks save they hold what was kept, too.
  void GiveUp(const checkpoint::Point& committed, int64_t dead_step, EpochId epoch);

  uint64_t bytes() const { return pool_->in_use(); }

 private:
  // What GiveUp() was told last.
  struct Rule {
    checkpoint::Point committed;
    int64_t dead_step = -1;
    EpochId epoch;
  };
  void FollowRule();
  using Known = std::unordered_map<Hash, Piece>;
  Known KnownFor(const checkpoint::Point& point) const;

  const Bytes limit_;
  std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();  // outlived by chunks that are being read
  mutable std::mutex mutex_;
  std::condition_variable own_came_;
  std::map<std::pair<int, checkpoint::Point>, std::shared_ptr<const Image>> images_;
  std::map<checkpoint::Point, std::shared_ptr<const OwnPart>> own_;  // the newest two
  Rule rule_;
  EpochId newest_;  // of which anything has come
};

}  // namespace lockstep::keep
