// What is reached of the peaks: of matrix products, a share; by groups of accelerators over their links and the
// network, B/s of each in one direction.
#pragma once

#include <algorithm>
#include <cmath>

#include "lockstep/plan/rates.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

// Of large products in the precision of the layers.
inline double GemmShare(const Workload& w, const Rates& r) {
  if (w.precision == Precision::kFp8) return r.gemm_fp8 * (w.row_scales ? r.row_scales : 1);
  return w.precision == Precision::kFp4 ? r.gemm_fp4 : r.gemm;
}

// Ranks that lie `stride` apart, of so many accelerators in a row.
inline double Within(double accelerators, double stride) { return std::max(1.0, std::floor(accelerators / stride)); }

// Of a group of `size` ranks that lie `stride` apart: as many as fit are of one domain, or tier, and share what leaves
// it.
inline double GroupRate(const Machine& m, const Rates& r, double size, double stride) {
  double rate = m.scale_up * r.scale_up;
  const auto leave = [&](double accelerators, double bandwidth) {
    const double within = Within(accelerators, stride);
    if (size > within) rate = std::min(rate, bandwidth * r.network * within);
  };
  leave(m.domain, m.nic);
  for (const Tier& tier : m.tiers) leave(tier.accelerators, tier.bandwidth);
  return rate;
}

// To any other of so many accelerators.
inline double PairRate(const Machine& m, const Rates& r, double accelerators) {
  return accelerators <= m.domain ? m.scale_up * r.scale_up : m.Network(accelerators) * r.network;
}

}  // namespace lockstep::plan
