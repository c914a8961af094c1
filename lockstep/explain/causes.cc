#include "lockstep/explain/causes.h"

#include <algorithm>
#include <array>

#include "lockstep/explain/remedy.h"
#include "lockstep/explain/sample.h"

namespace lockstep::explain {
namespace {

constexpr int kRounds = 8;
// What gains less of a step, or of the loss, is not named.
constexpr double kOfStep = 0.01, kOfLoss = 0.05;

using Rule = std::vector<Remedy> (*)(const trace::StragglerJob& job, const Times& times);
constexpr std::array<Rule, 8> kRules = {FindSlowWorkers, FindSlowStages, FindSequenceLengths, FindPauses,
                                        FindSlowLinks,   FindSlowRings,  FindSlowFabric,      FindLateStarts};

class Peeling {
 public:
  Peeling(const trace::StragglerJob& job, const WhatIf& analysis)
      : job_(job),
        analysis_(analysis),
        first_(job.ops.size(), graph::Selection::kNone),
        times_{job.transfers, job.delays} {
    for (uint32_t op = 0; op < job.ops.size(); ++op)
      if (BeginsStep(job.ops[op])) first_.Set(op, graph::Selection::kAll);
    begin_ = now_ = StepOf(times_);
  }

  Causes Peel() {
    Causes causes;
    causes.loss_s = begin_ - analysis_.ideal_mean();
    for (int round = 0; round < kRounds; ++round) {
      std::optional<Remedy> best = Best();
      if (!best) break;
      best->cause.share = causes.loss_s > 0 ? best->cause.gain_s / causes.loss_s : 0;
      Apply(*best, times_);
      now_ -= best->cause.gain_s;
      causes.found.push_back(std::move(best->cause));
    }
    std::stable_sort(causes.found.begin(), causes.found.end(),
                     [](const Cause& a, const Cause& b) { return a.gain_s > b.gain_s; });
    causes.unexplained_s = std::max(0.0, now_ - analysis_.ideal_mean());
    return causes;
  }

 private:
  // The mean step. Of the delays only those count that stand at its begin: later ones hold waiting that the graph has
  // no edge for, which goes when its reason goes.
  double StepOf(const Times& times) {
    const graph::Replay replay(job_.graph, {times.durations, times.delays, analysis_.ideal_durations()});
    const graph::Selection all(job_.ops.size(), graph::Selection::kAll);
    std::vector<double> steps(job_.steps.size());
    replay.SetTimes({all, first_}, scratch_, steps);
    return Mean(steps);
  }

  static void Apply(const Remedy& remedy, Times& times) {
    for (const auto& [cell, seconds] : remedy.durations) times.durations[cell] = seconds;
    for (const auto& [cell, seconds] : remedy.delays) times.delays[cell] = seconds;
  }

  std::optional<Remedy> Best() {
    std::optional<Remedy> best;
    for (const Rule rule : kRules)
      for (Remedy& remedy : rule(job_, times_)) {
        Times mended = times_;
        Apply(remedy, mended);
        remedy.cause.gain_s = now_ - StepOf(mended);
        if (remedy.cause.gain_s < std::max(kOfStep * now_, kOfLoss * (begin_ - analysis_.ideal_mean()))) continue;
        if (!best || remedy.cause.gain_s > best->cause.gain_s) best = std::move(remedy);
      }
    return best;
  }

  const trace::StragglerJob& job_;
  const WhatIf& analysis_;
  graph::Selection first_;  // the ops that begin a step
  Times times_;
  double begin_ = 0, now_ = 0;
  graph::Replay::Scratch scratch_;
};

}  // namespace

const char* CauseName(CauseKind kind) {
  constexpr const char* kNames[] = {"worker", "transient_worker", "stage",       "sequence_length", "gc", "link",
                                    "ring",   "fabric",           "data_loading"};
  return kNames[static_cast<size_t>(kind)];
}

Causes FindCauses(const trace::StragglerJob& job, const WhatIf& analysis, double straggles) {
  if (analysis.slowdown() < straggles && analysis.launch_slowdown() < straggles) {
    const double loss = Mean(analysis.measured()) - analysis.ideal_mean();
    return {{}, loss, std::max(loss, 0.0)};
  }
  return Peeling(job, analysis).Peel();
}

}  // namespace lockstep::explain
