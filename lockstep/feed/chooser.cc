#include "lockstep/feed/chooser.h"

#include <chrono>
#include <condition_variable>
#include <ctime>
#include <map>
#include <mutex>
#include <utility>

#include "lockstep/base/log.h"

namespace lockstep::feed {
namespace {

constexpr Nanos kLook{250'000'000};
constexpr int64_t kRest = 20;  // times what the last one took

// Of this thread: on a machine that is busy a rehearsal takes long, and no more of it than on an idle one.
Nanos CpuTime() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return Nanos{now.tv_sec * 1'000'000'000 + now.tv_nsec};
}

void Rest(const std::stop_token& stop, Nanos length) {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable_any().wait_for(lock, stop, std::chrono::nanoseconds(length.value), [] { return false; });
}

}  // namespace

Chooser::Chooser(const Dispatcher& dispatcher, Choose choose)
    : dispatcher_(dispatcher),
      choose_(std::move(choose)),
      thread_([this](const std::stop_token& stop) { Run(stop); }) {}

void Chooser::Run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::shared_ptr<sampling::Group> group;  // shared: its last job may leave during the rehearsal
    sampling::GroupQuestion question;
    dispatcher_.Look([&](const Dispatcher&) {
      group = NextStale();
      if (group != nullptr) question = group->Ask();
    });
    if (group == nullptr) {
      Rest(stop, kLook);
      continue;
    }
    last_seed_ = question.seed;
    Rest(stop, Nanos{kRest * ChooseFor(*group, question, stop).value});
  }
}

// The one with the next seed, so that each has its turn.
std::shared_ptr<sampling::Group> Chooser::NextStale() const {
  std::map<uint64_t, std::shared_ptr<sampling::Group>> stale;
  for (const std::shared_ptr<Rank>& rank : dispatcher_.ranks()) {
    const std::shared_ptr<sampling::Group>& group = rank->job->epochs.group();
    if (group != nullptr && group->IsStale()) stale.emplace(rank->job->seed, group);
  }
  if (stale.empty()) return nullptr;
  const auto next = last_seed_ ? stale.upper_bound(*last_seed_) : stale.end();
  return (next != stale.end() ? next : stale.begin())->second;
}

// The rehearsals run without the lock: threads go on preparing meanwhile.
Nanos Chooser::ChooseFor(sampling::Group& group, const sampling::GroupQuestion& question,
                         const std::stop_token& stop) const {
  const Nanos begun = CpuTime();
  const sampling::GroupChoice choice = choose_(question, stop);
  if (stop.stop_requested()) return Nanos{0};  // it may have been cut short
  dispatcher_.Look([&](const Dispatcher&) {
    if (choice.policy != group.choice().policy)
      Log(LogLevel::kInfo, "jobs of seed {}: {} orders from their next epochs on", question.seed,
          sampling::NameOf(choice.policy));
    group.Decide(choice);
  });
  return CpuTime() - begun;
}

}  // namespace lockstep::feed
