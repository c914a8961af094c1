#include "lockstep/feed/split.h"

#include <algorithm>

namespace lockstep::feed {

using sampling::CacheSplit;
using sampling::FeedData;
using sampling::FeedMachine;

namespace {

constexpr uint64_t kFew = 16;

}  // namespace

void Splitter::Mean::Take(const Work& now) {
  const uint64_t count = now.count - until.count;
  if (count < kFew) return;
  seconds = static_cast<double>(now.ns - until.ns) * 1e-9 / static_cast<double>(count);
  bytes = static_cast<double>(now.bytes - until.bytes) / static_cast<double>(count);
  until = now;
}

// Deliveries for each decode, of items that are not kept decoded for later epochs: those are served without any, and
// would make it seem that jobs share more the more is kept.
void Splitter::TakeShared(const Costs& now, uint64_t jobs) {
  const auto deliveries = [](const Costs& costs) { return costs.cuts.count + costs.parts.count; };
  const auto decodes = [](const Costs& costs) { return costs.decodes.count + costs.parts.count; };
  const uint64_t made = decodes(now) - decodes(counted_);
  if (made >= kFew) {
    const double served = static_cast<double>(deliveries(now) - deliveries(counted_));
    shared_ = served * (1 - split_.shares[sampling::kDecoded]) / static_cast<double>(made);
    counted_ = now;
  }
  shared_ = std::clamp(shared_, 1.0, static_cast<double>(std::max<uint64_t>(jobs, 1)));
}

std::optional<Quotas> Splitter::Solve(const Costs& costs, const Machine& machine) {
  reads_.Take(costs.reads);
  decodes_.Take(costs.decodes);
  parts_.Take(costs.parts);
  cuts_.Take(costs.cuts);
  TakeShared(costs, machine.jobs);
  const double pixels = decodes_.bytes > 0 ? decodes_.bytes : parts_.bytes;
  const double decode_s = parts_.seconds > 0 ? parts_.seconds - cuts_.seconds : decodes_.seconds;
  const FeedMachine resources{.cores = static_cast<double>(machine.threads)};
  const FeedData data{.samples = static_cast<double>(machine.items),
                      .encoded_bytes = reads_.bytes,
                      .decoded_bytes = pixels,
                      .augmented_bytes = pixels,
                      .read_s = reads_.seconds,
                      .decode_s = std::max(decode_s, 1e-9),
                      .augment_s = cuts_.seconds,
                      .shared = shared_};
  if (!Validate(resources, data).ok()) return std::nullopt;
  const auto budget = static_cast<double>(machine.budget);
  CacheSplit best = BestSplit(resources, data, budget);
  const bool same_room = machine.items == machine_.items && machine.budget == machine_.budget;
  if (same_room && split_.rate > 0) {
    split_ = RateOf(resources, data, split_.shares);
    if (best.rate < (1 + kGain) * split_.rate) return std::nullopt;
  }
  machine_ = machine;
  split_ = best;
  // Where a form holds all that it can, what is left over is its own: sizes are means.
  const auto bytes_of = [&](sampling::Form form, double bytes) {
    return static_cast<uint64_t>(std::min(budget, best.shares[form] * data.samples * bytes));
  };
  if (best.shares[sampling::kDecoded] > 0.999) return Quotas{.decoded = machine.budget, .encoded = 0};
  return Quotas{.decoded = bytes_of(sampling::kDecoded, pixels), .encoded = bytes_of(sampling::kEncoded, reads_.bytes)};
}

}  // namespace lockstep::feed
