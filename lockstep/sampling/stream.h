// The common order as one job sees it, without memory for the items: the job's set, taken out of a lap's order of the
// whole data set. It is a function of seed, lap and place; whoever has these goes on exactly, with any number of ranks
// and however many other jobs read along. In deterministic mode a lap is the job's own epoch and the offset 0: then
// nothing but the job's spec decides its stream.
//
// A lap with a window goes on by only so many places while the job goes through its set: the job takes what it reads of
// them when the lap is there, and in between, in an order of this window's own, what lies outside. All items of the
// job are treated alike, so its order is uniform (docs/models/feed.md).
// Thread-compatible. Cost: about |data set| / |set| times 50 ns an item, twice that with a window; a window with more
// places than the set has items is walked once when the epoch begins; Load O(1). Of a set that is small beside the data
// set, nearest_places.h finds the places instead: 0.1 us an item, all at once when its first item is asked for.
//
//   LS_ASSIGN_OR_RETURN(Stream stream, Stream::Create({.dataset = ItemSet::Below(1'000'000'000), .seed = 7}));
//   stream.Begin({.number = epoch}, epoch);
//   while (stream.left() > 0) Use(stream.Next());
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/sampling/item_set.h"
#include "lockstep/sampling/laps.h"
#include "lockstep/sampling/nearest_places.h"
#include "lockstep/sampling/permutation.h"

namespace lockstep::sampling {

struct StreamSpec {
  ItemSet dataset{};
  std::optional<ItemSet> items{};  // of the data set; none: all of it
  uint64_t seed = 0;
};

// All that it takes to go on: 64 bytes.
struct StreamPlace {
  Lap lap{};
  uint64_t epoch = 0;   // of the job, from 0
  uint64_t taken = 0;   // items of this epoch
  uint64_t walked = 0;  // places of the lap's order that are behind us
  uint64_t aside = 0;   // likewise, of the order of what lies outside of the window
  uint64_t turns = 0;   // of the items to come, at how many the lap has its turn
  bool operator==(const StreamPlace&) const = default;
};

class Stream {
 public:
  // kInvalidArgument: an empty set, items that the data set doesn't have, more than 2^62 items.
  static absl::StatusOr<Stream> Create(StreamSpec spec);
  void Begin(const Lap& lap, uint64_t epoch);
  void GoTo(const StreamPlace& place);  // of this stream, or of one of the same spec
  uint64_t Next();                      // an id; requires left() > 0
  // Does at most about so much `work` of the next Next(), in places looked at, and takes it off; true: Next() has
  // little to do. Requires left() > 0.
  bool Find(uint64_t& work);
  void Skip(uint64_t count);  // requires left() >= count; item by item unless SkipsAtOnce()
  // The job reads the whole data set, by whole laps.
  bool SkipsAtOnce() const { return SkipsAtOnce(place_.lap); }
  bool SkipsAtOnce(const Lap& lap) const { return !spec_.items && lap.window == 0; }
  uint64_t left() const { return size_ - place_.taken; }
  uint64_t size() const { return size_; }
  const StreamPlace& place() const { return place_; }
  const ItemSet& items() const { return spec_.items ? *spec_.items : spec_.dataset; }
  // How many items come before this one, about; nullopt if it came already or never does.
  std::optional<uint64_t> Ahead(uint64_t id) const;

  // As text of less than 1 KB. It names the sets by a hash; another spec refuses it (kFailedPrecondition), as what is
  // no such text (kInvalidArgument).
  std::string Save() const { return SaveAt(place_); }
  std::string SaveAt(const StreamPlace& place) const;
  absl::Status Load(std::string_view state);
  uint64_t Identity() const;  // a hash of seed and sets

 private:
  explicit Stream(StreamSpec spec);
  bool Reads(uint64_t id) const { return !spec_.items || spec_.items->Contains(id); }
  uint64_t IdAt(uint64_t place) const;  // of the lap, counted from where the job began
  uint64_t WalkLap();                   // the id at the next place of the lap
  uint64_t WalkAside();
  bool IsLapsTurn() const;
  uint64_t CountInWindow(const Lap& lap) const;
  uint64_t PlaceInLap(uint64_t index) const;

  StreamSpec spec_;
  uint64_t size_ = 0;
  StreamPlace place_;
  Permutation order_{1, 0};               // of the lap, once it began
  Permutation aside_{1, 0};               // of the data set, for what lies outside of the window
  std::optional<NearestPlaces> nearest_;  // of a set that is small beside the data set
  uint64_t empty_ = 0;                    // places after those walked that are known to be no item's of the job
  std::optional<uint64_t> found_;         // what Find() found behind them
};

// Of the next items of a job, which are for this rank: every world-th. The last batch of an epoch is what is left, so
// ranks may differ by one, or get nothing.
//
//   TakeShare(stream, {.rank = 2, .world = 8, .per_rank = 32})
struct Share {
  uint64_t rank = 0, world = 1, per_rank = 1;
};
std::vector<uint64_t> TakeShare(Stream& stream, const Share& share);

}  // namespace lockstep::sampling
