#include "lockstep/feed/dispatcher.h"

#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/base/background_thread.h"
#include "lockstep/base/check.h"

namespace lockstep::feed {
namespace {

prepare::AugmentKey KeyOf(const Want& want) {
  const Job& job = *want.batch->rank->job;
  return {.seed = job.seed, .epoch = want.batch->view.batch->epoch, .item = want.item(), .job = job.key};
}

std::span<uint8_t> PlaceOf(const Want& want) {
  const uint64_t bytes = want.batch->rank->ring.shape().item_bytes;
  return {reinterpret_cast<uint8_t*>(want.batch->view.payload) + want.index * bytes, bytes};
}

bool IsBefore(const sampling::StreamPlace& a, const sampling::StreamPlace& b) {
  return std::pair(a.epoch, a.taken) < std::pair(b.epoch, b.taken);
}

void WriteState(const sampling::StreamPlace& place, const sampling::Stream& stream, ls_feed_batch& batch) {
  const std::string state = stream.SaveAt(place);
  LS_CHECK(state.size() < sizeof batch.state, "{}", state);
  std::memcpy(batch.state, state.c_str(), state.size() + 1);
}

// Adds what passes until it goes.
class Stopwatch {
 public:
  Stopwatch(const Clock& clock, int64_t& sum) : clock_(clock), sum_(sum), begin_(clock.Now()) {}
  ~Stopwatch() { sum_ += (clock_.Now() - begin_).value; }

 private:
  const Clock& clock_;
  int64_t& sum_;
  const Nanos begin_;
};

}  // namespace

Dispatcher::Dispatcher(const Settings& settings, std::vector<std::unique_ptr<Maker>> makers,
                       std::function<int64_t(uint64_t)> label, const Clock& clock)
    : label_(std::move(label)),
      clock_(clock),
      cache_(settings.cache_bytes, [this](uint64_t item) { return NextUse(item, 0); }) {
  for (std::unique_ptr<Maker>& maker : makers)
    threads_.emplace_back([this, own = std::move(maker)](const std::stop_token& stop) { Run(stop, *own); });
}

Dispatcher::~Dispatcher() {
  for (std::jthread& thread : threads_) thread.request_stop();
  threads_.clear();
  for (const std::shared_ptr<Rank>& rank : ranks_) rank->wants.clear();  // they hold their rank
}

void Dispatcher::Look(const std::function<void(const Dispatcher&)>& look) const {
  const Lock lock(mutex_);
  look(*this);
}

void Dispatcher::SetQuotas(const Quotas& quotas) {
  const Lock lock(mutex_);
  cache_.SetQuota(Form::kDecoded, quotas.decoded);
  cache_.SetQuota(Form::kEncoded, quotas.encoded);
}

// ---- ranks ----

void Dispatcher::Add(std::shared_ptr<Rank> rank) {
  const Lock lock(mutex_);
  ranks_.push_back(rank);
  for (const std::shared_ptr<Rank>& other : ranks_)
    if (other->job == rank->job) Plan(other);  // they may have waited for it
}

void Dispatcher::Refill(const std::shared_ptr<Rank>& rank) {
  const Lock lock(mutex_);
  if (!rank->gone) Plan(rank);
}

void Dispatcher::Remove(const std::shared_ptr<Rank>& rank) {
  const Lock lock(mutex_);
  rank->gone = true;
  if (rank->job->leader == rank.get()) rank->job->leader = nullptr;
  std::erase(ranks_, rank);
  if (std::none_of(ranks_.begin(), ranks_.end(), [&](const auto& other) { return other->job == rank->job; }))
    rank->job->epochs.Leave();
  for (const Want& want : std::exchange(rank->wants, {})) Forget(want.item());
}

bool Dispatcher::IsUntouched(const Job& job) const {
  return std::none_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) {
    return rank->job.get() == &job && rank->ticket > rank->ring.Outstanding();
  });
}

void Dispatcher::Plan(const std::shared_ptr<Rank>& rank) {
  for (bool asked = false; KnowsTheNextEpoch(*rank);) {
    if (const std::optional<uint32_t> slot = rank->ring.TakeFree()) {
      PlanBatch(rank, *slot);
    } else if (asked) {
      return;
    } else {
      rank->ring.AskForSlot();
      asked = true;
    }
  }
}

