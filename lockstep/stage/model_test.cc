#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/stage/infer.h"
#include "lockstep/stage/model.h"

namespace {

using ::testing::HasSubstr;

class Model : public ::testing::Test {
 protected:
  Model() { setenv("LOCKSTEP_STAGE_DIR", (folder_ / "room").c_str(), 1); }
  ~Model() override {
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path())) << "something is left in " << folder_.path();
  }
  ls_model* Open(const std::vector<ls_dense>& layers) {
    ls_model* model = nullptr;
    EXPECT_EQ(LS_STAGE_OK, ls_model_open("net", static_cast<int>(layers.size()), layers.data(), &model))
        << ls_stage_last_error();
    return model;
  }
  ls_model* Ask() {
    ls_model* model = nullptr;
    EXPECT_EQ(LS_STAGE_OK, ls_infer_open("net", 0, &model)) << ls_stage_last_error();
    return model;
  }
  const lockstep::TestFolder folder_;
};

// tanh(1*0.5 + 2*(-0.25) + 0.1) = tanh(0.1), relu below zero = 0; then 3*a + 5*0 - 1.
TEST_F(Model, ComputesDenseLayers) {
  ls_model* trainer = Open({{2, 2, LS_ACTIVATION_TANH, 0}, {2, 2, LS_ACTIVATION_RELU, 0}});
  const std::vector<float> weights = {.5F, -.25F, 0, 1, .1F, -2, /**/ 3, 5, -3, 0, -.25F, 0};
  ASSERT_EQ(LS_STAGE_OK, ls_model_publish(trainer, weights.data(), weights.size())) << ls_stage_last_error();
  ls_model* solver = Ask();
  const std::vector<float> input = {1, 2, 1, 2};
  std::vector<float> output(4);
  ASSERT_EQ(LS_STAGE_OK, ls_infer(solver, input.data(), 2, output.data()));
  EXPECT_NEAR(3 * std::tanh(.1) - .25, output[0], 1e-6);
  EXPECT_EQ(0, output[1]);
  EXPECT_EQ(output[0], output[2]);
  ls_infer_close(solver);
  ls_model_close(trainer);
}

// More inputs than the four that the loop takes at a time.
TEST_F(Model, AnyNumberOfInputs) {
  for (uint32_t inputs = 1; inputs < 10; ++inputs) {
    ls_model* trainer = Open({{inputs, 1, LS_ACTIVATION_NONE, 0}});
    std::vector<float> weights(inputs + 1, 1), input(inputs);
    std::iota(input.begin(), input.end(), 1.F);
    ASSERT_EQ(LS_STAGE_OK, ls_model_publish(trainer, weights.data(), weights.size()));
    ls_model* solver = Ask();
    float output = 0;
    ls_infer(solver, input.data(), 1, &output);
    EXPECT_EQ(static_cast<float>(inputs * (inputs + 1) / 2 + 1), output);
    ls_infer_close(solver);
    ls_model_close(trainer);
  }
}

TEST_F(Model, NewWeightsComeAtRefreshAlone) {
  ls_model* trainer = Open({{1, 1, LS_ACTIVATION_NONE, 0}});
  const float one[] = {1, 0}, two[] = {2, 0}, in = 7;
  float out = 0;
  ls_model_publish(trainer, one, 2);
  ls_model* solver = Ask();
  ls_model_publish(trainer, two, 2);
  ls_infer(solver, &in, 1, &out);
  EXPECT_EQ(7, out);
  EXPECT_EQ(2U, ls_infer_refresh(solver));
  ls_infer(solver, &in, 1, &out);
  EXPECT_EQ(14, out);
  ls_infer_close(solver);
  ls_model_close(trainer);
}

// All weights of publication g are g: a mix of two would show. A read is overtaken where its thread loses its core in
// the middle, hence more threads than cores and a copy of 4 MB.
TEST_F(Model, NoReadIsTorn) {
  constexpr uint32_t kInputs = 1'000'000;
  const int readers = 2 * std::min(16, static_cast<int>(std::thread::hardware_concurrency())) + 2;
  ls_model* trainer = Open({{kInputs, 1, LS_ACTIVATION_NONE, 0}});
  std::vector<float> weights(kInputs + 1, 1);
  ls_model_publish(trainer, weights.data(), weights.size());
  ls_model* solver = Ask();
  std::jthread publisher([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::fill(weights.begin(), weights.end(), static_cast<float>(ls_model_generation(trainer) + 1));
      ls_model_publish(trainer, weights.data(), weights.size());
    }
  });
  std::atomic<int> torn = 0, whole = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < readers; ++i) {
    threads.emplace_back([&] {
      std::vector<float> seen(kInputs + 1);
      for (int read = 0; read < 100; ++read) {
        const uint64_t generation = ls_model_read(solver, seen.data());
        if (generation == 0) continue;  // overtaken each time that it tried
        const auto other =
            std::count_if(seen.begin(), seen.end(), [&](float w) { return w != static_cast<float>(generation); });
        ++(other == 0 ? whole : torn);
      }
    });
  }
  threads.clear();
  EXPECT_EQ(0, torn);
  EXPECT_GT(whole, 100);
  publisher = {};
  ls_infer_close(solver);
  ls_model_close(trainer);
}

