// GPUs by NVIDIA's management library, which is loaded when it is there: temperature, rows of memory that could not be
// remapped, errors of memory, GPUs that are gone. No work on the GPU. A driver that hangs does not answer: all calls
// are made in a thread of their own, and silence is what is seen.
//
//   GpuJudge judge(settings);
//   judge.Judge(ReadGpus(*library), now, reading);
#pragma once

#include <map>

#include "lockstep/base/slow_call.h"
#include "lockstep/inspect/lately.h"
#include "lockstep/inspect/reader.h"

namespace lockstep::inspect {

struct GpuState {
  std::string error;  // of the call that says that it is lost; empty: it is there
  std::optional<unsigned> celsius, slowdown_celsius;
  std::optional<uint64_t> uncorrected;  // errors of memory, since the driver was loaded
  bool remap_pending = false, remap_failed = false;
};
struct GpuReading {
  std::string error;  // of the library as a whole; empty: none
  std::vector<GpuState> gpus;
};

// NVML in the library of that name. Shared with the thread of a call that may outlive the reader.
class Nvml;
absl::StatusOr<std::shared_ptr<Nvml>> LoadNvml(const std::string& name = "libnvidia-ml.so.1");
GpuReading ReadGpus(Nvml& nvml);

class GpuJudge {
 public:
  explicit GpuJudge(const Settings& settings) : settings_(settings) {}
  void Judge(const GpuReading& gpus, Nanos at, Reading& reading);
  void JudgeSilence(Seconds silent, Reading& reading) const;

 private:
  void JudgeOne(const std::string& name, const GpuState& gpu, Nanos at, Reading& reading);

  const Settings settings_;
  size_t most_ = 0;  // GPUs ever seen
  std::map<std::string, Lately> uncorrected_;
};

std::unique_ptr<Reader> GpuReader(const Settings& settings, const std::string& library = "libnvidia-ml.so.1");

}  // namespace lockstep::inspect
