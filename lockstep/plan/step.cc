#include "lockstep/plan/step.h"

#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <numeric>

#include "lockstep/plan/memory.h"

namespace lockstep::plan {
namespace {

constexpr double kRounding = 1e-12;  // of a difference

// What recomputation and offloading add to the passes of a layer: of one that is computed again as a whole, and of any
// other that has a backward pass. The link to the host works beside the layer's own pass, both ways at once.
struct Added {
  Passes again, other;
  // Of those, over the link, as far as the layer does not hide it: both ways; beside its backward pass.
  double offload_again = 0, offload_other = 0, back_again = 0, back_other = 0;
};

Added AddedBy(const StepTerms& t, const Variant& v) {
  const double forward = t.trained.forward, backward = t.trained.input + t.trained.weight;
  Added added;
  added.again.input = forward;
  if (v.recompute == Recompute::kSelective) added.other.input = t.selective;
  if (!v.offload.activations && !v.offload.weights) return added;
  const double other = v.recompute == Recompute::kSelective ? t.to_host.selected : t.to_host.all;
  const double weights = v.offload.weights ? t.from_host : 0, gradients = v.offload.weights ? t.gradients : 0;
  const auto add = [&](double kept, Passes& to, double& offload, double& back) {
    const double activations = v.offload.activations ? kept : 0;
    const double first = std::max(0.0, std::max(weights, activations) - forward);
    back = std::max(0.0, std::max(weights + activations, gradients) - backward - to.input);
    to.forward += first, to.input += back;
    offload = first + back;
  };
  add(t.to_host.input, added.again, added.offload_again, added.back_again);
  add(other, added.other, added.offload_other, added.back_other);
  return added;
}

// Of a stage, without the output layer.
struct Load {
  double layers = 0, below = 0, frozen = 0, again = 0;  // below: without a backward pass
  double mixed = 0;                                     // layers with experts beyond those of a stage in the mean
  double other() const { return layers - below - again; }
};

Load LoadOf(const StepTerms& t, const Variant& v, double layers, double frozen) {
  const double below = t.skips_frozen ? frozen : 0;
  return {layers, below, frozen, RecomputedOf(v, layers - below)};
}
Load LoadOf(const StepTerms& t, const Variant& v, const StageRun& run) {
  Load load = LoadOf(t, v, run.layers, run.frozen);
  load.mixed = run.mixed - run.layers * t.mixed_share;
  return load;
}

// Of as many layers as a stage has in the mean, with the fewest frozen ones that a stage can have: the gradients that
// replicas exchange are counted of such a one (step_terms.cc, Trained), so what hides them is, too.
Load MostTrained(const StepTerms& t, const Variant& v) {
  const double layers = t.layers / t.stages;
  return LoadOf(t, v, layers, layers - std::min(layers, t.layers - t.frozen));
}

Passes PassesOf(const StepTerms& t, const Added& added, const Load& load) {
  const double backward = load.layers - load.below;
  Passes all{load.layers * t.trained.forward + load.again * added.again.forward + load.other() * added.other.forward,
             backward * t.trained.input + load.again * added.again.input + load.other() * added.other.input,
             (load.layers - load.frozen) * t.trained.weight};
  if (load.mixed != 0) {
    all = Plus(all, load.mixed, t.mixed);
    all.input += load.mixed * load.again / load.layers * t.mixed.forward;
  }
  return all;
}

// DualPipe computes a forward and a backward pass at the same time.
double Overlap(const StepTerms& t, Schedule schedule) {
  return schedule == Schedule::kDualPipe ? t.both.total() - t.pair.total() : 0;
}

// The stages of a pipeline, as all of them wait for the one that takes longest: of equals for the last, for it has the
// output layer. Of DualPipe the first rank and the last share that.
struct Pipeline {
  Passes mean, slowest, others;           // mean: without the output layer; others: the sum of all but the slowest
  Passes exchanging;                      // mean; of frozen layers as few as the stage has that exchanges most
  double mean_again = 0, mean_other = 0;  // layers of a stage that something is added to
  double paced = 0;                       // seconds of all microbatches; 0: as BubbleSeconds says
};

// A stage among the others: seconds that a microbatch takes before it, forward and back, and behind it, there and back.
struct StageAt {
  Passes own;
  double before_forward = 0, before_back = 0, behind = 0, stages_before = 0, stages_behind = 0;
};

// Under 1F1B and ZB-H1: what m microbatches take where this stage decides. It waits for what is before it once: under
// ZB-H1 for the inputs' gradients and then the first stage's weights', beside which it has kept weights' gradients of
// its own to do. And for what is behind it as far as it has nothing else to do: forward passes in the beginning,
// backward passes in the end, one for each stage behind, or all but one.
double Pace(const StageAt& at, double microbatches, bool keeps, double first_weight) {
  const double backward = at.own.input + at.own.weight, others = microbatches - 1, stages = at.stages_behind;
  double last = at.before_back;
  if (keeps && at.stages_before > 0) last = std::max(0.0, last + first_weight - (at.stages_before + 1) * at.own.weight);
  const double waits = microbatches > stages ? std::max(0.0, at.behind - stages * at.own.forward) +
                                                   std::max(0.0, at.behind - stages * backward)
                                             : std::max(0.0, at.behind - others * std::min(at.own.forward, backward));
  return microbatches * at.own.total() + at.before_forward + last + waits;
}

// Stages in a row that are alike.
struct Group {
  Passes one;
  double count = 0;
};
// From the last to the first.
using Groups = absl::InlinedVector<Group, 4>;

// The slowest pace. Of a group the first stage or the last decides: a pace is convex in what is behind.
double SlowestPace(const Groups& groups, const Passes& all, const StepTerms& t, bool keeps) {
  const double first_weight = groups.back().one.weight;
  const double all_back = all.input + (keeps ? 0 : all.weight);
  double forward = 0, back = 0, stages = 0, slowest = 0;  // behind the group
  for (const Group& group : groups) {
    const double own = group.one.input + (keeps ? 0 : group.one.weight);
    for (const double further : {0.0, group.count - 1}) {
      const double behind_forward = forward + further * group.one.forward, behind_back = back + further * own;
      const StageAt at{.own = group.one,
                       .before_forward = all.forward - behind_forward - group.one.forward,
                       .before_back = all_back - behind_back - own,
                       .behind = behind_forward + behind_back,
                       .stages_before = t.stages - 1 - stages - further,
                       .stages_behind = stages + further};
      slowest = std::max(slowest, Pace(at, t.microbatches, keeps, first_weight));
      if (group.count == 1) break;
    }
    forward += group.count * group.one.forward, back += group.count * own, stages += group.count;
  }
  return slowest;
}

// A stage at an end of a group, and what the stages behind it take for a microbatch, there and back.
struct EndOfGroup {
  const Passes* own;
  double behind, stages_behind;
};

// Under ZB-2p: the longest that a stage takes from its own begin to its own end. Another stage, or itself, sets the
// pace of all microbatches, and waits for what is behind as far as the forward passes that it is ahead by, and in the
// end its own backward passes, leave it nothing to do. Whoever is before that stage begins so much earlier and ends so
// much later, with the weights' gradients left that it is behind by instead of those of the other. Both are at an end
// of a group: of stages that are alike one in the middle takes less than one of the two.
double SlowestSpan(const Groups& groups, const StepTerms& t) {
  absl::InlinedVector<EndOfGroup, 8> ends;  // from the last stage to the first
  double behind = 0, stages = 0;
  for (const Group& group : groups) {
    const double each = group.one.forward + group.one.input;
    ends.push_back({&group.one, behind, stages});
    if (group.count > 1) ends.push_back({&group.one, behind + (group.count - 1) * each, stages + group.count - 1});
    behind += group.count * each, stages += group.count;
  }
  double slowest = 0, earliest = 0;  // of those before it, and itself, what the longest takes beside it
  for (auto at = ends.rbegin(); at != ends.rend(); ++at) {
    const double n = at->stages_behind, kept = 2 * (t.stages - 1 - n) * at->own->weight;
    const double from_here = at->behind + at->own->forward + at->own->input;
    earliest = std::max(earliest, from_here + kept);
    const double back = at->own->input + at->own->weight;
    const double waits =
        std::max(0.0, at->behind - 2 * n * at->own->forward) + std::max(0.0, at->behind - 2 * n * back);
    slowest = std::max(slowest, t.microbatches * at->own->total() + waits + earliest - from_here - kept);
  }
  return slowest;
}

Pipeline AlikeStages(const StepTerms& t, const Variant& v, const Added& added) {
  const double share = 1.0 / CopiesOf(v.schedule);
  const auto passes = [&](double layers) { return PassesOf(t, added, LoadOf(t, v, layers, 0)); };
  const Load mean = LoadOf(t, v, t.layers / t.stages, 0);
  Pipeline p;
  p.mean = p.exchanging = PassesOf(t, added, mean);
  p.mean_again = mean.again, p.mean_other = mean.other();
  p.slowest = Plus(passes(t.last_layers), share, t.head);
  if (t.most_layers > t.last_layers)
    if (const Passes most = passes(t.most_layers); most.total() > p.slowest.total()) p.slowest = most;
  const Passes all = Plus(Plus({}, t.stages, p.mean), share, t.head);
  p.others = Plus(all, -1, p.slowest);
  if (v.schedule == Schedule::kZeroBubbleH1 && t.stages > 1 && t.most_layers == t.last_layers)
    p.paced = SlowestPace({{p.slowest, 1}, {p.mean, t.stages - 1}}, all, t, true);
  return p;
}

// Of each run any stage may be the slowest, of that at the end the one with the output layer.
Pipeline ListedStages(const StepTerms& t, const Variant& v, const Added& added) {
  Pipeline p;
  Passes all;
  Groups groups;
  const auto take = [&](const Passes& one, double count) {
    if (one.total() > p.slowest.total()) p.slowest = one;
    all = Plus(all, count, one);
    groups.push_back({one, count});
  };
  for (auto run = t.runs.rbegin(); run != t.runs.rend(); ++run) {
    const Load load = LoadOf(t, v, *run);
    const Passes one = PassesOf(t, added, load);
    const bool is_last = run == t.runs.rbegin();
    if (is_last) take(Plus(one, 1, t.head), 1);
    if (const int others = run->count - (is_last ? 1 : 0); others > 0) take(one, others);
    const double share = run->count / t.stages;
    p.mean_again += share * load.again, p.mean_other += share * load.other();
  }
  p.mean = Plus({}, 1 / t.stages, Plus(all, -1, t.head));
  p.exchanging = t.frozen > 0 ? PassesOf(t, added, MostTrained(t, v)) : p.mean;
  p.others = Plus(all, -1, p.slowest);
  const bool keeps = v.schedule == Schedule::kZeroBubbleH1;
  if (keeps || v.schedule == Schedule::k1F1B) p.paced = SlowestPace(groups, all, t, keeps);
  if (v.schedule == Schedule::kZeroBubble2p) p.paced = SlowestSpan(groups, t);
  return p;
}

Pipeline PipelineOf(const StepTerms& t, const Variant& v, const Added& added) {
  return t.runs.empty() ? AlikeStages(t, v, added) : ListedStages(t, v, added);
}

double Bubble(const StepTerms& t, const Pipeline& p, const Variant& v) {
  if (p.paced > 0) return p.paced - t.microbatches * p.slowest.total();
  const double overlap = t.layers / t.stages * Overlap(t, v.schedule);
  Passes slowest = p.slowest, others = p.others;
  slowest.forward -= overlap, others.forward -= (t.stages - 1) * overlap;
  return BubbleSeconds(v.schedule, static_cast<int>(t.stages), v.chunks, others, slowest);
}

// What a backward pass hides of the communication between replicas: a share of it with its waits for the host's link,
// without what is computed again.
double HiddenData(const StepTerms& t, const Variant& v, const Added& added) {
  if (!v.hides_data) return 0;
  const Load load = MostTrained(t, v);
  const double passes = (load.layers - load.frozen) * t.trained_backward + (load.frozen - load.below) * t.trained.input;
  const double waits = load.again * added.back_again + load.other() * added.back_other;
  return t.data_hidden * (passes + waits);
}

// What a step shows of the communication between replicas: beside the last backward pass, in which the first layers'
// gradients are the last. ZeRO 2 scatters those of each other microbatch, too, but in a pipeline, which keeps them.
double Data(const StepTerms& t, const Variant& v, double beside, double stage) {
  constexpr double kLast = .05;
  const double layers = t.layers / t.stages;
  const auto shown = [&](double seconds) { return std::max(seconds - beside, kLast * seconds); };
  const double once = shown(CopiesOf(v.schedule) * t.data);
  if (v.zero < 2 || (v.zero == 2 && t.stages > 1)) return once;
  if (v.zero == 2) return once + (t.microbatches - 1) * shown(t.data / 2);
  // Of each microbatch; or once where a pipeline keeps what it gathered, with no more to hide it than others have.
  const double seconds = (t.stages > 1 ? 1 : t.microbatches) * (t.gather + t.scatter) + t.replicate;
  const double hidden = v.hides_data ? t.sharded_hidden * t.microbatches * stage : 0;
  const double sharded = std::max(seconds - hidden, 0.0) + seconds / std::max(1.0, layers);
  return t.stages > 1 ? std::max(sharded, once) : sharded;
}

const Update& UpdateOf(const StepTerms& t, const Variant& v) { return v.zero >= 1 ? t.shared : t.whole; }

// Gradients go to the host beside the last backward pass, as far as the stack hides those between replicas; parameters
// come back while the host updates the next ones. Of layers whose weights are there too nothing is left to move.
double OptimizerOffload(const StepTerms& t, const Variant& v, double beside) {
  Update update = UpdateOf(t, v);
  if (v.offload.weights) update.gradients -= t.layers * t.gradients, update.parameters -= t.layers * t.from_host;
  return std::max(0.0, update.gradients - beside) + std::max(0.0, update.parameters - update.host);
}

}  // namespace

const char* PartName(Part part) {
  constexpr const char* kNames[kParts] = {
      "gemm",    "experts",         "attention", "glue",   "recompute", "offload",   "head", "tensor",
      "context", "expert_exchange", "pipeline",  "bubble", "data",      "optimizer", "step", "stragglers"};
  return kNames[static_cast<size_t>(part)];
}

Seconds StepTime::total() const { return {std::accumulate(seconds.begin(), seconds.end(), 0.0)}; }

namespace {

StepTime StepWith(const StepTerms& t, const Variant& v, const Added& added, const Pipeline& pipeline) {
  const double layers = t.layers / t.stages, times = t.microbatches * layers;
  StepTime step;
  step[Part::kGemm] = times * t.both.gemm;
  step[Part::kExperts] = times * t.both.experts;
  step[Part::kAttention] = times * t.both.attention;
  // A rank at the end of DualPipe's pipeline has the fewest pairs.
  const bool has_pairs = v.schedule == Schedule::kDualPipe;
  const double pairs = has_pairs ? layers * std::max(0.0, t.microbatches - 1.5 * t.stages + 1) : 0;
  step[Part::kGlue] = times * (t.both.glue + t.both.wait) + pairs * (t.pair.wait - t.both.wait);
  step[Part::kTensor] = times * t.both.tensor;
  step[Part::kContext] = times * t.both.context;
  step[Part::kExpertExchange] = times * t.both.exchange + pairs * (t.pair.exchange - t.both.exchange);
  const double selective = v.recompute == Recompute::kSelective ? t.selective : 0;
  step[Part::kRecompute] = t.microbatches * (pipeline.mean_again * t.trained.forward + pipeline.mean_other * selective);
  step[Part::kOffload] =
      t.microbatches * (pipeline.mean_again * added.offload_again + pipeline.mean_other * added.offload_other);
  // Beyond a stage in the mean the slowest has the output layer; what else it has the others wait for.
  const double beyond = pipeline.slowest.total() - pipeline.mean.total();
  const double head = std::min(beyond, t.head.total() / CopiesOf(v.schedule));
  const double waits = beyond - head > kRounding * beyond ? beyond - head : 0;
  step[Part::kHead] = t.microbatches * (beyond - waits);
  step[Part::kBubble] = Bubble(t, pipeline, v) + t.microbatches * waits;
  step[Part::kPipeline] =
      2 * (t.microbatches + t.stages - 1) * v.chunks * t.transfer * (v.hides_transfers ? 1 - t.transfer_hidden : 1);
  const double beside = HiddenData(t, v, added);
  step[Part::kData] = Data(t, v, beside, pipeline.exchanging.total());
  step[Part::kOptimizer] = v.offload.optimizer ? UpdateOf(t, v).host : UpdateOf(t, v).here;
  if (v.offload.optimizer) step[Part::kOffload] += OptimizerOffload(t, v, beside);
  step[Part::kStep] = t.step;
  step[Part::kStragglers] = step.total().value * t.straggle;
  return step;
}

}  // namespace

StepTime StepOf(const StepTerms& t, const Variant& v) {
  const Added added = AddedBy(t, v);
  return StepWith(t, v, added, PipelineOf(t, v, added));
}

std::array<double, kWaysToHide> SecondsOfWays(const StepTerms& t, Variant v, int ways) {
  const Added added = AddedBy(t, v);
  const Pipeline pipeline = PipelineOf(t, v, added);
  std::array<double, kWaysToHide> seconds{};
  for (int way = 0; way < ways; ++way) {
    TakeWay(way, v);
    seconds[static_cast<size_t>(way)] = StepWith(t, v, added, pipeline).total().value;
  }
  return seconds;
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
    times.stages.resize(times.stages.size() + size_t(run.count), PassesOf(t, added, LoadOf(t, variant, run)));
  for (const Passes& stage : times.stages) times.layer = Plus(times.layer, 1.0 / w.layers, stage);
  times.head = t.head;
  times.overlap = Overlap(t, w.schedule);
  times.transfer = t.transfer * (variant.hides_transfers ? 1 - t.transfer_hidden : 1);
  times.data = w.zero == 3 ? 0 : CopiesOf(w.schedule) * t.data;
  if (w.offload.optimizer) times.host_link = OptimizerOffload(t, variant, HiddenData(t, variant, added));
  times.transfer_bytes = t.transfer_bytes;
  times.data_bytes = CopiesOf(w.schedule) * t.data_bytes;
  return times;
}

}  // namespace lockstep::plan
