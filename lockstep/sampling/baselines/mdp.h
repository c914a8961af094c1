// Seneca's model-driven partitioning (FAST 2026) as its code has it, to compare with: each form's rate is the least of
// what the resources give to it alone, the rate of a mixture their arithmetic mean, and the best of a grid of whole
// per cents is taken.
//     n_a = min(N, a·S/(2·M·s)), n_d = min(N - n_a, d·S/(M·s)), n_e = min(N - n_a - n_d, e·S/s), n_s: the rest
//     DSI = Σ n_i·R_i / N
#pragma once

#include "lockstep/sampling/cache_split.h"

namespace lockstep::sampling::baselines {

// What it would keep, as shares of all samples in each form.
Shares MdpShares(const FeedMachine& machine, const FeedData& data, double cache_capacity);
// The rate that it predicts for shares.
double MdpRate(const FeedMachine& machine, const FeedData& data, const Shares& shares);

}  // namespace lockstep::sampling::baselines