// A reader may lose its core between the look at which publication is current and the look at its buffer.
TEST_F(Model, WeightsBelongToTheGenerationTheyAreReadWith) {
  ls_model* trainer = Open({{1, 1, LS_ACTIVATION_NONE, 0}});
  const auto publish = [&](float generation) {
    const float weights[] = {generation, generation};
    ls_model_publish(trainer, weights, 2);
  };
  publish(1);
  ls_model* solver = Ask();
  std::jthread publisher([&](const std::stop_token& stop) {
    for (float generation = 2; !stop.stop_requested() && generation < 1 << 24; ++generation) publish(generation);
  });
  std::atomic<int> other = 0, same = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int read = 0; read < 500'000; ++read) {
        float seen[2];
        const uint64_t generation = ls_model_read(solver, seen);
        if (generation == 0) continue;
        ++(seen[0] == static_cast<float>(generation) && seen[1] == seen[0] ? same : other);
      }
    });
  }
  threads.clear();
  EXPECT_EQ(0, other);
  EXPECT_GT(same, 1000);
  publisher = {};
  ls_infer_close(solver);
  ls_model_close(trainer);
}

TEST_F(Model, APublisherThatWasKilledLeavesItsLastWeights) {
  const std::vector<ls_dense> layers = {{1, 1, LS_ACTIVATION_NONE, 0}};
  int ready[2];
  ASSERT_EQ(0, pipe(ready));
  const pid_t child = fork();
  if (child == 0) {
    const float weights[] = {3, 1};
    ls_model* model = Open(layers);
    ls_model_publish(model, weights, 2);
    model->head->sequence[0] |= 1;  // as if in the middle of the next
    model->buffer[0][0] = 77;
    if (write(ready[1], "x", 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char byte;
  ASSERT_EQ(1, read(ready[0], &byte, 1));
  ls_model* solver = Ask();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const float in = 2;
  float out = 0;
  EXPECT_EQ(1U, ls_infer_refresh(solver));
  ls_infer(solver, &in, 1, &out);
  EXPECT_EQ(7, out);
  ls_model* again = Open(layers);  // takes over where the other one was killed
  const float weights[] = {4, 1};
  ls_model_publish(again, weights, 2);
  EXPECT_EQ(2U, ls_infer_refresh(solver));
  ls_infer(solver, &in, 1, &out);
  EXPECT_EQ(9, out);
  ls_infer_close(solver);
  ls_model_close(again);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(Model, BadInput) {
  ls_model* other = nullptr;
  EXPECT_EQ(LS_STAGE_ABSENT, ls_infer_open("net", 0, &other));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("no model net in "));
  ls_model* trainer = Open({{2, 1, LS_ACTIVATION_NONE, 0}});
  const ls_dense gap[] = {{2, 3, 0, 0}, {4, 1, 0, 0}}, odd[] = {{2, 1, 9, 0}}, same[] = {{2, 1, 0, 0}};
  EXPECT_EQ(LS_STAGE_REFUSED, ls_model_open("gap", 2, gap, &other));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("layer 1 takes 4 values, and layer 0 gives 3"));
  EXPECT_EQ(LS_STAGE_REFUSED, ls_model_open("odd", 1, odd, &other));
  EXPECT_EQ(LS_STAGE_REFUSED, ls_model_open("none", 0, odd, &other));
  EXPECT_EQ(LS_STAGE_REFUSED, ls_model_open("a/b", 1, same, &other));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("is no name"));
  EXPECT_EQ(LS_STAGE_REFUSED, ls_model_open("net", 1, same, &other));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("has a publisher already"));
  EXPECT_EQ(LS_STAGE_REFUSED, ls_model_open("net", 2, gap + 0, &other));
  const float nan[] = {1, std::numeric_limits<float>::quiet_NaN(), 0};
  EXPECT_EQ(LS_STAGE_REFUSED, ls_model_publish(trainer, nan, 3));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("weight 1 is not finite"));
  EXPECT_EQ(LS_STAGE_REFUSED, ls_model_publish(trainer, nan, 2));
  EXPECT_THAT(ls_stage_last_error(), HasSubstr("2 weights: its layers have 3"));
  EXPECT_EQ(LS_STAGE_REFUSED, ls_infer(trainer, nan, 1, nullptr));
  EXPECT_EQ(LS_STAGE_ABSENT, ls_infer_open("net", 0, &other)) << "nothing was published";
  ls_model_close(trainer);
}

