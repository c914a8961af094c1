// What to keep in a cache of so many bytes: encoded, decoded or augmented items, and how fast jobs are fed then.
// A sample of class c (from storage, or from the cache in one of the forms) needs a_cr seconds of resource r; of a
// share f_c of each, the rate is limited by the busiest resource, for time adds up within one:
//     rate = 1 / max_r Σ_c f_c·a_cr        (samples/s; docs/models/feed.md)
// The best f is a linear programme, solved exactly. Pure. Cost: about a hundred microseconds.
//
//   const CacheSplit split = BestSplit(machine, data, Bytes(100e9));
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"

namespace lockstep::sampling {

enum Form : uint8_t { kStored, kEncoded, kDecoded, kAugmented };
inline constexpr size_t kForms = 4;
enum Resource : uint8_t { kCpu, kStorage, kNetwork, kCache, kPcie, kGpu };
inline constexpr size_t kResources = 6;
std::string_view NameOf(Form form);
std::string_view NameOf(Resource resource);

// What the machine can do in a second. A bandwidth of 0: that resource is not in the way.
struct FeedMachine {
  double cores = 1;
  double storage_bytes = 0, network_bytes = 0, cache_bytes = 0, pcie_bytes = 0;  // a second
  double gpu_samples = 0;                                                        // ingested a second, of all jobs
};

struct FeedData {
  double samples = 0;
  double encoded_bytes = 0, decoded_bytes = 0, augmented_bytes = 0;  // of one
  double read_s = 0;                                                 // of a CPU, waiting for one from storage
  double decode_s = 0, augment_s = 0;                                // CPU seconds of one
  double shared = 1;  // deliveries for each read and decode: of jobs that want the same samples in step, their number
  double uses = 1;    // how often an augmented sample may be served before it is augmented anew: once for each job
  bool remote_cache = false;  // whether what it serves crosses the network
};

absl::Status Validate(const FeedMachine& machine, const FeedData& data);

using Shares = std::array<double, kForms>;  // of all samples, by form; they sum to 1

// a_cr: seconds of the resource, all of it, that a sample of this form takes. An augmented one is kept decoded as well,
// and augmented anew after its uses.
using FormCosts = std::array<std::array<double, kResources>, kForms>;
FormCosts CostTable(const FeedMachine& machine, const FeedData& data);
// Bytes of cache for a sample in each form.
std::array<double, kForms> CacheBytes(const FeedData& data);

struct CacheSplit {
  Shares shares{};
  double rate = 0;             // samples/s
  Resource bottleneck = kCpu;  // the busiest
};
CacheSplit RateOf(const FormCosts& costs, const Shares& shares);
CacheSplit RateOf(const FeedMachine& machine, const FeedData& data, const Shares& shares);
// Its bottleneck is the resource of which more would raise the rate most. Requires Validate.
CacheSplit BestSplit(const FeedMachine& machine, const FeedData& data, double cache_capacity);

// BestSplit at fractions and multiples of the capacity, beside the choice of the published model (baselines/mdp.h).
Json SplitReport(const FeedMachine& machine, const FeedData& data, double cache_capacity);

}  // namespace lockstep::sampling
