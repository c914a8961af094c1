#include "lockstep/inspect/gpu.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/inspect/test_tree.h"

namespace lockstep::inspect {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Gpu : public testing::Test {
 protected:
  void SetUp() override { Set(2, 0, 40), Set(2, 1, 41); }

  void Set(unsigned count, unsigned gpu, unsigned celsius, unsigned long long errors = 0, unsigned pending = 0,
           unsigned failed = 0, int lost = 0) {
    using Setter = void (*)(unsigned, unsigned, unsigned, unsigned long long, unsigned, unsigned, int);
    void* library = dlopen(LOCKSTEP_FAKE_NVML, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    reinterpret_cast<Setter>(dlsym(library, "fake_nvml_set"))(count, gpu, celsius, errors, pending, failed, lost);
  }

  // The reading's call is another thread's: asked until it has answered.
  std::vector<std::string> Read() {
    Reading reading = reader_->Read(At(at_ += 5));
    while (!reading.missing.empty()) reading = reader_->Read(At(at_));
    std::vector<std::string> seen;
    for (const Condition& condition : reading.conditions)
      seen.push_back(fmt::format("{} {}: {} ({})", condition.item, condition.subject, condition.text,
                                 FaultClassName(condition.fault.value_or(Settings()[condition.item].fault))));
    return seen;
  }

  double at_ = 0;
  std::unique_ptr<Reader> reader_ = GpuReader(Settings(), LOCKSTEP_FAKE_NVML);
};

TEST_F(Gpu, Healthy) { EXPECT_THAT(Read(), IsEmpty()); }

TEST_F(Gpu, AsHotAsWhereItSlowsDown) {
  Set(2, 1, 86);
  EXPECT_THAT(Read(), IsEmpty());
  Set(2, 1, 87);
  EXPECT_THAT(Read(), ElementsAre("gpu_temperature GPU 1: 87 C, at most 87 C (machine)"));
}

TEST_F(Gpu, RowsAndErrorsOfMemory) {
  Set(2, 0, 40, 100, 1, 0);
  EXPECT_THAT(Read(), ElementsAre("gpu_row_remap GPU 0: a row of its memory awaits a reset (warning)"));
  Set(2, 0, 40, 101, 1, 1);
  EXPECT_THAT(Read(), ElementsAre("gpu_row_remap GPU 0: a row of its memory could not be remapped (machine)",
                                  "gpu_ecc GPU 0: 1 errors of memory not corrected in 300 s (machine)"));
}

TEST_F(Gpu, Lost) {
  EXPECT_THAT(Read(), IsEmpty());
  Set(2, 1, 41, 0, 0, 0, 1);
  EXPECT_THAT(Read(), ElementsAre("gpu_lost GPU 1: GPU is lost (machine)"));
  Set(1, 0, 40);
  EXPECT_THAT(Read(), ElementsAre("gpu_lost GPUs: the driver knows 1 GPUs, it knew 2 (machine)"));
}

TEST(GpuJudge, ADriverThatDoesNotAnswer) {
  const GpuJudge judge{Settings()};
  Reading reading;
  reading.source = Source::kGpu;
  judge.JudgeSilence({9}, reading);
  EXPECT_THAT(reading.conditions, IsEmpty());
  judge.JudgeSilence({11}, reading);
  ASSERT_EQ(reading.conditions.size(), 1U);
  EXPECT_EQ(reading.conditions[0].text, "NVML does not answer for 11 s");
  EXPECT_EQ(reading.missing.count("gpu_lost"), 1U) << "what was seen before stands";
}

TEST(GpuReader, WithoutADriverItSaysSo) {
  const Reading reading = GpuReader(Settings(), "libno-such-nvml.so")->Read(At(1));
  EXPECT_THAT(reading.conditions, IsEmpty());
  EXPECT_EQ(reading.missing.at("gpu_temperature"), "no NVIDIA driver here (libno-such-nvml.so can't be loaded)");
}

}  // namespace
}  // namespace lockstep::inspect
