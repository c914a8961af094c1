// The slowest of the nodes of a job, each of which says its progress over and over.
// Pure. Cost of a word: that of finding one's place among all.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "lockstep/control/events.h"

namespace lockstep::control {

class Slowest {
 public:
  explicit Slowest(size_t nodes) : nodes_(nodes) {}

  void Clear() {
    standing_.clear();
    nodes_.assign(nodes_.size(), std::nullopt);
  }
  // nullopt: it does not count.
  void Set(size_t node, const std::optional<Progress>& progress) {
    if (nodes_[node]) standing_.erase(At(node));
    nodes_[node] = progress;
    if (progress) standing_.insert(At(node));
  }
  // The least step, and when the last of those that stand there ended it; nobody counts: nullopt.
  std::optional<Progress> Get() const {
    if (standing_.empty()) return std::nullopt;
    return nodes_[std::get<2>(*standing_.begin())];
  }

 private:
  using Standing = std::tuple<int64_t, int64_t, size_t>;  // step, minus its end, node
  Standing At(size_t node) const { return {nodes_[node]->step, -nodes_[node]->step_end.value, node}; }

  std::vector<std::optional<Progress>> nodes_;
  std::set<Standing> standing_;
};

}  // namespace lockstep::control
