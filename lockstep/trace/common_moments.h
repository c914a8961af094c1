// Where a moment of one lane would be in another, by the nearest moment that both have.
//
//   CommonMoments common;
//   common.Add(1.0, 5.0);  // 1.0 there was 5.0 here
//   common.Sort();
//   common.Moved(1.2);     // 5.2
#pragma once

#include <utility>
#include <vector>

namespace lockstep::trace {

class CommonMoments {
 public:
  void Add(float there, float here) { moments_.emplace_back(there, here); }
  // Once all are added.
  void Sort();
  bool empty() const { return moments_.empty(); }

  // Of two that are as near the earlier; where there is none the moment stays.
  float Moved(float moment) const;

 private:
  std::vector<std::pair<float, float>> moments_;  // s: there, here
};

}  // namespace lockstep::trace
