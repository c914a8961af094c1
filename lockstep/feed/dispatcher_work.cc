// The threads of a dispatcher: who takes which want, how its item is made, and in which memory.
#include <algorithm>
#include <utility>

#include "lockstep/base/background_thread.h"
#include "lockstep/base/check.h"
#include "lockstep/base/log.h"
#include "lockstep/feed/dispatcher.h"

namespace lockstep::feed {
namespace {

constexpr uint64_t kTurnover = 2 << 20;  // bytes reserved, after which the heap is looked at: as much has been evicted

prepare::AugmentKey KeyOf(const Want& want) {
  const Job& job = *want.batch->rank->job;
  return {.seed = job.seed, .epoch = want.batch->view.batch->epoch, .item = want.item(), .job = job.key};
}

std::span<uint8_t> PlaceOf(const Want& want) {
  const uint64_t bytes = want.batch->rank->ring.shape().item_bytes;
  return {reinterpret_cast<uint8_t*>(want.batch->view.payload) + want.index * bytes, bytes};
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

void Dispatcher::Run(const std::stop_token& stop, Maker& maker) {
  TakeNoSignals();
  Lock lock(mutex_);
  Nanos wants_until{0};  // they have as much time as dealing has
  while (!stop.stop_requested()) {
    if (!to_deal_.empty() && clock_.Now() >= wants_until) {
      const Nanos begin = clock_.Now();
      GoOnDealing(lock);
      wants_until = clock_.Now() + (clock_.Now() - begin);
      continue;
    }
    const std::optional<Want> want = Next();
    if (want) {
      Serve(lock, maker, *want);
    } else if (!to_deal_.empty()) {
      wants_until = {};
    } else {
      const int64_t since = clock_.Now().value;
      ++idle_, idle_since_sum_ns_ += since;
      wanted_.wait(lock, stop, [&] {
        return !ready_.empty() || !to_deal_.empty() ||
               std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return !rank->wants.empty(); });
      });
      --idle_, idle_since_sum_ns_ -= since;
      tally_.idle_ns += clock_.Now().value - since;
    }
  }
}

void Dispatcher::GoOnDealing(Lock& lock) {
  const std::shared_ptr<Job> job = std::move(to_deal_.front());
  to_deal_.pop_front();
  StepWalk& walk = job->dealt.walk();
  lock.unlock();
  const bool is_dealt = walk.GoOn(StepWalk::kSlice);
  lock.lock();
  std::vector<std::shared_ptr<Rank>> ranks;
  for (const std::shared_ptr<Rank>& rank : ranks_)
    if (rank->job == job) ranks.push_back(rank);
  if (!is_dealt && !ranks.empty()) return to_deal_.push_back(job);
  job->is_being_dealt = false;
  if (is_dealt) job->dealt.Keep();
  for (const std::shared_ptr<Rank>& rank : ranks) Plan(rank);
}

int64_t Dispatcher::IdleNs(Nanos now) const { return tally_.idle_ns + idle_ * now.value - idle_since_sum_ns_; }

int64_t Dispatcher::BusyNs(Nanos now) const {
  return static_cast<int64_t>(threads_.size()) * (now - begun_).value - IdleNs(now);
}

Times Dispatcher::TimesNow() const {
  const Costs& costs = tally_.costs;
  return {costs.reads.ns, costs.decodes.ns + costs.parts.ns, costs.cuts.ns, IdleNs(clock_.Now())};
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
  if (const auto known = corrupt_.find(item); known != corrupt_.end() && known->second.for_good)
    return Finish(want, false);
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

void Dispatcher::BeginWork(Lock& lock) {
  ++busy_;
  lock.unlock();
}

// What was reserved or read for it is given back before the lock is.
void Dispatcher::EndWork(Lock& lock) {
  lock.lock();
  --busy_;
  given_back_.notify_all();
}

void Dispatcher::Cut(Lock& lock, Maker& maker, const Want& want, const prepare::Image& image) {
  int64_t took = 0;
  absl::Status cut;
  BeginWork(lock);
  {
    const Stopwatch watch(clock_, took);
    cut = maker.Cut(image, want.batch->rank->job->recipe, KeyOf(want), PlaceOf(want));
  }
  EndWork(lock);
  tally_.costs.cuts.Add(took, 0);
  want.batch->decode_ns += took;
  if (!cut.ok()) MarkCorrupt(want.item(), cut, /*for_good=*/false);
  Finish(want, cut.ok());
}

void Dispatcher::Make(Lock& lock, Maker& maker, const Want& want) {
  const uint64_t item = want.item();
  being_decoded_[item];
  std::shared_ptr<const prepare::Image> image;
  Times took;
  const auto file = Read(lock, maker, item, took);
  const absl::Status made = file.ok() ? DecodeOrPrepare(lock, maker, want, *file, image, took) : file.status();
  tally_.prepared.Add(maker.TakeCounters());
  if (!made.ok()) MarkCorrupt(item, made, /*for_good=*/false);
  std::vector<Want> waiting = std::move(being_decoded_[item]);
  being_decoded_.erase(item);
  const auto note = [&](const Want& one) {
    one.batch->read_ns += took.read_ns;
    one.batch->decode_ns += took.decode_ns;
  };
  note(want);
  std::ranges::for_each(waiting, note);
  if (!file.ok()) {  // the same try, for all who waited for it
    for (const Want& one : std::exchange(waiting, {})) Finish(one, false);
  }
  ready_.insert(ready_.end(), waiting.begin(), waiting.end());
  if (!waiting.empty()) wanted_.notify_all();
  if (image != nullptr) return Cut(lock, maker, want, *image);
  Finish(want, made.ok());
}

// Called with the lock held, and returns with it; releases it while it decodes. If others will want the item and memory
// has room, `image` is the decoded item; otherwise it is written straight into the want's own place.
absl::Status Dispatcher::DecodeOrPrepare(Lock& lock, Maker& maker, const Want& want,
                                         const std::shared_ptr<const prepare::Buffer>& file,
                                         std::shared_ptr<const prepare::Image>& image, Times& times) {
  const uint64_t next = NextUse(want.item(), 1);
  const absl::StatusOr<prepare::DecodeMemory> need = maker.MemoryFor(file->bytes());
  if (!need.ok()) {
    MarkCorrupt(want.item(), need.status(), /*for_good=*/true);
    return need.status();
  }
  const Room room = TakeRoom(lock, want.item(), *need, file->size(), next);
  if (!room.keeps || !cache_.HasQuota(Form::kDecoded, 0)) KeepFile(want.item(), file);
  int64_t took = 0;
  absl::Status status;
  auto decoded = room.keeps ? std::make_shared<prepare::Image>() : nullptr;
  const bool look_at_heap = IsHeapDue(room);
  BeginWork(lock);
  if (look_at_heap) heap_.Hold(room.reserved);
  {
    const Stopwatch watch(clock_, took);
    if (decoded != nullptr && !maker.Decode(file->bytes(), *decoded).ok()) decoded = nullptr;
    // Damage may lie where this want sees nothing of it. Whether it is one, Prepare says alone: that others want the
    // item too, and memory had room for it, must not decide what a job gets.
    if (decoded == nullptr)
      status = maker.Prepare(file->bytes(), want.batch->rank->job->recipe, KeyOf(want), PlaceOf(want));
  }
  if (look_at_heap) heap_.Came(room.reserved);
  EndWork(lock);
  (room.keeps ? tally_.costs.decodes : tally_.costs.parts).Add(took, need->kept);
  times.decode_ns = took;
  if (decoded != nullptr) {
    image = decoded;
    cache_.Put(want.item(), Form::kDecoded, {image, nullptr}, need->kept, room.reserved);
    if (cache_.HasQuota(Form::kDecoded, 0)) cache_.Drop(want.item(), Form::kEncoded);
  } else {
    GiveBack(room);
  }
  return status;
}

// Waits until `bytes` are free; items that nobody is reading are evicted for it.
Dispatcher::Room Dispatcher::TakeWorkRoom(Lock& lock, uint64_t bytes) {
  if (bytes <= Maker::kUnasked) return {};
  while (!cache_.ReserveOfAll(bytes)) {
    const bool will_fit = bytes <= cache_.budget() && busy_ > 0;
    if (!will_fit && !std::exchange(beyond_budget_, true)) return {.is_beyond = true};
    given_back_.wait(lock);
  }
  return {.reserved = bytes};
}

absl::StatusOr<std::shared_ptr<const prepare::Buffer>> Dispatcher::Read(Lock& lock, Maker& maker, uint64_t item,
                                                                        Times& times) {
  if (const Content kept = cache_.Find(item, Form::kEncoded); kept.file != nullptr) return kept.file;
  auto file = std::make_shared<prepare::Buffer>();
  int64_t took = 0;
  absl::Status status;
  lock.unlock();
  const uint64_t bytes = maker.FileBytes(item);
  const bool is_large = bytes > Maker::kUnasked;
  Room room;  // of a large one, until room is asked for anew: for the file and what decoding it takes
  if (is_large) {
    lock.lock();
    room = TakeWorkRoom(lock, bytes);
    BeginWork(lock);
    heap_.Hold(bytes);
  }
  {
    const Stopwatch watch(clock_, took);
    status = maker.Read(item, *file);
  }
  if (is_large) {
    heap_.Came(bytes);
    EndWork(lock);
    GiveBack(room);
  } else {
    lock.lock();
  }
  times.read_ns = took;
  LS_RETURN_IF_ERROR(status);
  tally_.costs.reads.Add(took, file->size());
  return file;
}

Dispatcher::Room Dispatcher::TakeRoom(Lock& lock, uint64_t item, const prepare::DecodeMemory& need, uint64_t file_bytes,
                                      uint64_t next) {
  const uint64_t whole = need.whole + file_bytes, by_rows = need.by_rows + file_bytes;
  if ((next != ItemCache::kNever || cache_.HasQuota(Form::kDecoded, need.kept)) && cache_.Reserve(whole, next))
    return {.keeps = true, .reserved = whole};
  const Room room = TakeWorkRoom(lock, by_rows);
  if (room.is_beyond) TellBeyond(item, by_rows);
  return room;
}

void Dispatcher::TellBeyond(uint64_t item, uint64_t bytes) {
  ++tally_.beyond;
  if (bytes <= tally_.beyond_bytes) return;
  tally_.beyond_bytes = bytes;
  Log(LogLevel::kWarning, "item {} takes {} MB while it is prepared, and --cache leaves {} MB for items: expected more",
      item, bytes >> 20, cache_.budget() >> 20);
}

bool Dispatcher::IsHeapDue(const Room& room) {
  turned_over_ += room.reserved;
  if (turned_over_ < kTurnover) return false;
  turned_over_ = 0;
  return true;
}

void Dispatcher::GiveBack(const Room& room) {
  if (room.is_beyond) beyond_budget_ = false;
  cache_.Unreserve(room.reserved);
}

void Dispatcher::KeepFile(uint64_t item, std::shared_ptr<const prepare::Buffer> file) {
  const uint64_t bytes = file->size();
  if (!cache_.HasQuota(Form::kEncoded, bytes) || cache_.Find(item, Form::kEncoded).file != nullptr) return;
  if (cache_.Reserve(bytes, ItemCache::kNever))
    cache_.Put(item, Form::kEncoded, {nullptr, std::move(file)}, bytes, bytes);
}

void Dispatcher::MarkCorrupt(uint64_t item, const absl::Status& why, bool for_good) {
  const auto [known, is_new] = corrupt_.insert({item, {for_good, corrupt_list_.size()}});
  known->second.for_good |= for_good;
  if (!is_new) {
    corrupt_list_[known->second.listed].why = Message(why);
    return;
  }
  corrupt_list_.push_back({item, Message(why)});
  if (corrupt_list_.size() != told_at_) return;
  told_at_ *= 10;
  Log(LogLevel::kWarning, "{} is left out: {}; {} so far (`lockstep feed status` lists them)", name_(item),
      corrupt_list_.back().why, corrupt_list_.size());
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

uint64_t Dispatcher::WriteWhy(const OpenBatch& batch) const {
  const CorruptItem& first = corrupt_list_[corrupt_.at(batch.items.front()).listed];
  const std::string why = fmt::format("{}: {}", name_(first.item), first.why);
  const uint64_t bytes = std::min<uint64_t>(why.size(), LS_FEED_ALIGN);  // so much room each slot has
  std::memcpy(batch.view.payload, why.data(), bytes);
  return bytes;
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
  if (good == 0 && bad > 0) batch.view.batch->why_bytes = WriteWhy(batch);
  const Nanos now = clock_.Now();
  batch.view.batch->filled_ns = now.value;
  batch.view.batch->read_ns = static_cast<uint64_t>(batch.read_ns);
  batch.view.batch->decode_ns = static_cast<uint64_t>(batch.decode_ns);
  batch.view.batch->busy_ns = static_cast<uint64_t>(std::max<int64_t>(0, BusyNs(now) - batch.busy_before_ns));
  job.delivered += good;
  job.skipped += bad;
  ++job.batches;
  tally_.deliveries += good;
  ++tally_.batches;
  batch.rank->ring.Publish(batch.slot, batch.ticket);
}

}  // namespace lockstep::feed
