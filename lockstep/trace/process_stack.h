// Where one process of a job was, as whatever read it printed it. Plain data; made by stacks_text.h, asked by
// detect/stack_groups.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::trace {

enum class ProcessRole : uint8_t { kTrainer, kDataWorker, kCheckpointWriter, kOther };
inline constexpr ProcessRole kProcessRoles[] = {ProcessRole::kTrainer, ProcessRole::kDataWorker,
                                                ProcessRole::kCheckpointWriter, ProcessRole::kOther};
const char* RoleName(ProcessRole role);  // "data_worker"

struct ProcessStack {
  std::string node;  // empty: not told
  int rank = -1;     // of the job: its own, or that of the trainer below which it runs
  ProcessRole role = ProcessRole::kTrainer;
  int64_t pid = 0;
  std::vector<std::string> python;               // of the main thread, innermost first
  std::vector<std::string> native;               // likewise
  std::vector<std::vector<std::string>> others;  // native, of its other threads
  bool stopped = false;                          // by a signal: each of its threads (state T)
  std::string unreadable;                        // why frames are missing; empty: none are known to be
};

}  // namespace lockstep::trace
