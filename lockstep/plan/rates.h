// The calibrated figures of one kind of hardware: how much of its peaks is reached, and what hides what. At most 30,
// one set for all that runs on it; `lockstep plan calibrate` fits them to measured runs.
#pragma once

#include <array>
#include <span>
#include <string>

#include "lockstep/base/status.h"

namespace lockstep::plan {

struct Rates {
  double gemm = .65, gemm_fp8 = .55, gemm_fp4 = .45;  // shares of the peak that large matrix products reach
  double half_m = 300, half_n = 300, half_k = 300;    // sizes at which half of that is lost
  double flash = .5, unfused = .5;                    // shares of the peak in attention
  double unaligned = .3;                              // of those, where a head's size is no multiple of 8
  double softmax_passes = 6;                          // over the sequence's square, forward, where it is not fused
  double fused_bytes = 14, unfused_bytes = 33, eager_bytes = 25;       // per token and hidden unit of a layer, forward
  double kernel = 5e-6;                                                // seconds to launch one
  double scale_up = .65, network = .65;                                // shares of the bandwidth that collectives reach
  double latency = 15e-6;                                              // of a collective, per doubling of its ranks
  double tensor_hidden = .2, context_hidden = .5, expert_hidden = .2;  // shares of communication that computing hides
  double data_hidden = .7, sharded_hidden = .8, pipeline_hidden = .5;
  double expert_gemm = .7;                        // of a matrix product, reached by those of experts
  double optimizer_bytes = 24;                    // per parameter that a rank updates
  double step = .01;                              // seconds of a step in which nothing is computed
  double straggle = .005;                         // per doubling of the nodes
  double residual_low = -.1, residual_high = .1;  // of the logarithm of measured over predicted: 10 % and 90 %
};

struct RateField {
  const char* name;
  double Rates::* member;
  double least, most;
};
// Those that a fit may change.
std::span<const RateField> RateFields();

absl::StatusOr<Rates> ReadRates(const std::string& path);
std::string RatesText(const Rates& rates, const std::string& about);  // TOML

}  // namespace lockstep::plan
