// What a status of NCCL's RAS says of ranks of which it is not known which of the job they are.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::trace {

class RasNotes {
 public:
  static constexpr size_t kMost = 8;  // in a sentence

  void Add(std::string text) {
    ++count_;
    if (some_.size() < kMost) some_.push_back(std::move(text));
  }

  // Of the log, with them.
  std::string BlindSpot() const {
    std::string text = "RAS counts launches alone: a hang in which all ranks have launched the same can't be seen";
    if (some_.empty()) return text;
    text += fmt::format("; which ranks of the job these are is not told: {}", fmt::join(some_, "; "));
    return count_ > some_.size() ? fmt::format("{}; and {} more", text, count_ - some_.size()) : text;
  }

 private:
  std::vector<std::string> some_;
  uint64_t count_ = 0;
};

}  // namespace lockstep::trace