// Before the last step of an epoch, where the next one begins has to be known.
bool Dispatcher::KnowsTheNextEpoch(const Rank& rank) {
  Job& job = *rank.job;
  const sampling::StreamPlace* place = &rank.stream.place();
  if (job.cut.IsOver(place->taken)) place = job.epochs.After(*place, rank.stream, clock_.Now());
  if (place == nullptr || !job.cut.Share(place->taken, rank.number).last) return place != nullptr;
  return job.epochs.After(*place, rank.stream, clock_.Now()) != nullptr;
}

// Of a job that nobody has timed yet: by the middle one of the times between its first batches, so that a slow item
// among them says nothing.
void Dispatcher::TakePace(Rank& rank) {
  constexpr size_t kBatches = 8;
  sampling::Group* group = rank.job->epochs.group().get();
  if (group == nullptr || rank.ticket < rank.ring.shape().slots || group->PaceOf(rank.job->key) > 0) return;
  rank.planned.push_back(clock_.Now());
  if (rank.planned.size() < kBatches) return;
  std::vector<int64_t> between;
  for (size_t i = 1; i < rank.planned.size(); ++i) between.push_back((rank.planned[i] - rank.planned[i - 1]).value);
  std::nth_element(between.begin(), between.begin() + kBatches / 2 - 1, between.end());
  group->Pace(rank.job->key, std::max(1.0, static_cast<double>(between[kBatches / 2 - 1]) /
                                               static_cast<double>(rank.job->cut.full())));
}

void Dispatcher::PlanBatch(const std::shared_ptr<Rank>& rank, uint32_t slot) {
  sampling::Stream& stream = rank->stream;
  const EpochCut& cut = rank->job->cut;
  Epochs& epochs = rank->job->epochs;
  TakePace(*rank);
  if (cut.IsOver(stream.place().taken)) {
    stream.GoTo(*epochs.After(stream.place(), stream, clock_.Now()));
    rank->step = 0;
  }
  const uint64_t before = stream.place().taken, epoch = stream.place().epoch;
  const StepShare share = cut.Share(before, rank->number);
  auto batch = std::make_shared<OpenBatch>(OpenBatch{rank, slot, rank->ticket++, rank->ring.Slot(slot), {}, {}, 0});
  stream.Skip(share.position - before);
  for (uint64_t i = 0; i < share.items; ++i) batch->items.push_back(stream.Next());
  stream.Skip(share.next - share.position - share.items);
  batch->bad.resize(share.items);
  batch->left = share.items;
  *batch->view.batch = {.ticket = batch->ticket,
                        .epoch = epoch,
                        .position = share.position,
                        .cursor = share.next,
                        .step = rank->step++,
                        .items = 0,
                        .skipped = 0,
                        .last = share.last ? 1U : 0U,
                        .began_ns = clock_.Now().value,
                        .filled_ns = 0,
                        .reserved = {},
                        .state = {}};
  WriteState(share.last ? *epochs.After(stream.place(), stream, clock_.Now()) : stream.place(), stream,
             *batch->view.batch);
  const Rank*& leader = rank->job->leader;
  if (leader == nullptr || IsBefore(leader->stream.place(), stream.place())) leader = rank.get();
  for (size_t i = 0; i < batch->items.size(); ++i) {
    rank->wants.push_back({batch, i});
    ++pending_[batch->items[i]];
  }
  if (batch->left == 0) Publish(*batch);
  wanted_.notify_all();
}

void Dispatcher::Forget(uint64_t item) {
  const auto found = pending_.find(item);
  LS_CHECK(found != pending_.end(), "item {}", item);
  if (--found->second == 0) pending_.erase(found);
}

uint64_t Dispatcher::NextUse(uint64_t item, uint32_t except) const {
  const auto found = pending_.find(item);
  if (found != pending_.end() && found->second > except) return 0;
  uint64_t next = ItemCache::kNever;
  for (const std::shared_ptr<Rank>& rank : ranks_)
    if (rank->job->leader == rank.get()) next = std::min(next, rank->stream.Ahead(item).value_or(ItemCache::kNever));
  return next;
}

// ---- the threads ----

