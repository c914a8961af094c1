// The GPU test against a driver that is ours (fake_cuda.c).
#include "lockstep/probe/gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/probe/apart.h"
#include "lockstep/probe/gemm_kernels.h"
#include "lockstep/probe/gpu_gemm.h"

namespace lockstep::probe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

class Gpu : public testing::Test {
 protected:
  // Each in a process of its own: the library is loaded once per process.
  std::vector<Measurement> With(const std::string& fault, const char* library = LOCKSTEP_FAKE_CUDA,
                                bool expected = false) {
    return RunApart("gpu", Budget(clock_, Seconds{0}, {}), Seconds{30}, [&] {
      setenv("LOCKSTEP_LIBCUDA", library, 1);
      setenv("FAKE_CUDA_FAULT", fault.c_str(), 1);
      return MeasureGpus(Budget(clock_, Seconds{0}, {}), expected);
    });
  }
  const SystemClock clock_;
};

std::string FailuresOf(const std::vector<Measurement>& measured) {
  std::string text;
  for (const Measurement& one : measured)
    if (!one.ok) text += one.name + ": " + one.text + "\n";
  return text;
}

TEST_F(Gpu, TwoHealthyDevices) {
  const std::vector<Measurement> measured = With("");
  EXPECT_THAT(measured, SizeIs(14));
  EXPECT_EQ(FailuresOf(measured), "");
  for (const char* name :
       {"gpu.0.bits", "gpu.1.to_device", "gpu.1.to_host", "gpu.0.within", "gpu.1.to_next", "gpu.0.gemm_rate"}) {
    const auto found = std::ranges::find(measured, name, &Measurement::name);
    ASSERT_NE(found, measured.end()) << name;
    EXPECT_TRUE(found->unit == "errors" || found->value > 0) << name;
  }
}

TEST_F(Gpu, ABitThatIsLostIsPlaced) {
  EXPECT_THAT(FailuresOf(With("flip")),
              HasSubstr("gpu.1.bits: 2 words are wrong; first at byte 4000: fffffffffffffffe"));
  EXPECT_THAT(FailuresOf(With("peer")), HasSubstr("gpu.0.bits: 1 words are wrong; first at byte 80:"));
}

TEST_F(Gpu, ItsProductHasTheProcessorsBits) {
  std::vector<double> checksums;
  for (const Measurement& one : With("")) {
    if (one.unit == "crc32c") checksums.push_back(one.value);
  }
  EXPECT_THAT(checksums, ElementsAre(kFusedGemmCrc, kFusedGemmCrc));
}

TEST_F(Gpu, AProductThatIsUnlikeTheOthersIsAFault) {
  EXPECT_THAT(FailuresOf(With("multiply")), HasSubstr("gpu.1.gemm: 64 products, 1 of them unlike the first"));
}

TEST_F(Gpu, AKernelThatCantBeLoadedIsNone) {
  const std::vector<Measurement> measured = With("module");
  EXPECT_EQ(FailuresOf(measured), "");
  const auto found = std::ranges::find(measured, "gpu.0.gemm", &Measurement::name);
  ASSERT_NE(found, measured.end());
  EXPECT_EQ(found->text, "not computed: cuModuleLoadData failed with CUDA error 218");
  EXPECT_TRUE(std::isnan(found->value)) << "it is compared with nobody's";
}

TEST_F(Gpu, AKernelThatFailsOnTheDeviceIsAFault) {
  EXPECT_EQ(FailuresOf(With("launch")), "gpu.1.gemm: not computed: cuLaunchKernel failed with CUDA error 700\n");
  EXPECT_EQ(FailuresOf(With("late load")), "") << "a driver may load it only then";
}

// Each reading of it is a millisecond later.
class Ticking final : public Clock {
 public:
  Nanos Now() const override { return {now_ += 1'000'000}; }
  Nanos WallNow() const override { return Now(); }

 private:
  mutable int64_t now_ = 0;
};

int ProductsOf(const std::vector<Measurement>& measured, const std::string& name) {
  const auto found = std::ranges::find(measured, name, &Measurement::name);
  return found == measured.end() ? 0 : std::atoi(found->text.c_str());
}

TEST_F(Gpu, DevicesShareTheTime) {
  const auto measured = RunApart("gpu", Budget(clock_, Seconds{0}, {}), Seconds{60}, [] {
    setenv("LOCKSTEP_LIBCUDA", LOCKSTEP_FAKE_CUDA, 1);
    const Ticking clock;
    return MeasureGpus(Budget(clock, Seconds{0.1}, {}), true);
  });
  const int first = ProductsOf(measured, "gpu.0.gemm"), second = ProductsOf(measured, "gpu.1.gemm");
  EXPECT_GT(second, kGpuProducts);
  EXPECT_LE(first, second + kGpuProducts);
}

TEST_F(Gpu, WhatTheDriverRefusesIsSaid) {
  EXPECT_EQ(FailuresOf(With("init")), "gpu: cuInit failed with CUDA error 999\n");
  EXPECT_EQ(FailuresOf(With("memory")), "gpu.0.bits: cuMemAlloc failed with CUDA error 2\n");
  EXPECT_THAT(FailuresOf(With("crash")), HasSubstr("gpu: died of signal 6"));
}

TEST_F(Gpu, NoGpuIsOneLine) {
  for (const bool expected : {false, true}) {
    for (const auto& measured : {With("none", LOCKSTEP_FAKE_CUDA, expected), With("", "/nonexistent.so", expected)}) {
      ASSERT_THAT(measured, SizeIs(1));
      EXPECT_EQ(measured[0].ok, !expected);
      EXPECT_THAT(measured[0].text, HasSubstr("no GPU"));
    }
  }
}

}  // namespace
}  // namespace lockstep::probe
