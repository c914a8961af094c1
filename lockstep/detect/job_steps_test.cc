#include "lockstep/detect/job_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "lockstep/trace/trails.h"

namespace lockstep::detect {
namespace {

using testing::Each;
using testing::ElementsAre;

// Steps of 100: tokens are exchanged forty times in each, gradients reduced in a burst at its end.
std::vector<Met> Job(int64_t steps, int burst = 2) {
  std::vector<Met> all;
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t i = 0; i < 40; ++i) all.push_back({.communicator = 0, .end_ns = 100 * step + 2 * i, .bytes = 64});
    for (int i = 0; i < burst; ++i) all.push_back({.communicator = 1, .end_ns = 100 * step + 95 + i, .bytes = 512});
  }
  return all;
}

TEST(JobSteps, LieBetweenTheRarestOfItsCollectives) {
  const JobSteps steps = FindJobSteps(Job(4));
  EXPECT_THAT(steps.ends_ns, ElementsAre(0, 95, 195, 295, 395));
  EXPECT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps.SinceNs(2), 195);
  EXPECT_EQ(steps.SinceNs(9), 0);
}

// However many buckets the gradients come in: not these are steps.
TEST(JobSteps, AreAsLongAsTheLogWhereItHasOne) {
  std::vector<Met> all = Job(1, 25);
  EXPECT_EQ(FindJobSteps(all).size(), 1u);
  all.push_back({.communicator = 0, .end_ns = 150, .bytes = 64});
  EXPECT_EQ(FindJobSteps(all).size(), 1u);
}

TEST(JobSteps, AreNotWhatLiesBetweenCheckpoints) {
  std::vector<Met> all = Job(20);
  for (const int64_t end_ns : {500, 1500}) all.push_back({.communicator = 2, .end_ns = end_ns, .bytes = 1});
  EXPECT_EQ(FindJobSteps(all).size(), 20u);
}

TEST(JobSteps, AreNotAsLongAsAPause) {
  std::vector<Met> all = Job(6);
  for (Met& one : all)
    if (one.end_ns >= 300) one.end_ns += 10'000;
  EXPECT_EQ(FindJobSteps(all).size(), 6u);
}

// Live, of what comes often the newest alone is told.
TEST(JobSteps, ReachBackForAsLongAsTheyAreTold) {
  std::vector<Met> all = Job(8);
  std::erase_if(all, [](const Met& one) { return one.communicator == 0 && one.end_ns < 600; });
  EXPECT_THAT(FindJobSteps(all).ends_ns, ElementsAre(95, 195, 295, 395, 495, 595, 695, 795));
}

// As each communicator counts them.
std::vector<Met> Numbered(std::vector<Met> all) {
  std::ranges::stable_sort(all, {}, &Met::end_ns);
  std::map<uint32_t, int64_t> numbers;
  for (Met& one : all) one.number = ++numbers[one.communicator];
  return all;
}

// Parameters are sharded in 8 layers: gathered before each, forward and backward, and gradients reduced behind it.
class ShardedJob {
 public:
  explicit ShardedJob(uint64_t others = 32) : others_(others) {}

  ShardedJob& Step(int microbatches = 1) {
    for (int i = 0; i < microbatches; ++i, begin_ += 100) {
      Meet(kGather, 0, others_);
      for (int64_t layer = 0; layer < 8; ++layer) Meet(kGather, 4 * layer + 1, 16);
      for (int64_t layer = 0; layer < 8; ++layer) {
        Meet(kGather, 32 + 8 * layer, 16);
        Meet(kReduce, 39 + 8 * layer, 16);
      }
      Meet(kReduce, 96, others_);
    }
    Norm(0);
    return *this;
  }
  ShardedJob& Steps(int count, int microbatches = 1) {
    for (int i = 0; i < count; ++i) Step(microbatches);
    return *this;
  }
  // Forward alone.
  ShardedJob& Evaluate(int batches) {
    for (int i = 0; i < batches; ++i, begin_ += 33) {
      Meet(kGather, 0, others_);
      for (int64_t layer = 0; layer < 8; ++layer) Meet(kGather, 4 * layer + 1, 16);
    }
    return *this;
  }
  JobSteps Found() const { return FindJobSteps(Numbered(all_)); }
  const std::vector<Met>& all() const { return all_; }

 private:
  enum Function : uint32_t { kGather, kReduce, kNorm };

  void Meet(Function function, int64_t at, uint64_t bytes) {
    all_.push_back({.communicator = 0,
                    .function = function,
                    .moves = function == kGather ? Moves::kGathers : Moves::kScatters,
                    .end_ns = begin_ + at,
                    .bytes = bytes});
  }
  void Norm(uint32_t communicator) {
    all_.push_back({.communicator = communicator, .function = kNorm, .end_ns = begin_ - 3, .bytes = 0});
  }

