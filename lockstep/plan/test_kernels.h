// Small profiler files for tests: kernels one after the other, step after step.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/synth/kineto_file.h"
#include "lockstep/trace/kineto.h"
#include "lockstep/trace/test_trace.h"

namespace lockstep::plan {

inline constexpr double kMicro = 1e6;  // per s

// A kernel, or if it has no name a time in which nothing runs.
struct TestKernel {
  std::string name;
  double seconds;
  std::string told = "";  // of a communication
  double beside = 0;      // begins so long before the one before it has ended
};

// What the kernel of a communication tells.
inline std::string Told(const std::string& collective, const std::string& group, const std::vector<int>& ranks,
                        const std::string& more = "") {
  return fmt::format(
      ", \"Collective name\": \"{}\", \"In msg nelems\": 4096, \"Out msg nelems\": 4096, \"Process Group Name\": "
      "\"{}\", \"Process Group Description\": \"{}\", \"Process Group Ranks\": \"{}\"{}",
      collective, group, group, synth::ListText(ranks), more);
}

// kernels: of a step, by rank; each rank writes `steps` alike. One rank of a job of `world`, where given.
inline absl::StatusOr<std::vector<trace::KinetoRank>> ReadTestRanks(const std::vector<std::vector<TestKernel>>& kernels,
                                                                    int world, int steps = 3) {
  const std::string folder = trace::TempPath("kernels");
  LS_RETURN_IF_ERROR(MakeDirectory(folder));
  std::vector<std::string> paths;
  for (int rank = 0; rank < std::ssize(kernels); ++rank) {
    LS_ASSIGN_OR_RETURN(synth::KinetoFile file,
                        synth::KinetoFile::Create(folder, rank, world, synth::KinetoEra::kBase, 0, {}));
    double at = 0;
    for (int step = 0; step < steps; ++step) {
      const double begin = at;
      for (const TestKernel& kernel : kernels[static_cast<size_t>(rank)]) {
        const double from = at - kMicro * kernel.beside, us = kMicro * kernel.seconds;
        if (!kernel.name.empty())
          file.AddKernel({from, us, from, kernel.told.empty() ? 7 : 20, kernel.name, kernel.told});
        at = std::max(at, from + us);
      }
      file.AddStep(static_cast<size_t>(step), begin, at);
    }
    LS_RETURN_IF_ERROR(file.Finish());
    paths.push_back(fmt::format("{}/rank-{}.json.gz", folder, rank));
  }
  return trace::ReadKinetoFiles(paths, std::nullopt);
}

}  // namespace lockstep::plan
