// Who prepares what next. Each rank has a ring of batches; a free slot becomes a batch of wanted items, in the order of
// the job's stream; worker threads take wants, of the rank first that has least ahead, and make each item at its place
// in the slot. In which order they get done decides nothing but when. An item that several jobs want is decoded once
// and cut for each; its pixels stay as long as the budget allows and somebody will want them in this epoch. Room that
// is left holds what later epochs will want: pixels and bytes of files, by quotas (split.h). A rank that
// doesn't release its slots wants nothing more, so it costs its ring and holds up nobody. Thread-safe. The threads stop
// when it is destroyed.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/feed/item_cache.h"
#include "lockstep/feed/job.h"
#include "lockstep/feed/maker.h"
#include "lockstep/feed/split.h"

namespace lockstep::feed {

struct Tally {
  uint64_t deliveries = 0;  // items that came into a batch
  uint64_t batches = 0;
  uint64_t waited = 0;  // wants that waited for a decode which was under way
  Costs costs;
  int64_t idle_ns = 0;  // of all threads
  uint64_t preparations() const { return costs.decodes.count + costs.parts.count; }
};

struct CorruptItem {
  uint64_t item = 0;
  std::string why;
};

class Dispatcher {
 public:
  struct Settings {
    uint64_t cache_bytes = uint64_t{1} << 30;
  };
  // One thread for each maker. `label(item)` is what goes beside it.
  Dispatcher(const Settings& settings, std::vector<std::unique_ptr<Maker>> makers,
             std::function<int64_t(uint64_t item)> label, const Clock& clock);
  ~Dispatcher();

  void Add(std::shared_ptr<Rank> rank);
  // Its wants are forgotten, and what only it had kept in memory may go.
  void Remove(const std::shared_ptr<Rank>& rank);
  // The rank has released a slot.
  void Refill(const std::shared_ptr<Rank>& rank);
  // Calls `look` with the lock held.
  void Look(const std::function<void(const Dispatcher&)>& look) const;
  void SetQuotas(const Quotas& quotas);

  // Under the lock, of Look().
  const std::vector<std::shared_ptr<Rank>>& ranks() const { return ranks_; }
  const Tally& tally() const { return tally_; }
  const ItemCache& cache() const { return cache_; }
  const std::vector<CorruptItem>& corrupt() const { return corrupt_list_; }
  bool IsUntouched(const Job& job) const;  // nobody has taken a batch of it
  size_t threads() const { return threads_.size(); }

 private:
  using Lock = std::unique_lock<std::mutex>;

  void Run(const std::stop_token& stop, Maker& maker);
  std::optional<Want> Next();
  void Serve(Lock& lock, Maker& maker, const Want& want);
  void Cut(Lock& lock, Maker& maker, const Want& want, const prepare::Image& image);
  void Make(Lock& lock, Maker& maker, const Want& want);
  absl::Status MakeUnlocked(Lock& lock, Maker& maker, const Want& want, std::shared_ptr<const prepare::Image>& image);
  // Where an item is made: in memory that is kept, in memory lent to the thread for as long as it takes, or, where a
  // large item has no room, beyond the budget, one at a time. Small ones that are not kept need none worth counting.
  enum class Room : uint8_t { kKept, kScratch, kBeyond, kNone };
  Room TakeRoom(Lock& lock, uint64_t bytes, uint64_t next);
  void GiveBack(Room room, uint64_t bytes);
  absl::StatusOr<std::shared_ptr<const prepare::Buffer>> Read(Lock& lock, Maker& maker, uint64_t item);
  void KeepFile(uint64_t item, std::shared_ptr<const prepare::Buffer> file);
  void MarkCorrupt(uint64_t item, const absl::Status& why);
  void Finish(const Want& want, bool good);
  void Publish(OpenBatch& batch);
  void Plan(const std::shared_ptr<Rank>& rank);
  bool KnowsTheNextEpoch(const Rank& rank);
  void TakePace(Rank& rank);
  void PlanBatch(const std::shared_ptr<Rank>& rank, uint32_t slot);
  void Forget(uint64_t item);
  // In how many items some job wants this one; `except`: not counting the one want that is being served.
  uint64_t NextUse(uint64_t item, uint32_t except) const;

  const std::function<int64_t(uint64_t)> label_;
  const Clock& clock_;
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable_any wanted_;
  std::vector<std::shared_ptr<Rank>> ranks_;
  std::deque<Want> ready_;                                         // whose item has just been decoded for somebody else
  std::unordered_map<uint64_t, uint32_t> pending_;                 // wants that are not finished, by item
  std::unordered_map<uint64_t, std::vector<Want>> being_decoded_;  // with who waits for it
  std::map<uint64_t, bool> corrupt_;
  std::vector<CorruptItem> corrupt_list_;
  ItemCache cache_;
  Tally tally_;
  bool beyond_budget_ = false;  // a large item is being made without room for it
  std::condition_variable_any made_large_;
  uint64_t turn_ = 0;
  std::vector<std::jthread> threads_;  // last: they end first
};

}  // namespace lockstep::feed
