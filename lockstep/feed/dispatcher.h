// Who prepares what next. Each rank has a ring of batches; a free slot becomes a batch of wanted items, in the order of
// the job's stream (a step of it that takes long to find is found by the threads too, in slices and without the lock:
// it holds up nobody else); worker threads take wants, of the rank first that has least ahead, and make each item at
// its place in the slot. In which order they get done decides nothing but when. An item that several jobs want is
// decoded once and cut for each; its pixels stay as long as the budget allows and somebody will want them in this
// epoch. Room that is left holds what later epochs will want: pixels and bytes of files, by quotas (split.h). A rank
// that doesn't release its slots wants nothing more, so it costs its ring and holds up nobody. Thread-safe. The threads
// stop when it is destroyed.
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
#include "lockstep/feed/heap.h"
#include "lockstep/feed/item_cache.h"
#include "lockstep/feed/job.h"
#include "lockstep/feed/maker.h"
#include "lockstep/feed/split.h"

namespace lockstep::feed {

// Of the threads, summed.
struct Times {
  int64_t read_ns = 0, decode_ns = 0, cut_ns = 0, idle_ns = 0;
};

struct Tally {
  uint64_t deliveries = 0;  // items that came into a batch
  uint64_t batches = 0;
  uint64_t waited = 0;                    // wants that waited for a decode which was under way
  uint64_t beyond = 0, beyond_bytes = 0;  // items that took more than the budget; the most that one took
  Costs costs;
  prepare::PrepareCounters prepared;  // of images
  int64_t idle_ns = 0;                // of all threads
  uint64_t preparations() const { return costs.decodes.count + costs.parts.count; }
};

struct CorruptItem {
  uint64_t item = 0;
  std::string why;  // the last time
};

class Dispatcher {
 public:
  struct Settings {
    uint64_t cache_bytes = uint64_t{1} << 30;
    uint64_t memory_limit = ~uint64_t{0};  // of the process, as HeapLimit has it
    // What errors call an item.
    std::function<std::string(uint64_t item)> name = [](uint64_t item) { return fmt::format("item {}", item); };
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
  Times TimesNow() const;  // of the tally, with what passes idly now
  const ItemCache& cache() const { return cache_; }
  const std::vector<CorruptItem>& corrupt() const { return corrupt_list_; }
  bool IsUntouched(const Job& job) const;  // nobody has taken a batch of it
  size_t threads() const { return threads_.size(); }

 private:
  using Lock = std::unique_lock<std::mutex>;

  void Run(const std::stop_token& stop, Maker& maker);
  void GoOnDealing(Lock& lock);
  std::optional<Want> Next();
  void Serve(Lock& lock, Maker& maker, const Want& want);
  void Cut(Lock& lock, Maker& maker, const Want& want, const prepare::Image& image);
  void Make(Lock& lock, Maker& maker, const Want& want);
  // `times`: what decoding took.
  absl::Status DecodeOrPrepare(Lock& lock, Maker& maker, const Want& want,
                               const std::shared_ptr<const prepare::Buffer>& file,
                               std::shared_ptr<const prepare::Image>& image, Times& times);
  struct Corrupt {
    bool for_good = false;
    size_t listed = 0;  // its place in the list
  };
  // Where an item is made: in memory of which its pixels are kept, or in memory lent to the thread for as long as it
  // takes; one that takes more than there is, beyond the budget, one at a time. Little is not asked for.
  struct Room {
    bool keeps = false, is_beyond = false;
    uint64_t reserved = 0;
  };
  Room TakeRoom(Lock& lock, uint64_t item, const prepare::DecodeMemory& need, uint64_t file_bytes, uint64_t next);
  Room TakeWorkRoom(Lock& lock, uint64_t bytes);
  bool IsHeapDue(const Room& room);
  void GiveBack(const Room& room);
  void TellBeyond(uint64_t item, uint64_t bytes);
  // Around what a thread does without the lock while it reads an item in memory or has reserved some.
  void BeginWork(Lock& lock);
  void EndWork(Lock& lock);
  absl::StatusOr<std::shared_ptr<const prepare::Buffer>> Read(Lock& lock, Maker& maker, uint64_t item, Times& times);
  void KeepFile(uint64_t item, std::shared_ptr<const prepare::Buffer> file);
  // Not for good where it could not be read: a server's bad minute passes, and the item is tried again when it is due.
  // Nor where one want can't be made of it: another one may be. The first such item is logged, the 10th, the 100th...
  void MarkCorrupt(uint64_t item, const absl::Status& why, bool for_good);
  void Finish(const Want& want, bool good);
  void Publish(OpenBatch& batch);
  // Of the first item of a batch that has lost all of them.
  uint64_t WriteWhy(const OpenBatch& batch) const;
  std::vector<uint32_t> RanksOf(const Job& job) const;
  void Plan(const std::shared_ptr<Rank>& rank);
  bool KnowsTheNextEpoch(const Rank& rank);
  sampling::StreamPlace NextStep(const Rank& rank);
  // Otherwise the threads deal its next step, and then plan anew for all ranks of the job.
  bool HasItsNextStep(const Rank& rank);
  void TakePace(Rank& rank);
  void PlanBatch(const std::shared_ptr<Rank>& rank, uint32_t slot);
  void Forget(uint64_t item);
  int64_t IdleNs(Nanos now) const;  // of the threads' time, what passed idly until now
  int64_t BusyNs(Nanos now) const;  // and what did not
  // In how many items some job wants this one; `except`: not counting the one want that is being served.
  uint64_t NextUse(uint64_t item, uint32_t except) const;

  const std::function<int64_t(uint64_t)> label_;
  const std::function<std::string(uint64_t)> name_;
  const Clock& clock_;
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable_any wanted_;
  std::vector<std::shared_ptr<Rank>> ranks_;
  std::deque<Want> ready_;                                         // whose item has just been decoded for somebody else
  std::deque<std::shared_ptr<Job>> to_deal_;                       // whose next step takes long to walk
  std::unordered_map<uint64_t, uint32_t> pending_;                 // wants that are not finished, by item
  std::unordered_map<uint64_t, std::vector<Want>> being_decoded_;  // with who waits for it
  std::map<uint64_t, Corrupt> corrupt_;
  std::vector<CorruptItem> corrupt_list_;
  size_t told_at_ = 1;  // of the list's sizes, the next that is logged
  ItemCache cache_;
  Tally tally_;
  HeapLimit heap_;
  bool beyond_budget_ = false;  // a large item is being made without room for it
  uint64_t turned_over_ = 0;    // bytes reserved since the heap was looked at
  size_t busy_ = 0;             // threads in work
  std::condition_variable_any given_back_;
  uint64_t turn_ = 0;
  Nanos begun_;
  int64_t idle_ = 0, idle_since_sum_ns_ = 0;  // threads that are idle now; the sum of the times since when
  std::vector<std::jthread> threads_;         // last: they end first
};

}  // namespace lockstep::feed
