#include "lockstep/explain/causes.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "lockstep/base/large_pages.h"
#include "lockstep/base/parallel.h"
#include "lockstep/explain/late_starts.h"
#include "lockstep/explain/passes.h"
#include "lockstep/explain/remedy.h"
#include "lockstep/explain/sample.h"
#include "lockstep/explain/slow_lanes.h"

namespace lockstep::explain {
namespace {

constexpr int kRounds = 8;
constexpr double kMoreTogether = 2;  // times the gain of the best alone, and several are named as one cause

using ComputeRule = std::vector<Remedy> (*)(const Passes&, const SlowWorkers&);
constexpr std::array<ComputeRule, 4> kComputeRules = {
    FindSlowWorkers, [](const Passes& passes, const SlowWorkers&) { return FindSlowStages(passes); },
    FindSequenceLengths, [](const Passes& passes, const SlowWorkers&) { return FindPauses(passes); }};
// What a rank itself says is not inferred, and is asked before all else.
constexpr std::array kToldRules = {FindDataWaits};
constexpr std::array kOtherRules = {FindSlowLinks,   FindSlowRings, FindSlowFabric,    FindLateStarts,
                                    FindCollections, FindSlowTails, FindSlowOptimizers};

Times TimesOf(const trace::TracedJob& job, size_t threads) {
  Times times;
  ParallelFor(2, threads, [&](size_t i, size_t /*worker*/) {
    i == 0 ? CopyOnLargePages(job.transfers, times.durations) : CopyOnLargePages(job.delays, times.delays);
  });
  return times;
}

class Peeling {
 public:
  Peeling(const trace::TracedJob& job, const WhatIf& analysis)
      : job_(job),
        analysis_(analysis),
        times_(TimesOf(job, analysis.ThreadsFor(1))),
        replay_(job.graph, {times_.durations, times_.delays, analysis.ideal_durations()}),
        measured_(analysis.WithLateStarts()),
        scratches_(analysis.ThreadsFor(1)) {
    for (const auto& [cell, seconds] : LessCarriedOver(job, measured_.delays)) times_.delays[cell] = seconds;
    begin_ = now_ = MeanStep();
  }

  Causes NameNothing() const {
    const double loss = std::max(0.0, begin_ - analysis_.ideal_mean());
    return {{}, begin_, loss, loss};
  }

  Causes Peel() {
    Causes causes{{}, begin_, 0, 0};
    for (int round = 0; round < kRounds; ++round) {
      std::vector<Remedy> best = Best();
      if (best.empty()) best = Hidden();
      if (best.empty()) break;
      for (Remedy& one : best) {
        if (!one.balanced.empty()) TellOfBalance(one);
        Swap(one);
        passes_->Update(one.durations);
        now_ -= one.cause.gain_s;
        Add(std::move(one.cause), causes.found);
      }
    }
    std::stable_sort(causes.found.begin(), causes.found.end(),
                     [](const Cause& a, const Cause& b) { return a.gain_s > b.gain_s; });
    causes.loss_s = std::max(0.0, begin_ - analysis_.ideal_mean());
    causes.unexplained_s = std::max(0.0, now_ - analysis_.ideal_mean());
    // The ideal is the mean of all workers and stages: mending half of them may gain more than all of the loss.
    const double whole = begin_ - now_ + causes.unexplained_s;
    for (Cause& cause : causes.found) cause.share = cause.gain_s / whole;
    return causes;
  }

 private:
  // What was found before, and stands out once more when something else is mended, is one cause; so are all pauses.
  static void Add(Cause cause, std::vector<Cause>& found) {
    const auto same = std::find_if(found.begin(), found.end(), [&](const Cause& one) {
      return one.kind == cause.kind && (one.suspects == cause.suspects || cause.kind == CauseKind::kGc);
    });
    if (same == found.end()) return found.push_back(std::move(cause));
    same->gain_s += cause.gain_s;
    if (cause.kind == CauseKind::kGc) same->evidence.push_back(cause.evidence.front());  // of the other pass
  }

  double MeanStep() {
    std::vector<double> steps(job_.steps.size());
    replay_.SetTimes(measured_, scratches_, steps);
    return Mean(steps);
  }

