#include "lockstep/plan/workload.h"

#include <algorithm>
#include <numeric>

namespace lockstep::plan {

absl::Status Workload::Validate() const {
  struct Size {
    const char* name;
    int value;
  };
  for (const Size& size : {Size{"layers", layers},
                           {"hidden", hidden},
                           {"ffn", ffn},
                           {"heads", heads},
                           {"kv_heads", kv_heads},
                           {"head_dim", head_dim},
                           {"vocab", vocabulary},
                           {"seq", sequence},
                           {"gbs", global_batch},
                           {"mbs", microbatch},
                           {"gpus", accelerators},
                           {"tp", tp},
                           {"pp", pp},
                           {"dp", dp},
                           {"cp", cp},
                           {"ep", ep},
                           {"vp", chunks}}) {
    if (size.value < 1) return InvalidArgument("{} must be at least 1, found {}", size.name, size.value);
  }
  const int64_t world = int64_t{tp} * pp * dp * cp;
  if (world != accelerators)
    return InvalidArgument("tp {} x pp {} x dp {} x cp {} is {}, but there are {} accelerators", tp, pp, dp, cp, world,
                           accelerators);
  if (heads % tp != 0 && heads >= tp) return InvalidArgument("{} heads can't be split over tp {}", heads, tp);
  if (pp > layers) return InvalidArgument("{} layers can't be split over pp {}", layers, pp);
  if (!stage_layers.empty()) {
    const int64_t all = std::accumulate(stage_layers.begin(), stage_layers.end(), int64_t{0});
    if (std::ssize(stage_layers) != pp || all != layers || *std::ranges::min_element(stage_layers) < 1)
      return InvalidArgument("{} stages of {} layers together, each at least 1, are needed; found {} of {}", pp, layers,
                             stage_layers.size(), all);
  }
  if (experts > 0 && (top_k < 1 || expert_ffn < 1 || top_k > experts))
    return InvalidArgument("{} experts need a topk of 1 to {} and a moe_ffn, found {} and {}", experts, experts, top_k,
                           expert_ffn);
  if (experts > 0 && experts % ep != 0) return InvalidArgument("{} experts can't be split over ep {}", experts, ep);
  if (static_cast<int64_t>(dp) * microbatch > global_batch)
    return InvalidArgument("a batch of {} can't be split over dp {} in microbatches of {}", global_batch, dp,
                           microbatch);
  return absl::OkStatus();
}

int Workload::Microbatches() const { return std::max(1, (global_batch + dp * microbatch / 2) / (dp * microbatch)); }

double Workload::StageLayers(int stage) const {
  return stage_layers.empty() ? double(layers) / pp : stage_layers[static_cast<size_t>(stage)];
}

double Workload::LayerParameters() const {
  const double h = hidden, matrices = gated ? 3 : 2;
  const double attention = 2 * h * heads * head_dim + 2 * h * kv_heads * head_dim;
  const double feed_forward = experts > 0 ? h * experts + matrices * h * expert_ffn * experts : matrices * h * ffn;
  return attention + feed_forward;
}

double Workload::Parameters() const { return layers * LayerParameters() + 2.0 * vocabulary * hidden; }

}  // namespace lockstep::plan
