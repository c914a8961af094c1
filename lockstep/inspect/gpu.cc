#include "lockstep/inspect/gpu.h"

#include <dlfcn.h>

#include <algorithm>

namespace lockstep::inspect {

// Our own declarations, after the documented ABI of NVML: what is 0 is success.
class Nvml {
 public:
  using Device = struct NvmlDevice*;
  ~Nvml() {
    if (shutdown != nullptr && ready) shutdown();
    // The library stays loaded: a thread of it may still run.
  }

  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_text)(int) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, Device*) = nullptr;
  int (*temperature)(Device, unsigned sensor, unsigned*) = nullptr;
  int (*threshold)(Device, unsigned which, unsigned*) = nullptr;
  int (*remapped)(Device, unsigned* corrected, unsigned* uncorrected, unsigned* pending, unsigned* failed) = nullptr;
  int (*ecc)(Device, unsigned kind, unsigned counter, unsigned long long*) = nullptr;
  bool ready = false;  // init came back well

  std::string Text(int error) const {
    return error_text == nullptr ? fmt::format("error {}", error) : error_text(error);
  }
};

namespace {

constexpr Seconds kPatience{0.1};
constexpr unsigned kOnGpu = 0;        // NVML_TEMPERATURE_GPU
constexpr unsigned kSlowdown = 1;     // NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
constexpr unsigned kUncorrected = 1;  // NVML_MEMORY_ERROR_TYPE_UNCORRECTED
constexpr unsigned kSinceLoaded = 0;  // NVML_VOLATILE_ECC
constexpr int kGpuIsLost = 15;        // NVML_ERROR_GPU_IS_LOST
constexpr int kResetRequired = 16;    // NVML_ERROR_RESET_REQUIRED
constexpr int kUnknown = 999;         // NVML_ERROR_UNKNOWN: what a GPU off the bus often gives

bool IsLost(int error) { return error == kGpuIsLost || error == kResetRequired || error == kUnknown; }

template <typename Function>
void Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

// What a GPU can't tell is left out; whether it is lost, any call may say.
GpuState ReadGpu(const Nvml& nvml, unsigned index) {
  GpuState gpu;
  Nvml::Device device = nullptr;
  const auto asked = [&](int error) {
    if (IsLost(error)) gpu.error = nvml.Text(error);
    return error == 0;
  };
  if (const int error = nvml.handle(index, &device); !asked(error)) {
    gpu.error = nvml.Text(error);
    return gpu;
  }
  unsigned value = 0, corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  unsigned long long errors = 0;
  if (nvml.temperature != nullptr && asked(nvml.temperature(device, kOnGpu, &value))) gpu.celsius = value;
  if (nvml.threshold != nullptr && nvml.threshold(device, kSlowdown, &value) == 0) gpu.slowdown_celsius = value;
  if (nvml.ecc != nullptr && asked(nvml.ecc(device, kUncorrected, kSinceLoaded, &errors))) gpu.uncorrected = errors;
  if (nvml.remapped != nullptr && asked(nvml.remapped(device, &corrected, &uncorrected, &pending, &failed))) {
    gpu.remap_pending = pending != 0;
    gpu.remap_failed = failed != 0;
  }
  return gpu;
}

class SystemGpus final : public Reader {
 public:
  SystemGpus(const Settings& settings, const std::string& library)
      : settings_(settings),
        judge_(settings),
        nvml_(LoadNvml(library)),
        call_([nvml = nvml_] { return ReadGpus(**nvml); }) {}

  Reading Read(Nanos now) override {
    Reading reading{.source = Source::kGpu, .at = now};
    if (!nvml_.ok()) {
      MissAll(settings_, Message(nvml_.status()), reading);
      return reading;
    }
    call_.Begin(now);
    if (const auto gpus = call_.Await(call_.Silent(now).value > 0 ? Seconds{0} : kPatience)) {
      judge_.Judge(*gpus, now, reading);
      if (!gpus->error.empty()) MissAll(settings_, gpus->error, reading);
    } else {
      judge_.JudgeSilence(call_.Silent(now), reading);
    }
    return reading;
  }