  void TellOfBalance(Remedy& remedy) {
    Remedy moved;
    for (const auto& [op, factor] : remedy.balanced)
      for (size_t cell = job_.graph.Cell(op, 0); cell < job_.graph.Cell(op, job_.lanes.size()); ++cell)
        if (!job_.graph.IsAbsent(cell))
          moved.durations.emplace_back(static_cast<uint32_t>(cell),
                                       static_cast<float>(static_cast<double>(times_.durations[cell]) * factor));
    Swap(moved);
    const double gain = now_ - MeanStep();
    Swap(moved);
    remedy.cause.evidence.push_back(fmt::format("with its surplus spread over all stages a step gains {:.3g} s", gain));
  }

  // Puts what the remedy has into the times, and what was there into the remedy: a second call takes it back.
  void Swap(Remedy& remedy) {
    for (auto& [cell, seconds] : remedy.durations) std::swap(times_.durations[cell], seconds);
    for (auto& [cell, seconds] : remedy.delays) std::swap(times_.delays[cell], seconds);
  }

  // The rules whose times were touched look anew, each for itself. Of the others, what they found still holds: those of
  // compute look at the durations of passes alone, the others at all else.
  void Look() {
    std::vector<std::function<void()>> tasks;
    if (!passes_) passes_.emplace(job_, times_, analysis_.threads());
    if (computes_.empty()) {
      slow_workers_.emplace(*passes_);
      computes_.resize(kComputeRules.size());
      for (size_t i = 0; i < kComputeRules.size(); ++i)
        tasks.emplace_back([this, i] { computes_[i] = kComputeRules[i](*passes_, *slow_workers_); });
    }
    if (told_.empty())
      for (const auto& rule : kToldRules) told_.push_back(rule(job_, times_));
    if (others_.empty()) {
      others_.resize(kOtherRules.size());
      for (size_t i = 0; i < kOtherRules.size(); ++i)
        tasks.emplace_back([this, i] { others_[i] = kOtherRules[i](*passes_); });
    }
    ParallelFor(tasks.size(), analysis_.threads(), [&](size_t i, size_t /*worker*/) { tasks[i](); });
  }

  using Found = std::vector<std::vector<Remedy>>;  // by rule

  struct Candidate {
    Remedy* remedy;
    double most;  // what it takes away, per step: it gains no more
    bool tried = false;
  };
  // What one rule found, and all of it as one where that may gain more.
  struct OfRule {
    Found* found;
    std::vector<Candidate> singles;
    std::optional<Remedy> joint;
  };

  // One or none. It is taken out of what its rules have found, which is then forgotten.
  std::vector<Remedy> Best() {
    Look();
    std::vector<Remedy> best = BestOf({&told_});
    return best.empty() ? BestOf({&computes_, &others_}) : best;
  }

  std::vector<Remedy> BestOf(const std::vector<Found*>& places) {
    std::vector<OfRule> rules;
    for (Found* found : places)
      for (std::vector<Remedy>& remedies : *found) rules.push_back(Consider(remedies, found));
    TryOut(rules);
    Remedy* best = nullptr;
    Found* best_found = nullptr;
    const auto consider = [&](Remedy& remedy, Found* found) {
      if (!(remedy.cause.gain_s >= Least()) || (best != nullptr && remedy.cause.gain_s <= best->cause.gain_s)) return;
      best = &remedy, best_found = found;
    };
    for (OfRule& rule : rules) {
      for (const Candidate& one : rule.singles) consider(*one.remedy, rule.found);
      if (rule.joint) consider(*rule.joint, rule.found);
    }
    if (best == nullptr) return {};
    std::vector<Remedy> taken;
    taken.push_back(std::move(*best));
    Forget(*best_found);
    return taken;
  }

  // Waits are a part of computes.
  void Forget(Found& found) {
    if (&found == &others_) return others_.clear();
    computes_.clear();
    told_.clear();
  }

