#include "lockstep/sampling/baselines/mdp.h"

#include <algorithm>

namespace lockstep::sampling::baselines {
namespace {

// The least of what the resources that it names give to a form if it had them alone.
double LeastRate(std::initializer_list<double> seconds) {
  const double most = std::max(seconds);
  return most == 0 ? 1e18 : 1 / most;
}

Shares RatesOf(const FeedMachine& machine, const FeedData& data) {
  const auto per = [](double amount, double a_second) { return a_second == 0 ? 0 : amount / a_second; };
  const double decoded = data.decoded_bytes, encoded = data.encoded_bytes;
  const double cache_decoded = per(decoded, machine.cache_bytes), net_decoded = per(decoded, machine.network_bytes);
  const double cache_encoded = per(encoded, machine.cache_bytes), net_encoded = per(encoded, machine.network_bytes);
  const double pcie = per(decoded, machine.pcie_bytes), gpu = per(1, machine.gpu_samples);
  const double augment = data.augment_s / machine.cores, both = (data.decode_s + data.augment_s) / machine.cores;
  const double storage = per(encoded, machine.storage_bytes);
  Shares rates{};
  rates[kAugmented] = LeastRate({cache_decoded, net_decoded, gpu});
  rates[kDecoded] = LeastRate({cache_decoded, net_decoded, augment, pcie, gpu});
  rates[kEncoded] = LeastRate({cache_encoded, net_encoded, both, pcie, gpu});
  rates[kStored] = LeastRate({storage, cache_encoded, net_encoded, both, pcie, gpu});
  return rates;
}

}  // namespace

double MdpRate(const FeedMachine& machine, const FeedData& data, const Shares& shares) {
  const Shares rates = RatesOf(machine, data);
  double mean = 0;
  for (size_t form = 0; form < kForms; ++form) mean += shares[form] * rates[form];
  return mean;
}

Shares MdpShares(const FeedMachine& machine, const FeedData& data, double cache_capacity) {
  const double all = data.samples, decoded = data.decoded_bytes;
  Shares best{1, 0, 0, 0};
  double most = -1;
  for (int encoded_pct = 0; encoded_pct <= 100; ++encoded_pct) {
    for (int decoded_pct = 0; encoded_pct + decoded_pct <= 100; ++decoded_pct) {
      const double augmented_pct = 100 - encoded_pct - decoded_pct;
      const double n_a = std::min(all, augmented_pct / 100 * cache_capacity / (2 * decoded));
      const double n_d = std::min(all - n_a, decoded_pct / 100.0 * cache_capacity / decoded);
      const double n_e = std::min(all - n_a - n_d, encoded_pct / 100.0 * cache_capacity / data.encoded_bytes);
      const Shares shares{(all - n_a - n_d - n_e) / all, n_e / all, n_d / all, n_a / all};
      const double rate = MdpRate(machine, data, shares);
      if (rate <= most) continue;
      most = rate;
      best = shares;
    }
  }
  return best;
}

}  // namespace lockstep::sampling::baselines
