// Who takes which item next, of jobs that read overlapping sets on one host. Whatever the others do, the items of one
// epoch of one job come in an order that is uniform among all orders of its set, each exactly once; policies differ in
// how often two jobs take the same item at about the same time. Proofs: docs/models/feed.md.
// Items are indices into the union of all sets ("universe"). Thread-compatible.
//
//   auto sampler = MakeSampler(Policy::kCommon, {.universe = 4000, .seed = 7});
//   sampler->Begin({.job = 0, .items = set, .now = 0});
//   sampler->Draw(takers, picks);            // picks[i] is for takers[i]
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::sampling {

using Item = uint32_t;

enum class Policy : uint8_t {
  kDependent,    // per step, as many jobs as possible take the same item (Joader's DSA, exact)
  kCommon,       // one order for all, filtered by each job's set
  kPacked,       // a common order of units: items that no two of which any job reads
  kPaced,        // a common order in which a job only takes part as far as it comes by in the time of the job's epoch
  kAligned,      // each job's order is coupled, place by place, to that of the job it shares most with
  kIndependent,  // no sharing but by chance
};
inline constexpr Policy kAllPolicies[] = {Policy::kCommon,  Policy::kPacked,    Policy::kPaced,
                                          Policy::kAligned, Policy::kDependent, Policy::kIndependent};
std::string_view NameOf(Policy policy);
absl::StatusOr<Policy> ParsePolicy(std::string_view name);

// An epoch of a job begins. `now` is the time in steps, an item of a job at rate 1 each. It must depend on nothing but
// time: the progress of a job that waits for a slow item says which item that is, and a place in the order that follows
// it is no longer uniform.
struct EpochStart {
  int job = 0;
  std::span<const Item> items{};  // ascending; copied
  double rate = 1;                // items a step, as far as known: a wrong one costs sharing, nothing else
  int64_t now = 0;
  uint64_t epoch = 0;  // with `had`, the key of this epoch's chance: another for each Begin of a job
  uint64_t had = 0;    // items of the epoch that the job got before, where `items` are the rest of one
};

struct SamplerOptions {
  uint64_t universe = 0;
  uint64_t seed = 0;
};

class Sampler {
 public:
  virtual ~Sampler() = default;
  // A job that is in, and begins an epoch with these items at some time, so many a step: whoever begins before may
  // count on it.
  virtual void Announce(int /*job*/, std::span<const Item> /*items*/, double /*rate*/) {}
  // Of a job that has nothing left.
  virtual void Begin(const EpochStart& start) = 0;
  virtual void Leave(int job) = 0;
  // One item for each. Requires that takers are different and each has something left.
  virtual void Draw(std::span<const int> takers, std::span<Item> picks) = 0;
  virtual uint64_t Left(int job) const = 0;
  virtual bool Needs(int job, Item item) const = 0;
  // How many other items the job takes before this one; nullopt if it doesn't need it or nobody knows yet.
  virtual std::optional<uint64_t> Ahead(int job, Item item) const = 0;
  // Whether Ahead() knows: then a cache can evict what is needed last.
  virtual bool KnowsOrder() const = 0;
};

std::unique_ptr<Sampler> MakeSampler(Policy policy, const SamplerOptions& options);

}  // namespace lockstep::sampling