  // Causes of different rules that cost about the same hide each other: whichever is mended, the others still hold the
  // step up. Those that gain only together, each with an equal part of it; from what Best() has left.
  std::vector<Remedy> Hidden() {
    if (now_ - analysis_.ideal_mean() < Least()) return {};
    std::vector<Remedy*> together = MostOfEachRule();
    if (together.size() < 2) return {};
    const double most = Gain(together);
    if (most < Least()) return {};
    for (size_t i = together.size(); i-- > 0;) {
      std::vector<Remedy*> without = together;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
      if (Gain(without) > most / 2) together = std::move(without);
    }
    if (together.size() < 2) return {};
    const double gain = Gain(together);
    std::vector<Remedy> taken;
    taken.reserve(together.size());
    for (Remedy* one : together) taken.push_back(std::move(*one));
    for (Remedy& one : taken) {
      one.cause.gain_s = gain / static_cast<double>(taken.size());
      one.cause.evidence.push_back(
          fmt::format("it hides behind others that cost as much ({}): only mending all gains, {:.3g} s a step in all",
                      OthersText(taken, one), gain));
    }
    Forget(computes_);
    Forget(others_);
    return taken;
  }

  // What takes most away, of each rule whose candidate may gain enough; none that mends what another mends.
  std::vector<Remedy*> MostOfEachRule() {
    std::vector<Remedy*> each;
    for (Found* found : {&told_, &computes_, &others_})
      for (std::vector<Remedy>& remedies : *found) {
        const auto most = std::max_element(remedies.begin(), remedies.end(), [this](const Remedy& a, const Remedy& b) {
          return MostGain(a) < MostGain(b);
        });
        if (most != remedies.end() && MostGain(*most) >= Least()) each.push_back(&*most);
      }
    std::stable_sort(each.begin(), each.end(),
                     [this](const Remedy* a, const Remedy* b) { return MostGain(*a) > MostGain(*b); });
    std::vector<bool> mended(times_.durations.size());
    std::erase_if(each, [&](const Remedy* one) {
      const bool overlaps = std::any_of(one->durations.begin(), one->durations.end(),
                                        [&](const auto& cell) { return mended[cell.first]; });
      if (!overlaps)
        for (const auto& [cell, seconds] : one->durations) mended[cell] = true;
      return overlaps;
    });
    return each;
  }

  double Gain(const std::vector<Remedy*>& remedies) {
    for (Remedy* one : remedies) Swap(*one);
    const double gain = now_ - MeanStep();
    for (Remedy* one : remedies) Swap(*one);
    return gain;
  }

  static std::string OthersText(const std::vector<Remedy>& all, const Remedy& one) {
    std::string text;
    for (const Remedy& other : all)
      if (&other != &one) text += (text.empty() ? "" : ", ") + std::string(CauseName(other.cause.kind));
    return text;
  }

  OfRule Consider(std::vector<Remedy>& remedies, Found* found) const {
    OfRule rule{found, {}, {}};
    for (Remedy& remedy : remedies) {
      remedy.cause.gain_s = 0;
      rule.singles.push_back({.remedy = &remedy, .most = MostGain(remedy)});
    }
    rule.joint = Together(rule.singles, static_cast<size_t>(job_.dp) * static_cast<size_t>(job_.pp));
    return rule;
  }

  // By replays, those first that can gain most: who can't gain as much as another does keeps a gain of 0.
  void TryOut(std::vector<OfRule>& rules) {
    struct Trial {
      double most;
      OfRule* rule;
      Candidate* single;  // null: the joint
    };
    std::vector<Trial> trials;
    for (OfRule& rule : rules) {
      for (Candidate& one : rule.singles) trials.push_back({one.most, &rule, &one});
      if (rule.joint) trials.push_back({MostGain(*rule.joint), &rule, nullptr});
    }
    std::stable_sort(trials.begin(), trials.end(), [](const Trial& a, const Trial& b) { return a.most > b.most; });
    double best = Least();
    for (const Trial& trial : trials)
      if (trial.most >= best)
        best = std::max(best, trial.single != nullptr ? Try(*trial.single) : TryJoint(*trial.rule));
  }

  double Try(Candidate& one) {
    if (!std::exchange(one.tried, true)) TryOut(*one.remedy);
    return one.remedy->cause.gain_s;
  }

