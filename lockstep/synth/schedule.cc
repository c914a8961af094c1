#include "lockstep/synth/schedule.h"

#include <algorithm>

namespace lockstep::synth {
namespace {

// The n-th compute of a direction: pp microbatches of the first chunk, then as many of the next, and so on.
Compute Nth(int n, bool forward, int pp, int vpp) {
  if (vpp == 1) return {forward, 0, n};
  const int block = pp * vpp, chunk = n % block / pp;
  return {forward, forward ? chunk : vpp - 1 - chunk, n / block * pp + n % pp};
}

}  // namespace

std::vector<Compute> Schedule(int stage, int pp, int vpp, int microbatches) {
  const int total = microbatches * vpp;
  const int behind = pp - stage - 1;
  const int warm_up = std::min(total, vpp == 1 ? behind : 2 * behind + (vpp - 1) * pp);
  std::vector<Compute> order;
  order.reserve(2 * static_cast<size_t>(total));
  for (int n = 0; n < warm_up; ++n) order.push_back(Nth(n, true, pp, vpp));
  for (int n = warm_up; n < total; ++n) {
    order.push_back(Nth(n, true, pp, vpp));
    order.push_back(Nth(n - warm_up, false, pp, vpp));
  }
  for (int n = total - warm_up; n < total; ++n) order.push_back(Nth(n, false, pp, vpp));
  return order;
}

}  // namespace lockstep::synth