void Dispatcher::Run(const std::stop_token& stop, Maker& maker) {
  TakeNoSignals();
  Lock lock(mutex_);
  while (!stop.stop_requested()) {
    const std::optional<Want> want = Next();
    if (want) {
      Serve(lock, maker, *want);
    } else {
      const Stopwatch idle(clock_, tally_.idle_ns);
      wanted_.wait(lock, stop, [&] {
        return !ready_.empty() ||
               std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return !rank->wants.empty(); });
      });
    }
  }
}

// Who has least ahead comes first; of those that have equally much, each in turn.
std::optional<Want> Dispatcher::Next() {
  std::deque<Want>* from = ready_.empty() ? nullptr : &ready_;
  uint32_t least = LS_FEED_MAX_SLOTS + 1;
  for (size_t i = 0; from != &ready_ && i < ranks_.size(); ++i) {
    Rank& rank = *ranks_[(turn_ + i) % ranks_.size()];
    if (rank.wants.empty() || rank.ring.Held() >= least) continue;
    least = rank.ring.Held();
    from = &rank.wants;
  }
  if (from == nullptr) return std::nullopt;
  ++turn_;
  Want want = std::move(from->front());
  from->pop_front();
  return want;
}

void Dispatcher::Serve(Lock& lock, Maker& maker, const Want& want) {
  const uint64_t item = want.item();
  if (want.batch->rank->gone) return Forget(item);
  if (corrupt_.contains(item)) return Finish(want, false);
  const auto decoding = being_decoded_.find(item);
  if (decoding != being_decoded_.end()) {
    decoding->second.push_back(want);
    ++tally_.waited;
    return;
  }
  const Content kept = cache_.Find(item, Form::kDecoded);
  if (kept.image != nullptr) return Cut(lock, maker, want, *kept.image);
  Make(lock, maker, want);
}

void Dispatcher::Cut(Lock& lock, Maker& maker, const Want& want, const prepare::Image& image) {
  int64_t took = 0;
  lock.unlock();
  absl::Status cut;
  {
    const Stopwatch watch(clock_, took);
    cut = maker.Cut(image, want.batch->rank->job->recipe, KeyOf(want), PlaceOf(want));
  }
  lock.lock();
  tally_.costs.cuts.Add(took, 0);
  if (!cut.ok()) MarkCorrupt(want.item(), cut);
  Finish(want, cut.ok());
}

void Dispatcher::Make(Lock& lock, Maker& maker, const Want& want) {
  const uint64_t item = want.item();
  being_decoded_[item];
  std::shared_ptr<const prepare::Image> image;
  const absl::Status made = MakeUnlocked(lock, maker, want, image);
  if (!made.ok()) MarkCorrupt(item, made);
  std::vector<Want> waiting = std::move(being_decoded_[item]);
  being_decoded_.erase(item);
  ready_.insert(ready_.end(), waiting.begin(), waiting.end());
  if (!waiting.empty()) wanted_.notify_all();
  if (image != nullptr) return Cut(lock, maker, want, *image);
  Finish(want, made.ok());
}

// Holds the lock when it begins and ends. Leaves an image if others will want it and memory has room for it; else the
// want's own place has been filled.
absl::Status Dispatcher::MakeUnlocked(Lock& lock, Maker& maker, const Want& want,
                                      std::shared_ptr<const prepare::Image>& image) {
  const uint64_t next = NextUse(want.item(), 1);
  LS_ASSIGN_OR_RETURN(const std::shared_ptr<const prepare::Buffer> file, Read(lock, maker, want.item()));
  LS_ASSIGN_OR_RETURN(const uint64_t bytes, maker.DecodedBytes(file->bytes()));
  const Room room = TakeRoom(lock, bytes, next);
  if (room != Room::kKept || !cache_.HasQuota(Form::kDecoded, 0)) KeepFile(want.item(), file);
  int64_t took = 0;
  absl::Status status;
  auto decoded = std::make_shared<prepare::Image>();
  lock.unlock();
  if (bytes > Maker::kLarge) malloc_trim(0);  // what was evicted for it lies in pieces in the heap
  {
    const Stopwatch watch(clock_, took);
    status = room == Room::kKept
                 ? maker.Decode(file->bytes(), *decoded)
                 : maker.Prepare(file->bytes(), want.batch->rank->job->recipe, KeyOf(want), PlaceOf(want));
  }
  lock.lock();
  (room == Room::kKept ? tally_.costs.decodes : tally_.costs.parts).Add(took, bytes);
  if (room == Room::kKept && status.ok()) {
    image = decoded;
    cache_.Put(want.item(), Form::kDecoded, {image, nullptr}, bytes, bytes);
    if (cache_.HasQuota(Form::kDecoded, 0)) cache_.Drop(want.item(), Form::kEncoded);
  } else {
    GiveBack(room, bytes);
  }
  return status;
}

