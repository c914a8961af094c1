#include "lockstep/detect/history.h"

#include <algorithm>
#include <iterator>

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

bool SaysTheSame(const StackSample& one, const StackSample& other) {
  return one.waits_forever == other.waits_forever && one.in_collective == other.in_collective &&
         one.signature == other.signature;
}

// A loop of the interpreter moves between its lines; native code that loops stays behind one Python line and in one
// function.
bool SameSpot(const StackSample& one, const StackSample& other) {
  if (one.code != other.code || one.code == CodeKind::kMathLibrary) return false;
  if (one.code == CodeKind::kInterpreter)
    return !one.python.empty() && FunctionOf(one.python) == FunctionOf(other.python);
  return one.python == other.python && one.native == other.native && !(one.python.empty() && one.native.empty());
}

// A silence of the sampler ends a run.
bool Follows(const StackSample& sample, const StackSample& previous) { return sample.at - previous.at <= kStackGap; }

void MarkSample(std::deque<SeenSample>& samples, size_t i) {
  const SeenSample none;
  const SeenSample& before = i == 0 ? none : samples[i - 1];
  SeenSample& sample = samples[i];
  sample.halted = Halted(sample) ? before.halted + 1 : 0;
  sample.free = Halted(sample) || sample.traced ? 0 : before.free + 1;
}

// Those at one spot go back to the third line: where the line changes, to that at which the line before began, but all
// the way if that was a loop of these two.
void MarkStack(std::deque<SeenStack>& stacks, size_t i) {
  SeenStack& stack = stacks[i];
  const SeenStack* before = i == 0 || !Follows(stack, stacks[i - 1]) ? nullptr : &stacks[i - 1];
  stack.still = before != nullptr && SaysTheSame(stack, *before) ? before->still + 1 : 1;
  stack.line = 1;
  stack.spot = SameSpot(stack, stack) ? 1 : 0;
  if (before == nullptr || !SameSpot(stack, *before)) return;
  if (before->python == stack.python) {
    stack.line = before->line + 1;
    stack.spot = before->spot + 1;
    return;
  }
  const bool comes_back =
      before->spot > before->line && before->line < i && stacks[i - 1 - before->line].python == stack.python;
  stack.spot = (comes_back ? before->spot : before->line) + 1;
}

// The first of so many samples that end with the one before `end`.
template <typename Sample>
auto FirstOf(const Series<Sample>& series, typename Series<Sample>::Iterator end, size_t count) {
  return end - static_cast<std::ptrdiff_t>(std::min(count, static_cast<size_t>(end - series.begin())));
}

}  // namespace

std::string FunctionOf(const std::string& python_frame) {
  const size_t in = python_frame.rfind(" in ");
  const size_t colon = in == std::string::npos ? in : python_frame.rfind(':', in);
  if (colon == std::string::npos) return python_frame;
  return python_frame.substr(in + 4) + python_frame.substr(in, 4) + python_frame.substr(0, colon);
}

void RankHistory::Add(const RankSample& sample) {
  samples_.Add(SeenSample{sample}, MarkSample);
  if (sample.in_loop) loop_since_ = std::min(loop_since_.value_or(sample.at), sample.at);
}

void RankHistory::Add(const StackSample& sample) { stacks_.Add(SeenStack{sample}, MarkStack); }

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
  const SeenSample* last = samples_.Last(now);
  if (last == nullptr || last->halted == 0) return std::nullopt;
  return FirstOf(samples_, samples_.After(now), last->halted)->at;
}

std::optional<Nanos> RankHistory::HaltBegan(Nanos now) const {
  const std::optional<Nanos> since = HaltedSince(now);
  if (!since) return since;
  const auto first = samples_.After(*since - Nanos{1});  // that sample
  const Nanos before = first != samples_.begin() ? std::prev(first)->at : *since;
  return Nanos{before.value + (since->value - before.value) / 2};
}

Nanos RankHistory::FreeSince(Nanos now) const {
  const SeenSample* last = samples_.Last(now);
  if (last == nullptr || last->free == 0) return now;
  return FirstOf(samples_, samples_.After(now), last->free)->at;
}

// Goes back in steps of at least kSpan, from measured sample to measured sample, until one of the steps holds work or a
// hole.
Quiet RankHistory::QuietSince(Nanos now, bool idle, Nanos floor) const {
  Quiet quiet{.since = now};
  const RankSample* later = nullptr;
  for (auto it = samples_.After(now); it != samples_.begin() && !quiet.worked && quiet.since > floor; --it) {
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
  auto first = samples_.After(from - Nanos{1}), end = samples_.After(now);
  while (first < end && !Measured(*first)) ++first;
  while (first < end && !Measured(*std::prev(end))) --end;
  return first < end ? Cores(*first, *std::prev(end)) : 0;
}

StackRun RankHistory::Run(Nanos now, uint32_t SeenStack::* samples) const {
  const SeenStack* last = stacks_.Last(now);
  if (last == nullptr || now - last->at > kStackGap || last->*samples == 0) return {.since = now};
  const auto end = stacks_.After(now);
  const auto first = FirstOf(stacks_, end, last->*samples);
  return {.since = first->at, .samples = static_cast<int>(end - first)};
}

StackRun RankHistory::Still(Nanos now) const { return Run(now, &SeenStack::still); }
StackRun RankHistory::OneSpot(Nanos now) const { return Run(now, &SeenStack::spot); }

bool RankHistory::Works(Nanos now, Seconds span) const {
  const Nanos horizon = now - ToNanos(span);
  const Quiet quiet = QuietSince(now, false, horizon);
  if (quiet.worked && quiet.since > horizon) return true;
  const StackSample* last = stacks_.Last(now);
  if (last == nullptr || last->at < horizon || last->signature == 0) return false;
  const StackRun run = OneSpot(now);
  return run.since > horizon && stacks_.begin()->at < run.since;
}

}  // namespace lockstep::detect
