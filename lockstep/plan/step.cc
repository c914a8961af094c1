#include "lockstep/plan/step.h"

#include <algorithm>
#include <numeric>

#include "lockstep/plan/memory.h"

namespace lockstep::plan {
namespace {

// What recomputation and offloading add to the passes of a layer: of one that is computed again as a whole, and of any
// other that has a backward pass.
struct Added {
  Passes again, other;
  double offload_again = 0,
         offload_other = 0;  // of those: both ways over the link, as far as the layer does not hide it
};

Added AddedBy(const StepTerms& t, const Variant& v) {
  const double forward = t.trained.forward, backward = t.trained.input + t.trained.weight;
  Added added;
  added.again.input = forward;
  if (v.recompute == Recompute::kSelective) added.other.input = t.selective;
  if (!v.offload.activations) return added;
  const double other = v.recompute == Recompute::kSelective ? t.to_host.selected : t.to_host.all;
  const auto add = [&](double seconds, Passes& to, double& offload) {
    const double out = std::max(0.0, seconds - forward), in = std::max(0.0, seconds - backward - to.input);
    to.forward += out, to.input += in;
    offload = out + in;
  };
  add(t.to_host.input, added.again, added.offload_again);
  add(other, added.other, added.offload_other);
  return added;
}

// Of a stage, without the output layer.
struct Load {
  double layers = 0, below = 0, frozen = 0, again = 0;  // below: without a backward pass
  double other() const { return layers - below - again; }
};

Load LoadOf(const StepTerms& t, const Variant& v, double layers, double frozen) {
  const double below = t.skips_frozen ? frozen : 0;
  return {layers, below, frozen, RecomputedOf(v, layers - below)};
}

Passes PassesOf(const StepTerms& t, const Added& added, const Load& load) {
  const double backward = load.layers - load.below;
  return {load.layers * t.trained.forward + load.again * added.again.forward + load.other() * added.other.forward,
          backward * t.trained.input + load.again * added.again.input + load.other() * added.other.input,
          (load.layers - load.frozen) * t.trained.weight};
}

// DualPipe computes a forward and a backward pass at the same time, and each hides what the other exchanges.
double Overlap(const StepTerms& t, Schedule schedule) {
  return schedule == Schedule::kDualPipe ? std::min(t.both.exchange, t.both.computed()) : 0;
}

Passes Plus(const Passes& a, double times, const Passes& b) {
  return {a.forward + times * b.forward, a.input + times * b.input, a.weight + times * b.weight};
}

// The stages of a pipeline, as all of them wait for the one that takes longest: of equals for the last, for it has the
// output layer. Of DualPipe the first rank and the last share that.
struct Pipeline {
  Passes mean, slowest, others;           // mean: without the output layer; others: the sum of all but the slowest
  double mean_again = 0, mean_other = 0;  // layers of a stage that something is added to
  double listed = 0;                      // seconds of all microbatches, where stages are listed, by Pace
};

Pipeline AlikeStages(const StepTerms& t, const Variant& v, const Added& added) {
  const double share = 1.0 / CopiesOf(v.schedule);
  const auto passes = [&](double layers) { return PassesOf(t, added, LoadOf(t, v, layers, 0)); };
  const Load mean = LoadOf(t, v, t.layers / t.stages, 0);
  Pipeline p;
  p.mean = PassesOf(t, added, mean);
  p.mean_again = mean.again, p.mean_other = mean.other();
  p.slowest = Plus(passes(t.last_layers), share, t.head);
  if (t.most_layers > t.last_layers)
    if (const Passes most = passes(t.most_layers); most.total() > p.slowest.total()) p.slowest = most;
  p.others = Plus(Plus(Plus({}, t.stages, p.mean), share, t.head), -1, p.slowest);
  return p;
}

// What a microbatch holds up others by: under ZB-H1 without gradients of weights, which are done when there is nothing
// else to do.
double Chain(Schedule schedule, const Passes& passes) {
  return passes.forward + passes.input + (schedule == Schedule::k1F1B ? passes.weight : 0);
}

// Under 1F1B and ZB-H1: what m microbatches take where this stage decides. It waits for what is behind it as far as it
// has nothing else to do: forward passes in the beginning, backward passes in the end, one for each stage behind, or
// all but one; and for what is before it, but for gradients of weights that ZB-H1 has kept until then.
double Pace(Schedule schedule, const Passes& own, double microbatches, double before, double stages_before,
            double behind, double stages_behind) {
  const double kept = schedule == Schedule::k1F1B ? 0 : stages_before * own.weight;
  const double backward = own.input + own.weight, others = microbatches - 1;
  const double waits = microbatches > stages_behind ? std::max(0.0, behind - stages_behind * own.forward) +
                                                          std::max(0.0, behind - stages_behind * backward)
                                                    : std::max(0.0, behind - others * std::min(own.forward, backward));
  return microbatches * own.total() + std::max(0.0, before - kept) + waits;
}

// From the last to the first: of each run any stage may be the slowest, of that at the end the one with the output
// layer. Of stages that are alike the first or the last decides: a pace is convex in what is behind.
Pipeline ListedStages(const StepTerms& t, const Variant& v, const Added& added) {
  Pipeline p;
  const auto each = [&](const auto& visit) {
    for (auto run = t.runs.rbegin(); run != t.runs.rend(); ++run) {
      const Passes one = PassesOf(t, added, LoadOf(t, v, run->layers, run->frozen));
      const bool is_last = run == t.runs.rbegin();
      if (is_last) visit(Plus(one, 1, t.head), 1);
      if (const int others = run->count - (is_last ? 1 : 0); others > 0) visit(one, others);
    }
  };
  Passes all;
  each([&](const Passes& stage, double count) {
    if (stage.total() > p.slowest.total()) p.slowest = stage;
    all = Plus(all, count, stage);
  });
  double behind = 0, stages_behind = 0;
  each([&](const Passes& stage, double count) {
    const double own = Chain(v.schedule, stage), rest = Chain(v.schedule, all) - own;
    for (const double further : {0.0, count - 1}) {
      const double chain = behind + further * own, stages = stages_behind + further;
      p.listed = std::max(p.listed,
                          Pace(v.schedule, stage, t.microbatches, rest - chain, t.stages - 1 - stages, chain, stages));
      if (count == 1) break;
    }
    behind += count * own, stages_behind += count;
  });
  for (const StageRun& run : t.runs) {
    const Load load = LoadOf(t, v, run.layers, run.frozen);
    const double share = run.count / t.stages;
    p.mean_again += share * load.again, p.mean_other += share * load.other();
  }
  p.mean = Plus({}, 1 / t.stages, Plus(all, -1, t.head));
  p.others = Plus(all, -1, p.slowest);
  return p;
}

Pipeline PipelineOf(const StepTerms& t, const Variant& v, const Added& added) {
  return t.runs.empty() ? AlikeStages(t, v, added) : ListedStages(t, v, added);
}

double Bubble(const StepTerms& t, const Pipeline& p, const Variant& v) {
  const bool is_paced = v.schedule == Schedule::k1F1B || v.schedule == Schedule::kZeroBubbleH1;
  if (is_paced && p.listed > 0) return p.listed - t.microbatches * p.slowest.total();
  const double overlap = t.layers / t.stages * Overlap(t, v.schedule);
  Passes slowest = p.slowest, others = p.others;
  slowest.forward -= overlap, others.forward -= (t.stages - 1) * overlap;
  return BubbleSeconds(v.schedule, static_cast<int>(t.stages), v.chunks, others, slowest);
}

// What a step shows of the communication between replicas.
double Data(const StepTerms& t, const Variant& v, double mean_stage) {
  const double layers = t.layers / t.stages;
  if (v.zero == 3) {  // of each microbatch, or once where a pipeline keeps what it gathered
    const double seconds = (t.stages > 1 ? 1 : t.microbatches) * (t.gather + t.scatter) + t.replicate;
    const double hidden = v.hides_data ? t.sharded_hidden * t.microbatches * mean_stage : 0;
    return std::max(seconds - hidden, 0.0) + seconds / std::max(1.0, layers);
  }
  const double seconds = CopiesOf(v.schedule) * t.data;
  return std::max(seconds - (v.hides_data ? t.data_hidden * layers * t.backward.total() : 0), .05 * seconds);
}

const Update& UpdateOf(const StepTerms& t, const Variant& v) { return v.zero >= 1 ? t.shared : t.whole; }

// Gradients go to the host beside the last backward pass, as far as the stack hides those between replicas; parameters
// come back while the host updates the next ones.
double OptimizerOffload(const StepTerms& t, const Variant& v) {
  const Update& update = UpdateOf(t, v);
  const double backward = t.layers / t.stages * t.backward.total();
  return std::max(0.0, update.gradients - (v.hides_data ? t.data_hidden * backward : 0)) +
         std::max(0.0, update.parameters - update.host);
}

}  // namespace

const char* PartName(Part part) {
  constexpr const char* kNames[kParts] = {
      "gemm",    "experts",         "attention", "glue",   "recompute", "offload",   "head", "tensor",
      "context", "expert_exchange", "pipeline",  "bubble", "data",      "optimizer", "step", "stragglers"};
  return kNames[static_cast<size_t>(part)];
}

Seconds StepTime::total() const { return {std::accumulate(seconds.begin(), seconds.end(), 0.0)}; }

StepTime StepOf(const StepTerms& t, const Variant& v) {
  const Added added = AddedBy(t, v);
  const Pipeline pipeline = PipelineOf(t, v, added);
  const double layers = t.layers / t.stages, times = t.microbatches * layers;
  StepTime step;
  step[Part::kGemm] = times * t.both.gemm;
  step[Part::kExperts] = times * t.both.experts;
  step[Part::kAttention] = times * t.both.attention;
  step[Part::kGlue] = times * (t.both.glue + t.both.wait);
  step[Part::kTensor] = times * t.both.tensor;
  step[Part::kContext] = times * t.both.context;
  // A rank at the end of DualPipe's pipeline has the fewest pairs.
  const double pairs = std::max(0.0, t.microbatches - 1.5 * t.stages + 1);
  step[Part::kExpertExchange] = times * t.both.exchange - pairs * layers * Overlap(t, v.schedule);
  const double selective = v.recompute == Recompute::kSelective ? t.selective : 0;
  step[Part::kRecompute] = t.microbatches * (pipeline.mean_again * t.trained.forward + pipeline.mean_other * selective);
  step[Part::kOffload] =
      t.microbatches * (pipeline.mean_again * added.offload_again + pipeline.mean_other * added.offload_other);
  step[Part::kHead] = t.microbatches * (pipeline.slowest.total() - pipeline.mean.total());
  step[Part::kBubble] = Bubble(t, pipeline, v);
  step[Part::kPipeline] =
      2 * (t.microbatches + t.stages - 1) * v.chunks * t.transfer * (v.hides_transfers ? 1 - t.transfer_hidden : 1);
  step[Part::kData] = Data(t, v, pipeline.mean.total());
  step[Part::kOptimizer] = v.offload.optimizer ? UpdateOf(t, v).host : UpdateOf(t, v).here;
  if (v.offload.optimizer) step[Part::kOffload] += OptimizerOffload(t, v);
  step[Part::kStep] = t.step;
  step[Part::kStragglers] = step.total().value * t.straggle;
  return step;
}

namespace {

Variant SettledVariant(const Workload& w) {
  Variant variant = VariantOf(w);
  if (w.recompute == Recompute::kAsNeeded) UseOf(MemoryTermsOf(w), variant);
  return variant;
}

}  // namespace

StepTime PredictStep(const Workload& workload, const Rates& rates) {
  return StepOf(TermsOf(workload, rates), SettledVariant(workload));
}

StageTimes PredictStage(const Workload& w, const Rates& rates) {
  const StepTerms t = TermsOf(w, rates);
  const Variant variant = SettledVariant(w);
  const Added added = AddedBy(t, variant);
  StageTimes times;
  for (const StageRun& run : w.StageRuns())
    times.stages.resize(times.stages.size() + size_t(run.count),
                        PassesOf(t, added, LoadOf(t, variant, run.layers, run.frozen)));
  for (const Passes& stage : times.stages) times.layer = Plus(times.layer, 1.0 / w.layers, stage);
  times.head = t.head;
  times.overlap = Overlap(t, w.schedule);
  times.transfer = t.transfer * (variant.hides_transfers ? 1 - t.transfer_hidden : 1);
  times.data = w.zero == 3 ? 0 : CopiesOf(w.schedule) * t.data;
  if (w.offload.optimizer) times.host_link = OptimizerOffload(t, variant);
  times.transfer_bytes = t.transfer_bytes;
  times.data_bytes = CopiesOf(w.schedule) * t.data_bytes;
  return times;
}

}  // namespace lockstep::plan
