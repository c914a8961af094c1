#include "lockstep/probe/gpu.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <span>

#include "lockstep/base/file.h"
#include "lockstep/probe/cuda_driver.h"
#include "lockstep/probe/gemm_kernels.h"
#include "lockstep/probe/gpu_gemm.h"
#include "lockstep/probe/pattern.h"

namespace lockstep::probe {
namespace {

constexpr size_t kBytes = 64 << 20, kWords = kBytes / sizeof(uint64_t);
constexpr uint64_t kSeed = 0x677075;
constexpr std::array<uint32_t, 4> kPatterns = {0x00000000, 0xffffffff, 0x55555555, 0xaaaaaaaa};

// One device: its context and two buffers. What is not there is null.
struct Device {
  int ordinal = 0, handle = -1;
  CudaDriver::Context context = nullptr;
  CudaDriver::Pointer first = 0, second = 0;
};

class GpuTest {
 public:
  GpuTest(const Budget& budget, const CudaDriver& driver, int count)
      : budget_(budget), driver_(driver), devices_(static_cast<size_t>(count)) {}
  GpuTest(const GpuTest&) = delete;
  GpuTest& operator=(const GpuTest&) = delete;
  ~GpuTest() {
    if (host_ != nullptr) driver_.free_host(host_);
    for (const Device& device : devices_) {
      if (device.context == nullptr) continue;
      driver_.set_current(device.context);
      if (device.first != 0) driver_.free(device.first);
      if (device.second != 0) driver_.free(device.second);
      driver_.release(device.handle);
    }
  }

  std::vector<Measurement> Run() {
    std::vector<Measurement> measured;
    std::vector<absl::Status> ready;
    for (int i = 0; i < static_cast<int>(devices_.size()); ++i) ready.push_back(Prepare(devices_[Index(i)], i));
    for (size_t i = 0; i < devices_.size() && !budget_.Stopped(); ++i) {
      difference_ = {};
      rates_.clear();
      gemm_.reset();
      const Budget share = budget_.Of({budget_.Left().value / static_cast<double>(devices_.size() - i)});
      const absl::Status status =
          ready[i].ok() ? Measure(devices_[i], devices_[(i + 1) % devices_.size()], share) : ready[i];
      Report(devices_[i].ordinal, status, measured);
    }
    return measured;
  }

 private:
  static size_t Index(int i) { return static_cast<size_t>(i); }
  std::span<uint64_t> Host() { return {static_cast<uint64_t*>(host_), kWords}; }

  absl::Status Prepare(Device& device, int ordinal) {
    device.ordinal = ordinal;
    LS_RETURN_IF_ERROR(CheckCuda(driver_.device(&device.handle, ordinal), "cuDeviceGet"));
    LS_RETURN_IF_ERROR(CheckCuda(driver_.retain(&device.context, device.handle), "cuDevicePrimaryCtxRetain"));
    LS_RETURN_IF_ERROR(CheckCuda(driver_.set_current(device.context), "cuCtxSetCurrent"));
    if (host_ == nullptr) LS_RETURN_IF_ERROR(CheckCuda(driver_.allocate_host(&host_, kBytes, 0), "cuMemHostAlloc"));
    LS_RETURN_IF_ERROR(CheckCuda(driver_.allocate(&device.first, kBytes), "cuMemAlloc"));
    return CheckCuda(driver_.allocate(&device.second, kBytes), "cuMemAlloc");
  }

  absl::Status Measure(Device& device, Device& next, const Budget& budget) {
    LS_RETURN_IF_ERROR(CheckCuda(driver_.set_current(device.context), "cuCtxSetCurrent"));
    gemm_.emplace(driver_);
    loaded_ = gemm_->Begin(device.first, device.second, host_);
    computed_ = absl::OkStatus();
    do {
      LS_RETURN_IF_ERROR(Patterns(device));
      FillPattern(kSeed, 0, Host());
      LS_RETURN_IF_ERROR(Timed("to_device", [&] { return driver_.to_device(device.first, host_, kBytes); }));
      LS_RETURN_IF_ERROR(Timed("within", [&] { return driver_.within(device.second, device.first, kBytes); }));
      LS_RETURN_IF_ERROR(FetchAndCompare(device.second));
      if (&next != &device && next.second != 0) LS_RETURN_IF_ERROR(ToNext(device, next));
      if (loaded_.ok() && computed_.ok()) computed_ = gemm_->Once(budget);
    } while (!budget.Over());
    gemm_->Unload();
    return absl::OkStatus();
  }

  absl::Status Patterns(const Device& device) {
    for (const uint32_t pattern : kPatterns) {
      LS_RETURN_IF_ERROR(CheckCuda(driver_.set(device.first, pattern, kBytes / sizeof(uint32_t)), "cuMemsetD32"));
      LS_RETURN_IF_ERROR(CheckCuda(driver_.to_host(host_, device.first, kBytes), "cuMemcpyDtoH"));
      const uint64_t expected = uint64_t{pattern} << 32 | pattern;
      Difference difference;
      for (size_t i = 0; i < kWords; ++i) {
        if (Host()[i] != expected && difference.words++ == 0) difference = {1, i, expected, Host()[i]};
      }
      difference_.Add(difference);
    }
    return absl::OkStatus();
  }

