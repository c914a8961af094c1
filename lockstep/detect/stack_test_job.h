// Stacks of simulated jobs, for tests and benches: places as Megatron's and torch's frames have them, with or without
// what differs between machines and runs.
#pragma once

#include <fmt/format.h>

#include <random>
#include <string>
#include <vector>

#include "lockstep/trace/process_stack.h"

namespace lockstep::detect {

enum class At { kLoadsData, kTensorParallel, kRecvForward, kRecvBackward, kIrecv, kIsend, kGradSync, kGatherSomewhere };

// Paths, lines, arguments and addresses differ from call to call; without a seed they don't.
class FrameWriter {
 public:
  FrameWriter() = default;
  explicit FrameWriter(uint64_t seed) : noisy_(true), random_(seed) {}

  std::string Python(const char* file, const char* function) {
    if (!noisy_) return fmt::format("/usr/lib/python3/dist-packages/{}:10 in {}", file, function);
    switch (random_() % 3) {
      case 0:
        return fmt::format("/mnt/{}/lib/python3.11/site-packages/{}:{} in {}", random_() % 9, file, Line(), function);
      case 1:
        return fmt::format("{}(self=<Module at {:#x}>, x={}) (/v{}/dist-packages/{}:{})", function, random_(), Line(),
                           random_() % 9, file, Line());
      default:
        return fmt::format("  File \"/usr/lib/python3/dist-packages/{}\", line {} in {}", file, Line(), function);
    }
  }
  std::string Own(const char* function) {
    return noisy_ ? fmt::format("/home/u{}/train.py:{} in {}", random_() % 9, Line(), function)
                  : fmt::format("/home/me/train.py:7 in {}", function);
  }
  std::string Native(const char* symbol, const char* module) {
    return noisy_ ? fmt::format("{}(long, {}) ({}+{:#x})", symbol, Line(), module, random_() % 4096)
                  : fmt::format("{} ({})", symbol, module);
  }

 private:
  uint64_t Line() { return 1 + random_() % 900; }

  bool noisy_ = false;
  std::mt19937_64 random_;
};

inline std::vector<std::string> FramesAt(At at, FrameWriter& write) {
  constexpr const char* kC10d = "torch/distributed/distributed_c10d.py";
  constexpr const char* kP2p = "megatron/core/pipeline_parallel/p2p_communication.py";
  std::vector<std::string> frames;
  switch (at) {
    case At::kLoadsData:
      frames = {write.Python("torch/utils/data/dataloader.py", "_try_get_data"), write.Own("next_batch")};
      break;
    case At::kTensorParallel:
      frames = {write.Python(kC10d, "all_gather_into_tensor"),
                write.Python("megatron/core/tensor_parallel/mappings.py", "_gather_along_first_dim")};
      break;
    case At::kRecvForward:
    case At::kRecvBackward:
      frames = {write.Python(kC10d, "batch_isend_irecv"), write.Python(kP2p, "_communicate"),
                write.Python(kP2p, at == At::kRecvForward ? "recv_forward" : "recv_backward")};
      break;
    case At::kIrecv:
    case At::kIsend:
      frames = {write.Python(kC10d, at == At::kIrecv ? "irecv" : "isend"), write.Own("exchange")};
      break;
    case At::kGradSync:
      frames = {write.Python(kC10d, "all_reduce"),
                write.Python("megatron/core/distributed/param_and_grad_buffer.py", "finish_grad_sync")};
      break;
    case At::kGatherSomewhere:
      frames = {write.Python(kC10d, "all_gather_into_tensor"), write.Own("gather")};
      break;
  }
  frames.push_back(write.Own("step"));
  frames.push_back(write.Own("main"));
  return frames;
}

inline trace::ProcessStack StackOf(int rank, At at, FrameWriter& write, const std::string& node = "") {
  trace::ProcessStack stack;
  stack.node = node;
  stack.rank = rank;
  stack.pid = 1000 + rank;
  stack.python = FramesAt(at, write);
  stack.native = {write.Native(at == At::kLoadsData ? "__poll" : "c10d::Work::wait", "libtorch_cpu.so"),
                  write.Native("_PyEval_EvalFrameDefault", "python3.11")};
  stack.others = {
      {write.Native("epoll_wait", "libc.so.6"), write.Native("gloo::transport::tcp::Loop::run", "libgloo.so.0")}};
  return stack;
}

}  // namespace lockstep::detect
