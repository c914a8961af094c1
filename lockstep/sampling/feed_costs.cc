#include <algorithm>

#include "lockstep/sampling/cache_split.h"

namespace lockstep::sampling {

std::string_view NameOf(Form form) {
  constexpr std::array<std::string_view, kForms> kNames{"stored", "encoded", "decoded", "augmented"};
  return kNames[form];
}

std::string_view NameOf(Resource resource) {
  constexpr std::array<std::string_view, kResources> kNames{"cpu", "storage", "network", "cache", "pcie", "gpu"};
  return kNames[resource];
}

absl::Status Validate(const FeedMachine& machine, const FeedData& data) {
  struct Field {
    std::string_view name;
    double value;
    bool may_be_zero;
  };
  for (const Field& field :
       {Field{"cores", machine.cores, false}, Field{"storage", machine.storage_bytes, true},
        Field{"network", machine.network_bytes, true}, Field{"cache", machine.cache_bytes, true},
        Field{"pcie", machine.pcie_bytes, true}, Field{"gpu", machine.gpu_samples, true},
        Field{"samples", data.samples, false}, Field{"encoded bytes", data.encoded_bytes, false},
        Field{"decoded bytes", data.decoded_bytes, false}, Field{"augmented bytes", data.augmented_bytes, false},
        Field{"read time", data.read_s, true}, Field{"decode time", data.decode_s, false},
        Field{"augment time", data.augment_s, true}, Field{"deliveries of a decode", data.shared, false},
        Field{"uses", data.uses, false}}) {
    if (!(field.value >= 0 && field.value < 1e18) || (field.value == 0 && !field.may_be_zero))
      return InvalidArgument("{}: expected a number {}, found {}", field.name,
                             field.may_be_zero ? "of 0 or more" : "above 0", field.value);
  }
  return absl::OkStatus();
}

FormCosts CostTable(const FeedMachine& machine, const FeedData& data) {
  const auto per = [](double amount, double a_second) { return a_second == 0 ? 0 : amount / a_second; };
  FormCosts costs{};
  for (auto& row : costs) {
    row[kPcie] = per(data.augmented_bytes, machine.pcie_bytes);
    row[kGpu] = per(1, machine.gpu_samples);
  }
  // Jobs that want a sample together have it read and decoded once; what is cut of it is each one's own.
  const double encoded = data.encoded_bytes / data.shared;
  costs[kStored][kCpu] = ((data.read_s + data.decode_s) / data.shared + data.augment_s) / machine.cores;
  costs[kEncoded][kCpu] = (data.decode_s / data.shared + data.augment_s) / machine.cores;
  costs[kDecoded][kCpu] = data.augment_s / machine.cores;
  costs[kAugmented][kCpu] = data.augment_s / data.uses / machine.cores;
  costs[kStored][kStorage] = per(encoded, machine.storage_bytes);
  costs[kStored][kNetwork] = per(encoded, machine.network_bytes);
  costs[kEncoded][kCache] = per(encoded, machine.cache_bytes);
  costs[kDecoded][kCache] = per(data.decoded_bytes, machine.cache_bytes);
  // Served `uses` times, and each time anew read decoded and written augmented.
  const double anew = (data.decoded_bytes + data.augmented_bytes) / data.uses;
  costs[kAugmented][kCache] = per(data.augmented_bytes + anew, machine.cache_bytes);
  if (data.remote_cache) {
    costs[kEncoded][kNetwork] = per(encoded, machine.network_bytes);
    costs[kDecoded][kNetwork] = per(data.decoded_bytes, machine.network_bytes);
    costs[kAugmented][kNetwork] = per(data.augmented_bytes + anew, machine.network_bytes);
  }
  return costs;
}

std::array<double, kForms> CacheBytes(const FeedData& data) {
  return {0, data.encoded_bytes, data.decoded_bytes, data.decoded_bytes + data.augmented_bytes};
}

CacheSplit RateOf(const FormCosts& costs, const Shares& shares) {
  CacheSplit split{.shares = shares};
  double busiest = 0;
  for (size_t resource = 0; resource < kResources; ++resource) {
    double seconds = 0;
    for (size_t form = 0; form < kForms; ++form) seconds += shares[form] * costs[form][resource];
    if (seconds <= busiest) continue;
    busiest = seconds;
    split.bottleneck = static_cast<Resource>(resource);
  }
  split.rate = 1 / busiest;
  return split;
}

CacheSplit RateOf(const FeedMachine& machine, const FeedData& data, const Shares& shares) {
  return RateOf(CostTable(machine, data), shares);
}

}  // namespace lockstep::sampling