  uint64_t others_;
  int64_t begin_ = 0;
  std::vector<Met> all_;
};

TEST(JobSteps, LieBetweenWhatBelongsToNoLayerWhereParametersAreSharded) {
  const JobSteps steps = ShardedJob().Steps(6).Found();
  EXPECT_EQ(steps.size(), 5u) << "and parts of two";
  EXPECT_EQ(steps.usual_ns, 100);
  EXPECT_EQ(ShardedJob(16).Steps(6).Found().size(), 6u) << "as large as layers: between norms";
}

TEST(JobSteps, AreNeitherMicrobatchesNorLayersWhereParametersAreSharded) {
  EXPECT_EQ(ShardedJob().Steps(10, 16).Found().usual_ns, 1600);
  ShardedJob others;
  for (const int microbatches : {3, 6, 4, 5, 5, 3, 6, 4}) others.Step(microbatches);
  EXPECT_EQ(others.Found().size(), 7u) << "the first is shorter than most";
  ShardedJob evaluated;
  for (int i = 0; i < 8; ++i) evaluated.Steps(10).Evaluate(8);
  EXPECT_EQ(evaluated.Found().usual_ns, 100);
}

TEST(JobSteps, AreNotKnownBeforeAFewAreOverWhereParametersAreSharded) {
  for (const int microbatches : {1, 16})
    for (int steps = 1; steps <= 4; ++steps)
      EXPECT_EQ(ShardedJob().Steps(steps, microbatches).Found().size(), 0u) << steps << " of " << microbatches;
  std::vector<Met> begun = ShardedJob().Step(10).all();
  begun.pop_back();
  EXPECT_EQ(FindJobSteps(Numbered(begun)).size(), 0u) << "of the first, without a norm";
  std::vector<Met> no_norms = ShardedJob().Steps(40).all();
  std::erase_if(no_norms, [](const Met& one) { return one.bytes == 0; });
  const std::vector<Met> young(no_norms.begin(), no_norms.begin() + static_cast<std::ptrdiff_t>(no_norms.size() / 2));
  EXPECT_EQ(FindJobSteps(Numbered(young)).size(), 0u);
  EXPECT_EQ(FindJobSteps(Numbered(young)).wanted_ns, 3200);
  EXPECT_EQ(FindJobSteps(Numbered(no_norms)).usual_ns, 100) << "microbatches, of which no more are in one";
}

// Layers are reduced by all ranks of a host: so is what each microbatch comes to.
TEST(JobSteps, AreNotWhatOthersTakeWhereParametersAreSharded) {
  for (const int steps : {3, 10}) {
    std::vector<Met> all = ShardedJob().Steps(steps, 8).all();
    for (Met& one : all)
      if (one.bytes == 0) one.communicator = 2;
    for (int64_t at = 0; at < 800 * steps; at += 10)
      for (const int64_t i : {0, 1}) all.push_back({.communicator = 1, .end_ns = at + i, .bytes = 64});
    EXPECT_EQ(FindJobSteps(Numbered(all)).size(), steps == 3 ? 0u : 10u);
  }
}

// In each tenth step of 100 something takes 400.
TEST(JobSteps, AreNotWhatLiesBetweenPauses) {
  std::vector<Met> all;
  for (int64_t step = 0, at = 0; step < 80; ++step, at += step % 10 == 0 ? 500 : 100) {
    for (int64_t i = 0; i < 3; ++i)
      all.push_back({.communicator = 0, .end_ns = at + 80 + 5 * i, .bytes = 1000 + static_cast<uint64_t>(i)});
    for (int64_t i = 0; i < 20; ++i) all.push_back({.communicator = 1, .end_ns = at + 4 * i, .bytes = 1000});
  }
  EXPECT_EQ(FindJobSteps(Numbered(all)).usual_ns, 100);
}

// Buckets of one size; something takes 400 in each tenth step of 130.
TEST(JobSteps, AreNotWhatLiesBetweenPausesOfBursts) {
  std::vector<Met> all;
  for (int64_t step = 0, at = 0; step < 80; ++step, at += step % 10 == 0 ? 530 : 130)
    for (int64_t i = 0; i < 4; ++i) all.push_back({.communicator = 0, .end_ns = at + 90 + 13 * i, .bytes = 1000});
  EXPECT_EQ(FindJobSteps(Numbered(all)).usual_ns, 130);
}

TEST(JobSteps, AreNotWhatLiesBetweenLossesOfMicrobatches) {
  std::vector<Met> all;
  for (int64_t begin = 0; begin < 12'000; begin += 1200) {
    for (int64_t i = 1; i <= 12; ++i) all.push_back({.communicator = 0, .end_ns = begin + 70 * i, .bytes = 4});
    for (int64_t i = 0; i < 3; ++i) all.push_back({.communicator = 0, .end_ns = begin + 860 + i, .bytes = 25 << 20});
  }
  EXPECT_EQ(FindJobSteps(Numbered(all)).usual_ns, 1200);
}

