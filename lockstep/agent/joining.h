// Workers that join, through worker.sock in the run directory: each is answered with the descriptors of its
// board, ring and buffers (Buffers::Answer). The kernel says which process asks. Lives in the poller's thread.
//
//   Joining joining(poller, buffers, {.is_worker = ..., .answered = ..., .refused = ...});
//   LS_RETURN_IF_ERROR(joining.Listen(run_dir));
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>

#include "lockstep/agent/buffers.h"
#include "lockstep/base/doorway.h"
#include "lockstep/base/poller.h"
#include "lockstep/base/status.h"

namespace lockstep::agent {

class Joining {
 public:
  struct Listener {
    std::function<bool(pid_t pid, int rank)> is_worker;  // rank: of the job
    std::function<void(const ls_join_message& request)> answered;
    std::function<void(const ls_join_message& request, const std::string& why)> refused;
  };

  Joining(Poller& poller, Buffers& buffers, Listener listener)
      : poller_(poller), buffers_(buffers), listener_(std::move(listener)) {}
  absl::Status Listen(const std::string& run_dir);

 private:
  void Accept();
  void Hear(int fd);

  Poller& poller_;
  Buffers& buffers_;
  Listener listener_;
  Doorway doorway_;
  std::map<int, Fd> workers_;
};

}  // namespace lockstep::agent
