#include "lockstep/agent/collectors.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>

#include "lockstep/base/file.h"
#include "lockstep/detect/look_back.h"
#include "lockstep/trace/process_alone.h"

namespace lockstep::agent {

namespace {

// A collective is 128 bytes on its way to the coordinator, 192 with two ports, every five seconds: 5 kB/s of a rank.
constexpr int kMostOpsOfRank = 150, kLeastOps = 48, kMostOps = 1'000'000;

}  // namespace

bool CanPreload(const std::string& library, const std::string& python) {
  if (library.empty() || python.empty() || access(library.c_str(), R_OK) != 0) return false;
  absl::StatusOr<Pipe> output = MakePipe();
  if (!output.ok()) return false;
  const Environment environment = {{"LD_PRELOAD", library}};
  // torch's own wheels have gloo within libtorch_cpu.so, whose loading would take seconds.
  static constexpr char kLoad[] = "import ctypes\ntry: ctypes.CDLL('libgloo.so.0')\nexcept OSError: pass\n";
  const std::vector<std::string> command = {python, "-I", "-S", "-c", kLoad};
  const absl::StatusOr<pid_t> pid =
      StartProcess(command, environment, "/", output->write.get(), output->write.get(), -1);
  output->write.Close();
  if (!pid.ok()) return false;
  std::array<char, 256> words{};
  bool silent = true;
  for (ssize_t got = 0; (got = read(output->read.get(), words.data(), words.size())) != 0;) {
    if (got < 0 && errno != EINTR) break;
    silent = silent && got <= 0;
  }
  int status = 0;
  while (waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
  }
  return silent && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void AddCollectors(const RunSpec& spec, Environment& environment) {
  if (spec.gloo_lib.empty()) return;
  const std::string inherited = Lookup(environment, "LD_PRELOAD", "");
  environment["LD_PRELOAD"] = spec.gloo_lib + (inherited.empty() ? "" : ":" + inherited);
}

size_t OpsToTell(int world_size) {
  return static_cast<size_t>(std::clamp(kMostOps / std::max(world_size, 1), kLeastOps, kMostOpsOfRank));
}

std::vector<trace::TrailFile> AliveTrails(const RunSpec& spec) {
  std::vector<trace::TrailFile> trails;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(TrailsDir(spec), error)) {
    absl::StatusOr<trace::TrailFile> file = trace::TrailFile::Open(entry.path().string());
    if (file.ok() && file->IsAlive()) trails.push_back(*std::move(file));  // others may be in the making
  }
  return trails;
}

std::vector<trace::TrailSnapshot> TakeTrails(const RunSpec& spec) {
  std::vector<trace::TrailSnapshot> trails;
  for (const trace::TrailFile& file : AliveTrails(spec)) trails.push_back(trace::TakeSnapshot(file));
  trace::LimitAlone(trails);
  detect::ThinForALook(trails, OpsToTell(spec.place.world_size));
  return trails;
}

void RemoveTrails(const RunSpec& spec, uint64_t epoch) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(TrailsDir(spec), error)) {
    const absl::StatusOr<trace::TrailFile> trail = trace::TrailFile::Open(entry.path().string());
    if (trail.ok() && (*trail)->origin.epoch < epoch && !trail->IsAlive()) std::filesystem::remove(entry.path(), error);
  }
}

}  // namespace lockstep::agent