TEST(JobSteps, AreToldByWhatFunctionsAreNamed) {
  EXPECT_THAT(MovesOf({"all_gather", "AllGather", "_all_gather_base", "allgather"}), Each(Moves::kGathers));
  EXPECT_THAT(MovesOf({"reduce_scatter", "ReduceScatter", "_reduce_scatter_base"}), Each(Moves::kScatters));
  EXPECT_THAT(MovesOf({"all_reduce", "gather", "scatter", "_scatter_base", "Gather"}), Each(Moves::kOther));
}

// Agents tell steps by functions' numbers, and a log by their names.
TEST(JobSteps, AreToldByNumbersOfFunctionsAlike) {
  const std::vector<std::string> functions = trace::JoinTrails({}).functions;
  const std::vector<Moves> moves = MovesOf(functions);
  ASSERT_EQ(functions.size(), size_t{LS_FUNCTIONS});
  for (uint8_t function = 0; function < LS_FUNCTIONS; ++function)
    EXPECT_EQ(MovesOf(function), moves[function]) << functions[function];
}

// All parameters are broadcast at the start, and gathered for a checkpoint in each tenth step.
TEST(JobSteps, AreNotWhatLiesBetweenWhatComesRarely) {
  std::vector<Met> sharded = ShardedJob().Steps(60).all();
  sharded.push_back({.communicator = 0, .function = 3, .end_ns = 1, .bytes = 500});
  for (int64_t at = 98; at < 6000; at += 1000)
    sharded.push_back({.communicator = 0, .function = 4, .end_ns = at, .bytes = 500});
  EXPECT_EQ(FindJobSteps(Numbered(std::move(sharded))).usual_ns, 100);
  std::vector<Met> replicas;  // four buckets in a step
  replicas.push_back({.communicator = 0, .function = 3, .end_ns = 1, .bytes = 1000});
  for (int64_t step = 0; step < 40; ++step)
    for (int64_t i = 0; i < 4; ++i) replicas.push_back({.communicator = 0, .end_ns = 100 * step + 50 + i, .bytes = 25});
  EXPECT_EQ(FindJobSteps(Numbered(std::move(replicas))).usual_ns, 100);
}

TEST(JobSteps, LieBetweenForwardPassesWhereGradientsAreReducedMeanwhile) {
  std::vector<Met> all;
  for (int64_t step = 0; step < 6; ++step)
    for (int64_t i = 0; i < 60; ++i) all.push_back({.communicator = 0, .end_ns = 100 * step + 40 + i, .bytes = 25});
  EXPECT_EQ(FindJobSteps(Numbered(std::move(all))).size(), 5u) << "the first bucket's end begins the first";
}

// Tokens go to experts, each time others, or sequences are padded to one of a few lengths.
TEST(JobSteps, AreNotWhatLiesBetweenSizesThatComeByChance) {
  for (const int64_t sizes : {997, 16}) {
    std::vector<Met> all = Job(60);
    for (Met& one : all)
      if (one.communicator == 0) one.bytes = 1000 + static_cast<uint64_t>(one.end_ns * 7919 % 10'007 % sizes);
    EXPECT_EQ(FindJobSteps(Numbered(all)).size(), 60u);
    std::erase_if(all, [](const Met& one) { return one.communicator == 1; });
    EXPECT_GE(FindJobSteps(Numbered(all)).size(), 59u) << "and parts of two";
  }
}

TEST(JobSteps, AreNotWhatLiesBetweenLosses) {
  for (const int buckets : {1, 2}) {
    std::vector<Met> all;
    for (int64_t at = 95; at < 8000; at += 100)
      for (int i = 0; i < buckets; ++i)
        all.push_back({.communicator = 0, .function = 0, .end_ns = at + i, .bytes = 1000u << i});
    for (int64_t at = 98; at < 8000; at += 1000) all.push_back({.communicator = 0, .end_ns = at, .bytes = 4});
    EXPECT_EQ(FindJobSteps(Numbered(all)).usual_ns, 100) << buckets;
  }
}

TEST(JobSteps, OfNextToNothing) {
  EXPECT_EQ(FindJobSteps({}).size(), 0u);
  EXPECT_EQ(FindJobSteps({}).SinceNs(6), 0);
  EXPECT_EQ(FindJobSteps({{.communicator = 0, .end_ns = 5}}).size(), 0u);
  EXPECT_EQ(FindJobSteps({{.communicator = 0, .end_ns = 5}, {.communicator = 0, .end_ns = 7}}).size(), 1u);
}

}  // namespace
}  // namespace lockstep::detect