  double TryJoint(OfRule& rule) {
    const double gain = TryOut(*rule.joint);
    double single = 0;  // what the best of them gains by itself
    for (Candidate& one : rule.singles)
      if (kMoreTogether * one.most >= gain) single = std::max(single, Try(one));
    if (gain > kMoreTogether * single) return gain;
    rule.joint.reset();
    return single;
  }

  double TryOut(Remedy& remedy) {
    Swap(remedy);
    remedy.cause.gain_s = now_ - MeanStep();
    Swap(remedy);
    return remedy.cause.gain_s;
  }

  // What a remedy takes away, per step.
  double MostGain(const Remedy& remedy) const {
    double sum = 0;
    for (const auto& [cell, seconds] : remedy.durations)
      sum += std::max(0.0, static_cast<double>(times_.durations[cell]) - static_cast<double>(seconds));
    for (const auto& [cell, seconds] : remedy.delays)
      sum += std::max(0.0, static_cast<double>(times_.delays[cell]) - static_cast<double>(seconds));
    return sum / static_cast<double>(job_.steps.size());
  }

  double Least() const { return WorthAName(now_, begin_ - analysis_.ideal_mean()); }

  static bool HidesBehindItsLike(CauseKind kind) {
    return kind == CauseKind::kWorker || kind == CauseKind::kTransientWorker || kind == CauseKind::kLink ||
           kind == CauseKind::kOptimizer || kind == CauseKind::kDataLoading;
  }

  // Two workers, in all steps or in some, or links, or waits for data, that are about equally slow hide each other:
  // mending either gains nothing. Those that cost at least half as much as the worst, as one.
  static std::optional<Remedy> Together(const std::vector<Candidate>& candidates, size_t workers) {
    std::vector<double> excess;  // s, per step
    excess.reserve(candidates.size());
    for (const Candidate& one : candidates) {
      excess.push_back(HidesBehindItsLike(one.remedy->cause.kind) ? one.most : 0);
    }
    if (excess.empty()) return std::nullopt;
    const double worst = *std::max_element(excess.begin(), excess.end());
    std::optional<Remedy> joint;
    size_t count = 0;
    for (const size_t i : Descending(excess)) {
      if (excess[i] <= 0 || excess[i] < worst / 2) break;
      const Remedy& one = *candidates[i].remedy;
      if (joint && one.cause.kind != joint->cause.kind) continue;
      if (!joint) joint.emplace().cause.kind = one.cause.kind;
      joint->durations.insert(joint->durations.end(), one.durations.begin(), one.durations.end());
      for (const CauseSuspect& suspect : one.cause.suspects)  // links of one rank have it in common
        if (std::ranges::find(joint->cause.suspects, suspect) == joint->cause.suspects.end())
          joint->cause.suspects.push_back(suspect);
      joint->cause.evidence.insert(joint->cause.evidence.end(), one.cause.evidence.begin(), one.cause.evidence.end());
      ++count;
    }
    if (!joint || count < 2) return std::nullopt;
    // Of many, it is the steps that differ, and not some workers from the others.
    const bool in_some_steps = joint->cause.kind == CauseKind::kTransientWorker;
    return in_some_steps && 2 * joint->cause.suspects.size() > workers ? std::nullopt : std::move(joint);
  }

  const trace::TracedJob& job_;
  const WhatIf& analysis_;
  Times times_;  // without the causes found so far
  std::optional<Passes> passes_;
  std::optional<SlowWorkers> slow_workers_;
  const graph::Replay replay_;
  const graph::Scenario measured_;
  double begin_ = 0, now_ = 0;
  std::vector<graph::Replay::Scratch> scratches_;
  Found told_, computes_, others_;  // empty: not looked yet, or what they look at was mended
};

}  // namespace

const char* CauseName(CauseKind kind) {
  constexpr const char* kNames[] = {"worker", "transient_worker", "stage", "sequence_length",
                                    "gc",     "optimizer",        "link",  "ring",
                                    "fabric", "data_loading"};
  return kNames[static_cast<size_t>(kind)];
}

Causes FindCauses(const trace::TracedJob& job, const WhatIf& analysis) {
  Peeling peeling(job, analysis);
  Causes nothing = peeling.NameNothing();
  return Straggles(nothing.lost()) ? peeling.Peel() : nothing;
}

}  // namespace lockstep::explain
