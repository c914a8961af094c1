#include "lockstep/plan/step.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "lockstep/plan/memory.h"
#include "lockstep/plan/round_figures.h"

namespace lockstep::plan {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;

double Seconds1(const Workload& work) { return PredictStep(work, Perfect()).total().value; }

// 12 h^2 parameters a layer, 2 flops of each and token, three times with the backward pass, at half of the peak.
TEST(Step, MatrixProductsByHand) {
  const StepTime step = PredictStep(Small(), Perfect());
  const double tokens = 64.0 * 2048 / 8;
  EXPECT_THAT(step[Part::kGemm], DoubleNear(8 * 3 * 2 * 12 * 1024.0 * 1024 * tokens / 50e12, 1e-9));
  const double attention = 8 * 3.5 * 4.0 * 2048 * 2048 * 1024 * 8 / 2 / 50e12;
  EXPECT_THAT(step[Part::kAttention], DoubleNear(attention, 1e-9)) << "causal, and once more in the backward pass";
  EXPECT_EQ(step[Part::kTensor] + step[Part::kBubble] + step[Part::kPipeline] + step[Part::kContext], 0);
}

// Of the half of a square of 2,048 a window of 448 leaves all but a triangle of 1,536: whole tiles, so 64 more.
TEST(Step, SlidingWindowsByHand) {
  Workload work = Small();
  const double whole = PredictStep(work, Perfect())[Part::kAttention];
  work.window = {448, 6};
  const double left = 1 - .75 * .75;
  EXPECT_THAT(PredictStep(work, Perfect())[Part::kAttention] / whole, DoubleNear((6 * left + 2) / 8, 1e-9));
  work.window = {2048, 8};
  EXPECT_EQ(PredictStep(work, Perfect())[Part::kAttention], whole) << "as long as the sequence";
  work.window = {448, 8}, work.flash = false;
  Workload unfused = work;
  unfused.window = {};
  EXPECT_EQ(Seconds1(work), Seconds1(unfused)) << "the whole square is computed, and masked";
}

// Of two heads of keys and values four ranks have half of one each: they gather queries, keys and values whole, in each
// direction, and keep them; then each has one, as of four heads.
TEST(Step, RanksShareHeadsOfKeysAndValues) {
  const auto with = [](int kv_heads, int tp) {
    Workload work = Small();
    work.kv_heads = kv_heads, work.tp = tp, work.cp = 2, work.dp = 8 / tp / 2, work.sequence_parallel = tp > 1;
    return work;
  };
  const auto of = [&](int kv_heads, int tp) { return TermsOf(with(kv_heads, tp), Perfect()); };
  const auto kept = [&](int kv_heads, int tp) { return PredictMemory(with(kv_heads, tp)).activations; };
  EXPECT_EQ(of(2, 4).forward.context, of(4, 4).forward.context);
  const double tokens = 2048 / 2, columns = (16 + 2 * 2) * 64, gathered = 2 * tokens * columns;
  EXPECT_THAT(of(2, 4).forward.tensor - of(4, 4).forward.tensor, DoubleNear(gathered * 3 / 4 / 50e9, 1e-12));
  EXPECT_THAT(of(2, 4).both.tensor - of(4, 4).both.tensor, DoubleNear(2 * gathered * 3 / 4 / 50e9, 1e-12));
  const double fewer = 2 * tokens * 2 * 2 * 64 / 4;  // columns of the product, on a rank
  EXPECT_THAT(of(4, 4).forward.gemm - of(2, 4).forward.gemm, DoubleNear(fewer * 1024 / 50e12, 1e-12));
  EXPECT_THAT(kept(2, 4) - kept(4, 4), DoubleNear(8 * (gathered * 3 / 4 - fewer), 1));
  for (const int tp : {2, 4}) EXPECT_LT(of(tp, tp).forward.context, of(2 * tp, tp).forward.context);
  EXPECT_EQ(of(2, 2).forward.tensor, of(4, 2).forward.tensor) << "one head each";
}

TEST(Step, PartsSumToTheTotal) {
  Workload work = Small();
  work.tp = 2, work.pp = 2, work.dp = 2;
  const StepTime step = PredictStep(work, Rates{});
  double sum = 0;
  for (size_t i = 0; i < kParts; ++i) sum += step[static_cast<Part>(i)];
  EXPECT_DOUBLE_EQ(sum, step.total().value);
}

constexpr double kRouted = 2.0 * 2048;  // copies of tokens

// Half of the layers have experts: half of the time that all would take for them.
TEST(Step, ExpertsInEveryOtherLayer) {
  Workload all = Mixture();
  Workload half = all;
  half.experts_every = 2;
  EXPECT_EQ(half.MixedLayers(), 4);
  EXPECT_THAT(PredictStep(half, Perfect())[Part::kExperts] / PredictStep(all, Perfect())[Part::kExperts],
              DoubleNear(.5, 1e-9));
}

TEST(Step, AMixtureByHand) {
  const LayerSeconds layer = TermsOf(Mixture(), Perfect()).forward;
  EXPECT_THAT(layer.experts, DoubleNear(kRouted * 2 * 2 * 1024 * 4096 / 50e12, 1e-9));
  EXPECT_THAT(layer.exchange, DoubleNear(2 * kRouted * 2 * 1024 * 7 / 8 / 50e9, 1e-9)) << "there and back";
  const double moved = kRouted * 2 * (4 * 1024 + 2 * 4096);
  EXPECT_THAT(layer.glue, DoubleNear((2048.0 * 1024 + moved) / 1e12, 1e-9));
}

// Two groups of eight, each in a domain of its own: weights are gathered and gradients scattered there, and once a step
// each rank sums its eighth with that of the other group over the network.
TEST(Step, GroupsThatShareByHand) {
  Workload work = Small();
  work.accelerators = work.dp = 16, work.zero = 3, work.shard = 8;
  const double parameters = 8 * 12 * 1024.0 * 1024 + 2 * 32'000 * 1024.0;
  const double within = 3 * 2 * parameters * 7 / 8 / 50e9, between = 2 * 2 * parameters / 8 / 2 / 5e9;
  EXPECT_THAT(PredictStep(work, Perfect())[Part::kData], DoubleNear((4 * within + between) * (1 + 1.0 / 8), 1e-9));
  EXPECT_THAT(PredictMemory(work).states, DoubleNear(parameters * 16 / 8, 1));
  const double in_groups = PredictStep(work, Rates{})[Part::kOptimizer];
  work.shard = 0;
  EXPECT_THAT(in_groups, DoubleNear(2 * PredictStep(work, Rates{})[Part::kOptimizer], 1e-9));
}

// Half of what is exchanged are gradients, which ZeRO 2 scatters for each of eight microbatches. In a pipeline it keeps
// them whole until the last, as ZeRO 1 does.
TEST(Step, SharedGradientsByHand) {
  Workload work = Small();
  const double parameters = 8 * 12 * 1024.0 * 1024 + 2 * 32'000 * 1024.0;
  const double scatter = 2 * parameters * 7 / 8 / 50e9;
  work.zero = 1;
  EXPECT_THAT(PredictStep(work, Perfect())[Part::kData], DoubleNear(2 * scatter, 1e-9));
  work.zero = 2;
  EXPECT_THAT(PredictStep(work, Perfect())[Part::kData], DoubleNear((8 + 1) * scatter, 1e-9));
  EXPECT_THAT(PredictMemory(work).states, DoubleNear(parameters * (2 + (4 + 12) / 8.0), 1));
  work.pp = 2, work.dp = 4;
  Workload kept = work;
  kept.zero = 1;
  EXPECT_EQ(Seconds1(work), Seconds1(kept));
  EXPECT_EQ(PredictMemory(work).total(), PredictMemory(kept).total());
}

// Who shares more needs no more memory and exchanges no less; a pipeline under ZeRO 3 has its shares beside the whole.
TEST(Step, WhatStagesOfZeroCost) {
  for (const int pp : {1, 2, 4})
    for (const int microbatch : {1, 4, 8})
      for (const bool hides : {false, true}) {
        Workload work = Small();
        work.pp = pp, work.dp = 8 / pp, work.microbatch = microbatch, work.hides_data = hides;
        std::vector<double> saved, data;
        for (work.zero = 0; work.zero <= 3; ++work.zero) {
          saved.push_back(-PredictMemory(work).total());
          data.push_back(PredictStep(work, Rates{})[Part::kData]);
        }
        // The last of the other kind: habits of ZeRO 3 are its own, without a pipeline.
        (pp > 1 ? saved : data).pop_back();
        EXPECT_TRUE(std::ranges::is_sorted(saved)) << testing::PrintToString(saved) << ", pp " << pp;
        EXPECT_TRUE(std::ranges::is_sorted(data)) << testing::PrintToString(data) << ", pp " << pp;
      }
}

// A pair of passes hides its exchange, and then waits for its launches: it lasts as long as those at least, and no
// longer on a faster network.
TEST(Step, APairIsNoShorterThanItsLaunches) {
  Workload work = Mixture();
  work.accelerators = 16, work.pp = 2, work.dp = 8, work.global_batch = 128, work.schedule = Schedule::kDualPipe;
  work.machine.domain = 1;
  Rates rates = Perfect();
  rates.kernels = 100, rates.kernel = 1.05 * TermsOf(work, rates).both.computed() / 3 / rates.kernels;
  double before = 0;
  const auto is_no_longer = [&](const std::string& what) {
    const StageTimes times = PredictStage(work, rates);
    const double pair = times.layer.total() - times.overlap;
    EXPECT_LE(pair, before * (1 + 1e-12)) << what;
    EXPECT_GE(pair, 3 * rates.kernels * rates.kernel) << what;
    before = pair;
  };
  for (const int chunks : {1, 2, 8}) {
    work.moe_chunks = chunks;
    for (const double hidden : {0.0, .4}) {
      rates.expert_hidden = hidden;
      work.machine.bf16 = Plain().bf16, before = std::numeric_limits<double>::infinity();
      for (const double nic : {5e9, 10e9, 12e9, 15e9, 20e9, 50e9, 400e9}) {
        work.machine.nic = work.machine.scale_up = nic;
        is_no_longer(fmt::format("{} pieces, {} B/s", chunks, nic));
      }
      work.machine.nic = work.machine.scale_up = 5e9, before = std::numeric_limits<double>::infinity();
      for (const double bf16 : {40e12, 60e12, 80e12, 100e12, 200e12, 1e15, 1e17}) {
        work.machine.bf16 = bf16;
        is_no_longer(fmt::format("{} pieces, {} FLOP/s", chunks, bf16));
      }
    }
  }
}

// Of sixteen ranks in two domains, two have the same expert; all have the same of the rest.
TEST(Step, CopiesOfExpertsByHand) {
  Workload work = Mixture();
  work.accelerators = work.dp = 16;
  const double expert = 8 * 2 * 1024.0 * 4096;
  const double rest = work.Parameters() - 8 * expert;
  const double all = 2 * 2 * rest * 15 / 16 / 40e9, both = 2 * 2 * expert / 2 / 5e9;
  EXPECT_THAT(PredictStep(work, Perfect())[Part::kData], DoubleNear(all + both, 1e-9));
  work.zero = 3;
  const double gathered = 3 * 2 * rest * 15 / 16 / 40e9 + 3 * 2 * expert / 2 / 5e9;
  EXPECT_THAT(PredictStep(work, Perfect())[Part::kData], DoubleNear(4 * gathered * (1 + 1.0 / 8), 1e-9));
  Rates updates = Perfect();
  updates.optimizer_bytes = 10;
  EXPECT_THAT(PredictStep(work, updates)[Part::kOptimizer], DoubleNear(10 * (rest / 16 + expert / 2) / 1e12, 1e-12));
  work.zero = 0, work.accelerators = work.dp = 8;
  EXPECT_THAT(PredictStep(work, Perfect())[Part::kData], DoubleNear(2 * 2 * rest * 7 / 8 / 50e9, 1e-9))
      << "each has its own";
}

// Where the sequence is split over two ranks, each sends half of the tokens to experts that lie on both; where it is
// not, both do the same, on experts of which each has all.
TEST(Step, WhoSendsTokensToExperts) {
  const LayerSeconds all = TermsOf(Mixture(), Perfect()).forward;
  Workload work = Mixture();
  work.tp = 2, work.dp = 4, work.sequence_parallel = true;
  const LayerSeconds split = TermsOf(work, Perfect()).forward;
  EXPECT_THAT(split.experts, DoubleNear(all.experts / 2, 1e-12));
  EXPECT_THAT(split.exchange, DoubleNear(all.exchange / 2, 1e-12));
  work.sequence_parallel = false, work.ep = 4;
  const LayerSeconds doubled = TermsOf(work, Perfect()).forward;
  EXPECT_THAT(doubled.experts, DoubleNear(all.experts, 1e-12));
  EXPECT_EQ(split.tensor, doubled.tensor) << "what experts return is whole";
  work.shared_experts = 1, work.sequence_parallel = true;
  EXPECT_THAT(TermsOf(work, Perfect()).forward.tensor, DoubleNear(2 * doubled.tensor, 1e-12))
      << "but not of shared ones";
}

// Each of two ranks sends half of what both routed, and gathers what comes back over the same links; both order all of
// it. In two domains an eighth of what comes back is gathered behind the rest, or the network's last eighth waited for.
TEST(Step, GathersWhatWasRoutedByHand) {
  const LayerSeconds all = TermsOf(Mixture(), Perfect()).forward;
  Workload work = Mixture();
  work.tp = 2, work.dp = 4, work.gathers_routed = true;
  const LayerSeconds layer = TermsOf(work, Perfect()).forward;
  EXPECT_THAT(layer.experts, DoubleNear(all.experts / 2, 1e-12));
  const double out = kRouted / 2 * 2 * 1024 * 7 / 8 / 50e9, gather = kRouted * 2 * 1024 / 2 / 50e9;
  EXPECT_THAT(layer.exchange, DoubleNear(2 * out + gather, 1e-12));
  EXPECT_EQ(layer.tensor, 2 * 2048.0 * 2 * 1024 / 2 / 50e9) << "behind attention alone";
  const double moved = kRouted * 2 * (4 * 1024 + 4096);
  EXPECT_THAT(layer.glue, DoubleNear((2048.0 * 1024 * .8 + moved) / 1e12, 1e-9));
  work.moe_chunks = 4;
  EXPECT_THAT(TermsOf(work, Perfect()).forward.exchange, DoubleNear(layer.exchange / 4, 1e-12));
  EXPECT_EQ(TermsOf(work, Perfect()).transfer_bytes, 2 * 2048.0 * 1024) << "the sequence is whole";
  work.moe_chunks = 1, work.machine.domain = 4;
  // Three of seven others are within, and each token goes once to the other domain of two, if any of its experts is
  // there.
  const double bytes = kRouted / 2 * 2 * 1024 * 7 / 8, outside = bytes * 4 / 7 * .75, network = outside / 5e9;
  EXPECT_THAT(TermsOf(work, Perfect()).forward.exchange, DoubleNear(2 * network + gather / 8, 1e-12));
}

// Experts lie on as many ranks as have tokens of their own: on both of tp where the sequence, or what was routed, is
// split. Gathered, what two experts return is kept whole on each rank, 2 bytes of each.
TEST(Step, WhatExpertsKeep) {
  Workload work = Mixture();
  work.tp = 2, work.dp = 4, work.ep = 4;
  const auto memory = [&](bool sequence, bool routed) {
    work.sequence_parallel = sequence, work.gathers_routed = routed;
    return PredictMemory(work);
  };
  const MemoryUse all = memory(false, false), routed = memory(false, true);
  const double unit = 8 * 2048.0 * 1024, experts = 4.0 * 2 * 4096 / 1024;
  const double copies = 2.0 * 2 * 2;  // of a token for its experts, and what they return
  EXPECT_THAT(all.activations - routed.activations, DoubleNear(unit * ((experts + copies) / 2 - 2 * 2), 1));
  EXPECT_EQ(routed.states, memory(true, false).states);
  work.zero = 1;
  const double parameters = 8 * 2 * 2 * 1024.0 * 4096;  // of a rank's experts, which one or two ranks share
  EXPECT_THAT(memory(false, false).states - memory(false, true).states, DoubleNear(12 * parameters / 2, 1));
}

// In four pieces a quarter of both exchanges shows: the first that goes out, the last that comes back. Where products
// take less than the rest of the exchanges, that shows too; and each piece takes the latency of its own.
TEST(Step, ExchangesInPieces) {
  Workload work = Mixture();
  const LayerSeconds whole = TermsOf(work, Perfect()).forward;
  work.moe_chunks = 4;
  EXPECT_THAT(TermsOf(work, Perfect()).forward.exchange, DoubleNear(whole.exchange / 4, 1e-12));
  work.machine.scale_up /= 100;
  const LayerSeconds slow = TermsOf(work, Perfect()).forward;
  EXPECT_THAT(slow.exchange, DoubleNear(100 * whole.exchange - slow.experts, 1e-9));
  Rates late = Perfect();
  late.latency = 1;
  EXPECT_THAT(TermsOf(work, late).forward.exchange - slow.exchange, DoubleNear(2 * 4, 1e-9));
}

// Four stages of two layers wait for three of them, a quarter as long each where four chunks are interleaved.
TEST(Step, ABubbleByHand) {
  Workload work = Small();
  work.pp = 4, work.dp = 2;
  const StepTime plain = PredictStep(work, Perfect());
  work.chunks = 2;
  EXPECT_THAT(PredictStep(work, Perfect())[Part::kBubble] / plain[Part::kBubble], DoubleNear(.5, 1e-9));
  const double layers = plain[Part::kGemm] + plain[Part::kAttention] + plain[Part::kGlue] + plain[Part::kTensor];
  EXPECT_THAT(plain[Part::kBubble], DoubleNear(layers * 3 / 32, 1e-9)) << "32 microbatches";
}

// Ten layers on four stages: two have three layers, and the last, which has two and the output layer, waits for them.
TEST(Step, StagesThatDoNotDivide) {
  Workload work = Small();
  work.layers = 10, work.pp = 4, work.dp = 2;
  work.vocabulary = 1000;
  const StepTime step = PredictStep(work, Perfect());
  Workload even = work;
  even.layers = 12;
  const StepTime full = PredictStep(even, Perfect());
  EXPECT_GT(step.total().value, .95 * full.total().value) << "32 microbatches at the pace of three layers";
  EXPECT_LT(step[Part::kGemm], .84 * full[Part::kGemm]);
  // For three layers instead of two and a half all wait 32 times, for the seven of the other stages once.
  const double layers = full[Part::kGemm] + full[Part::kAttention] + full[Part::kGlue] + full[Part::kTensor];
  EXPECT_THAT(step[Part::kBubble] + step[Part::kHead],
              DoubleNear((32 * .5 + 7) * layers / 32 / 3 + full[Part::kHead] / 32, 1e-9));
  EXPECT_THAT(step[Part::kHead], DoubleNear(full[Part::kHead], 1e-9)) << "the output layer takes no longer";
}

// Of 32 accelerators in pods of 16: what leaves a pod has a tenth of the network, which its sixteen members share, or,
// of those that lie four apart, its four.
TEST(Step, TiersByHand) {
  Workload work = Small();
  work.accelerators = work.dp = 32, work.global_batch = 32 * 4;
  work.machine.nic = 40e9;
  const auto data = [&] { return PredictStep(work, Perfect())[Part::kData]; };
  EXPECT_THAT(data(), DoubleNear(2 * 2 * (8 * 12 * 1024.0 * 1024 + 2 * 32'000 * 1024.0) * 31 / 32 / 50e9, 1e-6));
  const double plain = data();
  work.machine.tiers = {{16, 1e9}};
  EXPECT_THAT(data() / plain, DoubleNear(50e9 / (.5e9 * 16), 1e-6));
  work.tp = 4, work.dp = 8;
  work.machine.tiers = {{16, 40e9}};
  const double four_apart = data();
  work.machine.tiers = {{16, 1e9}};
  EXPECT_THAT(data() / four_apart, DoubleNear(20e9 * 2 / (.5e9 * 4), 1e-6)) << "two of them in a domain of eight";
  work.tp = 1, work.dp = 16, work.pp = 2;
  const double near = (work.machine.tiers.clear(), TermsOf(work, Perfect()).transfer);
  work.machine.tiers = {{16, 1e9}};
  EXPECT_THAT(TermsOf(work, Perfect()).transfer / near, DoubleNear(40, 1e-9));
}

TEST(Step, ExpertsBeyondATier) {
  Workload work = Mixture();
  work.machine.domain = 2, work.machine.nic = 1e12;
  const double near = TermsOf(work, Perfect()).forward.exchange;
  work.machine.tiers = {{4, 1e9}};
  const double domains = 4, once = (domains - 1) * (1 - std::pow(1 - 1 / domains, 2)) / (2 * (1 - 1 / domains));
  const double outside = kRouted * 2 * 1024 * 7 / 8 * 4 / 7 * std::min(1.0, once) / .5e9;
  EXPECT_THAT(TermsOf(work, Perfect()).forward.exchange, DoubleNear(2 * outside, 1e-9));
  EXPECT_LT(near, outside);
}

// Two microbatches on stages of 9, 6, 6 and 6 layers. The first has done a second forward pass of 9 when what is behind
// it, 18 layers there and back, is under way; the last, which needs 12, waits for the 21 others once.
TEST(Step, FewMicrobatchesOnStagesThatDiffer) {
  Workload work = Small();
  work.layers = 27, work.pp = 4, work.dp = 2, work.stage_layers = {9, 6, 6, 6};
  work.vocabulary = 1, work.global_batch = 4 * work.microbatch;
  const StepTerms terms = TermsOf(work, Perfect());
  const double forward = terms.forward.total(), layer = forward + terms.backward.total();
  const double all = std::max(2 * 9 * layer + 18 * layer - 9 * forward, 2 * 6 * layer + 21 * layer);
  EXPECT_THAT(PredictStep(work, Perfect())[Part::kBubble], DoubleNear(all - 2 * 27 / 4.0 * layer, 1e-3 * layer));
}

double Both(double host, double device) { return std::pow(std::pow(host, 8) + std::pow(device, 8), .125); }

// 1 ms for each of a layer's kernels, which a device this fast is done with long before: forward, and twice backward.
TEST(Step, TheHostThatLaunches) {
  Rates rates = Perfect();
  rates.kernels = 10, rates.kernel = 1e-3;
  Workload work = Small();
  const StepTime bound = PredictStep(work, rates);
  const double tokens_done = bound[Part::kGemm] + bound[Part::kAttention] + bound[Part::kGlue];
  const StepTerms unbound = TermsOf(work, Perfect());
  const double device = unbound.forward.total(), back = unbound.backward.total();
  EXPECT_THAT(tokens_done, DoubleNear(8.0 * 8 * (Both(10e-3, device) + Both(20e-3, back)), 1e-9))
      << "8 layers, 8 microbatches";
  // Where the device takes as long: longer than either.
  rates.kernel = device / 10;
  EXPECT_THAT(TermsOf(work, rates).forward.total() / device, DoubleNear(std::pow(2, .125), 1e-9));
  rates.kernel = 0, rates.kernel_gap = 1e-3;
  EXPECT_THAT(TermsOf(work, rates).forward.wait, DoubleNear(10e-3, 1e-9)) << "between a layer's kernels";
  rates.blocked = 1e-3;
  work.blocking_launches = true;
  const double waited = PredictStep(work, rates)[Part::kGlue] - PredictStep(Small(), Perfect())[Part::kGlue];
  EXPECT_THAT(waited, DoubleNear(8.0 * 8 * 3 * 10e-3, 1e-9)) << "beside all that the device does";
}

// Of a backward pass the gradients of weights have half of the launches: an accelerator that is faster shortens them by
// no more than it shortens what waits for them, though the host decides.
TEST(Step, AFasterAcceleratorThatWaitsForTheHostTakesNoLonger) {
  Workload mixture = Mixture();
  mixture.ep = 4, mixture.moe_chunks = 2;
  for (Workload work : {Small(), mixture}) {
    work.accelerators = 16, work.pp = 4, work.dp = 4, work.layers = 32, work.vocabulary = 1000;
    for (const Schedule schedule :
         {Schedule::k1F1B, Schedule::kZeroBubbleH1, Schedule::kZeroBubble2p, Schedule::kDualPipe})
      for (const int microbatches : {8, 32})
        for (const double launches : {.3, 1.0, 3.0}) {  // over what the device takes in the beginning
          work.schedule = schedule, work.global_batch = 4 * microbatches;
          Rates rates = Perfect();
          work.machine.bf16 = Plain().bf16;
          const double computed = TermsOf(work, rates).forward.computed();
          rates.kernels = 50, rates.expert_kernels = 5, rates.kernel = launches * computed / rates.kernels;
          double before = std::numeric_limits<double>::infinity();
          for (; work.machine.bf16 < 1e16; work.machine.bf16 *= 1.4) {
            const double seconds = PredictStep(work, rates).total().value;
            EXPECT_LE(seconds, before * (1 + 1e-12)) << ScheduleName(schedule) << ", " << microbatches
                                                     << " microbatches, " << work.machine.bf16 << " FLOP/s";
            before = seconds;
          }
        }
  }
}

// Of 16 heads over 8 ranks two matrices of scores are left in a microbatch of one sequence. The layer's two all-reduces
// are four kernels more.
TEST(Step, TheHostLaunchesMoreWhereSoftmaxIsNotFused) {
  Rates rates = Perfect();
  rates.kernels = 10, rates.eager_softmax = 5, rates.kernel = 1e-3;
  Workload work = Small();
  work.flash = false, work.tp = 8, work.dp = 1;
  const auto layer = [&](int microbatch, const Rates& by) {
    work.microbatch = microbatch;
    return TermsOf(work, by).forward.total();
  };
  EXPECT_THAT(layer(1, rates), DoubleNear(Both(19e-3, layer(1, Perfect())), 1e-9));
  EXPECT_THAT(layer(2, rates), DoubleNear(Both(14e-3, layer(2, Perfect())), 1e-9));
  work.flash = true;
  EXPECT_THAT(layer(1, rates), DoubleNear(Both(14e-3, layer(1, Perfect())), 1e-9));
}

// Two thirds of the peak by the hardware, and a stack that doubles the odds: four fifths. None reaches all.
TEST(Step, WhatAStackReachesInAttention) {
  Rates rates = Perfect();
  const double half = PredictStep(Small(), rates)[Part::kAttention];
  rates.flash = 2 / 3.0, rates.attention = 2;
  EXPECT_THAT(PredictStep(Small(), rates)[Part::kAttention] / half, DoubleNear(.5 / .8, 1e-9));
  rates.attention = 1e6;
  EXPECT_GT(PredictStep(Small(), rates)[Part::kAttention] / half, .5);
}

// What a pipeline under ZeRO 3 exchanges once is no less than what ZeRO 1 does.
TEST(Step, ShardsInAPipelineHideNoMore) {
  Workload work = Small();
  work.pp = 2, work.dp = 4, work.zero = 1;
  Rates rates = Perfect();
  rates.sharded_hidden = 1, rates.data_hidden = .1;
  const double plain = PredictStep(work, rates)[Part::kData];
  work.zero = 3;
  EXPECT_GE(PredictStep(work, rates)[Part::kData], plain);
}

TEST(Step, LatenciesOfReduce) {
  Machine machine = Plain();
  machine.domain = 64;
  const double one_domain = machine.LatenciesOfReduce(64);
  machine.domain = 8;
  EXPECT_EQ(machine.LatenciesOfReduce(64), one_domain) << "a domain beyond eight makes it no slower";
  EXPECT_EQ(machine.LatenciesOfReduce(1), 0);
  EXPECT_EQ(machine.LatenciesOfReduce(2), .5);
  EXPECT_EQ(machine.LatenciesOfReduce(8), 3.5);
  EXPECT_EQ(machine.LatenciesOfReduce(32), 5.5);
}

TEST(Step, WhatIsWorseTakesLonger) {
  const Workload work = Small();
  const double plain = Seconds1(work);
  Workload other = work;
  other.recompute = Recompute::kFull;
  EXPECT_GT(Seconds1(other), 1.2 * plain);
  other = work;
  other.machine.bandwidth /= 2;
  EXPECT_GT(Seconds1(other), plain);
  other = work;
  other.flash = false;
  EXPECT_GT(Seconds1(other), plain);
  other = work;
  other.accelerators = 128, other.dp = 128, other.global_batch = 1024;
  EXPECT_GT(Seconds1(other), plain) << "gradients over the network";
  other = work;
  other.sequence *= 4, other.global_batch /= 4, other.cp = 4, other.dp = 2;
  Rates uneven = Perfect();
  uneven.context_imbalance = 1;
  EXPECT_THAT(PredictStep(other, uneven)[Part::kAttention] / PredictStep(other, Perfect())[Part::kAttention],
              DoubleNear(1.75, 1e-9));
  other = work;
  other.precision = Precision::kFp8;
  Rates rates = Perfect();
  rates.gemm_fp8 = .5;
  EXPECT_LT(PredictStep(other, rates)[Part::kGemm], PredictStep(work, rates)[Part::kGemm] * .51);
}

TEST(Step, TensorParallelismByHand) {
  Workload work = Small();
  work.tp = 8, work.dp = 1, work.global_batch = 1;
  // Four all-reduces of 2 x 2048 x 1024 bytes and layer, 7 / 8 of them twice over 50 GB/s.
  const double one = 2 * 2.0 * 2048 * 1024 * 7 / 8 / 50e9;
  EXPECT_THAT(PredictStep(work, Perfect())[Part::kTensor], DoubleNear(8 * 4 * one, 1e-9));
}

Workload WithHost(Workload work) {
  work.machine.host_link = 10e9, work.machine.host_memory = 500e9, work.machine.host_bandwidth = 50e9;
  return work;
}
constexpr double kKept = 2048 * 1024.0 * 32;  // bytes of a layer and microbatch

// P parameters of a rank, an eighth of them its own. Gradients, 4 bytes of each at 10 GB/s, with nothing hidden; Adam's
// 4 bytes at half of 50 GB/s; parameters, 2 bytes of each, return meanwhile, .2 ns each, of which Adam hides .16.
TEST(Offload, TheOptimizerByHand) {
  Workload work = WithHost(Small());
  work.zero = 1, work.offload.optimizer = true;
  const StepTime step = PredictStep(work, Perfect());
  const double parameters = 8 * 12 * 1024.0 * 1024 + 2 * 32'000 * 1024.0;
  EXPECT_THAT(step[Part::kOptimizer], DoubleNear(parameters / 8 * .16e-9, 1e-12));
  EXPECT_THAT(step[Part::kOffload], DoubleNear(parameters / 8 * (.4e-9 + .04e-9), 1e-12));
  const MemoryUse use = PredictMemory(work);
  EXPECT_THAT(use.states, DoubleNear(parameters * 6, 1)) << "weights and gradients stay";
  EXPECT_THAT(use.host, DoubleNear(parameters * (12 + 4) / 8, 1));
  Rates hides = Perfect();
  hides.data_hidden = 1;
  EXPECT_THAT(PredictStep(work, hides)[Part::kOffload], DoubleNear(parameters / 8 * .04e-9, 1e-12))
      << "gradients go beside the backward pass";
}

// Out and back over 10 GB/s, each beside the layer's own pass; two layers stay on the device.
TEST(Offload, ActivationsByHand) {
  Workload work = WithHost(Small());
  const StepTime before = PredictStep(work, Perfect());
  const double computed = before[Part::kGemm] + before[Part::kAttention] + before[Part::kGlue];
  work.offload.activations = true;
  const StepTime step = PredictStep(work, Perfect());
  EXPECT_THAT(step[Part::kOffload], DoubleNear(8 * 8 * 2 * kKept / 10e9 - computed, 1e-9));
  EXPECT_THAT(step.total().value - before.total().value, DoubleNear(step[Part::kOffload], 1e-9));
  EXPECT_THAT(PredictMemory(work).activations, DoubleNear(2 * kKept, 1));
  EXPECT_THAT(PredictMemory(work).host, DoubleNear(6 * kKept, 1));
  work.machine.host_link = 1e12;
  EXPECT_EQ(PredictStep(work, Perfect())[Part::kOffload], 0) << "wholly hidden";
  work.recompute = Recompute::kFull;
  EXPECT_THAT(PredictMemory(work).host, DoubleNear(6 * kKept / 16, 1)) << "2 of 32 bytes are the input";
}

// A layer's share of an eighth comes before each of its passes, 2 bytes of each parameter over 100 MB/s, and its
// gradients, 4 bytes, leave beside the next layer's backward pass. The embeddings stay: only Adam moves what they need.
// Where the link sets the pace of a backward pass, that hides as much on a faster accelerator: what replicas exchange,
// and gradients on their way to the host.
TEST(Offload, AFasterAcceleratorTakesNoLonger) {
  Workload work = WithHost(Small());
  work.machine.host_link = 1e9, work.machine.scale_up = 4e9, work.microbatch = 8;
  Rates rates = Perfect();
  rates.data_hidden = .8;
  for (const bool optimizer : {false, true})
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      work.offload = {.optimizer = optimizer, .activations = true}, work.recompute = recompute;
      double before = std::numeric_limits<double>::infinity();
      for (work.machine.bf16 = 25e12; work.machine.bf16 < 1e16; work.machine.bf16 *= 2) {
        const double seconds = PredictStep(work, rates).total().value;
        EXPECT_LE(seconds, before) << work.machine.bf16;
        before = seconds;
      }
    }
}

TEST(Offload, WeightsByHand) {
  Workload work = WithHost(Small());
  work.machine.host_link = 1e8;
  work.zero = 3;
  const StepTime before = PredictStep(work, Perfect());
  const double computed = before[Part::kGemm] + before[Part::kAttention] + before[Part::kGlue];
  work.offload = {.optimizer = true, .weights = true};
  const StepTime step = PredictStep(work, Perfect());
  const double layer = 12 * 1024.0 * 1024, embeddings = 2 * 32'000 * 1024.0, all = 8 * layer + embeddings;
  const double adam = all / 8 * .16e-9;
  EXPECT_THAT(step[Part::kOptimizer], DoubleNear(adam, 1e-12));
  EXPECT_THAT(step[Part::kOffload], DoubleNear(8 * 8 * (2 + 4) * layer / 8 / 1e8 - computed + 4 * embeddings / 8 / 1e8 +
                                                   2 * embeddings / 8 / 1e8 - adam,
                                               1e-9));
  const MemoryUse use = PredictMemory(work);
  EXPECT_THAT(use.states, DoubleNear((2 * layer + embeddings) * 4 / 8, 1)) << "one layer in use, one under way";
  EXPECT_THAT(use.host, DoubleNear(all * (12 + 4) / 8 + 6 * layer * 2 / 8, 1));
  // Activations go out while weights come in, and both come in before the backward pass.
  work.offload.activations = true;
  EXPECT_THAT(PredictStep(work, Perfect())[Part::kOffload] - step[Part::kOffload],
              DoubleNear(8 * 8 * (2 * kKept - (2 + 2) * layer / 8) / 1e8, 1e-9));
  work.machine.host_link = 1e12;
  EXPECT_LT(PredictStep(work, Perfect())[Part::kOffload], 1e-4) << "wholly hidden, but for the embedding's gradients";
}

// Three of eight layers: three eighths of the time, 2 bytes of each instead of 32, and one layer's room.
TEST(Recomputation, OfSomeLayersByHand) {
  Workload work = Small();
  work.recompute = Recompute::kFull;
  const double all = PredictStep(work, Perfect())[Part::kRecompute];
  work.recomputed_layers = 3;
  EXPECT_THAT(PredictStep(work, Perfect())[Part::kRecompute], DoubleNear(3.0 / 8 * all, 1e-9));
  EXPECT_THAT(PredictMemory(work).activations, DoubleNear(kKept * (5 + 3 / 16.0 + 1), 1));
  // The fewest that fit.
  const double with_three = PredictMemory(work).total(),
               with_two = (work.recomputed_layers = 2, PredictMemory(work).total());
  work.recompute = Recompute::kAsNeeded, work.recomputed_layers = 0;
  work.machine.memory = with_three;
  EXPECT_EQ(RecomputedLayers(work), 3);
  work.machine.memory = (with_two + with_three) / 2;
  EXPECT_EQ(RecomputedLayers(work), 3);
  work.machine.memory = with_two;
  EXPECT_EQ(RecomputedLayers(work), 2);
  work.machine.memory = 1e6;
  EXPECT_EQ(RecomputedLayers(work), 8) << "all, though it does not fit";
}

// Six of eight layers: a forward pass of each, a backward pass of two, or of all without six gradients of weights.
TEST(Frozen, ByHand) {
  Workload work = Small();
  const StepTime full = PredictStep(work, Perfect());
  const MemoryUse before = PredictMemory(work);
  work.frozen = {6, true};
  const StepTime step = PredictStep(work, Perfect());
  EXPECT_THAT(step[Part::kGemm], DoubleNear(full[Part::kGemm] * (8 + 2 * 2) / 24, 1e-9));
  EXPECT_THAT(step[Part::kAttention], DoubleNear(full[Part::kAttention] * (8 + 2 * 2.5) / 28, 1e-9));
  const double layer = 12 * 1024.0 * 1024, embedding = 32'000 * 1024.0;
  EXPECT_THAT(step[Part::kData] / full[Part::kData],
              DoubleNear((2 * layer + embedding) / (8 * layer + 2 * embedding), 1e-9));
  const MemoryUse use = PredictMemory(work);
  EXPECT_THAT(use.states, DoubleNear(18 * (2 * layer + embedding) + 2 * (6 * layer + embedding), 1));
  EXPECT_THAT(use.activations, DoubleNear(before.activations / 4, 1)) << "of two layers";
  work.frozen.embedding = false;
  EXPECT_THAT(PredictStep(work, Perfect())[Part::kGemm], DoubleNear(full[Part::kGemm] * (8 + 8 + 2) / 24, 1e-9));
  EXPECT_THAT(PredictMemory(work).activations, DoubleNear(before.activations, 1)) << "gradients pass through";
  Rates launched = Perfect();
  launched.kernels = 10, launched.kernel_gap = 1e-3;
  const double idle = PredictStep(work, launched)[Part::kGlue] - PredictStep(work, Perfect())[Part::kGlue];
  EXPECT_THAT(idle, DoubleNear(8 * (8 + 8 + 2) * 10e-3, 1e-9)) << "its gradients of weights are not launched";
  work.frozen.layers = 8;
  EXPECT_THAT(Message(work.Validate()), HasSubstr("0 to 7 of 8 layers can be frozen"));
}

// The stage that exchanges most has as many gradients as before while others are frozen, and as much to hide them by.
TEST(Frozen, MakesNoStepLonger) {
  Workload work = Small();
  work.accelerators = 8, work.pp = 2, work.dp = 4, work.global_batch = 16;
  for (const double network : {1e8, 1e9, 1e10})
    for (const int zero : {1, 2, 3})
      for (const bool offloads : {false, true})
        for (const Schedule schedule : {Schedule::k1F1B, Schedule::kZeroBubbleH1, Schedule::kZeroBubble2p})
          for (const bool embedding : {false, true}) {
            work.machine.scale_up = work.machine.nic = network;
            work.machine.host_link = 1e9, work.machine.host_memory = 1e12, work.machine.host_bandwidth = 1e11;
            work.zero = zero, work.schedule = schedule, work.offload.activations = offloads;
            Rates rates = Perfect();
            rates.data_hidden = .9, rates.sharded_hidden = .8;
            work.frozen = {};
            double before = PredictStep(work, rates).total().value;
            for (int layers = 1; layers < work.layers; ++layers) {
              work.frozen = {layers, embedding};
              const double seconds = PredictStep(work, rates).total().value;
              EXPECT_LE(seconds, before * (1 + 1e-12)) << layers << " zero " << zero << " network " << network;
              before = seconds;
            }
          }
}

}  // namespace
}  // namespace lockstep::plan
