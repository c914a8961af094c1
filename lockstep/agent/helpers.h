// The processes below a worker: its data workers, its checkpoint writers, and whatever else it has started.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/trace/process_stack.h"

namespace lockstep::agent {

struct Helper {
  pid_t pid = 0;
  size_t worker = 0;    // index of the one below which it runs
  std::string name;     // as the kernel has it: "pt_data_worker"
  std::string command;  // its command line, words apart by spaces
};

// Of each worker at most `most`, those that were started first; `beyond` counts the others. Cost: a look at all
// processes for each worker, 0.3 to 1 ms.
std::vector<Helper> FindHelpers(std::span<const pid_t> workers, size_t most, size_t& beyond);

// By its name, its command line, and what its own Python frames are of: those below the start of a multiprocessing
// child, for a forked one has its parent's frames, too.
trace::ProcessRole RoleOf(std::string_view name, std::string_view command, std::span<const std::string> python);

}  // namespace lockstep::agent
