#include "lockstep/feed/dispatcher.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/median.h"

namespace lockstep::feed {
namespace {

bool IsBefore(const sampling::StreamPlace& a, const sampling::StreamPlace& b) {
  return std::pair(a.epoch, a.taken) < std::pair(b.epoch, b.taken);
}

void WriteState(const sampling::StreamPlace& place, const sampling::Stream& stream, ls_feed_batch& batch) {
  const std::string state = stream.SaveAt(place);
  LS_CHECK(state.size() < sizeof batch.state, "{}", state);
  std::memcpy(batch.state, state.c_str(), state.size() + 1);
}

}  // namespace

Dispatcher::Dispatcher(const Settings& settings, std::vector<std::unique_ptr<Maker>> makers,
                       std::function<int64_t(uint64_t)> label, const Clock& clock)
    : label_(std::move(label)),
      name_(settings.name),
      clock_(clock),
      cache_(settings.cache_bytes, [this](uint64_t item) { return NextUse(item, 0); }),
      heap_(settings.memory_limit),
      begun_(clock.Now()) {
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
    return rank->job.get() == &job && rank->ticket + (rank->slot ? 1 : 0) > rank->ring.Outstanding();
  });
}

std::vector<uint32_t> Dispatcher::RanksOf(const Job& job) const {
  std::vector<uint32_t> numbers;
  for (const std::shared_ptr<Rank>& rank : ranks_)
    if (rank->job.get() == &job) numbers.push_back(rank->number);
  return numbers;
}

void Dispatcher::Plan(const std::shared_ptr<Rank>& rank) {
  for (bool asked = false; KnowsTheNextEpoch(*rank);) {
    if (!rank->slot) rank->slot = rank->ring.TakeFree();
    if (rank->slot) {
      if (!HasItsNextStep(*rank)) return;
      PlanBatch(rank, *std::exchange(rank->slot, std::nullopt));
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

sampling::StreamPlace Dispatcher::NextStep(const Rank& rank) {
  const sampling::StreamPlace& place = rank.stream.place();
  return rank.job->cut.IsOver(place.taken) ? *rank.job->epochs.After(place, rank.stream, clock_.Now()) : place;
}

bool Dispatcher::HasItsNextStep(const Rank& rank) {
  Job& job = *rank.job;
  const sampling::StreamPlace begin = NextStep(rank);
  if (rank.stream.SkipsAtOnce(begin.lap) || job.dealt.Has(begin, rank.number)) return true;
  if (job.is_being_dealt) return false;
  if (job.dealt.Begin(rank.stream, begin, job.cut, RanksOf(job)).GoOn(StepWalk::kSlice)) {
    job.dealt.Keep();
    return true;
  }
  job.is_being_dealt = true;
  to_deal_.push_back(rank.job);
  wanted_.notify_all();
  return false;
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
  group->Pace(rank.job->key, std::max(1.0, static_cast<double>(LowerMedian(std::move(between))) /
                                               static_cast<double>(rank.job->cut.full())));
}

void Dispatcher::PlanBatch(const std::shared_ptr<Rank>& rank, uint32_t slot) {
  sampling::Stream& stream = rank->stream;
  const EpochCut& cut = rank->job->cut;
  Epochs& epochs = rank->job->epochs;
  TakePace(*rank);
  if (cut.IsOver(stream.place().taken)) {
    stream.GoTo(NextStep(*rank));
    rank->step = 0;
  }
  const uint64_t before = stream.place().taken, epoch = stream.place().epoch;
  const StepShare share = cut.Share(before, rank->number);
  auto batch = std::make_shared<OpenBatch>(OpenBatch{rank, slot, rank->ticket++, rank->ring.Slot(slot), {}, {}});
  batch->items = rank->job->dealt.Take(stream, cut, rank->number);
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
                        .read_ns = 0,
                        .decode_ns = 0,
                        .busy_ns = 0,
                        .threads = threads_.size(),
                        .relayed = 0,
                        .why_bytes = 0,
                        .reserved = {},
                        .state = {}};
  batch->busy_before_ns = BusyNs(Nanos{batch->view.batch->began_ns});
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

}  // namespace lockstep::feed
