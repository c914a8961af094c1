#include "lockstep/detect/history.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "lockstep/detect/awake.h"

namespace lockstep::detect {
namespace {

// Work is judged over spans of at least 2 s. What is allowed in 1 s is what two probes may cost: reading the stacks of
// a worker of 4 ranks of DDP once a second cost it 320 bytes, 0.4 faults, 1.2 switches (2-core VM,
// torch 1.13); a hundred Python frames, 8 KB.
constexpr Seconds kSpan{2};
constexpr Seconds kLongestSpan{10};
constexpr double kIoBytes = 32 * 1024, kFaults = 50, kSwitches = 25, kIdleCores = 0.05;
constexpr Nanos kStackFresh{30'000'000'000};
constexpr Nanos kStackGap{60'000'000'000};
constexpr size_t kLinesOfALoop = 2;

bool Measured(const RankSample& sample) { return sample.faults != 0; }

double Growth(uint64_t from, uint64_t to) { return to > from ? static_cast<double>(to - from) : 0; }

double Cores(const RankSample& from, const RankSample& to) {
  const Seconds span = ToSeconds(to.at - from.at);
  return span.value > 0 ? ToSeconds(to.cpu - from.cpu).value / span.value : 0;
}

bool Busy(const RankSample& from, const RankSample& to, bool idle) {
  const double seconds = ToSeconds(to.at - from.at).value;
  return Growth(from.io_bytes, to.io_bytes) > kIoBytes * seconds ||
         Growth(from.faults, to.faults) > kFaults * seconds ||
         Growth(from.switches, to.switches) > kSwitches * seconds || (idle && Cores(from, to) > kIdleCores) ||
         to.state == ProcState::kDisk;
}

// A loop of the interpreter moves between its lines; native code that loops stays behind one Python line and in one
// function.
bool SameSpot(const StackSample& one, const StackSample& other) {
  if (one.code != other.code || one.code == CodeKind::kMathLibrary) return false;
  if (one.code == CodeKind::kInterpreter)
    return !one.python.empty() && FunctionOf(one.python) == FunctionOf(other.python);
  return one.python == other.python && one.native == other.native && !(one.python.empty() && one.native.empty());
}

}  // namespace

std::string FunctionOf(const std::string& python_frame) {
  const size_t in = python_frame.rfind(" in ");
  const size_t colon = in == std::string::npos ? in : python_frame.rfind(':', in);
  if (colon == std::string::npos) return python_frame;
  return python_frame.substr(in + 4) + python_frame.substr(in, 4) + python_frame.substr(0, colon);
}

void RankHistory::Add(const RankSample& sample) {
  samples_.Add(sample);
  if (sample.in_loop) loop_since_ = std::min(loop_since_.value_or(sample.at), sample.at);
}

void RankHistory::Clear() {
  samples_.Clear();
  stacks_.Clear();
  loop_since_.reset();
}

const StackSample* RankHistory::Stack(Nanos now) const {
  const StackSample* last = stacks_.Last(now);
  return last != nullptr && now - last->at <= kStackFresh ? last : nullptr;
}

std::optional<Nanos> RankHistory::LoopSince(Nanos now) const {
  return loop_since_ && *loop_since_ <= now ? loop_since_ : std::nullopt;
}

std::optional<Nanos> RankHistory::HaltedSince(Nanos now) const {
  std::optional<Nanos> since;
  for (auto it = samples_.After(now); it != samples_.begin() && Halted(*std::prev(it)); --it) since = std::prev(it)->at;
  return since;
}

std::optional<Nanos> RankHistory::HaltBegan(Nanos now) const {
  const std::optional<Nanos> since = HaltedSince(now);
  if (!since) return since;
  const auto first = samples_.After(*since - Nanos{1});  // that sample
  const Nanos before = first != samples_.begin() ? std::prev(first)->at : *since;
  return Nanos{before.value + (since->value - before.value) / 2};
}

Nanos RankHistory::FreeSince(Nanos now) const {
  Nanos since = now;
  for (auto it = samples_.After(now); it != samples_.begin(); --it) {
    const RankSample& sample = *std::prev(it);
    if (Halted(sample) || sample.traced) break;
    since = sample.at;
  }
  return since;
}

// Goes back in steps of at least kSpan, from measured sample to measured sample, until one of the steps holds work or a
// hole.
Quiet RankHistory::QuietSince(Nanos now, bool idle) const {
  Quiet quiet{.since = now};
  const RankSample* later = nullptr;
  for (auto it = samples_.After(now); it != samples_.begin() && !quiet.worked; --it) {
    const RankSample& sample = *std::prev(it);
    const Seconds span = ToSeconds((later == nullptr ? now : later->at) - sample.at);
    if (!Measured(sample) || (later != nullptr && span < kSpan)) continue;
    if (span > kLongestSpan) break;
    quiet.worked = later != nullptr && Busy(sample, *later, idle);
    if (quiet.worked) continue;
    later = &sample;
    quiet.since = sample.at;
  }
  return quiet;
}

double RankHistory::Load(Nanos from, Nanos now) const {
  const RankSample *first = nullptr, *last = nullptr;
  for (auto it = samples_.After(now); it != samples_.begin() && std::prev(it)->at >= from; --it) {
    const RankSample& sample = *std::prev(it);
    if (!Measured(sample)) continue;
    if (last == nullptr) last = &sample;
    first = &sample;
  }
  return last == nullptr ? 0 : Cores(*first, *last);
}

double RankHistory::Runnable(Nanos from, Nanos now) const {
  double running = 0, all = 0;
  for (auto it = samples_.After(now); it != samples_.begin() && std::prev(it)->at >= from; --it, ++all)
    if (std::prev(it)->state == ProcState::kRunning) ++running;
  return all > 0 ? running / all : 0;
}

StackRun RankHistory::Run(Nanos now, const std::function<bool(const StackSample&)>& same) const {
  StackRun run{.since = now};
  for (auto it = stacks_.After(now); it != stacks_.begin(); --it) {
    const StackSample& sample = *std::prev(it);
    if (run.since - sample.at > kStackGap || !same(sample)) break;
    run = {.since = sample.at, .samples = run.samples + 1};
  }
  return run;
}

StackRun RankHistory::OneSpot(Nanos now) const {
  const StackSample* last = stacks_.Last(now);
  std::set<std::string> lines;
  return Run(now, [&](const StackSample& sample) {
    lines.insert(sample.python);
    return SameSpot(sample, *last) && lines.size() <= kLinesOfALoop;
  });
}

bool RankHistory::Works(Nanos now, Seconds span) const {
  const Nanos horizon = now - ToNanos(span);
  const Quiet quiet = QuietSince(now, false);
  if (quiet.worked && quiet.since > horizon) return true;
  const StackSample* last = stacks_.Last(now);
  if (last == nullptr || last->at < horizon || last->signature == 0) return false;
  const StackRun run = OneSpot(now);
  return run.since > horizon && stacks_.begin()->at < run.since;
}

}  // namespace lockstep::detect