absl::StatusOr<std::shared_ptr<const prepare::Buffer>> Dispatcher::Read(Lock& lock, Maker& maker, uint64_t item) {
  if (const Content kept = cache_.Find(item, Form::kEncoded); kept.file != nullptr) return kept.file;
  auto file = std::make_shared<prepare::Buffer>();
  int64_t took = 0;
  absl::Status status;
  lock.unlock();
  {
    const Stopwatch watch(clock_, took);
    status = maker.Read(item, *file);
  }
  lock.lock();
  LS_RETURN_IF_ERROR(status);
  tally_.costs.reads.Add(took, file->size());
  return file;
}

Dispatcher::Room Dispatcher::TakeRoom(Lock& lock, uint64_t bytes, uint64_t next) {
  if ((next != ItemCache::kNever || cache_.HasQuota(Form::kDecoded, bytes)) && cache_.Reserve(bytes, next))
    return Room::kKept;
  if (bytes <= Maker::kLarge) return Room::kNone;
  while (!cache_.Reserve(bytes, 0)) {
    if (!std::exchange(beyond_budget_, true)) return Room::kBeyond;
    made_large_.wait(lock);
  }
  return Room::kScratch;
}

void Dispatcher::GiveBack(Room room, uint64_t bytes) {
  if (room == Room::kNone) return;
  if (room == Room::kBeyond)
    beyond_budget_ = false;
  else
    cache_.Unreserve(bytes);
  made_large_.notify_all();
}

void Dispatcher::KeepFile(uint64_t item, std::shared_ptr<const prepare::Buffer> file) {
  const uint64_t bytes = file->size();
  if (!cache_.HasQuota(Form::kEncoded, bytes) || cache_.Find(item, Form::kEncoded).file != nullptr) return;
  if (cache_.Reserve(bytes, ItemCache::kNever))
    cache_.Put(item, Form::kEncoded, {nullptr, std::move(file)}, bytes, bytes);
}

void Dispatcher::MarkCorrupt(uint64_t item, const absl::Status& why) {
  if (corrupt_.insert({item, true}).second) corrupt_list_.push_back({item, Message(why)});
}

void Dispatcher::Finish(const Want& want, bool good) {
  OpenBatch& batch = *want.batch;
  Forget(want.item());
  if (!cache_.HasQuota(Form::kDecoded, 0) && NextUse(want.item(), 0) == ItemCache::kNever)
    cache_.Drop(want.item(), Form::kDecoded);
  batch.bad[want.index] = !good;
  if (--batch.left == 0 && !batch.rank->gone) {
    Publish(batch);
    Plan(batch.rank);
  }
}

// Items that could not be prepared leave no gap: what comes behind moves up, which is the one case of a copy.
void Dispatcher::Publish(OpenBatch& batch) {
  Job& job = *batch.rank->job;
  const uint64_t bytes = batch.rank->ring.shape().item_bytes;
  uint32_t good = 0, bad = 0;
  std::vector<uint64_t> skipped;
  for (size_t i = 0; i < batch.items.size(); ++i) {
    if (batch.bad[i]) {
      skipped.push_back(batch.items[i]);
      continue;
    }
    if (good != i) std::memcpy(batch.view.payload + good * bytes, batch.view.payload + i * bytes, bytes);
    batch.view.ids[good] = batch.items[i];
    batch.view.labels[good++] = label_(batch.items[i]);
  }
  for (const uint64_t item : skipped) batch.view.ids[good + bad++] = item;
  batch.view.batch->items = good;
  batch.view.batch->skipped = bad;
  batch.view.batch->filled_ns = clock_.Now().value;
  job.delivered += good;
  job.skipped += bad;
  ++job.batches;
  tally_.deliveries += good;
  ++tally_.batches;
  batch.rank->ring.Publish(batch.slot, batch.ticket);
}

}  // namespace lockstep::feed