  absl::Status ToNext(const Device& device, const Device& next) {
    LS_RETURN_IF_ERROR(CheckCuda(driver_.set(next.second, 0, kBytes / sizeof(uint32_t)), "cuMemsetD32"));
    LS_RETURN_IF_ERROR(Timed(
        "to_next", [&] { return driver_.to_peer(next.second, next.context, device.first, device.context, kBytes); }));
    LS_RETURN_IF_ERROR(CheckCuda(driver_.set_current(next.context), "cuCtxSetCurrent"));
    LS_RETURN_IF_ERROR(FetchAndCompare(next.second));
    return CheckCuda(driver_.set_current(device.context), "cuCtxSetCurrent");
  }

  absl::Status FetchAndCompare(CudaDriver::Pointer from) {
    LS_RETURN_IF_ERROR(Timed("to_host", [&] { return driver_.to_host(host_, from, kBytes); }));
    difference_.Add(CompareWithPattern(kSeed, 0, Host()));
    return absl::OkStatus();
  }

  template <typename Copy>
  absl::Status Timed(const char* name, Copy copy) {
    const Nanos begin = budget_.Now();
    LS_RETURN_IF_ERROR(CheckCuda(copy(), name));
    LS_RETURN_IF_ERROR(CheckCuda(driver_.synchronize(), "cuCtxSynchronize"));
    const double seconds = ToSeconds(budget_.Now() - begin).value;
    double& best = rates_[name];  // the first of a kind pays for what the driver sets up
    best = std::max(best, static_cast<double>(kBytes) / seconds * 1e-9);
    return absl::OkStatus();
  }

  void Report(int ordinal, const absl::Status& status, std::vector<Measurement>& into) const {
    Measurement bits{.name = fmt::format("gpu.{}.bits", ordinal), .value = double(difference_.words), .unit = "errors"};
    bits.ok = status.ok() && difference_.words == 0;
    bits.text = difference_.words == 0
                    ? "64 MiB set and copied"
                    : fmt::format("{} words are wrong; first at byte {}: {:016x}, expected {:016x}", difference_.words,
                                  difference_.position * sizeof(uint64_t), difference_.found, difference_.expected);
    if (!status.ok()) bits.text = Message(status) + (difference_.words == 0 ? "" : "; " + bits.text);
    into.push_back(std::move(bits));
    for (const auto& [name, rate] : rates_) {
      into.push_back({.name = fmt::format("gpu.{}.{}", ordinal, name),
                      .value = rate,
                      .unit = "GB/s",
                      .text = "best copy of 64 MiB"});
    }
    if (gemm_) ReportGemm(ordinal, into);
  }

  // A kernel that a device can't load, at once or when it is first asked for, is no fault of the device; one that it
  // can't carry out is.
  void ReportGemm(int ordinal, std::vector<Measurement>& into) const {
    Measurement bits{.name = fmt::format("gpu.{}.gemm", ordinal), .unit = "crc32c"};
    if (gemm_->products() > 0) bits.value = gemm_->crc();
    bits.ok = gemm_->unlike() == 0 && !absl::IsInternal(computed_);
    const absl::Status& status = loaded_.ok() ? computed_ : loaded_;
    bits.text =
        !status.ok()
            ? "not computed: " + Message(status)
            : fmt::format("{} products, {} of them unlike the first, which has CRC32C {:08x}; a processor's {:08x}",
                          gemm_->products(), gemm_->unlike(), gemm_->crc(), kFusedGemmCrc);
    into.push_back(std::move(bits));
    if (gemm_->products() > 0)
      into.push_back({.name = fmt::format("gpu.{}.gemm_rate", ordinal),
                      .value = gemm_->rate(),
                      .unit = "GFLOP/s",
                      .text = fmt::format("best launch of {} products at once", kGpuProducts)});
  }

  const Budget& budget_;
  const CudaDriver& driver_;
  std::vector<Device> devices_;
  void* host_ = nullptr;
  Difference difference_;
  std::map<std::string, double> rates_;
  std::optional<GpuGemm> gemm_;  // of the device that is measured
  absl::Status loaded_, computed_;
};

}  // namespace

std::vector<Measurement> MeasureGpus(const Budget& budget, bool expected) {
  constexpr CudaDriver::Result kNoDevice = 100;
  const auto nothing = [](bool ok, std::string why) {
    return std::vector<Measurement>{{.name = "gpu", .unit = "errors", .ok = ok, .text = std::move(why)}};
  };
  CudaDriver driver{};
  if (std::string why = Load(driver); !why.empty()) return nothing(!expected, std::move(why));
  // A driver without a device is not unusual; one that does not start although devices are there is a finding.
  const CudaDriver::Result begun = driver.init(0);
  if (begun != 0 && begun != kNoDevice) return nothing(false, fmt::format("cuInit failed with CUDA error {}", begun));
  int count = 0;
  if (begun != 0 || driver.device_count(&count) != 0 || count == 0) return nothing(!expected, "no GPU");
  return GpuTest(budget, driver, count).Run();
}

std::string GpuText() {
  std::error_code error;
  std::map<std::string, int> models;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    const absl::StatusOr<std::string> text = ReadFile(entry.path().string() + "/information");
    const size_t colon = text.ok() ? text->find(':') : std::string::npos;  // "Model: \t\t NVIDIA H100"
    const size_t begin = colon == std::string::npos ? colon : text->find_first_not_of(" \t", colon + 1);
    ++models[begin == std::string::npos ? "GPU" : text->substr(begin, text->find('\n', begin) - begin)];
  }
  std::string all;
  for (const auto& [model, count] : models) all += fmt::format("{}{} x {}", all.empty() ? "" : ", ", count, model);
  return all.empty() ? "no GPU" : all;
}

}  // namespace lockstep::probe