TEST_F(Model, WhatIsNotThere) {
  const ls_dense layer{2, 1, LS_ACTIVATION_NONE, 0};
  const float weights[] = {1, 1, 0}, input[] = {1, 2};
  float output = 0;
  int inputs = 0, outputs = 0;
  const auto expect = [](const char* text, int result) {
    EXPECT_EQ(LS_STAGE_REFUSED, result);
    EXPECT_THAT(ls_stage_last_error(), HasSubstr(text));
  };
  const auto refuses_all = [&](ls_model* trainer, ls_model* solver) {
    for (const int result : {ls_model_publish(trainer, weights, 3), ls_model_close(trainer)})
      expect("this call needs a model from ls_model_open() that is not closed", result);
    for (const int result :
         {ls_infer(solver, input, 1, &output), ls_infer_sizes(solver, &inputs, &outputs), ls_infer_close(solver)}) {
      expect("this call needs a model from ls_infer_open() that is not closed", result);
    }
    EXPECT_EQ(0U, ls_infer_refresh(solver));
  };
  ls_model* trainer = Open({layer});
  ls_model_publish(trainer, weights, 3);
  ls_model *solver = Ask(), *none = nullptr;
  refuses_all(nullptr, nullptr);
  refuses_all(solver, trainer);
  EXPECT_EQ(0U, ls_model_generation(nullptr));
  expect("layer is NULL", ls_model_open("t", 1, nullptr, &none));
  expect("model is NULL", ls_model_open("t", 1, &layer, nullptr));
  expect("is no name", ls_model_open(nullptr, 1, &layer, &none));
  expect("model is NULL", ls_infer_open("net", 0, nullptr));
  expect("is no name", ls_infer_open(nullptr, 0, &none));
  expect("weights is NULL", ls_model_publish(trainer, nullptr, 3));
  expect("input is NULL", ls_infer(solver, nullptr, 1, &output));
  expect("output is NULL", ls_infer(solver, input, 1, nullptr));
  expect("-1 rows", ls_infer(solver, input, -1, &output));
  EXPECT_EQ(LS_STAGE_OK, ls_infer_sizes(solver, nullptr, &outputs));
  solver->head->layer[0].inputs = 1'000'000;
  expect("is damaged: remove it", ls_infer_open("net", 0, &none));
  solver->head->layer[0].inputs = 2;
  ls_infer_close(solver);
  ls_model_close(trainer);
  refuses_all(trainer, solver);
}

// Also when another is opened where it was.
TEST_F(Model, AHandleThatIsClosedStaysSo) {
  const ls_dense layer{1, 1, LS_ACTIVATION_NONE, 0};
  const float weights[] = {1, 0};
  std::vector<std::pair<ls_model*, ls_model*>> closed;
  const auto open = [&] {
    ls_model* trainer = Open({layer});
    ls_model_publish(trainer, weights, 2);
    return std::pair(trainer, Ask());
  };
  for (int i = 0; i < 40; ++i) {
    closed.push_back(open());
    EXPECT_EQ(LS_STAGE_OK, ls_model_close(closed.back().first));
    EXPECT_EQ(LS_STAGE_OK, ls_infer_close(closed.back().second));
  }
  const auto [trainer, solver] = open();
  for (const auto& [first, second] : closed) {
    EXPECT_EQ(LS_STAGE_REFUSED, ls_model_close(first));
    EXPECT_EQ(LS_STAGE_REFUSED, ls_infer_close(second));
  }
  EXPECT_EQ(LS_STAGE_OK, ls_model_close(trainer));
  EXPECT_EQ(LS_STAGE_OK, ls_infer_close(solver));
}

TEST_F(Model, AForkedChildIsNeitherOfTheTwo) {
  ls_model* trainer = Open({{1, 1, LS_ACTIVATION_NONE, 0}});
  const float weights[] = {3, 1}, in = 2;
  ls_model_publish(trainer, weights, 2);
  ls_model* solver = Ask();
  const pid_t child = fork();
  if (child == 0) {
    float out = 0;
    int refused = ls_infer_refresh(solver) == 0;
    for (const int result : {ls_model_publish(trainer, weights, 2), ls_model_close(trainer),
                             ls_infer(solver, &in, 1, &out), ls_infer_close(solver)})
      refused += result == LS_STAGE_REFUSED;
    _exit(refused);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(5, WEXITSTATUS(status));
  EXPECT_EQ(1U, ls_model_generation(trainer));
  ls_infer_close(solver);
  ls_model_close(trainer);
}

}  // namespace
