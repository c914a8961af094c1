// How to run a layer of a mixture of experts: which of Parm's schedules (INFOCOM 2024, arXiv 2407.00599), and in how
// many chunks, as FSMoE (EuroSys 2025, equations 1 to 5) pipelines it. Times are in ms, as its authors fitted them:
// each collective and product takes alpha + beta x size.
//
//   const ParmTimes times = PredictParm(layer, kFsmoeTestbedB);       // times.s2 < times.s1: S2
//   const FsmoePlan plan = PlanFsmoe(layer, kFsmoeTestbedB, {});      // plan.chunks
#pragma once

#include <string>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"

namespace lockstep::plan {

struct AlphaBeta {
  double alpha = 0, beta = 0;  // ms; ms per byte, or per operation
  double operator()(double size) const { return alpha + beta * size; }
};

struct MoeCosts {
  AlphaBeta product, all_to_all, all_gather, reduce_scatter;
};
// FSMoE, table of its testbeds; the all-gather of A as its own breakdown has it (printed ten times as much).
inline constexpr MoeCosts kFsmoeTestbedA{{4.26e-2, 2.29e-11}, {.287, 2.21e-7}, {.337, 2.32e-7}, {.395, 2.34e-7}};
inline constexpr MoeCosts kFsmoeTestbedB{{9.24e-2, 4.42e-11}, {.175, 3.06e-7}, {3.20e-2, 1.68e-7}, {3.91e-2, 1.67e-7}};

struct MoeLayer {
  double tokens = 0, hidden = 0, ffn = 0;  // tokens: of a replica, sequences x length
  double top_k = 1, capacity = 1;          // capacity: the factor by which experts take more than their share
  double bytes = 4;                        // of a value
  int products = 2;                        // matrices of an expert; 3 where it is gated
  int mp = 1, ep = 1, esp = 1;             // tensor parallelism outside, expert parallelism, and that within experts
};

struct ParmTimes {
  double baseline = 0;    // DeepSpeed-MoE: each of the mp peers does everything
  double s1 = 0, s2 = 0;  // tokens split over mp before the gate; behind it, with the gather beside the exchange
};
ParmTimes PredictParm(const MoeLayer& layer, const MoeCosts& costs);

enum class MoePass { kForward, kBackward };
struct FsmoePlan {
  int chunks = 1;  // of 1 to 32 the best
  int bound = 1;   // which of FSMoE's four cases: exchanges and gradients, computing, exchanges, gathers
  double ms = 0;
};
// gradients: ms of their all-reduce, which is to be hidden in this layer.
FsmoePlan PlanFsmoe(const MoeLayer& layer, const MoeCosts& costs, MoePass pass, double gradients = 0);

// A table of layers, of Parm (columns N_MP, N_EP, ...) or of FSMoE (testbed, ...), computed anew beside what these
// formulas gave elsewhere (t_S1_ms, choice, ...; best_r, case, t_ms), as far as a row says that. {rows, wrong_choices,
// max_rel_ms, worst {row, column: [ours, theirs]}, skipped [{row, why}], choices [{row, column: ours}]}. wrong_choices
// is null where there is no choice to compare with, max_rel_ms where there is no time, worst where there is neither;
// choices are told then, and where they are asked for.
absl::StatusOr<Json> CompareMoe(const std::string& path, bool with_choices = false);

}  // namespace lockstep::plan
