// One rank's file as PyTorch's profiler would have written it: steps, kernels, their launches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/trace/text_writer.h"

namespace lockstep::synth {

// How time stamps are written, and what NCCL kernels tell.
enum class KinetoEra : uint8_t {
  kMicros,    // until 2024: integer microseconds since the epoch; nothing of process groups
  kDecimals,  // 2024: microseconds with decimals since the epoch; process groups
  kBase,      // from 2024 on: the same since baseTimeNanoseconds, which differs by rank; process groups and sequence
};

struct KinetoGroup {
  std::string name, description;
  std::vector<int> ranks;
};

// Times are microseconds of the true time, since the job began.
struct KinetoKernel {
  double begin_us, duration_us;
  double launch_us;
  int stream;
  std::string name;
  std::string told;  // what it tells of its communication: more of its "args", from the comma on
};

class KinetoFile {
 public:
  // clock_us: by so much this rank's clock is ahead.
  static absl::StatusOr<KinetoFile> Create(const std::string& directory, int rank, int world_size, KinetoEra era,
                                           double clock_us, const std::vector<KinetoGroup>& groups);

  void AddStep(size_t number, double begin_us, double end_us);
  void AddKernel(const KinetoKernel& kernel);
  absl::Status Finish();

 private:
  KinetoFile(int rank, KinetoEra era, double clock_us, trace::TextWriter text)
      : rank_(rank), era_(era), clock_us_(clock_us), text_(std::move(text)) {}
  void WriteHead(int world_size, const std::vector<KinetoGroup>& groups);
  int64_t Base() const;
  std::string Time(double us) const;
  std::string Duration(double us) const;
  void Event(const char* category, const std::string& name, int64_t process, int64_t thread, double begin_us,
             double duration_us, const std::string& args);

  int rank_;
  KinetoEra era_;
  double clock_us_;
  trace::TextWriter text_;
  bool first_ = true;
  int64_t correlation_ = 100;
};

// "[0, 1, 2]"
std::string ListText(const std::vector<int>& ranks);

}  // namespace lockstep::synth
