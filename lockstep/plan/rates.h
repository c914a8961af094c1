// The calibrated figures: of a kind of hardware, how much of its peaks is reached; of a software stack, its habits:
// what it fuses, launches, hides. `lockstep plan calibrate` fits both at once to measured runs (calibrate.h). At most
// 30 of each kind of hardware, 30 of each stack.
#pragma once

#include <array>
#include <span>
#include <string>

#include "lockstep/base/status.h"
#include "lockstep/cluster/table_reader.h"

namespace lockstep::plan {

struct Rates {
  // Of hardware.
  double gemm = .75, gemm_fp8 = .62, gemm_fp4 = .45;  // shares of the peak that large matrix products reach
  double row_scales = .65;                            // of that, with a scale for each row in fp8
  double half_m = 120, half_n = 120, half_k = 120;    // sizes at which half of that is lost
  double flash = .6, unfused = .5;                    // shares of the peak in attention
  double unaligned = .15;                             // of those, where a head's size is no multiple of 8
  double stream = .8;                                 // share of the memory's bandwidth
  double kernel = 12e-6, kernel_gap = 3e-6;           // seconds of the host to launch one; of the device between two
  double scale_up = .65, network = .6;                // shares of the bandwidth that collectives reach
  double latency = 20e-6;                             // of a transfer (LatenciesOfReduce: of a reduction)
  double straggle = .003;                             // per doubling of the nodes
  // Of a software stack; by default those of a fused one.
  double attention = .75;                   // of what attention could reach
  double context_imbalance = .1;            // of attention, where many ranks share a sequence
  double softmax_passes = 6;                // over the sequence's square, forward, where it is not fused
  double glue_bytes = 16;                   // per token and hidden unit of a layer, forward
  double kernels = 50, expert_kernels = 8;  // launched in a layer, forward; and per expert that it has
  double eager_softmax = 8;                 // kernels more, forward, where Megatron's fused softmax can't do it
  double blocked = 10e-6;                   // seconds lost per kernel where each launch is waited for
  double microbatch = 2e-3, step = .01;     // seconds of each in which nothing is computed
  double expert_gemm = .7;                  // of a matrix product, reached by those of experts
  double tensor_hidden = .3, context_hidden = .5, expert_hidden = .3;  // shares of communication that computing hides
  double data_hidden = .6, sharded_hidden = .8, pipeline_hidden = .4;
  double sharded_rate = .6;     // of the bandwidth, reached where weights are gathered
  double optimizer_bytes = 26;  // per parameter that a rank updates
  // Of each field, in the order of RateFields(): the standard deviation that a fit leaves it, of its unknown.
  std::array<double, 36> unsure{};
  // For software and models that no fit has seen (interval.h).
  double scatter = .2, doubt = 0;
};

enum class Scope { kHardware, kStack };
enum class Scale { kPositive, kShare };  // a share is between 0 and 1

struct RateField {
  const char* name;
  double Rates::* member;
  Scope scope;
  Scale scale;
  double spread;  // how far it usually lies from its default: of its logarithm, or of a share's logit
  double least, most;
};
// Those that a fit may change, as many as Rates::unsure has.
std::span<const RateField> RateFields();
// The logarithm, or of a share the logit; and back, within the field's limits.
double ToUnknown(const RateField& field, double value);
double FromUnknown(const RateField& field, double unknown);

// Those of a scope that the table has; what is missing keeps its value.
void ReadRateFields(cluster::TableReader& in, Scope scope, Rates& rates);

// Of a file with any of them: what is missing keeps its default.
absl::StatusOr<Rates> ReadRates(const std::string& path);
std::string RatesText(const Rates& rates, Scope scope);  // TOML

}  // namespace lockstep::plan