 private:
  const Settings settings_;
  GpuJudge judge_;
  absl::StatusOr<std::shared_ptr<Nvml>> nvml_;
  SlowCall<GpuReading> call_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Nvml>> LoadNvml(const std::string& name) {
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return NotFound("no NVIDIA driver here ({} can't be loaded)", name);
  auto nvml = std::make_shared<Nvml>();
  Find(library, "nvmlInit_v2", nvml->init);
  Find(library, "nvmlShutdown", nvml->shutdown);
  Find(library, "nvmlErrorString", nvml->error_text);
  Find(library, "nvmlDeviceGetCount_v2", nvml->count);
  Find(library, "nvmlDeviceGetHandleByIndex_v2", nvml->handle);
  Find(library, "nvmlDeviceGetTemperature", nvml->temperature);
  Find(library, "nvmlDeviceGetTemperatureThreshold", nvml->threshold);
  Find(library, "nvmlDeviceGetRemappedRows", nvml->remapped);
  Find(library, "nvmlDeviceGetTotalEccErrors", nvml->ecc);
  if (nvml->init == nullptr || nvml->count == nullptr || nvml->handle == nullptr)
    return NotFound("{} lacks nvmlInit_v2, nvmlDeviceGetCount_v2 or nvmlDeviceGetHandleByIndex_v2", name);
  return nvml;
}

GpuReading ReadGpus(Nvml& nvml) {
  GpuReading reading;
  if (!nvml.ready) {
    if (const int error = nvml.init(); error != 0) return {nvml.Text(error), {}};
    nvml.ready = true;
  }
  unsigned count = 0;
  if (const int error = nvml.count(&count); error != 0) return {nvml.Text(error), {}};
  for (unsigned i = 0; i < count; ++i) reading.gpus.push_back(ReadGpu(nvml, i));
  return reading;
}

void GpuJudge::Judge(const GpuReading& gpus, Nanos at, Reading& reading) {
  if (!gpus.error.empty()) return;
  most_ = std::max(most_, gpus.gpus.size());
  for (size_t i = 0; i < gpus.gpus.size(); ++i) JudgeOne(fmt::format("GPU {}", i), gpus.gpus[i], at, reading);
  if (gpus.gpus.size() < most_)
    reading.conditions.push_back(
        {"gpu_lost", "GPUs", fmt::format("the driver knows {} GPUs, it knew {}", gpus.gpus.size(), most_)});
}

void GpuJudge::JudgeSilence(Seconds silent, Reading& reading) const {
  // What else was seen stands until it answers again.
  for (const Item& item : settings_.items)
    if (item.source == Source::kGpu && item.name != "gpu_driver_hang")
      reading.missing[item.name] = "the driver does not answer";
  if (silent.value >= *settings_["gpu_driver_hang"].threshold)
    reading.conditions.push_back(
        {"gpu_driver_hang", "driver", fmt::format("NVML does not answer for {:.0f} s", silent.value)});
}

void GpuJudge::JudgeOne(const std::string& name, const GpuState& gpu, Nanos at, Reading& reading) {
  if (!gpu.error.empty()) {
    reading.conditions.push_back({"gpu_lost", name, gpu.error});
    return;
  }
  const auto celsius = [](std::optional<unsigned> value) { return value ? fmt::format("{} C", *value) : "? C"; };
  const Item& ecc = settings_["gpu_ecc"];
  const uint64_t errors = gpu.uncorrected ? uncorrected_[name].Add(at, *gpu.uncorrected, ecc.window) : 0;
  reading.figures.push_back(
      {name, fmt::format("{}, slows down at {}, {} errors of memory not corrected", celsius(gpu.celsius),
                         celsius(gpu.slowdown_celsius), gpu.uncorrected.value_or(0))});
  const double most =
      std::min(*settings_["gpu_temperature"].threshold, static_cast<double>(gpu.slowdown_celsius.value_or(1000)));
  if (gpu.celsius && *gpu.celsius >= most)
    reading.conditions.push_back({"gpu_temperature", name, fmt::format("{} C, at most {} C", *gpu.celsius, most)});
  if (gpu.remap_failed) {
    reading.conditions.push_back({"gpu_row_remap", name, "a row of its memory could not be remapped"});
  } else if (gpu.remap_pending) {
    reading.conditions.push_back({"gpu_row_remap", name, "a row of its memory awaits a reset", FaultClass::kWarning});
  }
  if (static_cast<double>(errors) >= *ecc.threshold)
    reading.conditions.push_back(
        {"gpu_ecc", name, fmt::format("{} errors of memory not corrected in {:.0f} s", errors, ecc.window.value)});
}

std::unique_ptr<Reader> GpuReader(const Settings& settings, const std::string& library) {
  return std::make_unique<SystemGpus>(settings, library);
}

}  // namespace lockstep::inspect
