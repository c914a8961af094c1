// For tests: small straggler traces as text.
#pragma once

#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "lockstep/base/test_folder.h"
#include "lockstep/trace/straggler_csv.h"
#include "lockstep/trace/straggler_job.h"

namespace lockstep::trace {

inline constexpr char kHeader[] = "dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,mb_id,gmc\n";

// A job of one stage and one microbatch per step, as rows: forward 1 s, backward 2 s (of data-parallel rank 1: 3 s),
// the gradients' reduction until 1 s behind the last backward, the optimizer 0.5 s.
inline std::string DataParallelRows(int dp, int steps) {
  std::string rows;
  const auto add = [&](int rank, int step, const char* type, double start, double duration, int microbatch,
                       int global) {
    rows += fmt::format("{0},0,{0},{1},{2},{3},{4},0,0,{5},{6}\n", rank, 10 * (step + 1), type, start, duration,
                        microbatch, global);
  };
  for (int step = 0; step < steps; ++step)
    for (int rank = 0; rank < dp; ++rank) {
      const double backward = rank == 1 ? 3 : 2, last = dp > 1 ? 4 : 3;
      add(rank, step, "forward-compute", 0, 1, 0, 0);
      add(rank, step, "backward-compute", 1, backward, 0, 0);
      add(rank, step, "grads-reduce-scatter", 1 + backward, last - backward, -1, -1);
      add(rank, step, "optimizer", last + 1, 0.5, -1, -1);
    }
  return rows;
}

inline StragglerMeta DataParallelMeta(int dp) {
  StragglerMeta meta;
  meta.trial_name = "T";
  meta.dp = dp;
  meta.world_size = dp;
  return meta;
}

// Of this test alone; gone when its process ends.
inline std::string TempPath(const std::string& name) {
  static const TestFolder kOfProcess;
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string folder = kOfProcess / std::to_string(test == nullptr ? 0 : test->line());
  std::filesystem::create_directories(folder);
  return folder + "/" + name;
}

inline std::string WriteTrace(const std::string& text) {
  const std::string path = TempPath("trace.csv");
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

}  // namespace lockstep::trace
