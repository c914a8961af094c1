// What a status of NCCL's RAS says of ranks of which it is not known which of the job they are, and how it names
// processes.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep::trace {

using RasProcess = std::tuple<std::string, int64_t, int64_t>;  // host, pid, device

inline std::string ProcessText(const RasProcess& process) {
  const auto& [host, pid, device] = process;
  return fmt::format("GPU {} of process {} on {}", device, pid, host);
}

class RasNotes {
 public:
  static constexpr size_t kMost = 8;  // in a sentence

  void Add(std::string text) {
    ++count_;
    if (some_.size() < kMost) some_.push_back(std::move(text));
  }

  // What ranks are numbers of, where they may not be the job's.
  void AddNumbering(std::string text) { numbering_ = std::move(text); }
  // Where no communicator has all processes of the job, those of `communicator`, the largest.
  void AddNumberingIn(std::string_view communicator, int64_t size, int64_t processes) {
    AddNumbering(fmt::format("no communicator has all {} processes: ranks are places in {}, which has {}", processes,
                             communicator, size));
  }

  // Of the log, with them.
  std::string BlindSpot() const {
    std::string text = "RAS counts launches alone: a hang in which all ranks have launched the same can't be seen";
    if (!some_.empty())
      text += fmt::format("; which ranks of the job these are is not told: {}", fmt::join(some_, "; "));
    if (count_ > some_.size()) text += fmt::format("; and {} more", count_ - some_.size());
    return numbering_.empty() ? text : fmt::format("{}; {}", text, numbering_);
  }

 private:
  std::string numbering_;
  std::vector<std::string> some_;
  uint64_t count_ = 0;
};

}  // namespace lockstep::trace
