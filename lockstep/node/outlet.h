// Writes to standard output and standard error in threads of their own: a stopped terminal, or a pipe that nobody
// reads, holds nobody up. What they have not taken yet is kept, up to kMostKept bytes; beyond that it is dropped, and
// how much is said in its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "lockstep/agent/wire.h"
#include "lockstep/base/units.h"

namespace lockstep::node {

class Outlet {
 public:
  static constexpr size_t kMostKept = agent::kMostOutputKept;

  // The descriptors must outlive the process. Where both are one file, what goes there stays in order.
  Outlet(int out, int err);
  // Waits until all is written, but no longer than `kPatience` while nothing is taken.
  ~Outlet();
  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;

  void Write(int fd, std::string_view text);  // one of the two
  bool is_one_file() const { return out_lane_ == err_lane_; }
  uint64_t dropped() const;     // bytes, of both
  bool IsBehind(int fd) const;  // more than a moment's output waits to be written there

 private:
  static constexpr Seconds kPatience{10};
  class Lane;
  const std::shared_ptr<Lane>& LaneOf(int fd) const { return fd == err_ ? err_lane_ : out_lane_; }

  const int err_;
  std::shared_ptr<Lane> out_lane_, err_lane_;  // shared with their threads, which may outlive us
};

}  // namespace lockstep::node
